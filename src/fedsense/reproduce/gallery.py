"""A paper's page of what came out: its tables and figures as they were reproduced, and other experiments.

Nothing is run here. Numbers are those of the runs' folders, and each table says its command, commit, machine and time.
A page that is there already keeps what was written from runs that are elsewhere, so that it can grow over machines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsense.comparing import compare_results
from fedsense.engine.folder import RUN_FILE, read_json, write_atomically
from fedsense.engine.origin import duration, sessions
from fedsense.errors import UserError
from fedsense.experiment import FREE, find_experiments, planned
from fedsense.packing import opened
from fedsense.report.comparing import critical_difference
from fedsense.report.figures import curves, svg
from fedsense.report.tables import notes, tables
from fedsense.reproduce.cards import Card, Item, load_card, papers
from fedsense.reproduce.outcome import Line, Outcome, about_scale, kept, shown
from fedsense.reproduce.plan import Scale, Ways, how_to_get, make_plan
from fedsense.reproduce.standing import table
from fedsense.result import Grid, Result, tell_apart

FEW_METHODS = 6  # so many are compared each with each; of more, all with the paper's own, or with FedAvg
SHOWN = ("Scores", "Which is better?")  # of a comparison's tables
OVER_ALL = "## Over all of them"
MARK = "<!-- a page of `fedsense gallery`: it may write this file anew -->"
SEEDS = re.compile(r"'seeds=\[[\d, ]*\]'")
MANY_BYTES = 400_000  # a larger picture is left out


def write_gallery(
    card: Card | None, title: str, reproduced: Path, scale: Scale, experiments: Sequence[Path], file: Path
) -> str:
    """The page, and its pictures in a folder of its name; what is on it, in a few words."""
    _refuse_other(file)
    pictures, before = file.with_suffix(""), _sections(file)
    published = card.items if card else ()
    made = {
        item.id: "\n\n".join(_item(card, item, outcome, scale, reproduced, pictures))
        for item in published
        if card and (outcome := kept(item.id, reproduced)) and _any(outcome)
    }
    studies = _studies(experiments)
    if not made and not studies:
        raise UserError(f"nothing reproduced of {title} is there; run fedsense reproduce, or name runs to show")
    older = {item.id: text for item in published if item.id not in made and (text := before.get(f"## {item.id}"))}
    parts = [f"# {title}: published and ours" if card else f"# {title}"]
    if card:
        parts.append(f"{card.title}. Written by `fedsense gallery`; each table says where its numbers come from.")
        parts.append(about_scale(scale))
    parts += [text for item in published if (text := made.get(item.id) or older.get(item.id))]
    new = {f"### {name.partition(':')[0]}" for name, _ in studies}
    others = [text for heading, text in before.items() if heading.startswith("### ") and heading not in new]
    if card and (studies or others):
        parts.append("## Other experiments")
    for name, results in studies:
        parts += _study(name, results, card.paper.lower() if card else "", pictures)
    parts += others
    if not card and len(studies) > 1:
        parts += _over_all(studies, pictures)
    elif OVER_ALL in before:
        parts.append(before[OVER_ALL])
    missing = [
        f"- **{item.id}**, {item.title}: {_why_not(card, item)}"
        for item in published
        if card and item.id not in made and item.id not in older
    ]
    parts += ["## Not here", "\n".join(missing)] if missing else []
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, ("\n\n".join([MARK, *parts]) + "\n").encode())
    told = f"{len(made)} tables and figures, {len(studies)} other experiments"
    many = len(older) + len(others)
    return told + (f"; {many} that were on the page stay as they were" if many else "")


def from_records(docs: Path) -> None:
    """The papers' pages of these docs, from the packed runs beside them: PAPER-small.tar.xz is what was reproduced."""
    for paper in papers():
        every = sorted((docs / "results" / "records").glob(f"{paper}-*.tar.xz"))
        small = [file for file in every if file.name == f"{paper}-small.tar.xz"]
        reproduced = opened(small[0]) if small else docs / "nothing"
        others = [file for file in every if file not in small]
        if every:
            page = docs / "results" / "gallery" / f"{paper}.md"
            write_gallery(load_card(paper), load_card(paper).paper, reproduced, "small", others, page)


