"""What runs measured, without models: packed, read where it lies, unpacked and gone on with."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from conftest import SMALL_RECIPE
from fedsense.cli import _run as cli
from fedsense.errors import UserError
from fedsense.experiment import _refuse_changes
from fedsense.packing import opened, pack

RECIPE = SMALL_RECIPE.replace("rounds = 4", "rounds = 2").replace("[0, 1]", "[0]").replace('"small"', '"packed"')


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    place = tmp_path_factory.mktemp("packed")
    (place / "packed.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert cli(["run", "packed.toml"]) == 0
    return place


@pytest.fixture
def place(experiment, tmp_path, monkeypatch, capfd):
    """Another machine: the packed file and the recipe, nothing else."""
    pack([experiment / "runs" / "packed"], tmp_path / "packed.tar.xz")
    (tmp_path / "packed.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(capfd, *words):
    capfd.readouterr()
    code = cli(list(words))
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def unpacked(place):
    with tarfile.open(place / "packed.tar.xz") as archive:
        archive.extractall(place / "runs", filter="data")
    return place / "runs" / "packed"


def test_a_packed_file_compares_as_its_folder(experiment, place, capfd):
    ways = ["--summary", "final", "--json"]
    whole = json.loads(say(capfd, "compare", str(experiment / "runs" / "packed"), *ways)[1])
    packed = json.loads(say(capfd, "compare", "packed.tar.xz", *ways)[1])
    assert whole["results"]
    assert {**packed, "folder": None} == {**whole, "folder": None}


def test_it_has_what_was_measured_and_no_models(experiment, place):
    with tarfile.open("packed.tar.xz") as archive:
        names = {Path(name) for name in archive.getnames()}
        assert {entry.mtime for entry in archive} == {0}
    kept = {"run.json", "scores.jsonl", "ledger.jsonl", "observations.jsonl", "sessions.jsonl", "packed.json"}
    assert {p.name for p in names if p.parent.name == "fedavg-seed0"} == kept
    assert not {p for p in names if "checkpoints" in p.parts or p.suffix == ".safetensors"}
    again = pack([experiment / "runs" / "packed"], place / "again.tar.xz")
    assert (place / "again.tar.xz").read_bytes() == (place / "packed.tar.xz").read_bytes()
    assert (again.runs, again.unfinished, again.bytes) == (2, [], (place / "again.tar.xz").stat().st_size)


def test_packed_once_more_it_is_the_same(place):
    folder = unpacked(place)
    pack([folder], place / "again.tar.xz")
    assert (place / "again.tar.xz").read_bytes() == (place / "packed.tar.xz").read_bytes()


def test_seeds_and_methods_are_added_and_what_is_there_is_not_run_again(experiment, place, capfd):
    folder = unpacked(place)
    before = {path: path.read_bytes() for path in folder.glob("*-seed0/*.jsonl")}
    assert len(before) == 8
    (place / "packed.toml").write_text(RECIPE + '\n[[method]]\nname = "fedprox"\n')
    code, _, errors = say(capfd, "run", "packed.toml", "--set", "seeds=[0, 1]", "--resume")
    assert (code, errors) == (0, "")
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in folder.glob("*-seed*")) == [
        f"{method}-seed{seed}" for method in ("fedavg", "fedprox", "local") for seed in (0, 1)
    ]
    assert not (folder / "fedavg-seed0" / "checkpoints").exists()
    assert (folder / "fedavg-seed1" / "checkpoints").exists()
    document = json.loads((folder / "summary.json").read_text())
    assert len({(row["method"], row["seed"]) for row in document["results"]}) == 6
    scores = json.loads((experiment / "runs" / "packed" / "summary.json").read_text())["results"]
    assert all(row in document["results"] for row in scores)


def test_an_experiment_does_not_lose_seeds_or_methods(place, capfd):
    unpacked(place)
    for change in ("seeds=[1]", 'method=["fedavg"]'):
        code, _, errors = say(capfd, "run", "packed.toml", "--set", change, "--resume")
        assert code == 2
        assert "differs from what" in errors


def test_what_needs_models_says_that_they_are_elsewhere(place, capfd):
    folder = unpacked(place)
    code, _, errors = say(capfd, "run", "packed.toml", "--set", "rounds=3", "--resume")
    assert code == 2
    assert "was packed without its models after round 2, and cannot go further; start anew" in errors
    assert say(capfd, "run", "packed.toml", "--resume")[0] == 0  # being refused changed nothing
    code, _, errors = say(capfd, "export", str(folder / "fedavg-seed0"), "--client", "person-0/phone")
    assert code == 2
    assert "was packed without its models; they are where it was run" in errors
    code, _, errors = say(capfd, "report", "packed.tar.xz")
    assert code == 0
    left = "Confusion matrices, class × client, embeddings: packed without models; they are where it was run"
    assert errors.count("packed without models") == 1
    assert left in errors
    assert "packed without models" in (place / "report.html").read_text()


def test_altered_measurements_are_refused(place, capfd):
    path = unpacked(place) / "fedavg-seed0" / "scores.jsonl"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    code, _, errors = say(capfd, "run", "packed.toml", "--resume")
    assert code != 0
    assert "scores.jsonl was altered" in errors


def test_where_files_lie_is_nobodys_business_and_no_change(place, capfd):
    """Recordings and beginnings are named by their file; from another folder the same experiment goes on."""
    folder = unpacked(place)
    for path in (folder / "recipe.json", folder / "fedavg-seed0" / "run.json"):
        about = json.loads(path.read_text())
        recipe = about.get("recipe", about)
        recipe["data"] |= {"root": "/home/anna/clinic/walks.zip"}
        recipe["model"] |= {"start": "/home/anna/clinic/begun.safetensors"}
        path.write_text(json.dumps(about, indent=1))
    pack([folder], place / "shared.tar.xz")
    with tarfile.open(place / "shared.tar.xz") as archive:
        texts = [archive.extractfile(entry).read().decode() for entry in archive]
    assert not [text for text in texts if "anna" in text]
    assert sum('"walks.zip"' in text and '"begun.safetensors"' in text for text in texts) == 2
    began = {"rounds": 2, "finish": False, "seeds": [0], "data": {"name": "folder", "root": "walks.zip"}}
    _refuse_changes(began, began | {"data": {"name": "folder", "root": "/mnt/walks.zip"}}, folder)
    with pytest.raises(UserError, match=r"'data\.root' differs"):
        _refuse_changes(began, began | {"data": {"name": "folder", "root": "/mnt/runs.zip"}}, folder)


def test_what_is_not_finished_is_left_out_and_named(experiment, place, capfd):
    folder = unpacked(place)
    about = folder / "local-seed0" / "run.json"
    about.write_text(about.read_text().replace('"rounds": 2', '"rounds": 5'))
    code, said, _ = say(capfd, "pack", "runs/packed", "--out", "some.tar.xz")
    assert code == 0
    assert "some.tar.xz: 1 run, " in said
    assert "left out, as not finished: runs/packed/local-seed0" in said
    with tarfile.open("some.tar.xz") as archive:
        assert not [name for name in archive.getnames() if "local-seed0" in name]


def test_mistakes_are_answered(experiment, place, capfd):
    (place / "empty").mkdir()
    (place / "letter.txt").write_text("dear all")
    (place / "other" / "packed").mkdir(parents=True)
    unpacked(place)
    assert "there is no finished run to pack in empty (none)" in say(capfd, "pack", "empty")[2]
    assert "nowhere is no folder" in say(capfd, "pack", "nowhere")[2]
    assert "two folders are called 'packed'" in say(capfd, "pack", "other/packed", "runs/packed")[2]
    code, _, errors = say(capfd, "compare", "letter.txt")
    assert code == 2
    assert "letter.txt is neither a folder of runs nor a file that `fedsense pack` wrote" in errors


def test_a_packed_file_writes_nowhere_else(tmp_path):
    with tarfile.open(tmp_path / "evil.tar.xz", "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(UserError, match=r"evil\.tar\.xz is neither"):
        opened(tmp_path / "evil.tar.xz")
    assert not (tmp_path.parent / "outside").exists()
