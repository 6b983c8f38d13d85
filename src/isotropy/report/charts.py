"""The figures of the report, each a function that returns a plotly figure.

A space is a view, a geometry, or anything that can be measured; `before` is drawn thin behind it.

    >>> import numpy as np
    >>> from isotropy.report import charts
    >>> X = np.random.default_rng(0).standard_normal((500, 8)) + 1
    >>> figure = charts.cosines(X)
    >>> figure.layout.xaxis.title.text
    'cosine of two random rows'
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isotropy import checks
from isotropy.errors import InputError, MissingExtraError, one_line, public
from isotropy.linalg import Floats
from isotropy.report import inputs
from isotropy.report.views import Colouring, View, as_view, colourings, hover, shortened

try:
    import plotly.graph_objects as go
except ImportError as error:
    raise MissingExtraError(
        'isotropy.report needs plotly, which is not installed. Run: pip install "isotropy[report]".'
    ) from error

INK, GREY, SECOND, CROSS = "#1d4ed8", "#6b7280", "#b45309", "#111827"
CHOSEN = "#facc15"
NAMED = ("#1d4ed8", "#b45309", "#047857", "#be185d", "#6d28d9", "#0e7490", "#a16207", "#374151",
         "#dc2626", "#65a30d")  # fmt: skip
LINES = ("#6b7280", "#0072b2", "#c2410c", "#111827", "#7e22ce", "#047857")  # told apart by all
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "cross", "x")
DASHES = ("dot", "dash", "dashdot", "solid")
BESIDE = 1.025  # times as far right as the points of the repair before
N_BINS = 60
ROUNDING = 1e-6  # relative error of a float32
LONGEST_NAME = 24  # beside a chart
NAMED_DIMENSIONS = 3
LEAST_COSINE = 0.05  # mean cosine for which dimensions are blamed
LOG10 = math.log(10)


@public
def spectrum(space: Any, before: Any = None) -> go.Figure:
    """Singular values in descending order, on logarithmic axes."""
    figure = blank("rank", "singular value", x_log=True, y_log=True)
    for view, line in _lines(space, before):
        values = np.asarray(_measured(view, "singular_values"), dtype=np.float64)
        _add_curve(figure, np.where(values > 0, values, np.nan), view.name, line)
    return figure


def deviations(spaces: Mapping[str, Floats]) -> go.Figure:
    """Standard deviations along the principal axes of spaces, the first drawn strong."""
    figure = blank("principal axis", "standard deviation", x_log=True, y_log=True)
    for i, (name, values) in enumerate(spaces.items()):
        line = {"color": GREY if i else INK, "width": 1.5 if i else 2.5}
        _add_curve(figure, np.where(values > 0, values, np.nan), name, line)
    return figure


@public
def explained_variance(space: Any, before: Any = None) -> go.Figure:
    """Share of the variance that the first components explain; even use is dotted."""
    figure = blank("principal components", "share of variance", x_log=True)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    for view, line in _lines(space, before):
        shares = view.geometry.drawn.explained
        if shares is None:
            raise not_measured("explained_variance")
        _add_curve(figure, shares, view.name, line)
    d = as_view(space).geometry.n_features
    dotted = {"color": GREY, "dash": "dot", "width": 1.5}
    _add_curve(figure, np.arange(1, d + 1) / d, "even use", dotted)
    return figure


def _add_curve(figure: go.Figure, values: Floats, name: str, line: dict[str, Any]) -> None:
    ranks = np.arange(1, len(values) + 1)
    figure.add_scatter(x=ranks, y=values, name=plain(name), mode="lines", line=line)


@public
def partition(space: Any, before: Any = None) -> go.Figure:
    """Partition function along both signs of every eigenvector of X'X; flat is isotropic."""
    figure = blank("eigenvector of X'X, largest first", "log10 of F(u) / n", x_log=True)
    for view, line in _lines(space, before):
        logs = view.geometry.drawn.log_partition
        if logs is None:
            raise not_measured("partition_isotropy")
        heights = logs / LOG10
        ranks = np.arange(1, logs.shape[1] + 1)
        for sign, values, symbol in (("+", heights[0], "circle"), ("−", heights[1], "x-thin-open")):  # noqa: RUF001
            marker = {"color": line["color"], "size": 5, "symbol": symbol}
            name = plain(f"{view.name}, {sign}u")
            figure.add_scatter(x=ranks, y=values, name=name, mode="markers", marker=marker)
    return figure


