"""Recipes: every mistake is named, with its place and the nearest valid word."""

import pytest

from fedsense.errors import UserError
from fedsense.methods import FedAvg, FedProx
from fedsense.recipe import builtin_recipes, load_recipe, make_recipe

TEXT = """\
name = "mine"
rounds = 3
seeds = [0, 1]
participation = 0.5

[data]
name = "synthetic-imu"
clients = 4
classes-per-client = 5

[model]
name = "coad-cnn"

[training]
lr = 0.05
epochs = 2
weight-decay = 0.001

[[method]]
name = "fedavg"
lr = 0.2

[[method]]
name = "fedprox"
mu = 0.3
"""


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_training_is_for_all_and_a_methods_own_table_wins(tmp_path):
    methods = load_recipe(written(tmp_path, TEXT)).methods()
    assert methods == {
        "fedavg": FedAvg(lr=0.2, epochs=2, weight_decay=0.001),
        "fedprox": FedProx(lr=0.05, epochs=2, weight_decay=0.001, mu=0.3),
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 3", "ronds = 3", r"mine\.toml, line 2: unknown key 'ronds'; did you mean 'rounds'"),
        ("rounds = 3", 'rounds = "ten"', r"line 2: 'rounds' is 'ten'; expected a whole number"),
        ("rounds = 3", "rounds = 0", r"line 2: 'rounds' is 0; it must be at least 1"),
        ("lr = 0.05", "learning_rate = 0.05", r"unknown key 'training.learning_rate'"),
        ("lr = 0.05", "lrr = 0.05", r"line 15: unknown key 'training.lrr'; did you mean 'lr'"),
        (
            "clients = 4",
            "client = 4",
            r"line 8: dataset 'synthetic-imu' has no option 'client'; did you mean 'clients'",
        ),
        ("clients = 4", 'clients = "four"', r"line 8: .*'clients' is 'four'; expected a whole number"),
        (
            '"synthetic-imu"',
            '"synthetic-imus"',
            r"line 7: there is no dataset 'synthetic-imus'; did you mean 'synthetic-imu'",
        ),
        ('"coad-cnn"', '"cod-cnn"', r"line 12: there is no model 'cod-cnn'; did you mean 'coad-cnn'"),
        ('"fedprox"', '"fedproks"', r"line 24: there is no method 'fedproks'; did you mean 'fedprox'"),
        ("mu = 0.3", "muu = 0.3", r"line 25: method 'fedprox' has no option 'muu'; did you mean 'mu'"),
        ("mu = 0.3", "mu = true", r"line 25: .*'mu' must be a number, and is true"),
        ("mu = 0.3", "mu = -1.0", r"line 25: fedprox: mu is -1.0; it cannot be negative"),
        ('"coad-cnn"', '"coad-cnn"\nwidht = 3', r"line 13: coad-cnn has no option 'widht'; did you mean 'width'"),
        ("classes-per-client", "clases-per-client", r"line 9: .*did you mean 'classes-per-client'"),
        ("[model]", "[mdl]", r"line 11: unknown key 'mdl'; did you mean 'model'"),
        ("[model]", "[modle]", r"unknown key 'modle'; did you mean 'model'"),
        ('[model]\nname = "coad-cnn"\n', "", r"'model' is missing; say which network"),
        ("seeds = [0, 1]", "seeds = [0, 1", r"not valid TOML: .*line 4"),
        ('"fedprox"\nmu = 0.3', '"fedavg"', r"two methods are called 'fedavg'; give each a label"),
        (
            "rounds = 3",
            'evaluation = {metrics = ["acuracy"]}',
            r"there is no metric 'acuracy'; did you mean 'accuracy'",
        ),
        ("rounds = 3", 'evaluation = {views = ["persona"]}', r"there is no view 'persona'; did you mean 'personal'"),
        ("rounds = 3", 'evaluation = {summary = "best"}', r"there is no summary 'best'; .*best-on-test"),
        (
            "rounds = 3",
            'evaluation = {moment = "later"}',
            r"'evaluation.moment' is 'later'; expected 'trained' or 'received'",
        ),
    ],
)
def test_a_mistake_is_explained(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(UserError, match=message):
        load_recipe(written(tmp_path, TEXT.replace(old, new, 1)))


def test_every_mistake_at_once(tmp_path):
    with pytest.raises(UserError) as caught:
        load_recipe(written(tmp_path, TEXT.replace("rounds", "ronds").replace("lr = 0.05", "lrr = 1")))
    assert "ronds" in str(caught.value)
    assert "lrr" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "check"),
    [
        ("rounds=9", lambda r: r.rounds == 9),
        ("name=other", lambda r: r.name == "other"),
        ("seeds=[4]", lambda r: r.seeds == (4,)),
        ("training.lr=0.7", lambda r: r.methods()["fedprox"].lr == 0.7),
        ("training.weight-decay=0.5", lambda r: r.methods()["fedprox"].weight_decay == 0.5),
        ("method.fedprox.mu=0.9", lambda r: r.methods()["fedprox"].mu == 0.9),
        ("method.1.mu=0.9", lambda r: r.methods()["fedprox"].mu == 0.9),
        ('method=["local"]', lambda r: list(r.methods()) == ["local"]),
        ("method=local", lambda r: list(r.methods()) == ["local"]),
        ("data.clients=7", lambda r: r.data["clients"] == 7),
        ("evaluation.metrics=['auc']", lambda r: r.evaluation.metrics == ("auc",)),
        ("data.missing=drop", lambda r: r.data["missing"] == "drop"),
    ],
)
def test_any_field_can_be_overridden(tmp_path, override, check):
    assert check(load_recipe(written(tmp_path, TEXT), [override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds", "table.key=value"),
        ("=3", "table.key=value"),
        ("method.fedprx.mu=1", "no method 'fedprx'; did you mean 'fedprox'"),
        ("rounds.x=3", "'rounds' is a value, not a table"),
        ("training.lrr=3", "did you mean 'lr'"),
        ("rounds=-1", r"mine.toml with what --set changes: 'rounds' is -1; it must be at least 1"),
    ],
)
def test_wrong_overrides_are_explained(tmp_path, override, message):
    with pytest.raises(UserError, match=message):
        load_recipe(written(tmp_path, TEXT), [override])


def test_an_override_sets_a_number_only_once_in_the_recipe(tmp_path):
    recipe = load_recipe(written(tmp_path, TEXT), ["method.fedavg.lr=0.5"])
    assert recipe.methods()["fedavg"].lr == 0.5
    assert recipe.methods()["fedprox"].lr == 0.05


def test_recipes_that_come_with_fedsense_are_sound():
    for name in builtin_recipes():
        assert load_recipe(name).name == name.replace("/", "-"), "its run folder says which it is"
    with pytest.raises(UserError, match="did you mean 'demo'"):
        load_recipe("demoo")


def test_a_recipe_survives_being_written_down():
    recipe = load_recipe("demo")
    assert make_recipe(recipe.model_dump(mode="json")) == recipe


def test_labels_tell_apart(tmp_path):
    text = TEXT.replace('name = "fedavg"\nlr = 0.2', 'name = "fedprox"\nlabel = "strong"\nmu = 3')
    assert {label: m.mu for label, m in load_recipe(written(tmp_path, text)).methods().items()} == {
        "strong": 3,
        "fedprox": 0.3,
    }


SEVERAL = """\
name = "mixed"
rounds = 2
classes = "all"

[[data]]
name = "synthetic-imu"
label = "phones"
clients = 2
samples = 24

[[data]]
name = "synthetic-imu"
label = "watches"
clients = 3
samples = 24
window = 40
rate = 20.0
seed = 7
rename = { walking = "strolling" }

[model]
name = "sensor-cnn"

[[method]]
name = "local"
"""


def test_several_data_are_one_federation(tmp_path):
    recipe = load_recipe(written(tmp_path, SEVERAL))
    federation = recipe.federation(3)
    assert federation.name == "phones + watches"
    assert [client.input_shape for client in federation] == [(6, 128)] * 2 + [(6, 40)] * 3
    assert federation.task.classes[-1] == "strolling"
    phones, watches = recipe.data_options(3).values()
    assert (phones["seed"], watches["seed"]) == (3, 7), "the run's seed where a table has none"
    assert make_recipe(recipe.model_dump(mode="json")) == recipe
    default = load_recipe(written(tmp_path, SEVERAL.replace('classes = "all"\n', "")))
    assert default.model_dump(mode="json")["classes"] == "common"
    assert default.federation(0).task.classes == tuple(c for c in federation.task.classes[:-1] if c != "walking")


def test_one_data_says_nothing_of_classes(tmp_path):
    """So that experiments that began before there were several go on."""
    assert "classes" not in load_recipe(written(tmp_path, TEXT)).model_dump(mode="json")
    assert isinstance(load_recipe(written(tmp_path, TEXT)).model_dump(mode="json")["data"], dict)


@pytest.mark.parametrize(
    ("override", "check"),
    [
        ("data.0.clients=7", lambda r: r.data[0]["clients"] == 7 and r.data[1]["clients"] == 3),
        ("data.watches.clients=7", lambda r: r.data[1]["clients"] == 7),
        ("data.watches.rename.sitting=seated", lambda r: r.renamed["watches"]["sitting"] == "seated"),
        ("data.1=hapt", lambda r: r.data[1] == {"name": "hapt"}),
        ('data=["hapt", "wisdm2019"]', lambda r: list(r.several) == ["hapt", "wisdm2019"]),
        ("classes=['walking', 'sitting']", lambda r: r.classes == ("walking", "sitting")),
        ("classes=common", lambda r: r.classes == "common"),
        ("seeds=[5]", lambda r: r.seeds == (5,)),
    ],
)
def test_any_field_of_several_data_can_be_overridden(tmp_path, override, check):
    assert check(load_recipe(written(tmp_path, SEVERAL), [override]))


def test_several_data_can_be_overridden_by_one(tmp_path):
    text = SEVERAL.replace('classes = "all"\n', "")
    assert load_recipe(written(tmp_path, text), ["data=synthetic-imu"]).data == {"name": "synthetic-imu"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"watches"\nclients = 3', '"watches"\nclient = 3', r"mine.toml, line 14: .* no option 'client'; did you mean"),
        ("clients = 3", 'clients = "three"', r"line 14: .*'clients' is 'three'; expected a whole number"),
        ("clients = 2", 'clients = "two"', r"line 8: .*'clients' is 'two'; expected a whole number"),
        ("seed = 7", "missing = 'drp'", r"line 18: data: 'missing' is 'drp'; expected"),
        (
            'rename = { walking = "strolling" }',
            'rename = "strolling"',
            r"line 19: data: 'rename' is 'strolling'; expec",
        ),
        ('name = "synthetic-imu"\nlabel = "watches"', 'label = "watches"', r"mine.toml: \[data.1\] needs a name"),
        ('name = "synthetic-imu"\nlabel = "watches"', "name = 3", r"line 12: data.1.name is 3; it must be text"),
        ('name = "synthetic-imu"\nlabel = "w', 'name = "imu"\nlabel = "w', r"line 12: there is no dataset 'imu'; did"),
        ('label = "watches"', 'label = "phones"', r"line 13: two \[\[data\]\] tables are called 'phones'; give each a"),
        ('label = "watches"', 'label = "a/b"', r"line 13: label 'a/b': give a word without /"),
        ('"all"', '"most"', r"line 3: classes is 'most'; say \"common\""),
        ('"all"', "7", r"line 3: classes is 7; say"),
        ('"all"', '["walking"]', r"line 3: classes is \['walking'\]; name at least two"),
        ('classes = "all"', "clases = 'all'", r"line 3: unknown key 'clases'; did you mean 'classes'"),
    ],
)
def test_a_mistake_in_one_of_several_data_is_explained(tmp_path, old, new, message):
    assert old in SEVERAL
    with pytest.raises(UserError, match=message):
        load_recipe(written(tmp_path, SEVERAL.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.root=x", r"has 2 data tables, and none is 'root'; .* such as data.phones.root=….*phones, watches"),
        ("data.clients.x=3", "none is 'clients'"),
        ("data.synthetic-imu.clients=3", r"several data tables are 'synthetic-imu'; say which .*: data.0, data.1"),
        ("data=[]", "'data' is empty; name at least one"),
        ("data=[3]", "'data.0' is 3; expected a table"),
        ("data=3", "'data' is 3; expected a table"),
        ("data=synthetic-imu", r"classes chooses among those of several \[\[data\]\]"),
        ("method.0.0=3", "'epochs'|option '0'"),
    ],
)
def test_wrong_overrides_of_several_data_are_explained(tmp_path, override, message):
    with pytest.raises(UserError, match=message):
        load_recipe(written(tmp_path, SEVERAL), [override])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients = 4", 'label = "phones"', r"line 8: label is for several data tables; write each as \[\[data\]\]"),
        ("clients = 4", 'rename = { a = "b" }', r"line 8: rename is for several data tables"),
        ("rounds = 3", 'classes = "all"', r"line 2: classes chooses among those of several .*: classes = \[…\]"),
    ],
)
def test_what_is_for_several_data_is_refused_of_one(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        load_recipe(written(tmp_path, TEXT.replace(old, new, 1)))


def test_mistakes_seen_only_in_the_data_name_the_table(tmp_path):
    wrong = SEVERAL.replace("{ walking", "{ walkin")
    with pytest.raises(UserError, match=r"rename: 'watches' has no class 'walkin'; did you mean 'walking'"):
        load_recipe(written(tmp_path, wrong)).federation(0)
