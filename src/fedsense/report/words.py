"""A report's summary in words: what ran, on what, what came out, who lost by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsense.errors import UserError
from fedsense.evaluation.comparing import FEWEST_CLIENTS, Pair
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.summary import Row
from fedsense.result import Grid, Result

TITLES = {
    "personal": "Personal: own model, own test data",
    "generalisation": "Generalisation: own model, everyone's test data",
    "global": "Global: the server's model",
    "held-out": "Held out: the server's model, new people",
    "held-out-pooled": "Held out: the server's model, new people pooled",
    "new-client": "New client: joined after training, own test data",
}
BESIDE = 4  # methods the best is compared with in words
SHOWN = 6  # pairs of methods of which one is better beyond chance
NAMED = 3  # clients that lost most, by name; the others are counted
ALIKE = 1e-9  # scores that differ by no more are the same
Given = tuple[Result, Mapping[str, Any], Sequence[Row]]  # a run, its run.json, and its summary


@dataclass
class Words:
    """What there is to say."""

    facts: list[str] = field(default_factory=list)  # in a few words each
    paragraphs: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    grids: list[tuple[str, Grid]] = field(default_factory=list)  # with their titles
    best: str | None = None  # the method with the best mean of the first view and metric
    local: dict[str, str | None] = field(default_factory=dict)  # method → the Local run it is compared with


def summary(runs: Sequence[Given], selection: str | None = None) -> Words:
    """Of runs whose labels are told apart; who is ahead, of those that are finished."""
    said = Words(facts=_facts(runs))
    said.paragraphs.append(_what_ran(runs))
    done = [run for run in runs if run[2] and run[0].finished]  # others had fewer rounds: nothing is said of them
    said.local = _references(done)
    if not done:
        scored = any(rows for _, _, rows in runs)
        said.paragraphs.append(
            "No run is finished, so nothing is said of who is ahead." if scored else "Nothing has been evaluated yet."
        )
    said.verdict = verdict([result for result, _, _ in done], selection)
    if len(done) > len({result.method for result, _, _ in done}):
        said.grids.append(("Over seeds", _seeds(done)))
    data = _by_dataset(done)
    for name, same in data.items():  # scores on different data are not to be compared
        before = len(said.paragraphs)
        _speak(said, same, f"On {name}, " if len(data) > 1 else "")
        said.paragraphs[before:] = [text.replace(f" · {name}", "") for text in said.paragraphs[before:]]
    said.paragraphs += _reservations(runs) if any(rows for _, _, rows in runs) else []
    return said


def _speak(said: Words, runs: Sequence[Given], where: str) -> None:
    """What came out of finished runs on the same data, by the first view and metric."""
    view, metric = runs[0][2][0].view, runs[0][2][0].metric
    order = _ranked(runs, view, metric)
    said.best = said.best or (order[0] if order else None)
    said.paragraphs.append(where + _best(runs, order, view, metric))
    gains = {m: client_gains(runs, m, local, view, metric) for m, local in said.local.items() if local}
    gains = {method: gain for method, gain in gains.items() if gain}  # who shares no client with Local has none
    if gains:
        title = f"{where}against Local, client by client" if where else "Against Local, client by client"
        grid = _gains(gains, view, metric)
        rows = [[row[0].removesuffix(f" · {runs[0][0].dataset}"), *row[1:]] for row in grid.rows]
        said.grids.append((title, replace(grid, rows=rows)))
        best = next((method for method in order if method in gains), None)
        if best:
            said.paragraphs.append(_who_lost(gains[best], best, str(said.local[best]), view, metric))
        others = {method: gain for method, gain in gains.items() if method != best}
        if others:
            said.paragraphs.append(_also_lost(others, metric))


def verdict(results: Sequence[Result], selection: str | None = None) -> list[str]:
    """What ``fedsense compare`` has to say of the runs that are done, in sentences."""
    from fedsense.comparing import compare_results

    done = [result for result in results if result.finished]
    if len({result.method for result in done}) < 2:
        return []
    try:
        found = compare_results(done, selection)
    except UserError as error:
        return [f"Methods cannot be compared: {error}."]
    when = ", last round, as the recipe's is chosen on test data" if found.selection != selection else ""
    tested = [pair for pair in found.pairs if pair.verdict != "not comparable"]
    if not tested:
        return ["Methods cannot be compared: no two have a seed in common."]
    wins = [
        (pair.winner, pair.second if pair.winner == pair.first else pair.first, abs(pair.gain)) for pair in found.wins
    ]
    if not wins:
        return [f"No method is called better than another{when}: {_why_none(tested)}."]
    named = [f"{better} over {worse} ({_signed(gain, found.metric)})" for better, worse, gain in wins[:SHOWN]]
    rest = f", and {len(wins) - SHOWN} pairs more" if len(wins) > SHOWN else ""
    pairs = _count(len(tested), "pair")
    how = f"signed ranks over clients, and a test over seeds and clients at once; Holm's correction for {pairs}"
    return [f"Better beyond chance in {found.view} {found.metric}{when}: {'; '.join(named)}{rest} ({how})."]


def _why_none(tested: Sequence[Pair]) -> str:
    lacks = {pair.verdict for pair in tested}
    seeds, clients = max(pair.seeds for pair in tested), max(pair.clients for pair in tested)
    if lacks == {"too few seeds"}:
        return f"{_count(seeds, 'seed')} cannot show how much runs differ, five can"
    if lacks == {"too few clients"} and clients < FEWEST_CLIENTS:
        return f"{_count(clients, 'client')} cannot show how much people differ, {FEWEST_CLIENTS} are the fewest"
    if lacks == {"too few clients"}:
        return f"{clients} clients are too few for {_count(len(tested), 'pair')} at once"
    if lacks == {"too few seeds", "too few clients"}:
        return "there are too few seeds, or too few clients"
    return "no difference is beyond chance"


def _facts(runs: Sequence[Given]) -> list[str]:
    clients = {len(about.get("clients", {})) for _, about, _ in runs}
    found = [_count(len({result.own_name for result, _, _ in runs}), "method")] if runs else []
    found += [f"{_range(clients)} client{'s' * (clients != {1})}"] if clients else []
    found += [_rounds(runs)] if runs else []
    found += [_seeds_of(runs)] if runs else []
    found += _names(about.get("federation", "") for _, about, _ in runs)
    found += _names(name for _, about, _ in runs for name in about.get("model", {}).get("names", []))
    return found


def _what_ran(runs: Sequence[Given]) -> str:
    if not runs:
        return "No run has begun yet."
    methods = _names(result.own_name for result, _, _ in runs)
    models = _names(name for _, about, _ in runs for name in about.get("model", {}).get("names", []))
    data = _by_dataset(runs)
    several = len(data) > 1
    each = [f"on {name}: {_held(of)}" + (f", {_how_many_seeds(of)}" if several else "") for name, of in data.items()]
    more = [f"on {len(each) - 3} more"] if len(each) > 4 else []
    text = f"{_listed(methods, 8)} ran {'; '.join([*each[:3], *more] if more else each)}"
    text += f"; network {_listed(models, 4)}" if models else ""
    text += f"; {_rounds(runs)}"
    text += "." if several else f", {_how_many_seeds(runs)}."
    if any(result.synthetic for result, _, _ in runs):
        text += " The data are synthetic: they show how methods behave, not how well they do on people."
    if several:
        text += " Scores on different data are not to be compared."
    return text


def _held(runs: Sequence[Given]) -> str:
    """How many clients runs on the same data have, and how much these hold."""
    clients = {len(about.get("clients", {})) for _, about, _ in runs}
    everyone = {who for _, about, _ in runs for who in about.get("clients", {})}
    train = {sizes["train"] for _, about, _ in runs for sizes in about.get("clients", {}).values()}
    classes = {len(about.get("task", {}).get("classes", [])) for _, about, _ in runs}
    text = f"{_range(clients)} client{'s' * (clients != {1})}"
    text += f" at a time, {len(everyone)} in all," if len(everyone) > max(clients) else ""
    text += f" with {_range(train)} training samples each" if train else ""
    return text + (f", {_range(classes)} classes" if max(classes) > 1 else "")


def _rounds(runs: Sequence[Given]) -> str:
    rounds = {result.rounds for result, _, _ in runs}
    return f"{_range(rounds)} round{'s' * (rounds != {1})}"


def _how_many_seeds(runs: Sequence[Given]) -> str:
    many = len({result.seed for result, _, _ in runs})
    return f"{many} seeds" if many > 1 else "one seed"


def _seeds_of(runs: Sequence[Given]) -> str:
    """By number; where datasets have different ones, how many."""
    each = {tuple(sorted({result.seed for result, _, _ in of})) for of in _by_dataset(runs).values()}
    if len(each) > 1:
        many = {len(seeds) for seeds in each}
        return f"{_range(many)} seed{'s' * (many != {1})}"
    (seeds,) = each
    return f"seed{'s' * (len(seeds) > 1)} {_listed(map(str, seeds), 6)}"


def _by_dataset(runs: Sequence[Given]) -> dict[str, list[Given]]:
    found: dict[str, list[Given]] = {}
    for run in runs:
        found.setdefault(run[0].dataset, []).append(run)
    return found


def _best(runs: Sequence[Given], order: Sequence[str], view: str, metric: str) -> str:
    with_seeds = {m: {result.seed for result, _, _ in runs if result.method == m} for m in order}
    common = set.intersection(*with_seeds.values()) if order else set()
    if order and not common:
        return "Methods were run with different seeds, and so their means are not compared."
    which = ""
    if len(set(map(frozenset, with_seeds.values()))) > 1:  # those that all were run with
        which = f", seed{'s' * (len(common) > 1)} {_listed(map(str, sorted(common)), 6)}, which all were run with"
        runs = [run for run in runs if run[0].seed in common]
        order = _ranked(runs, view, metric)
    seeds = {method: _by_seed(runs, method, view, metric) for method in order}
    rows = [row for _, _, rows in runs for row in rows if (row.view, row.metric) == (view, metric)]
    when = _listed(sorted({f"round {row.round}" for row in rows}), 3) + which
    if not order:
        return f"No {view} {metric} is defined."
    first = order[0]
    score = f"{_value(float(np.mean(seeds[first])), metric)}{_over_seeds(seeds[first], metric)}"
    if len(order) == 1:
        return f"{first} has a mean {view} {metric} of {score} over clients ({when})."
    extreme = "lowest" if metric in LOWER_IS_BETTER else "highest"
    gap = {other: _gap(seeds[first], seeds[other], metric) for other in order}
    equal = [other for other in order if gap[other] == gap[first]]  # as far as it is told
    has, others = "has", order[len(equal) :]
    if len(equal) > 1:
        has, score = "have", _value(float(np.mean(seeds[first])), metric)
    who, where = _listed(equal, 1 + BESIDE), f"{score} over clients ({when})"
    if not others:
        return f"{who} {has} the same mean {view} {metric}, {where}."
    gaps = [f"{gap[other]} {_side(metric)} {other}" for other in others[:BESIDE]]
    text = f"{who} {has} the {extreme} mean {view} {metric}, {where}: {_joined(gaps)}."
    if len(others) > BESIDE:
        text += f" {_count(len(others) - BESIDE, 'more method')} in the table."
    return text


def _who_lost(gain: Mapping[str, float], method: str, local: str, view: str, metric: str) -> str:
    won, lost, same = _counted(gain)
    text = f"Beside {local}, {method} makes {_count(won, 'client')} better in {view} {metric} and {lost} worse"
    text += f"; {same} stay{'s' * (same == 1)} the same." if same else "."
    return text + (f" Harmed: {harmed}." if (harmed := _harmed(gain, metric)) else "")


def _also_lost(gains: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Who harms somebody most first, and then who harms nobody."""
    harming = sorted((min(gain.values()), method) for method, gain in gains.items() if _counted(gain)[1])
    told = [f"{method} harms {_harmed(gains[method], metric)}" for _, method in harming[:BESIDE]]
    if len(harming) > BESIDE:
        more = len(harming) - BESIDE
        told.append(f"{_count(more, 'more method')} harm{'s' * (more == 1)} somebody less, as the table has it")
    kind = [method for method, gain in gains.items() if not _counted(gain)[1]]
    return "; ".join([*told, *([f"{_listed(kind, 8)} harm{'s' * (len(kind) == 1)} nobody"] if kind else [])]) + "."