@public
def cosines(space: Any, before: Any = None) -> go.Figure:
    """Cosines of random pairs of rows, and the threshold that 1 % of them reach."""
    named = ("cosine of two random rows", "share of pairs")
    figure = _histograms(*named, [(v.cosines, v, line) for v, line in _lines(space, before)])
    threshold = as_view(space).threshold
    if math.isfinite(threshold):
        figure.add_vline(x=threshold, line={"color": SECOND, "dash": "dash"})
        figure.add_annotation(
            x=threshold, y=1, yref="paper", yanchor="top", xanchor="left", showarrow=False,
            text=f"1 % above {threshold:.2f}", font={"color": SECOND},
        )  # fmt: skip
    return figure


@public
def norms(space: Any, before: Any = None) -> go.Figure:
    """Norms of the rows."""
    drawn = [(view.norms, view, line) for view, line in _lines(space, before)]
    return _histograms("norm of a row", "share of rows", drawn)


@public
def dimensions(space: Any, before: Any = None) -> go.Figure:
    """What each dimension adds to the mean cosine; the largest are named with their share."""
    figure = blank("dimension", "part of the mean cosine")
    for view, line in _lines(space, before):
        parts = _contributions(view)
        figure.add_scatter(
            x=np.arange(len(parts)), y=parts, name=plain(view.name), mode="lines",
            line=line | {"width": 1.2, "shape": "hvh"},
        )  # fmt: skip
    for dimension, part, share in rogue(space):
        figure.add_annotation(
            x=dimension, y=part, text=f"{dimension}: {share:.0%}", arrowcolor=SECOND, arrowhead=0,
            ax=0, ay=-18, font={"color": SECOND},
        )  # fmt: skip
    return figure


def rogue(space: Any) -> list[tuple[int, float, float]]:
    """(dimension, part of the mean cosine, share of it) of the few largest."""
    view = as_view(space)
    parts = _contributions(view)
    shares = np.asarray(_measured(view, "rogue_dimensions"))
    if not np.isfinite(parts).all() or parts.sum() < LEAST_COSINE:
        return []
    largest = np.argsort(-parts, kind="stable")[:NAMED_DIMENSIONS]
    return [(int(i), float(parts[i]), float(shares[i])) for i in largest]


@public
def projection(
    space: Any, color: str = "cluster", n_dimensions: int = 2, centered: bool = True
) -> go.Figure:
    """Sampled rows along their first principal axes, coloured by cluster, norm or a column.

    With `centered=False` the axes are the singular vectors of the rows, without subtracting the
    mean; then a drift away from the origin shows.
    """
    view = as_view(space)
    if view.centered != checks.flag(centered, "centered"):
        view = View(view.geometry, view.name, view.columns, view.seed, centered)
    if n_dimensions not in (2, 3):
        raise InputError(f"n_dimensions must be 2 or 3, got {n_dimensions}.")
    known = colourings(view)
    if color not in known:
        raise InputError(f"color must be one of {', '.join(known)}, got {color!r}.")
    figure = points(view, n_dimensions)
    texts = hover(view.columns, len(view.rows))
    figure.data[0].text = [plain(text).replace("\n", "<br>") for text in texts]
    figure.data[0].marker.update(marked(known[color], color))
    return figure


def points(view: View, n_dimensions: int) -> go.Figure:
    """The projection without colours and texts."""
    what = "variance" if view.centered else "squared length"
    titles = [f"axis {i + 1}: {share:.1%} of {what}" for i, share in enumerate(view.axes[2])]
    figure = blank(titles[0], titles[1])
    rows = dict(zip("xyz", view.positions.astype(np.float32).T[:n_dimensions], strict=False))
    zero = dict(zip("xyz", view.origin[:n_dimensions, None], strict=False))
    named = {"name": "rows", "mode": "markers", "hoverinfo": "text"}
    cross = {"name": "origin", "mode": "markers", "hoverinfo": "name"}
    if n_dimensions == 2:
        figure.add_scatter(**rows, **named, marker={"size": 5, "opacity": 0.75})
        figure.add_scatter(**zero, **cross, marker={"symbol": "cross", "size": 12, "color": CROSS})
        figure.update_yaxes(scaleanchor="x")
        figure.update_layout(height=440)
    else:
        figure.add_scatter3d(**rows, **named, marker={"size": 2.5, "opacity": 0.8})
        figure.add_scatter3d(**zero, **cross, marker={"symbol": "cross", "size": 5, "color": CROSS})
        axes = {f"{axis}axis": {"title": {"text": f"axis {i + 1}"}} for i, axis in enumerate("xyz")}
        figure.update_layout(scene=axes | {"aspectmode": "data"}, height=520)
    figure.update_layout(showlegend=False, hovermode="closest")
    return figure