def _refuse_other(file: Path) -> None:
    """Somebody's own notes are not written over."""
    if file.is_file() and not file.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        raise UserError(f"{file} was not written by `fedsense gallery`; choose another --out, or move it away")


def _sections(file: Path) -> dict[str, str]:
    """What a page has of each table, figure or experiment: heading up to a colon → text, with the whole heading."""
    text = file.read_text() if file.is_file() else ""
    whole = (part.strip() for part in re.split(r"^(?=###? )", text, flags=re.MULTILINE)[1:])
    return {part.partition("\n")[0].partition(":")[0]: part for part in whole}


def origin(folders: Iterable[Path], command: str = "") -> str:
    """Command, commit, machine, time and day of runs, as far as they wrote it down."""
    every = [(folder, sessions(folder)) for folder in folders]
    if command and not every:
        return f"*`{command}`; from the data alone, nothing was run.*"
    found = [session for _, each in every for session in each]
    commands = [command] if command else _with_all_seeds(plain_command(s["command"]) for s in found)
    seconds = sum(s.get("seconds", 0.0) for s in found)
    parts = [
        "; ".join(f"`{text}`" for text in commands) or "command not written down",
        "commit " + (", ".join(_distinct(s["commit"] or "unknown" for s in found)) or "not written down"),
        " and ".join(_distinct(s["machine"] for s in found)) or "machine not written down",
        f"{len(every)} run{'s' * (len(every) != 1)} in {duration(seconds)}" if found else f"{len(every)} runs",
        ", ".join(_distinct(s["at"][:10] for s in found)),
    ]
    killed = sum("seconds" not in session for session in found)
    older = sum(not each for _, each in every)
    remarks = [f"{killed} sessions were killed, their time is not counted"] if killed else []
    remarks += [f"{older} runs are older than such notes"] if older and found else []
    return "*" + "; ".join(filter(None, [*parts, *remarks])) + ".*"


def _with_all_seeds(commands: Iterable[str]) -> list[str]:
    """Commands that differ only in their seeds are one, with all of them."""
    seeds: dict[str, set[int]] = {}
    for text in commands:
        said = SEEDS.search(text)
        numbers = map(int, re.findall(r"\d+", said.group())) if said else ()
        seeds.setdefault(SEEDS.sub("SEEDS", text), set()).update(numbers)
    return [text.replace("SEEDS", f"'seeds={sorted(numbers)}'") for text, numbers in seeds.items()]


def plain_command(text: str) -> str:
    """A command as anybody would type it: without where things are on one machine, and how many processes it had."""
    words, kept_words = iter(shlex.split(text)), list[str]()
    for word in words:
        name, equals, rest = word.partition("=")
        if name in ("--out", "--data"):
            if not equals:
                next(words, None)
        elif name == "--set":
            value = rest if equals else next(words, "")
            if value.partition("=")[0] not in ("workers", "device", "state_memory", "data.root"):
                kept_words += [name, value]
        elif word not in ("--resume", "--previous", "--json"):
            kept_words.append(Path(word).name if Path(word).is_absolute() else word)
    return shlex.join(kept_words)


def _any(outcome: Outcome) -> bool:
    return bool(outcome.pictures) or any(line.ours is not None for line in outcome.lines)