def _harmed(gain: Mapping[str, float], metric: str) -> str:
    """Clients that lost, who lost most first."""
    harmed = sorted((value, who) for who, value in gain.items() if value < -ALIKE)
    names = [f"{who} ({_lost(value, metric)})" for value, who in harmed[:NAMED]]
    rest = len(harmed) - NAMED
    return ", ".join(names) + (f" and {_count(rest, 'other')}" if rest > 0 else "")


def _lost(value: float, metric: str) -> str:
    told = _signed(value, metric)  # what would be told as 0.0 is a loss all the same
    return told if told.startswith("−") else f"by less than {told[:-1]}1"


def _reservations(runs: Sequence[Given]) -> list[str]:
    found = []
    data = _by_dataset(runs)
    single = [name for name, of in data.items() if len({result.seed for result, _, _ in of}) == 1]
    if single:
        where = f" on {_listed(single, 4)}" if len(single) < len(data) else ""
        found.append(f"One seed only{where}: small differences may be chance.")
    unfinished = [f"{r.method} seed {r.seed} ({r.done} of {r.rounds} rounds)" for r, _, _ in runs if not r.finished]
    if unfinished:
        found.append(f"Unfinished: {_listed(unfinished, 6)}.")
    failed = sum(len(line.get("failed", {})) for result, _, _ in runs for line in result.ledger)
    if failed:
        found.append(f"{_count(failed, 'answer')} of clients did not come or were refused.")
    return found


