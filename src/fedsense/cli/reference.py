"""Pages of the documentation that are written by the program, so that they cannot be out of date."""

from __future__ import annotations

import sys
from pathlib import Path


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


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(datasets_page(), encoding="utf-8")