def _item(card: Card, item: Item, outcome: Outcome, scale: Scale, reproduced: Path, pictures: Path) -> Iterator[str]:
    yield f"## {item.id}: {item.title}"
    if outcome.shows:
        yield f"The paper's shows {outcome.shows}."
    for name in outcome.pictures:
        yield _picture(item.title, (reproduced / name).read_bytes(), pictures / name)
    if any(line.ours is not None for line in outcome.lines):
        yield side_by_side(outcome.lines, outcome.caption()).markdown()
    elif outcome.pictures and outcome.caption():
        yield outcome.caption()
    if outcome.standings:
        yield table(outcome.standings).markdown()
    if not outcome.has_numbers:
        yield from (f"On {ours}, as {theirs} is not there." for ours, theirs in outcome.instead)
    for lack in outcome.lacking:
        yield f"Without {lack['dataset']}, which is not there: {lack['how']}."
    seeds = max((line.run for line in outcome.lines), default=0)
    words = ["fedsense", "reproduce", card.paper.lower(), item.id, *(["--scale", scale] if scale != "paper" else [])]
    words += ["--nearest"] * bool(outcome.instead or any(line.published_on for line in outcome.lines))
    words += ["--seeds", str(seeds)] if seeds else []
    folders = list(dict.fromkeys(_found(reproduced, run["folder"]) for run in outcome.runs))
    yield origin(folders, shlex.join([*words, *_changes(folders)]))


def _changes(folders: Iterable[Path]) -> list[str]:
    """What runs were changed by with ``--set``, whichever table they were run for."""
    commands = [shlex.split(plain_command(s["command"])) for folder in folders for s in sessions(folder)]
    pairs = [pair for words in commands for pair in pairwise(words) if pair[0] == "--set"]
    return [word for pair in dict.fromkeys(pairs) for word in pair]


def _found(reproduced: Path, folder: str) -> Path:
    """A run's folder where it is now: EXPERIMENT/RUN, or a figure's own, below what was reproduced."""
    places = [reproduced.joinpath(*Path(folder).parts[-many:]) for many in (2, 1)]
    return next((place for place in places if place.is_dir()), Path(folder))


def side_by_side(lines: Sequence[Line], caption: str) -> Grid:
    """Rows by columns: ours, and in brackets what is published."""
    columns = list(dict.fromkeys(line.column for line in lines))
    published = [line for line in lines if line.published is not None]
    on = {c: {line.published_on for line in published if line.column == c} for c in columns}  # the paper's datasets
    cells: dict[str, dict[str, str]] = {}
    for line in lines:
        ours, theirs = line.our(), shown(line.published, line.published_std)
        theirs = theirs if len(on[line.column]) == 1 else line.said()
        cells.setdefault(line.row, {})[line.column] = ours if line.published is None else f"{ours} ({theirs})"
    rows = [[row, *(of.get(column, "") for column in columns)] for row, of in cells.items()]
    named = [f"{c} ({name})" if len(on[c]) == 1 and (name := next(iter(on[c]))) else c for c in columns]
    where = ", on the dataset in brackets" if named != columns else ""
    brackets = f"in brackets: as published{where}" if published else ""
    return Grid(["", *named], rows, "; ".join(filter(None, [brackets, caption])))


