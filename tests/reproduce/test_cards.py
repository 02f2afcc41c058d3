"""Every number of a card stands in the paper's text, in its row and order; and every recipe, method and view exists."""

import re

import pytest

from conftest import paper
from fedsense.reproduce.cards import NUMBER, Card, load_card, papers

# What became garbled when the papers' pages were turned into text.
GARBLED = {
    "$-87.73\\bar{2}$": "87.732",
    "<b>87.33</b> <del>6</del>": "87.336",
    "<b>87.33</b><del>6</del>": "87.336",
    "Data Rep.": "",  # FedAli's Table 3: a word before the number
    "3,710": "3710",
}
DIGITS = r"\d+(?:\.\d+)?"


def plain(text):
    """Without marks of emphasis and of formulas; ± between spaces."""
    for garbled, meant in GARBLED.items():
        text = text.replace(garbled, meant)
    text = re.sub(r"\\overline\{([^}]*?)\}", r"\1", text)
    text = re.sub(r"\\(pm|times|downarrow|uparrow)\b", lambda m: {"pm": "±"}.get(m[1], " "), text)
    return re.sub(r"[$×↑↓%+]|KB", " ", text)


def printed_row(text, name, start):
    """What follows the row's name: to the end of the line, or to the next word where the text has no lines."""
    lines = "\n" in text.strip()
    words = "\\s*".join(re.escape(word) for word in plain(name).split())
    pattern = rf"(?:^|\t)\s*{words}(?=\s)([^\n]*)" if lines else rf"(?<=\s){words}(?=\s)([\d.\s]*)"
    found = re.compile(pattern, re.M).search(text, start)
    assert found, f"row '{name}' is not there"
    return found[1], found.end()


def numbers(text):
    return [float(n) for n in re.findall(rf"(?<![\w.])-?{DIGITS}", text)]


def of_card(values):
    found = [NUMBER.fullmatch(word) for word in values]
    return [float(n) for number in found if number for n in number.groups() if n]


@pytest.mark.parametrize("name", papers())
def test_every_number_of_a_table_is_printed_in_its_row(name):
    text, card = plain(paper(name)), load_card(name)
    for table in card.table:
        place = text.index(plain(table.printed))
        rows = list(table.rows)
        if name == "fedali" and table.id == "T1":  # its text has the first two rows in one line, cell by cell
            first, second = rows.pop(0), rows.pop(0)
            both = [word for pair in zip(first.values.split(), second.values.split(), strict=True) for word in pair]
            line, place = printed_row(text, "Centralized Local", place)
            assert numbers(line) == of_card(both)
        for row in rows:
            line, place = printed_row(text, row.printed or row.name, place)
            assert numbers(line) == of_card(row.values.split()), f"{table.id}, {row.name}: {line!r}"


@pytest.mark.parametrize("name", papers())
def test_captions_and_numbers_of_figures_are_printed(name):
    text, card = paper(name), load_card(name)
    for item in card.items:
        assert item.printed in text, item.id
    for figure in card.figure:
        for entry in figure.entries():
            assert entry.value is None or f"{entry.value:g}" in text, figure.id


def test_a_wrong_number_would_be_found():
    text = plain("Table 1:\nA\t97.42 $\\pm$ 3.30\t$\\overline{60.26} \\pm 3.98$\t-1.5\nB (x=2)\t1.00 $\\times$\n")
    line, place = printed_row(text, "A", 0)
    assert numbers(line) == of_card(["97.42±3.30", "60.26±3.98", "-1.5"])
    assert numbers(line) != of_card(["97.42±3.30", "60.26±3.89", "-1.5"])
    assert numbers(printed_row(text, "B (x=2)", place)[0]) == [1.0]
    with pytest.raises(AssertionError, match="not there"):
        printed_row(text, "A", place)  # rows are looked for in order


def test_the_cards_have_what_the_papers_have():
    """Counted by hand in the papers: the rows and columns of every table, less the cells without a number."""
    counts = {name: {t.id: sum(e.value is not None for e in t.entries()) for t in load_card(name).table}
              for name in papers()}  # fmt: skip
    assert counts == {
        "fedali": {"T1": 63, "T2": 72, "T3": 18, "T4": 21, "T5": 15, "T6": 9},
        "fedapa": {"T3": 30, "T4": 18, "T5": 4},
        "fedcoad": {"T3": 66, "T4": 46, "T5": 36, "T6": 36, "T7": 36},
        "flic": {"T3": 50, "T4": 54, "TS2": 12},
        "protohar": {"T2": 120, "T3": 44, "T4": 20},
    }


def test_items_are_found_by_the_names_people_use():
    card = load_card("protohar")
    for name in ("T3", "t3", "III", "Table III", "TABLE. III:"):
        assert card.item(name).id == "T3"
    assert card.item("Fig. 10a").id == "F10a"
    assert load_card("flic").item("Figure S5").id == "FS5"
    with pytest.raises(ValueError, match="F10a or F10b"):
        card.item("F10")
    with pytest.raises(ValueError, match="no 'T9'"):
        card.item("T9")
    with pytest.raises(ValueError, match="did you mean 'protohar'"):
        load_card("protohr")


def test_what_later_parts_say_wins_and_settings_are_joined():
    card = Card.model_validate(
        {
            "paper": "P",
            "title": "t",
            "table": [
                {
                    "id": "T1",
                    "title": "t",
                    "printed": "Table 1",
                    "setting": "s",
                    "set": ["rounds=1"],
                    "across": [{"name": "G", "set": ["a=1"]}, {"name": "H"}],
                    "columns": [{"name": "A", "metric": "macro-f1"}, {"name": "B"}],
                    "rows": [
                        {"name": "r", "method": "fedavg", "set": ["b=2"], "values": "1.5±0.5 N/A -2 \\",
                         "at": {"H": {"view": "global"}}},
                    ],
                },
            ],
        }
    )  # fmt: skip
    entries = card.item("T1").entries()
    assert [(e.heading, e.value, e.std) for e in entries] == [
        ("G A", 1.5, 0.5), ("G B", None, None), ("H A", -2.0, None), ("H B", None, None)]  # fmt: skip
    assert entries[0].cell.set == ("rounds=1", "a=1", "b=2")
    assert [e.cell.view for e in entries] == ["personal", "personal", "global", "global"]
    assert [e.cell.metric for e in entries] == ["macro-f1", "accuracy"] * 2
