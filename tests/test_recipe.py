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
        ("rounds=-1", r"mine.toml: 'rounds' is -1; it must be at least 1"),
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
