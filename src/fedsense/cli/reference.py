"""Pages of the documentation that are written by the program, so that they cannot be out of date.

python -m fedsense.cli.reference docs
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEASURED = "| method | network | local epochs |"  # how the table of costs begins


@dataclass(frozen=True)
class Cost:
    """What a method costs a client beside FedAvg, as it was measured and written down."""

    network: str
    epochs: str
    time: str
    down: str
    up: str


def datasets_page() -> str:
    """All datasets, from their cards."""
    from fedsense.data import DATASETS, find_dataset

    lines = [
        "# Datasets",
        "",
        "Written by `make docs` from the datasets' cards; `fedsense data describe NAME` prints one of them whole.",
        "",
        "| name | what | a client is | sizes | licence | how to get it |",
        "|---|---|---|---|---|---|",
    ]
    for name in DATASETS:
        card = find_dataset(name).card
        how = (
            "comes with fedsense"
            if card.synthetic
            else f"`fedsense data fetch {name}`"
            if card.downloads
            else card.by_hand
        )
        source = f"[{name}]({card.address})" if card.address.startswith("http") and " " not in card.address else name
        cells = (source, card.what, card.client, card.sizes, card.licence, how)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def recorded_costs(results: str) -> dict[str, Cost]:
    """Method → cost, from the table of a page of results; where a method has several rows, the first."""
    lines = results.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(MEASURED))
    columns = _cells(lines[start])
    costs: dict[str, Cost] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        row = dict(zip(columns, _cells(line), strict=True))
        cost = Cost(row["network"], row["local epochs"], row["of FedAvg's time"], row["of its bytes down"], row["up"])
        costs.setdefault(row["method"], cost)
    return costs


def methods_page(costs: Mapping[str, Cost]) -> str:
    """All methods, by group, from what they say of themselves, and what they cost."""
    from fedsense.method import GROUPS
    from fedsense.methods import METHODS

    lines = [
        "# Methods",
        "",
        "Written by `make docs` from what the methods say of themselves; their files in `src/fedsense/methods/` say",
        "where papers are open and what was chosen. [Choosing a method](../how-to/choose-a-method.md) goes the other",
        "way, from what you have. What server and client hold, and what goes down and up in a round, is in a box: C",
        "classes, d features, n samples of a client.",
        "",
        "Costs are a client's in a round, of FedAvg's with the same network, data and local epochs;",
        "[how they were measured](../results/methods.md#what-they-cost). – is: not measured.",
        "",
        "| method | time | bytes down | bytes up | with |",
        "|---|---|---|---|---|",
    ]
    grouped = {group: [m for m in METHODS.values() if m.group == group] for group in GROUPS}
    for method in (m for members in grouped.values() for m in members):
        cost = costs.get(method.name)
        if method.name == "fedavg":
            cells = ["1", "1", "1", ""]
        elif cost is None:
            cells = ["–", "–", "–", ""]
        else:
            many = "1 local epoch" if cost.epochs == "1" else f"{cost.epochs} local epochs"
            cells = [cost.time, cost.down, cost.up, f"{cost.network}, {many}"]
        lines.append("| " + " | ".join([f"[{method.name}](#{method.name})", *cells]) + " |")
    for group, members in grouped.items():
        lines += ["", f"## {group[0].upper()}{group[1:]}"]
        for method in members:
            lines += [
                *("", f"### {method.name}", "", f"{(method.__doc__ or '').strip()} ({method.paper})", ""),
                *("```text", _table(method), "```", ""),
                *(f"`{method.equation}`", ""),
                *(f"It assumes {method.assumes}. Use it {method.use}.",),
            ]
    return "\n".join([*lines, ""])


def _table(method: type) -> str:
    """The second paragraph of a method's file: what is held and sent."""
    return (sys.modules[method.__module__].__doc__ or "").split("\n\n")[1].strip("\n")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def pages(docs: Path) -> dict[Path, str]:
    """File → what it shall hold."""
    costs = recorded_costs((docs / "results" / "methods.md").read_text(encoding="utf-8"))
    return {
        docs / "reference" / "datasets.md": datasets_page(),
        docs / "explanation" / "methods.md": methods_page(costs),
    }


if __name__ == "__main__":
    for path, text in pages(Path(sys.argv[1])).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    from fedsense.reproduce.gallery import from_records

    from_records(Path(sys.argv[1]))
