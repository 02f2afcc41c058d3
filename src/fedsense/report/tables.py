"""A comparison as tables: for a terminal, Markdown, LaTeX (booktabs), and as tidy CSV."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedsense.comparing import Comparison
from fedsense.evaluation.comparing import FEWEST_CLIENTS, Pair
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.statistics import ALPHA, ENOUGH_SEEDS
from fedsense.evaluation.worth import ClientGain
from fedsense.result import WORDS, Grid, comparison, costs

MANY_PAIRS = 30  # more are only told of if they are wins
NAMED = 4  # of the clients that are harmed
GREEK = {"α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "ε": r"\varepsilon", "λ": r"\lambda", "μ": r"\mu", "τ": r"\tau",
         "χ": r"\chi"}  # fmt: skip

Titled = tuple[str, Grid]


def tables(c: Comparison) -> list[Titled]:
    """All there is to show, each table with a title."""
    found = [("Scores", comparison(c.results, c.selection, c.weighted, c.spread)), ("Costs", costs(c.results))]
    made = (_pairs(c), _overall(c), _ranks(c), _reached(c), _frontier(c), _worth(c))
    return found + [table for table in made if table is not None and table[1].rows]


def plain(c: Comparison) -> str:
    texts = [f"{title}\n{grid}" for title, grid in tables(c)]
    return "\n\n".join([*texts, *([_notes(c)] if notes(c) else [])])


def markdown(c: Comparison) -> str:
    texts = [f"### {title}\n\n{grid.markdown()}" for title, grid in tables(c)]
    return "\n\n".join([*texts, *([_notes(c)] if notes(c) else [])]) + "\n"


def latex(c: Comparison) -> str:
    """Table environments for a document with ``\\usepackage{booktabs}``."""
    texts = []
    for title, grid in tables(c):
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in [grid.header, *grid.rows]]
        texts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\caption{{{_tex(title)}{'' if title.endswith('?') else '.'} {_tex(grid.caption)}.}}",
                    rf"\begin{{tabular}}{{{''.join(map(_column, grid.header))}}}",
                    r"\toprule",
                    lines[0],
                    r"\midrule",
                    *lines[1:],
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join([*texts, *(f"% {note}" for note in notes(c))]) + "\n"


def tidy(c: Comparison) -> str:
    """One line a number, unrounded; a column that does not concern it is empty."""
    text = io.StringIO()
    columns = ["table", "dataset", "method", "over", "client", "seed", "view", "metric", "round", "quantity", "value"]
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()

    def numbers(
        table: str, entry: dict[str, Any], method: str, over: str = "", client: str = "", view: str = c.view
    ) -> None:
        about = {"table": table, "dataset": entry.get("dataset", ""), "method": method, "over": over, "client": client}
        for name, value in entry.items():
            if name not in ("dataset", "method", "first", "second", "over", "client", "clients_named"):
                shown = "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
                writer.writerow({**about, "view": view, "metric": c.metric, "quantity": name, "value": shown})

    for result in c.results:
        for row in result.rows(c.selection):
            about = {"table": "runs", "dataset": result.dataset, "method": result.method, "seed": row.seed}
            about |= {"view": row.view, "metric": row.metric, "round": row.round, "quantity": row.selection}
            writer.writerows({**about, "client": client, "value": value} for client, value in row.clients.items())
    for score in c.scores:
        numbers("scores", asdict(score), score.method)
    for pair in c.pairs:
        numbers("pairs", asdict(pair), pair.first, pair.second)
    for both in c.overall:
        numbers("overall", asdict(both), both.first, both.second)
    for method, rank in (c.ranks.ranks or {}).items():
        numbers("ranks", {"average rank": rank}, method)
    for reached in c.reached:
        numbers("reached", asdict(reached), reached.method)
    for cost in c.costs:
        numbers("frontier", asdict(cost), cost.method)
    for one in c.worth:
        for each in one.clients:
            entry = {"dataset": one.dataset, "gain": each.gain, "p_holm": each.p_holm}
            numbers("worth", entry, one.method, one.over, each.client, "personal")
    return text.getvalue()


def notes(c: Comparison) -> list[str]:
    """What is to be said beside the tables."""
    none = [_only_wins(c)] if len(c.pairs) > MANY_PAIRS and c.against is None and not c.wins else []
    ranks = [f"no ranks: {c.ranks.why_not}"] if c.ranks.why_not and len(c.scores) > 1 else []
    return [*none, *ranks, *c.notes]


def _notes(c: Comparison) -> str:
    return "\n".join(f"Note: {note}." for note in notes(c))


def _tex(text: str) -> str:
    names = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--", "−": "$-$", "×": r"$\times$", "²": "$^2$", "<": "$<$"}
    names |= {letter: f"${name}$" for letter, name in GREEK.items()} | {"·": r"$\cdot$"}
    names |= {"≥": r"$\geq$", "≤": r"$\leq$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\ldots{}"}
    return "".join(names.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _column(heading: str) -> str:
    """How a column of LaTeX is set: words on the left, many of them in several lines, numbers on the right."""
    return r"p{5cm}" if heading == "harmed" else "l" if heading in WORDS else "r"


def _several(c: Comparison) -> bool:
    return len({result.dataset for result in c.results}) > 1


def _scale(c: Comparison) -> tuple[float, int]:
    return (1.0, 3) if c.metric in LOWER_IS_BETTER else (100.0, 1)


def signed(c: Comparison, value: float) -> str:
    """A gain, as people read it."""
    scale, digits = _scale(c)
    return "–" if math.isnan(value) else f"{scale * value:+.{digits}f}".replace("-", "−")


def _range(c: Comparison, low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"[{signed(c, low)}, {signed(c, high)}]"


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def _unit(c: Comparison) -> str:
    return "points of a hundred" if _scale(c)[0] == 100 else f"units of {c.metric}, above zero is better"


def _pairs(c: Comparison) -> Titled | None:
    if not c.pairs:
        return None
    shown, several = c.pairs, _several(c)
    hidden = ""
    if len(shown) > MANY_PAIRS and c.against is None:
        shown = c.wins
        hidden = f"; {_only_wins(c)}"
    body = [
        [
            *([pair.dataset] if several else []),
            pair.first,
            *([] if c.against else [pair.second]),  # the title says it
            f"{signed(c, pair.gain)} {_range(c, pair.low, pair.high)}".removesuffix(" –"),
            "–" if math.isnan(pair.effect) else f"{pair.effect:+.2f}".replace("-", "−"),
            f"{pair.gaining}/{pair.losing}",
            _p(pair.p_clients_holm),
            _p(pair.p_holm),
            _verdict(pair),
        ]
        for pair in shown
    ]
    compared = sum(pair.verdict != "not comparable" for pair in c.pairs)
    pairs = f"{compared} pair{'s' * (compared != 1)}"
    seeds = sorted({pair.seeds for pair in c.pairs})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    over = sorted({pair.interval_over for pair in c.pairs if pair.interval_over})
    caption = (
        f"gain in {_unit(c)}, with a 95 % bootstrap interval over {' or '.join(over) or 'nothing'}; effect: "
        "rank-biserial, 1 if all clients gain; +/−: clients that gain and lose; p clients: Wilcoxon's signed-rank "
        f"test, {_client_unit(c)}; p: this and a test over seeds and clients at once, with {ENOUGH_SEEDS} seeds or "
        f"more (here: {count}); all two-sided, "
        f"with Holm's correction for {pairs}. A win has p ≤ {ALPHA:g}. In brackets: with how many seeds a "
        "difference as large as it looks would be found four times in five (–: with no number of them, as clients "
        f"differ; clients: too few of these agree{_other_brackets(c)}){hidden}"
    )
    what = f"against {c.against}" if c.against else "all pairs"
    return f"Which is better? {c.view} {c.metric}, {what}", Grid(
        _pair_header(several, c.against is None), body, caption
    )


def _verdict(pair: Pair) -> str:
    """In a few words; ``pair.says`` is the sentence."""
    if pair.verdict == "win":
        return f"{pair.winner} is better"
    if pair.verdict == "too few clients" and pair.clients >= FEWEST_CLIENTS:
        return f"{pair.verdict} (pairs)"
    if pair.verdict in ("too few seeds", "not shown") and abs(pair.gain) > 1e-12:
        return f"{pair.verdict} ({_needed(pair)})"
    return pair.verdict


def _other_brackets(c: Comparison) -> str:
    """What else stands in brackets behind these verdicts."""
    one = any(pair.seeds == 1 for pair in c.pairs)
    many = any(pair.verdict == "too few clients" and pair.clients >= FEWEST_CLIENTS for pair in c.pairs)
    fewer = "" if c.against else ", try --against"
    told = f"; pairs: too many are compared at once for so few clients{fewer}" * many
    return f"; {ENOUGH_SEEDS}+: of one seed nobody knows" * one + told


def _needed(pair: Pair) -> str:
    if pair.seeds == 1:
        return f"{ENOUGH_SEEDS}+"
    if pair.verdict == "not shown" and pair.blocked_by_clients:
        return "clients"
    return str(max(pair.seeds_needed, pair.seeds + 1)) if pair.seeds_needed else "–"


def _only_wins(c: Comparison) -> str:
    counts = Counter(pair.verdict for pair in c.pairs)
    rest = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if verdict != "win")
    wins = f"only the {counts['win']} wins are shown" if c.wins else "none is a win"
    return f"of {len(c.pairs)} pairs {wins} ({rest}); name a reference (--against) to see fewer, --json has them all"


def _client_unit(c: Comparison) -> str:
    if all(c.same_clients.values()):
        return "a unit is a client, its mean over seeds"
    if not any(c.same_clients.values()):
        return "a unit is a client of a seed, as every seed has clients of its own"
    return "a unit is a client, its mean over seeds, or of a seed where seeds have clients of their own"


def _pair_header(several: bool, over: bool) -> list[str]:
    first = ["dataset"] if several else []
    return [*first, "method", *(["over"] if over else []), "gain", "effect", "+/−", "p clients", "p", "verdict"]


def _overall(c: Comparison) -> Titled | None:
    shown = c.overall if len(c.overall) <= MANY_PAIRS else []
    body = [[o.first, o.second, str(o.datasets), f"{signed(c, o.gain)} {_range(c, o.low, o.high)}"] for o in shown]
    caption = f"mean over datasets in {_unit(c)}, with a 95 % interval, resampled within each dataset"
    return "Over all datasets", Grid(["method", "over", "datasets", "gain"], body, caption)


def _ranks(c: Comparison) -> Titled | None:
    r = c.ranks
    if r.ranks is None:
        return None
    within = {m: [g for g in r.cliques if m in g] for m in r.ranks}
    best = next(iter(r.ranks))
    apart = (r.p if math.isnan(r.p_iman_davenport) else r.p_iman_davenport) <= ALPHA
    body = [
        [m, f"{rank:.2f}", "–" if m == best else "yes" if apart and not any(best in g for g in within[m]) else "no"]
        for m, rank in r.ranks.items()
    ]
    idle = "" if apart else ", which counts only where the test finds something"
    left = f"; not on all datasets: {', '.join(r.left_out)}" if r.left_out else ""
    finer = f"; Iman and Davenport's F = {r.iman_davenport:.2f}, p {_equals(r.p_iman_davenport)}"
    caption = (
        f"{len(r.datasets)} datasets; Friedman's χ² = {r.friedman:.2f}, p {_equals(r.p)}"
        f"{'' if math.isnan(r.iman_davenport) else finer}; Nemenyi's critical difference of two ranks "
        f"{r.critical_difference:.2f} at 5 %{idle}{left}"
    )
    return "Average ranks", Grid(["method", "average rank", f"worse than {best}"], body, caption)


def _equals(p: float) -> str:
    return _p(p) if p < 0.001 else f"= {_p(p)}"


def _reached(c: Comparison) -> Titled | None:
    scale, digits = _scale(c)
    speed = c.against is not None
    several = _several(c)
    body = [
        [
            *([one.dataset] if several else []),
            one.method,
            f"{scale * one.target:.{digits}f}",
            f"{one.reached}/{one.seeds}",
            *("–" if math.isnan(v) else f"{v:.1f}" for v in (one.rounds, one.megabytes, one.seconds)),
            *(["–" if math.isnan(one.speed_up) else f"{one.speed_up:.1f}×"] if speed else []),
        ]
        for one in c.reached
    ]
    header = [*(["dataset"] if several else []), "method", "target", "seeds there", "rounds", "MB", "training s"]
    caption = (
        "to the first evaluated round with the mean test score at the target (a measure of speed; who stops there has "
        "looked at test data); MB up and down, all clients; means over the seeds that get there"
    )
    title = f"Rounds and megabytes to reach a {c.view} {c.metric}"
    return title, Grid([*header, *([f"faster than {c.against}"] if speed else [])], body, caption)


def _frontier(c: Comparison) -> Titled | None:
    scale, digits = _scale(c)
    several = _several(c)
    body = [
        [
            *([one.dataset] if several else []),
            one.method,
            f"{scale * one.score:.{digits}f}",
            f"{one.megabytes:.2f}",
            f"{one.seconds:.1f}",
            "yes" if one.frontier_megabytes else "",
            "yes" if one.frontier_seconds else "",
        ]
        for one in sorted(c.costs, key=lambda one: (one.dataset, one.megabytes))
    ]
    header = [*(["dataset"] if several else []), "method", c.metric, "MB", "training s", "best for MB", "best for s"]
    caption = (
        "best for its cost: no other method has as good a mean for less, or a better one for as much; by means only; "
        "without centralized, whose recordings travel"
    )
    return "What a score costs", Grid(header, body, caption)


def _worth(c: Comparison) -> Titled | None:
    several = _several(c)
    body = [
        [
            *([one.dataset] if several else []),
            one.method,
            one.over,
            _harmed(c, one.harmed),
            str(len(one.harmed)),
            str(len(one.gained)),
            signed(c, one.mean),
        ]
        for one in c.worth
    ]
    header = [*(["dataset"] if several else []), "method", "over", "harmed", "lose", "gain", "mean gain"]
    few = any(math.isnan(each.p_holm) for one in c.worth for each in one.clients)
    unknown = f"; with fewer than {ENOUGH_SEEDS} seeds of the same clients nobody knows" if few else ""
    caption = (
        f"every client's own model, {c.metric} in {_unit(c)}, mean over seeds; the most harmed first; ! is beyond what "
        f"seeds do (t-test over a client's seeds, Holm's correction over clients){unknown}"
    )
    return "Is federation worth it?", Grid(header, body, caption)


def _harmed(c: Comparison, harmed: Sequence[ClientGain]) -> str:
    if not harmed:
        return "nobody"
    names = [f"{each.client} {signed(c, each.gain)}{'!' if each.beyond_noise else ''}" for each in harmed[:NAMED]]
    return ", ".join(names) + (f", {len(harmed) - NAMED} more" if len(harmed) > NAMED else "")