def _studies(experiments: Sequence[Path]) -> list[tuple[str, list[Result]]]:
    """Runs by what they were run on: all seeds and methods of one setting together, named by what sets it apart."""
    groups: dict[str, list[Result]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys(run.resolve() for path in experiments for run in find_experiments(path)):
        result = Result.read(folder)
        recipe = read_json(folder / RUN_FILE).get("recipe")
        if recipe is None:
            raise UserError(f"{folder} was not run from a recipe; a gallery shows experiments of `fedsense run`")
        fields = {key: value for key, value in recipe.items() if key not in (*FREE, "seeds", "method")}
        key = json.dumps([fields, recipe["rounds"]], sort_keys=True)
        settings[key] = {
            **dict(_flat(fields)),
            "rounds": recipe["rounds"],
            "name": recipe["name"],
            "what": recipe["description"],
        }
        groups.setdefault(key, []).append(result)
    return [(_name(settings[key], settings.values(), results), results) for key, results in groups.items()]


def _name(mine: Mapping[str, Any], every: Iterable[Mapping[str, Any]], results: Sequence[Result]) -> str:
    """The recipe's name, and the fields in which it differs from others of that name.

    Seeds are named unless they are the first so many: those before them may be on the page already.
    """
    others = [each for each in every if each["name"] == mine["name"]]
    differing = [key for key in mine if any(each.get(key) != mine[key] for each in others)]
    seeds = sorted({result.seed for result in results})
    later = [f"seeds {', '.join(map(str, seeds))}"] if seeds[-1] > len(seeds) else []  # from 0, or from 1
    apart = ", ".join([*(f"{key} = {mine[key]}" for key in differing), *later])
    return f"{mine['name']}{f' ({apart})' if apart else ''}" + (f": {mine['what']}" if mine["what"] else "")


def _study(name: str, results: Sequence[Result], paper: str, pictures: Path) -> Iterator[str]:
    yield f"### {name}"
    results = tell_apart(results)
    methods = {result.method: result.algorithm for result in results}
    own = [label for label, algorithm in methods.items() if algorithm == paper]
    against = paper if paper in methods and len(own) == len(methods) > 1 else None  # it, and it without a part
    if len(methods) > FEW_METHODS:
        against = own[0] if len(own) == 1 else next((m for m, name in methods.items() if name == "fedavg"), None)
    if not any(result.method == against and result.finished for result in results):
        against = None
    found = compare_results(results, against=against)
    for title, grid in tables(found):
        if title.startswith(SHOWN):
            yield f"**{title}**\n\n{grid.markdown()}"
    views = dict.fromkeys(row.view for result in results for row in result.rows())
    for view in views if len(methods) <= FEW_METHODS else ():
        others = tables(compare_results(results, against=against, view=view)) if view != found.view else []
        for title, grid in others:
            if title.startswith(SHOWN[1]):
                yield f"**{title}**\n\n{Grid(grid.header, grid.rows).markdown()}"
    yield from (f"Note: {note}." for note in notes(found) if note != f"no ranks: {found.ranks.why_not}")
    to_come = _to_come(results)
    unfinished = sum(not result.finished for result in results) + to_come
    if unfinished:
        yield f"{unfinished} of {len(results) + to_come} runs are unfinished."
    if any(len(result.history) > 1 for result in results):
        drawn = svg(curves(results), f"{name}: scores over rounds").encode()
        if len(drawn) < MANY_BYTES:
            yield _picture(name, drawn, pictures / f"{_slug(name)}.svg")
    yield origin([result.folder for result in results if result.folder])


def _to_come(results: Sequence[Result]) -> int:
    """Runs of these experiments' recipes that have not begun."""
    places = {result.folder.parent for result in results if result.folder}
    return sum(not (place / name / RUN_FILE).is_file() for place in places for name in planned(place))


def _over_all(studies: Sequence[tuple[str, list[Result]]], pictures: Path) -> Iterator[str]:
    """Average ranks over the settings, where methods are the same in all."""
    found = compare_results([result for _, results in studies for result in results])
    yield OVER_ALL
    yield f"Of {', '.join(name.partition(':')[0] for name, _ in studies)}."
    for title, grid in tables(found):
        if title == "Average ranks":
            yield f"**{title}**\n\n{grid.markdown()}"
    if found.ranks.ranks is None:
        yield f"No ranks: {found.ranks.why_not}."
    else:
        yield _picture(
            "Critical difference",
            svg(critical_difference(found.ranks), "Average ranks and their critical difference").encode(),
            pictures / "ranks.svg",
        )


def _why_not(card: Card, item: Item) -> str:
    if item.why:
        return f"{item.why}."
    plan = make_plan(card, item, Ways())
    if not plan.lacking:
        return "not run."
    lacks = "; ".join(f"{name} is not there: {how_to_get(name)}" for name in plan.lacking)
    near = _distinct(each.nearest for each in plan.experiments.values() if each.nearest)
    told = f"not run; a part cannot be, as {lacks}" if plan.ready else lacks
    return told + (f"; `--nearest` would take {', '.join(near)} instead." if near else ".")


def _picture(title: str, data: bytes, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return f"![{title}]({quote(path.parent.name)}/{quote(path.name)})"


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.partition(":")[0]).split())


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
