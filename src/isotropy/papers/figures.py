"""Figures of experiments, with the report's look. Only scatter traces: its plotly has no others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isotropy.report import charts

DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")


def lines(
    series: Mapping[str, tuple[Sequence[Any], Sequence[float]]],
    x: str,
    y: str,
    *,
    x_log: bool = False,
    y_log: bool = False,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    markers: bool = True,
) -> Any:
    """One line per series, {name: (xs, ys)}; bands are {name: (low, high)}."""
    figure = charts.blank(x, y, x_log, y_log)
    for i, axis, is_log in ((0, figure.layout.xaxis, x_log), (1, figure.layout.yaxis, y_log)):
        if is_log:
            log_ticks(axis, [value for line in series.values() for value in line[i]])
    styles = zip(itertools.cycle(charts.NAMED), itertools.cycle(SYMBOLS), itertools.cycle(DASHES))
    for (name, (xs, ys)), (color, symbol, dash) in zip(series.items(), styles, strict=False):
        error = None
        if bands and name in bands:
            low, high = (np.asarray(end, dtype=float) for end in bands[name])
            middle = np.asarray(ys, dtype=float)
            error = {"type": "data", "array": high - middle, "arrayminus": middle - low}
        figure.add_scatter(
            x=list(xs), y=list(ys), name=charts.plain(name), error_y=error,
            mode="lines+markers" if markers else "lines",
            line={"color": color, "dash": dash}, marker={"symbol": symbol, "size": 7},
        )  # fmt: skip
    return figure


def log_ticks(axis: Any, values: Sequence[float]) -> None:
    """Label 1, 2 and 5 of each power of ten on a logarithmic axis, or the powers if many."""
    ends = [value for value in values if value > 0]
    if not ends:
        return
    first, last = math.floor(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    steps = (1, 2, 5) if last - first <= 4 else (1,)
    ticks = [(step, power) for power in range(first, last + 1) for step in steps]
    short = first >= -3 and last < 6
    texts = [f"{step * 10**p:,g}" if short else f"{step}e{p}" for step, p in ticks]
    axis.update(tickvals=[step * 10.0**power for step, power in ticks], ticktext=texts)


def pair(figure: Any) -> None:
    """Draw each two lines of a figure in one colour, the second dashed."""
    for i, line in enumerate(figure.data):
        color, symbol = charts.NAMED[i // 2 % len(charts.NAMED)], SYMBOLS[i // 2 % len(SYMBOLS)]
        line.update(line={"color": color, "dash": DASHES[i % 2]}, marker={"symbol": symbol})


def points(
    groups: Mapping[str, Any], x: str = "first component", y: str = "second component",
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Any:  # fmt: skip
    """Two columns of rows as points, one colour and symbol per group, {name: (n, 2) array}."""
    figure = charts.blank(x, y)
    styles = zip(itertools.cycle(charts.NAMED), itertools.cycle(SYMBOLS))
    for (name, rows), (color, symbol) in zip(groups.items(), styles, strict=False):
        figure.add_scatter(
            x=rows[:, 0], y=rows[:, 1], name=charts.plain(name), mode="markers",
            marker={"color": color, "symbol": symbol, "size": 5, "opacity": 0.6},
            text=None if texts is None else [charts.plain(text) for text in texts[name]],
        )  # fmt: skip
    return figure


def opened(figure: Any) -> None:
    """Draw points as larger open symbols, so that several in one place all show."""
    for one in figure.data:
        one.marker.update(symbol=f"{one.marker.symbol}-open", size=10, opacity=1, line={"width": 2})


def shaded(rows: Any, values: Any, title: str, texts: Sequence[str] | None = None) -> Any:
    """Two columns of rows as points, coloured by a value of each, with a colour bar."""
    figure = charts.blank("first component", "second component")
    figure.add_scatter(
        x=rows[:, 0], y=rows[:, 1], mode="markers", showlegend=False,
        text=None if texts is None else [charts.plain(text) for text in texts],
        marker={
            "color": values, "colorscale": "Viridis", "size": 5, "opacity": 0.7,
            "colorbar": {"title": {"text": charts.plain(title).replace("\n", "<br>")}},
        },
    )  # fmt: skip
    return figure


def densities(groups: Mapping[str, Any], x: str, y: str = "share of rows", n_bins: int = 60) -> Any:
    """Histograms of values on one scale, {name: values}."""
    figure = charts.blank(x, y)
    figure.update_yaxes(tickformat=".0%")
    values = [np.asarray(group, dtype=float) for group in groups.values()]
    ends = (min(map(np.min, values)), max(map(np.max, values)))
    styles = zip(itertools.cycle(charts.NAMED), itertools.cycle(DASHES))
    for name, group, (color, dash) in zip(groups, values, styles, strict=False):
        heights, edges = np.histogram(group, bins=n_bins, range=ends)
        figure.add_scatter(
            x=(edges[1:] + edges[:-1]) / 2, y=heights / len(group), name=charts.plain(name),
            mode="lines", line={"color": color, "dash": dash, "shape": "hvh"},
        )  # fmt: skip
    return figure


def intervals(series: Mapping[str, Mapping[str, Mapping[str, Any]]], y: str) -> Any:
    """Values of groups with their intervals, side by side, {series: {group: record}}."""
    figure = charts.blank("", y)
    groups = list(dict.fromkeys(group for values in series.values() for group in values))
    styles = zip(itertools.cycle(charts.NAMED), itertools.cycle(SYMBOLS))
    for i, ((name, values), (color, symbol)) in enumerate(
        zip(series.items(), styles, strict=False)
    ):
        shift = 0.7 * ((i + 0.5) / len(series) - 0.5)
        ends = [
            (one["value"] if one.get(end) is None else one[end])
            for end in ("low", "high")
            for one in values.values()
        ]
        middle = np.array([one["value"] for one in values.values()], dtype=float)
        low, high = np.array(ends, dtype=float).reshape(2, -1)
        figure.add_scatter(
            x=[groups.index(group) + shift for group in values], y=middle, mode="markers",
            name=charts.plain(name), marker={"color": color, "symbol": symbol, "size": 8},
            error_y={"type": "data", "array": high - middle, "arrayminus": middle - low,
                     "thickness": 1, "width": 3},
        )  # fmt: skip
    names = [charts.plain(group) for group in groups]
    figure.update_xaxes(tickvals=list(range(len(groups))), ticktext=names, zeroline=False)
    return figure


def bars(values: Mapping[str, Mapping[str, float]], y: str) -> Any:
    """Values of groups as open symbols, so that equal ones both show, {series: {group: value}}."""
    figure = charts.blank("", y)
    figure.update_layout(height=440)  # the names of groups take room
    styles = zip(itertools.cycle(charts.NAMED), itertools.cycle(SYMBOLS))
    for (name, groups), (color, symbol) in zip(values.items(), styles, strict=False):
        figure.add_scatter(
            x=list(groups), y=list(groups.values()), name=charts.plain(name), mode="markers",
            marker={
                "color": color, "symbol": f"{symbol}-open", "size": 10,
                "line": {"width": 2, "color": color},
            },
        )  # fmt: skip
    return figure