def marked(colouring: Colouring, title: str) -> dict[str, Any]:
    """The marker of points with this colouring, and its scale."""
    heading = plain(shortened(title, LONGEST_NAME))
    bar: dict[str, Any] = {"title": {"text": heading}, "thickness": 14}
    marker = {"color": colouring.values, "showscale": True, "colorbar": bar}
    if not colouring.names:
        return marker | {"colorscale": "Viridis"}
    n = len(colouring.names)
    steps = [(edge / n, NAMED[i % len(NAMED)]) for i in range(n) for edge in (i, i + 1)]
    names = [plain(shortened(name, LONGEST_NAME)) for name in colouring.names]
    bar |= {"tickvals": list(range(n)), "ticktext": names}
    return marker | {"colorscale": steps, "cmin": -0.5, "cmax": n - 0.5}


def coloured(colouring: Colouring, title: str) -> go.Figure:
    """A trace without points that holds the colours of some."""
    return go.Figure(go.Scatter(marker=marked(colouring, title)))


@public
def local(space: Any) -> go.Figure:
    """Isotropy of the sampled rows, and of the rows less the means of their clusters."""
    figure = blank("value", "")
    view = as_view(space)
    names = [name.replace("_", " ") for name in view.local]
    kinds = (("all rows", GREY, "circle"), ("within clusters", INK, "diamond"))
    drawn = zip(*view.local.values(), strict=True)
    for (title, color, symbol), values in zip(kinds, drawn, strict=True):
        marker = {"color": color, "size": 11, "symbol": symbol}
        figure.add_scatter(x=values, y=names, name=title, mode="markers", marker=marker)
    figure.update_yaxes(autorange="reversed")
    return figure


LAYER_METRICS = {  # title: the metric, and what it is divided by
    "-log10 I": ("log_partition_isotropy", -LOG10),
    "mean cosine": ("mean_cosine", 1),
    "IsoScore": ("isoscore", 1),
}


def height(geometry: Mapping[str, Any], title: str) -> float | None:
    """The metric of that title, None if it is undefined."""
    metric, divisor = LAYER_METRICS[title]
    value = geometry.get(metric)
    return None if value is None or not math.isfinite(value) else value / divisor


@public
def layers(found: Mapping[str, Any], metric: str = "-log10 I") -> go.Figure:
    """A metric layer by layer, from the output of `isotropy layers --json`."""
    if metric not in LAYER_METRICS:
        raise InputError(f"metric must be one of {', '.join(LAYER_METRICS)}, got {metric!r}.")
    figure = blank("layer", metric)
    figure.update_xaxes(dtick=1)
    for model, color in zip(found["models"], itertools.cycle(NAMED), strict=False):
        first = model["first_token"] or "first token"
        short = one_line(model["model"].rstrip("/").rsplit("/", 1)[-1], 100)
        for kind, title, dash in (("tokens", "all tokens", "solid"), ("cls", first, "dash")):
            figure.add_scatter(
                x=[layer["layer"] for layer in model["layers"]],
                y=[height(layer[kind], metric) for layer in model["layers"]],
                name=plain(f"{short}, {one_line(title, LONGEST_NAME)}"),
                mode="lines+markers", line={"color": color, "dash": dash},
            )  # fmt: skip
    return figure


