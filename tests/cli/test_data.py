"""`fedsense data`, as a user meets it."""

import http.server
import json
import threading
from dataclasses import replace

import pytest

from fedsense.cli import _run as cli
from fedsense.data import find_dataset
from fedsense.data.card import Download


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """Runs a command in a folder of its own: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        code = cli(list(arguments))
        said = capfd.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    return run


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
        (("data", "check", "hpat"), "there is no dataset 'hpat'; did you mean 'hapt'?"),
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


def test_check_of_a_generated_dataset_in_json(here):
    code, out, _ = here("data", "check", "synthetic-imu", "--set", "clients=2", "--json")
    assert code == 0
    assert json.loads(out)["clients"]
    code, out, _ = here("data", "check", "nothing", "--json")
    assert code == 2
    assert "there is no dataset" in json.loads(out)["error"]


def test_fetch(here, tmp_path, monkeypatch):
    """A file of a dataset comes from a server, is said to be there, and is not fetched twice."""
    served, asked = tmp_path / "served", []
    served.mkdir()
    (served / "a.zip").write_bytes(b"archive" * 1000)

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
        assert (tmp_path / "all" / "hapt" / "a.zip").read_bytes() == b"archive" * 1000
        assert "CC BY 4.0" in err
        before = len(asked)
        assert here("data", "fetch", "hapt")[0] == 0
        assert len(asked) == before
    finally:
        server.shutdown()
        server.server_close()
