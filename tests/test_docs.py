"""Every command and snippet of the README and the docs is run."""

import re
import runpy
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

from conftest import real
from fedsense.cli import _run as cli
from fedsense.cli.reference import pages, recorded_costs
from fedsense.methods import METHODS
from fedsense.recipe import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def snippets():
    for page in PAGES:
        for number, code in enumerate(blocks(page, "python")):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", list(snippets()))
def test_python_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snippet.py").write_text(code)
    runpy.run_path(str(tmp_path / "snippet.py"))


def recordings(folder):
    """A folder of the real recordings, each under its dataset's name."""
    folder.mkdir()
    for archive in real("hapt.tar.xz").parent.iterdir():
        (folder / archive.name.replace("wisdm2019-watch", "wisdm2019")).symlink_to(archive)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda page: page.name)
def test_commands_run_in_order(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    if "FEDSENSE_DATA" in page.read_text():
        monkeypatch.setenv("FEDSENSE_DATA", str(recordings(tmp_path / "recordings")))
    for recipe in blocks(page, "toml"):
        name = re.search(r'^name = "(\w+)"', recipe).group(1)
        (tmp_path / f"{name}.toml").write_text(recipe)
    for line in "".join(blocks(page, "console")).splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "fedsense", line
        assert cli(words[1:]) == 0, capfd.readouterr().err


def test_the_two_commands_are_in_the_makefile():
    goals = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M)
    assert goals == ["demo", "test"]
    for goal in [*goals, "setup", "experiments"]:
        assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(), re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_reference_is_as_the_program_writes_it():
    written = pages(ROOT / "docs")
    assert {path.name for path in written} == {"datasets.md", "methods.md"}
    for path, text in written.items():
        assert path.read_text() == text, "run make docs"


def test_the_page_of_methods_has_each_once_with_what_it_sends():
    text = (ROOT / "docs" / "explanation" / "methods.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n### ")[1:]}
    assert sections.keys() == METHODS.keys()
    for name, section in sections.items():
        box = re.search(r"```text\n(.*?)\n```", section, re.S).group(1)
        for word in ("server", "client", "down", "up"):
            assert word in box, name
        assert METHODS[name].equation in section


def test_costs_are_those_that_were_measured():
    costs = recorded_costs((ROOT / "docs" / "results" / "methods.md").read_text())
    assert (costs["protohar"].time, costs["protohar"].network) == ("0.84", "protohar-cnn")
    assert (costs["fedapa"].epochs, costs["fedapa"].up) == ("10", "0.012")  # the first of its rows
    assert costs.keys() < METHODS.keys()
    with pytest.raises(StopIteration):
        recorded_costs("| method | something else |")


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / unquote(target)).exists(), f"{page.name}: {target}"


def test_every_page_is_found_from_the_first():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / to).resolve() for to in re.findall(r"\]\(([^)#]+)\)", index.read_text())}
    linked |= {
        (page.parent / to).resolve() for page in [*linked] for to in re.findall(r"\]\(([^)#]+)\)", page.read_text())
    }
    assert [str(page) for page in PAGES if page.resolve() not in linked | {index.resolve()}] == []


def test_commands_for_the_papers_name_recipes_and_settings_that_exist():
    """They run too long to be run here; a name that is wrong is refused when the recipe is read."""
    commands = re.findall(r"`(fedsense run [^`]+)`", (ROOT / "docs" / "how-to" / "papers.md").read_text())
    assert len(commands) > 20
    for command in commands:
        words = shlex.split(command)
        load_recipe(words[2], [setting for setting, flag in zip(words[1:], words, strict=False) if flag == "--set"])
