"""`fedsense fleet` as one types it; real servers and nodes are in tests/flower."""

import json
import re
import shlex
import shutil
import socket
import stat
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedsense.cli.commands import app

ROOT = Path(__file__).parents[2]


def test_init_writes_keys_certificates_and_the_app(here, tmp_path):
    code, out, _ = here("fleet", "init", "--nodes", "2", "--host", "fleet.example.org")
    assert code == 0
    assert "fedsense fleet server RECIPE --fleet fleet --nodes 2" in out
    fleet = tmp_path / "fleet"
    for private in ("server/ca.key", "server/server.key", "nodes/node-1/node.key"):
        assert stat.S_IMODE((fleet / private).stat().st_mode) == 0o600
    files = [fleet / "server" / name for name in ("ca.crt", "server.crt")]
    authority, own = (x509.load_pem_x509_certificate(path.read_bytes()) for path in files)
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"fleet.example.org", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))
    for node in ("node-1", "node-2"):
        home = fleet / "nodes" / node
        assert sorted(path.name for path in home.iterdir()) == ["ca.crt", "node.key", "node.key.pub"]
        public = load_ssh_public_key((fleet / "server" / "nodes" / f"{node}.pub").read_bytes())
        assert load_ssh_private_key((home / "node.key").read_bytes(), None).public_key() == public
    described = tomllib.loads((fleet / "app" / "pyproject.toml").read_text())
    assert described["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedsense_fleet.server_app:app"


def test_a_fleet_is_made_once_and_nodes_are_added(here, tmp_path):
    assert here("fleet", "init", "--nodes", "1")[0] == 0
    before = (tmp_path / "fleet" / "server" / "ca.crt").read_bytes()
    code, _, err = here("fleet", "init", "--nodes", "1")
    assert code == 2
    assert "already holds a fleet" in err
    assert here("fleet", "init", "--add", "kitchen")[0] == 0
    assert (tmp_path / "fleet" / "nodes" / "kitchen" / "ca.crt").read_bytes() == before
    code, _, err = here("fleet", "init", "--add", "../outside")
    assert code == 2
    assert "is no name for a node" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("server", "demo", "--insecure", "--host", "0.0.0.0"), "--insecure is for trying on one machine"),
        (("node", "--server", "10.0.0.1:9092", "--insecure"), "--insecure is for trying on one machine"),
        (("server", "demo"), "holds no certificates; make them with `fedsense fleet init fleet`"),
        (("node", "--server", "localhost:9092"), "a node needs its keys"),
        (("node", "--server", "localhost", "--insecure"), "give host and port"),
        (("status",), "no server of fleet runs on this machine"),
        (("stop",), "no server of fleet runs on this machine"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(words, said, here):
    code, _, err = here("fleet", *words)
    assert code == 2
    assert said in err


def test_a_port_that_is_taken_is_said_before_anything_starts(here, tmp_path):
    here("fleet", "init", "--nodes", "1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = here("fleet", "server", "demo", "--out", "runs/x", "--host", "127.0.0.1", "--port", str(port))
    assert code == 1
    assert f"nothing can listen at 127.0.0.1:{port}" in err
    assert not (tmp_path / "runs" / "x").exists()


def _understood(words):
    """A command is taken apart, and not run."""
    command, context, given = typer.main.get_command(app), None, list(words)
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        name, command, given = command.resolve_command(context, given)
    command.make_context(name, list(given), parent=context)


def test_commands_of_the_guide_are_commands():
    """They run for as long as a fleet does: here it is seen that each is understood."""
    page = (ROOT / "docs" / "how-to" / "fleet.md").read_text()
    commands = re.findall(r"^fedsense ((?:fleet|export) .*)$|`fedsense (fleet \w+ [^`]*)`", page, re.M)
    assert len(commands) > 10
    for words in map("".join, commands):
        _understood(shlex.split(words, comments=True))


def test_commands_of_containers_and_units_are_commands():
    docker, compose = (ROOT / "deploy" / "Dockerfile").read_text(), (ROOT / "deploy" / "compose.yaml").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", docker, re.M).group(1))
    assert entry == ["fedsense", "fleet"]
    after = [shlex.split(words) for words in re.findall(r" fedsense ((?:server|node) .*)$", docker, re.M)]
    after += [json.loads(words) for words in re.findall(r"command: (\[.*\])$", compose, re.M)]
    commands = [["fleet", *words] for words in after]
    commands += [shlex.split(words) for words in re.findall(r"^#   fedsense (.*)$", compose, re.M)]
    for unit in (ROOT / "deploy").glob("*.service"):
        (words,) = re.findall(r"^ExecStart=/opt/fedsense/bin/fedsense (.*)$", unit.read_text(), re.M)
        commands.append(shlex.split(words.replace("${NODES}", "3")))
    assert len(commands) == 8
    for words in commands:
        _understood(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    for unit in (ROOT / "deploy").glob("*.service"):
        there = tmp_path / unit.name
        there.write_text(unit.read_text().replace("/opt/fedsense/bin/fedsense", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