@public
def evidence(gains: Sequence[Any]) -> go.Figure:
    """Gains over no repair with their 95 % intervals, in points; left of zero is a loss."""
    figure = blank("gain over none, points", "")
    tasks = dict.fromkeys(gain.task for gain in gains)
    for task, color in zip(tasks, itertools.cycle(NAMED), strict=False):
        rows = [gain for gain in gains if gain.task == task]
        middle = np.array([row.difference for row in rows])
        low, high = (np.array([row.interval[i] for row in rows]) for i in (0, 1))
        figure.add_scatter(
            x=middle, y=[_stacked(plain(row.repair)) for row in rows], name=plain(task),
            mode="markers", marker={"color": color, "size": 9},
            error_x={"type": "data", "array": high - middle, "arrayminus": middle - low},
        )  # fmt: skip
    figure.add_vline(x=0, line={"color": GREY, "dash": "dot"})
    figure.update_yaxes(autorange="reversed", tickfont={"size": 11})
    return figure


@public
def compression(found: Any) -> go.Figure:
    """Score against bytes per vector: a line for each repair, the frontier ringed, float32 dashed.

    A star marks the chosen code. A line joins the best code of each size. Codes with a second
    stage, which store more than they keep in memory, are hollow. The best of each kind have their
    95 % interval; the others are small. Found is what `compress` returns, or its --json output.
    """
    codes = inputs.opened_codes(found)
    figure = blank("bytes per vector in memory", f"{codes.metric}, points", x_log=True)
    repairs = list(dict.fromkeys(point.repair for point in codes.points))
    places: dict[inputs.Point, float] = {}
    for i, repair in enumerate(repairs):
        own = [p for p in codes.points if p.repair == repair and not math.isnan(p.score)]
        beside = BESIDE ** (i - (len(repairs) - 1) / 2)  # so that intervals don't cover each other
        places |= {point: point.n_bytes * beside for point in own}
        color, symbol = LINES[i % len(LINES)], SYMBOLS[i % len(SYMBOLS)]
        joined = _best([point for point in own if point.n_bytes == point.n_bytes_stored])
        hollow = _best([point for point in own if point.n_bytes != point.n_bytes_stored])
        small = [point for point in own if point not in (*joined, *hollow)]
        line = {"color": color, "dash": DASHES[i % len(DASHES)], "width": 2}
        for points, mode, marker in (
            (joined, "lines+markers", {"symbol": symbol, "size": 9}),
            (hollow, "markers", {"symbol": f"{symbol}-open", "size": 9, "line": {"width": 2}}),
            (small, "markers", {"symbol": symbol, "size": 5, "opacity": 0.5}),
        ):
            figure.add_scatter(
                x=[places[point] for point in points], y=[point.score for point in points],
                text=[_described(point) for point in points], hoverinfo="text", name=plain(repair),
                legendgroup=repair, showlegend=points is joined, mode=mode, line=line,
                marker=marker | {"color": color},
                error_y=None if points is small else _bars(points, codes.baseline),
            )  # fmt: skip
    ringed = sorted((p for p in places if p.on_frontier), key=lambda point: point.n_bytes)
    figure.add_scatter(
        x=[places[point] for point in ringed], y=[point.score for point in ringed],
        name="frontier", mode="markers", hoverinfo="skip",
        marker={"symbol": "circle-open", "size": 18, "line": {"width": 2}, "color": CROSS},
    )  # fmt: skip
    starred = [point for point in places if point.chosen]
    if starred:
        figure.add_scatter(
            x=[places[point] for point in starred], y=[point.score for point in starred],
            name="chosen", mode="markers", hoverinfo="skip",
            marker={"symbol": "star", "size": 17, "line": {"width": 1.5, "color": CROSS},
                    "color": CHOSEN},
        )  # fmt: skip
    ends = [codes.n_bytes * 1.2, min(places.values(), default=codes.n_bytes) / 1.2]
    figure.add_scatter(
        x=ends, y=[codes.baseline] * 2, mode="lines", hoverinfo="skip",
        name=f"float32, {codes.n_bytes:,} bytes", line={"color": CROSS, "dash": "dash", "width": 2},
    )  # fmt: skip
    for point in starred:
        figure.add_annotation(
            x=math.log10(places[point]), y=point.score, arrowhead=2, ay=150,
            ax=90 if places[point] ** 2 < ends[0] * ends[1] else -90,  # where there is room
            text=f"chosen<br><b>{_size(point, '<br>')}</b><br>{point.ratio:.0f} times smaller",
            bgcolor="rgba(255, 255, 255, 0.9)", bordercolor=GREY,
        )  # fmt: skip
    sizes = sorted({point.n_bytes for point in codes.points} | {codes.n_bytes})
    figure.update_xaxes(
        tickvals=sizes, ticktext=[f"{size:,}" for size in sizes],
        range=[math.log10(end) for end in reversed(ends)],
    )  # fmt: skip
    figure.update_layout(height=500, hovermode="closest")
    return figure


