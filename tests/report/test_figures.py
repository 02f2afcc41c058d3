"""The pictures of which client has how much of which class, and of samples in the plane."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedsense.federation import Federation
from fedsense.report.figures import BLUES, Moment, _Scale, class_counts, embeddings
from fedsense.work import stream


def federation(counts, ids="client-{}", classes="activity {}", name="made-up"):
    """Clients (rows of ``counts``) with so many samples of each class, in training and test together."""
    names = [classes.format(number) for number in range(len(counts[0]))]
    clients = {}
    for number, row in enumerate(counts):
        y = np.repeat(names, row)
        x = np.zeros((len(y), 1, 2), "float32")
        clients[ids.format(number)] = {"train": (x[::2], y[::2]), "test": (x[1::2], y[1::2])}
    return Federation.from_arrays(clients, classes=names, name=name)


def drawn(counts, **kwargs):
    figure = class_counts(federation(counts, **kwargs))
    FigureCanvasAgg(figure).draw()  # lays it out; a warning is an error
    return figure


def some(clients, classes, most=90):
    return stream("figures", clients, classes).integers(1, most, (clients, classes))


def numbers(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def scale(figure):
    """The numbers at the colour bar, from the lowest."""
    bar = figure.axes[1]
    ticks = sorted(zip(bar.get_yticks(), bar.get_yticklabels(), strict=True), key=lambda pair: pair[0])
    assert (ticks[0][0], ticks[-1][0]) == pytest.approx(bar.get_ylim())
    return [label.get_text() for _, label in ticks]


def test_all_splits_are_counted_and_none_is_no_number():
    figure = drawn([[3, 0], [0, 12], [40, 5]])
    assert numbers(figure) == ["3", "40", "12", "5"]
    image = figure.axes[0].images[0].get_array()
    assert image.filled(0).tolist() == [[3, 0, 40], [0, 12, 5]]
    assert image.mask.sum() == 2
    assert figure.get_suptitle() == "made-up: 3 clients, 60 samples"


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (1, 2), (3, 3), (30, 12), (100, 10), (400, 10), (20, 120)])
def test_it_is_a_page_across_and_names_have_room(clients, classes):
    figure = drawn(some(clients, classes), classes="a class with a long name, number {}")
    width, height = figure.get_size_inches()
    assert width <= 14
    assert 1.5 <= height <= 14
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    for labels, side in ((axes.get_xticklabels(), "x0"), (axes.get_yticklabels(), "y0")):
        boxes = sorted((label.get_window_extent(renderer) for label in labels), key=lambda box: getattr(box, side))
        assert boxes
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    outside = figure.get_tightbbox(renderer)
    assert outside.x0 >= 0
    assert outside.x1 <= width


def test_of_many_clients_some_are_named_and_it_says_so():
    axes = drawn(some(100, 10)).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["client-0", "client-5", "client-10"]
    assert axes.get_xlabel() == "client (one in 5 is named)"
    assert drawn(some(20, 3)).axes[0].get_xlabel() == ""


def test_numbers_are_in_cells_that_have_room_for_them():
    assert len(numbers(drawn(some(30, 12)))) == 360
    assert numbers(drawn(some(100, 10))) == []
    assert numbers(drawn(some(30, 2) + 10_000)) == []


def test_few_classes_have_tall_cells():
    few, many = (drawn(some(4, classes)) for classes in (2, 30))
    cells = [figure.axes[0].get_window_extent().height / classes for figure, classes in ((few, 2), (many, 30))]
    assert cells[0] > 1.5 * cells[1]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[1, 272]], ["1", "10", "100", "272"]),
        ([[36, 99]], ["24", "99"]),
        ([[7, 8]], ["2", "8"]),
        ([[10, 10]], ["2", "10"]),
        ([[1, 1]], ["1", "2"]),
        ([[0, 0], [1500, 90]], ["90", "1,500"]),
    ],
)
def test_both_ends_of_the_scale_have_a_number(counts, expected):
    shown = scale(drawn(counts))
    assert (shown[0], shown[-1]) == (expected[0], expected[-1])
    assert set(expected) <= set(shown)


def test_the_fewest_are_blue_and_only_none_is_white():
    figure = drawn([[1, 0], [1000, 3]])
    colours = figure.axes[0].images[0].to_rgba(figure.axes[0].images[0].get_array())
    assert colours[1, 0, 3] == 0, "none: the paper shows"
    red, _, blue = colours[0, 0, :3]
    assert colours[0, 0, 3] == 1
    assert red < 0.8
    assert blue > red + 0.1
    assert BLUES(1.0)[:3] == pytest.approx(tuple(colours[0, 1, :3]))


def test_nearly_equal_counts_look_nearly_equal():
    counted = _Scale.of(np.array([[7, 8]]))
    assert counted.place(8) - counted.place(7) < 0.2


def test_names_are_not_taken_for_formulas_and_long_ones_are_cut():
    figure = drawn(some(2, 2), ids="$\\wrong{{$ {}", classes="^_{} $x^$" + "long" * 20, name="a$b_{$" * 30)
    assert figure.get_suptitle().count("…") == 1
    assert figure.get_size_inches()[0] <= 14
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["$\\wrong{$ 0", "$\\wrong{$ 1"]


@pytest.mark.parametrize(("classes", "present"), [(12, 12), (12, 3), (5, 5), (25, 25)])
def test_the_classes_of_samples_are_named_inside_the_picture_and_told_apart(classes, present):
    names = [f"walking-down-stairs-{number}" for number in range(classes)]
    labels = np.repeat(np.arange(present), 2)
    points = stream(0).normal(size=(len(labels), 2))
    moment = Moment("one", points, labels, np.zeros(len(labels), int), np.zeros((0, 2)), ())
    figure = embeddings([moment, moment], names)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names[:present]  # only those that are to be seen
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0
    assert box.x1 <= page.x1
    colours = [tuple(handle.get_facecolor()[0]) for handle in legend.legend_handles]
    assert len(set(colours)) == min(present, 20)
