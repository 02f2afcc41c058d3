"""`fedsense data`, as a user meets it."""

import http.server
import json
import re
import shlex
import threading
import zipfile
from dataclasses import replace

import pytest

from fedsense.cli.data import _alike, _file_name
from fedsense.data import find_dataset
from fedsense.data.card import Download


def test_own_data_from_nothing_to_a_picture(here, tmp_path):
    code, out, _ = here("data", "new", "mine", "--example")
    assert code == 0
    assert "wrote mine/dataset.toml" in out
    code, out, _ = here("data", "check", "mine", "--plot")
    assert code == 0
    assert "anna-phone" in out
    assert "would be refused by" in out
    assert "fedavg" in out
    assert (tmp_path / "mine-clients.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = here("data", "check", "mine", "--json", "--set", "channels=['acc']", "--set", "split='random'")
    report = json.loads(out)
    assert code == 0
    assert report["dataset"] == "mine"
    assert set(report["clients"]) == {"anna-phone", "bert-watch", "cleo-watch"}
    assert report["refused_by"] == {}
    assert all(client["leakage"]["shared"] > 0 for client in report["clients"].values())
    assert any("leakage" in text for text in report["warnings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "describe", "hpat"), "there is no dataset 'hpat'; did you mean 'hapt'?"),
        (("data", "check", "hpat"), "there is neither a dataset nor a folder 'hpat'; did you mean 'hapt'?"),
        (("data", "check", "usc_hat"), "there is neither a dataset nor a folder 'usc_hat'; did you mean 'usc-had'?"),
        (("data", "check", "nosuchdir"), "nor a folder 'nosuchdir'; `fedsense list datasets` shows the datasets"),
        (("data", "check", "data/hapt"), "there is no folder data/hapt; name one that holds a dataset.toml"),
        (("data", "check", "./hapt"), "there is no folder ./hapt; name one that holds a dataset.toml"),
        (("data", "check", ".hapt"), "there is no folder .hapt; name one that holds a dataset.toml"),
        (("data", "check", "~nobody-here"), "there is no folder ~nobody-here; name one that holds a dataset.toml"),
        (("data", "check", "hapt", "--root", "nowhere"), "there is no folder or file nowhere"),
        (("data", "check", "synthetic-imu", "--set", "clintes=3"), "no option 'clintes'; did you mean 'clients'"),
        (("data", "check", "synthetic-imu", "--set", "clients=3", "--model", "coad"), "no model 'coad'"),
        (("data", "fetch", "mobiact"), "dataset 'mobiact' cannot be fetched: "),
        (("data", "fetch", "hapt"), "where to? say --to DIR, or set FEDSENSE_DATA"),
        (("data", "new", "nowhere"), "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line(here, arguments, message):
    code, _, err = here(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_without_description(here, tmp_path):
    (tmp_path / "some").mkdir()
    code, _, err = here("data", "check", "some")
    assert code == 2
    assert "some holds no dataset.toml; `fedsense data new some` writes one" in err


def test_suggested_commands_can_be_pasted(here, tmp_path):
    (tmp_path / "my data").mkdir()
    _, _, err = here("data", "check", "my data")
    assert shlex.split(re.search("`(.*)`", err)[1]) == ["fedsense", "data", "new", "my data"]
    _, out, _ = here("data", "new", "my data", "--example")
    assert shlex.split(out.rpartition("the result: ")[2]) == ["fedsense", "data", "check", "my data"]


def test_the_home_folder_has_its_short_name(here, tmp_path, monkeypatch):
    """A shell leaves a quoted ~ alone, and one in --out=~/x."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert here("data", "new", "~/mine", "--example")[0] == 0
    assert (tmp_path / "home/mine/dataset.toml").is_file()
    code, out, _ = here("data", "check", "~/mine", "--out=~/mine.png")
    assert code == 0
    assert "anna-phone" in out
    assert (tmp_path / "home/mine.png").is_file()


def test_a_picture_is_drawn_here_whatever_the_dataset_is_called(here, tmp_path):
    here("data", "new", "place/mine", "--example")
    description = tmp_path / "place/mine/dataset.toml"
    described = re.sub(r"(?m)^name = .*$", 'name = ".Küche $1: a"', description.read_text(), count=1)
    assert "Küche" in described
    description.write_text(described)
    code, out, _ = here("data", "check", "place/mine", "--plot")
    assert code == 0
    assert "picture: Küche-1-a-clients.png" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Küche-1-a-clients.png", "place"]


@pytest.mark.parametrize("name", ["", "..", "/", "-rf", ".hidden", "a/b", "a\\b", "a\0b\n", "ж" * 500, "--", "𐌰" * 500])
def test_a_part_of_a_file_name_is_always_safe(tmp_path, name):
    safe = _file_name(name)
    assert re.fullmatch(r"\w[\w.-]*", safe)
    (tmp_path / f"{safe}-clients.png").touch()


def test_check_of_a_generated_dataset_in_json(here):
    code, out, _ = here("data", "check", "synthetic-imu", "--set", "clients=2", "--json")
    assert code == 0
    assert json.loads(out)["clients"]


@pytest.mark.parametrize(
    "arguments", [("check", "nothing"), ("describe", "nothing"), ("check", "hapt", "--root", "nowhere")]
)
def test_an_error_in_json_is_the_error_and_nothing_of_a_run(here, arguments):
    code, out, err = here("data", *arguments, "--json")
    assert code == 2
    assert json.loads(out) == {"error": err.removeprefix("error: ").rstrip("\n")}


def test_fetch(here, tmp_path, monkeypatch):
    """A file of a dataset comes from a server, is said to be there, and is not fetched twice."""
    served, asked = tmp_path / "served", []
    served.mkdir()
    with zipfile.ZipFile(served / "a.zip", "w") as archive:
        archive.writestr("a.txt", "recordings" * 1000)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(served))

        def log_message(self, *arguments):
            asked.append(arguments)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hapt = find_dataset("hapt")
        download = Download(f"http://127.0.0.1:{server.server_port}/a.zip", "a.zip")
        changed = replace(hapt, card=replace(hapt.card, downloads=(download,)))
        monkeypatch.setattr("fedsense.data.hapt.DATASET", changed)
        monkeypatch.setenv("FEDSENSE_DATA", str(tmp_path / "all"))
        code, out, err = here("data", "fetch", "hapt")
        assert code == 0
        assert out.strip().endswith("all/hapt/a.zip")
        assert (tmp_path / "all" / "hapt" / "a.zip").read_bytes() == (served / "a.zip").read_bytes()
        assert "CC BY 4.0" in err
        before = len(asked)
        assert here("data", "fetch", "hapt")[0] == 0
        assert len(asked) == before
    finally:
        server.shutdown()
        server.server_close()


def test_methods_that_refuse_alike_are_one_line():
    why = "with m: {} shares 'w'; use hetfedrep, local"
    refusals = {name: why.format(name) for name in ("fedavg", "fedavgm", "fedrep")} | {"flic": "with m: no adapter"}
    assert _alike(refusals) == [
        "fedavg, fedavgm, fedrep, with m: fedavg shares 'w'; use hetfedrep, local",
        "flic, with m: no adapter",
    ]