def _best(points: Sequence[inputs.Point]) -> list[inputs.Point]:
    """The best point of each size, the smallest first."""
    best = {point.n_bytes: point for point in sorted(points, key=lambda point: point.score)}
    return sorted(best.values(), key=lambda point: point.n_bytes)


def _bars(points: Sequence[inputs.Point], baseline: float) -> dict[str, Any]:
    """The intervals of the losses, about the scores."""
    up = [baseline - point.interval[0] - point.score for point in points]
    down = [point.score - baseline + point.interval[1] for point in points]
    return {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def _described(point: inputs.Point) -> str:
    low, high = point.interval
    return (
        f"{plain(point.name)}<br>{_size(point)}, {point.ratio:.0f} times smaller"
        f"<br>{point.score:.1f}: a loss of {point.loss:.1f} (95 % interval {low:.1f} to {high:.1f})"
    )


def _size(point: inputs.Point, between: str = ", ") -> str:
    if point.n_bytes_stored == point.n_bytes:
        return f"{point.n_bytes:,} bytes"
    return f"{point.n_bytes:,} bytes in memory{between}{point.n_bytes_stored:,} stored"


def plain(text: str) -> str:
    """The text for plotly, which reads tags but not `&quot;`."""
    return html.escape(str(text), quote=False)


def _stacked(repair: str) -> str:
    """A repair with one parameter per line, so that a phone has room for the chart beside it."""
    return repair.replace("(", "<br>(", 1).replace(", ", ",<br>")


def blank(x: str, y: str, x_log: bool = False, y_log: bool = False) -> go.Figure:
    """An empty figure with the report's look."""
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1f2937"},
        margin={"l": 12, "r": 12, "t": 24, "b": 12},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        height=340,
        showlegend=True,
    )
    kinds = ("log" if x_log else None, "log" if y_log else None)
    figure.update_xaxes(title={"text": x}, type=kinds[0], automargin=True)
    figure.update_yaxes(title={"text": y}, type=kinds[1], automargin=True)
    return figure


def _lines(space: Any, before: Any) -> list[tuple[View, dict[str, Any]]]:
    """The views to draw with their lines; the main one comes last."""
    drawn = [(as_view(space), {"color": INK, "width": 2})]
    if before is not None:
        drawn.insert(0, (as_view(before), {"color": GREY, "width": 1.5}))
    return drawn


def _histograms(x: str, y: str, drawn: list[tuple[Floats, View, dict[str, Any]]]) -> go.Figure:
    figure = blank(x, y)
    figure.update_yaxes(tickformat=".0%")
    for values, view, line in drawn:
        if not len(values):
            continue
        shares, edges = np.histogram(values, bins=N_BINS, range=_ends(values))
        heights = np.concatenate([[0], shares / len(values), [0]])
        middles = (edges[1:] + edges[:-1]) / 2
        step = edges[1] - edges[0]
        red, green, blue = bytes.fromhex(line["color"][1:])
        figure.add_scatter(
            x=np.concatenate([[middles[0] - step], middles, [middles[-1] + step]]), y=heights,
            name=plain(view.name), mode="lines", line=line | {"shape": "hvh"}, fill="tozeroy",
            fillcolor=f"rgba({red}, {green}, {blue}, 0.12)",
        )  # fmt: skip
    return figure


def _ends(values: Floats) -> tuple[float, float]:
    """The smallest and the largest value, moved apart if they differ by rounding only."""
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high)) or 1.0
    if high - low > ROUNDING * size:
        return low, high
    return low - size / 2, high + size / 2 + size / N_BINS  # the value is in the middle of a bin


def _contributions(view: View) -> Floats:
    shares = np.asarray(_measured(view, "rogue_dimensions"), dtype=np.float64)
    found: Floats = shares * float(_measured(view, "mean_cosine"))
    return found


def _measured(view: View, name: str) -> Any:
    if name not in view.geometry.values:
        raise not_measured(name)
    return view.geometry.values[name]


def not_measured(name: str) -> InputError:
    words = f"the geometry must have {name}, which was not measured"
    return InputError(f"{words}. Measure all metrics.")
