"""Figures of experiments: what their axes say."""

import numpy as np
import pytest

pytest.importorskip("plotly")

from isotropy.papers import figures


@pytest.mark.parametrize(
    ("values", "some"),
    [
        ((1, 768), {1: "1", 2: "2", 5: "5", 50: "50", 1000: "1,000"}),
        ((0.7, 16), {0.5: "0.5", 1: "1", 2: "2", 20: "20"}),
        ((2e-6, 0.04), {1e-6: "1e-6", 1e-3: "1e-3"}),
    ],
)
def test_logarithmic_axes_say_whole_numbers(values, some):
    axis = figures.lines({"a": (values, values)}, "x", "y", x_log=True).layout.xaxis
    found = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    for value, text in some.items():
        assert [t for at, t in found.items() if at == pytest.approx(value)] == [text]
    assert min(found) <= min(values)
    assert max(values) <= max(found)


def test_open_symbols_keep_their_shape():
    figure = figures.points({"a": np.zeros((1, 2)), "b": np.zeros((1, 2))})
    shapes = [one.marker.symbol for one in figure.data]
    figures.opened(figure)
    assert [one.marker.symbol for one in figure.data] == [f"{shape}-open" for shape in shapes]