def _references(runs: Sequence[Given]) -> dict[str, str | None]:
    """Of each method the Local run on the same data beside it in its experiment; or, if there is only one, that.

    None where the two have no seed in common.
    """
    seeds: dict[str, set[int]] = {}
    for result, _, _ in runs:
        seeds.setdefault(result.method, set()).add(result.seed)
    alone = [result for result, about, _ in runs if about.get("method") == "local"]
    labels = {result.method for result in alone}
    found: dict[str, str | None] = {}
    for result, _, _ in runs:
        same = [one for one in alone if one.dataset == result.dataset]
        beside = [
            one.method for one in same if one.folder and result.folder and one.folder.parent == result.folder.parent
        ]
        choices = beside or list(dict.fromkeys(one.method for one in same))
        if result.method not in labels:
            choice = choices[0] if beside or len(choices) == 1 else None
            with_seed = choice if choice and seeds[choice] & seeds[result.method] else None
            found[result.method] = found.get(result.method) or with_seed
    return found


def client_gains(runs: Iterable[Given], method: str, local: str, view: str, metric: str) -> dict[str, float]:
    """How much better each client is with a method than alone: mean over the seeds both were run with."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    each: dict[str, dict[int, Mapping[str, float]]] = {method: {}, local: {}}
    for result, _, rows in runs:
        for row in rows:
            if result.method in each and (row.view, row.metric) == (view, metric):
                each[result.method][result.seed] = row.clients
    found: dict[str, list[float]] = {}
    for seed in each[method].keys() & each[local].keys():
        mine, alone = each[method][seed], each[local][seed]
        for who in mine.keys() & alone.keys():
            found.setdefault(who, []).append(sign * (mine[who] - alone[who]))
    return {who: float(np.mean(found[who])) for who in sorted(found)}


def _gains(gains: Mapping[str, Mapping[str, float]], view: str, metric: str) -> Grid:
    body = []
    for method, gain in gains.items():
        won, lost, same = _counted(gain)
        worst = min(gain, key=gain.__getitem__)
        mean = _signed(float(np.mean([*gain.values()])), metric)
        body.append([method, str(won), str(lost), str(same), mean, f"{_signed(gain[worst], metric)} ({worst})"])
    unit = "" if metric in LOWER_IS_BETTER else ", in points"
    return Grid(
        ["method", "gain", "lose", "same", "mean gain", "worst"],
        body,
        f"numbers of clients; {view} {metric}, a client's mean over seeds{unit}; above 0 is better than Local",
    )


def _seeds(runs: Sequence[Given]) -> Grid:
    columns = list(dict.fromkeys((row.view, row.metric) for _, _, rows in runs for row in rows))
    body = []
    for method in _names(result.method for result, _, _ in runs):
        each = [_by_seed(runs, method, view, metric) for view, metric in columns]
        cells = [_cell(of, metric) for of, (_, metric) in zip(each, columns, strict=True)]
        body.append([method, str(max(map(len, each))), *cells])
    header = ["method", "seeds", *(f"{view} {metric}" for view, metric in columns)]
    return Grid(header, body, "mean ± standard deviation over seeds of the mean over clients, in % but for errors")


def _cell(values: Sequence[float], metric: str) -> str:
    scale, digits = (1, 2) if metric in LOWER_IS_BETTER else (100, 1)
    if not values:
        return "–"
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    return f"{mean}±{scale * float(np.std(values, ddof=1)):.{digits}f}" if len(values) > 1 else mean


def _counted(gain: Mapping[str, float]) -> tuple[int, int, int]:
    won, lost = (sum(sign * value > ALIKE for value in gain.values()) for sign in (1, -1))
    return won, lost, len(gain) - won - lost


def _by_seed(runs: Iterable[Given], method: str, view: str, metric: str) -> list[float]:
    rows = [row for result, _, rows in runs if result.method == method for row in rows]
    return [r.mean for r in rows if (r.view, r.metric) == (view, metric) and math.isfinite(r.mean)]


def _ranked(runs: Sequence[Given], view: str, metric: str) -> list[str]:
    """Methods, the best mean first."""
    means = {m: _by_seed(runs, m, view, metric) for m in _names(result.method for result, _, _ in runs)}
    known = {method: float(np.mean(values)) for method, values in means.items() if values}
    return sorted(known, key=lambda method: known[method] * (1 if metric in LOWER_IS_BETTER else -1))


def _value(value: float, metric: str) -> str:
    return f"{value:.2f}" if metric in LOWER_IS_BETTER else f"{100 * value:.1f} %"


def _signed(value: float, metric: str) -> str:
    text = f"{value:+.2f}" if metric in LOWER_IS_BETTER else f"{100 * value:+.1f}"
    return text.replace("-", "−") if float(text) else text[1:]


def _gap(first: Sequence[float], other: Sequence[float], metric: str) -> str:
    gap = abs(float(np.mean(first) - np.mean(other)))
    return f"{gap:.2f}" if metric in LOWER_IS_BETTER else f"{100 * gap:.1f} points"


def _side(metric: str) -> str:
    return "below" if metric in LOWER_IS_BETTER else "above"


def _over_seeds(values: Sequence[float], metric: str) -> str:
    if len(values) < 2:
        return ""
    scale, digits = (1, 2) if metric in LOWER_IS_BETTER else (100, 1)
    return f" (± {scale * float(np.std(values, ddof=1)):.{digits}f} over {len(values)} seeds)"


def _names(words: Iterable[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word]


def _listed(words: Iterable[str], most: int) -> str:
    every = list(words)
    return _joined(every if len(every) <= most else [*every[: most - 1], f"{len(every) - most + 1} more"])


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
