"""The sections of the page: a chart for every view, a sentence for who cannot see it, and code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy.errors import InputError, one_line
from isotropy.report import charts, inputs
from isotropy.report.inputs import Evidence, all_gains
from isotropy.report.views import N_CLUSTERS, View

NEEDED = (
    "mean_cosine", "rogue_dimensions", "partition_isotropy", "log_partition_isotropy",
    "explained_variance", "singular_values", "effective_rank",
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A chart with its words; `figures` and `sentences` have one a view, or one for all."""

    name: str
    title: str
    about: str
    code: str
    figures: list[Any]
    sentences: list[str]


def space_sections(views: Sequence[View]) -> list[Section]:
    """The sections that show the rows of the views."""
    first = views[0]
    sections = [
        _section(views, *part)
        for part in (
            (
                "spectrum",
                "Singular values",
                "How much of the space each direction holds. One value far above the rest is a "
                "common part that all rows share; a steep fall is room that is hardly used.",
                "isotropy.measure(X).singular_values",
                charts.spectrum,
                _spectrum,
            ),
            (
                "explained",
                "Explained variance",
                "Share of the variance about the mean in the first components. The dotted line is "
                "a space that uses every direction evenly.",
                "isotropy.metrics.explained_variance(X, k=10)",
                charts.explained_variance,
                _explained,
            ),
            (
                "partition",
                "Partition function",
                "F(u) is the sum of exp(u.x) over all rows x. In an isotropic space it is the same "
                "in every direction; I(W) is the least over the largest.",
                "isotropy.metrics.partition_isotropy(X)",
                charts.partition,
                _partition,
            ),
            (
                "cosines",
                "Cosines of random pairs",
                f"What two rows score that have nothing to do with each other, on {first.sampled}. "
                "A match is a cosine above the dashed line, not one above 0.8.",
                "isotropy.ScoreCalibrator().fit(X).threshold(0.01)",
                charts.cosines,
                _cosines,
            ),
            (
                "norms",
                "Norms",
                f"Lengths of rows, on {first.sampled}. Cosines do not see them; inner products do.",
                "isotropy.measure(X).norms",
                charts.norms,
                _norms,
            ),
            (
                "dimensions",
                "Dimensions",
                "What each dimension adds to the mean cosine. A few tall ones (rogue dimensions) "
                "mean that cosines compare these and little else.",
                "isotropy.metrics.rogue_dimensions(X)",
                charts.dimensions,
                _dimensions,
            ),
        )
    ]
    sections.append(
        Section(
            "projection",
            "The rows themselves",
            f"The first principal axes of {first.sampled}; the cross is the origin.",
            'isotropy.report.charts.projection(X, color="cluster", n_dimensions=3)',
            [charts.points(view, n) for view in views for n in (2, 3)],
            [_projection(view) for view in views],
        )
    )
    sections.append(
        Section(
            "local",
            "Within clusters",
            f"All rows against rows within {N_CLUSTERS} k-means clusters, each made zero-mean, on "
            f"{first.sampled}. A space can be uneven as a whole and even within its clusters. An "
            "isotropic one has a mean cosine of 0, and 1 in the other two. Both are of the rows "
            "drawn: compare them with each other, not with the numbers above, which are of all "
            "rows, since few rows look less even than many.",
            f"isotropy.metrics.local_isotropy(X, n_clusters={N_CLUSTERS})",
            [charts.local(view) for view in views],
            [_local(view) for view in views],
        )
    )
    return sections


GEOMETRY = inputs.nested(
    {
        "log_partition_isotropy": inputs.number,
        "mean_cosine": inputs.number,
        "isoscore": inputs.number,
    }
)
MODEL = {
    "model": inputs.text,
    "first_token": inputs.optional(inputs.text),
    "layers": inputs.objects({"layer": inputs.count, "tokens": GEOMETRY, "cls": GEOMETRY}, least=1),
}


def opened_layers(found: Any) -> Mapping[str, Any]:
    """What `isotropy layers --json` printed, from a file or as it is."""
    printed = "`isotropy layers --json`"
    layers = inputs.read(found, "layers", printed)
    try:
        inputs.each(layers, {"models": inputs.objects(MODEL, least=1)})
    except InputError as error:
        raise InputError(f"layers must be what {printed} printed: {error}.") from None
    return layers


def layer_sections(found: Mapping[str, Any]) -> list[Section]:
    """One chart a metric, over the layers."""
    about = {
        "-log10 I": "Lower is more isotropic; 0 is isotropic.",
        "mean cosine": "Nearer 0 is better.",
        "IsoScore": "Higher is better; 1 uses every dimension evenly.",
    }
    return [
        Section(
            f"layers-{i}",
            f"Layer by layer: {metric}",
            f"{about[metric]} Solid is all tokens, dashed the first token of each text.",
            "isotropy layers MODEL TEXTS --json",
            [charts.layers(found, metric)],
            [_layers(found, metric)],
        )
        for i, metric in enumerate(charts.LAYER_METRICS)
    ]


def evidence_section(parts: Sequence[Evidence]) -> Section:
    """The gains of repairs on tasks, with their intervals."""
    gains = all_gains(parts)
    figure = charts.evidence(gains)
    rows, names = len({gain.repair for gain in gains}), len(figure.data)
    figure.update_layout(height=max(260, 110 + 38 * rows + 22 * names))  # a phone stacks the names
    return Section(
        "evidence",
        "Does it help?",
        "Gain of each repair over none on a task, with its 95 % interval. An interval that "
        "crosses zero shows nothing. What is marked as while choosing is scored on the folds that "
        "`advise` chose with; its choice alone is tested on others.",
        'isotropy.compare(vectors, isotropy.tasks.open_task("sts", "pairs.tsv"))',
        [figure],
        [" ".join(f"{part.conclusion} {part.words}".strip() for part in parts)],
    )


def _section(
    views: Sequence[View],
    name: str,
    title: str,
    about: str,
    code: str,
    chart: Callable[..., Any],
    sentence: Callable[[View], str],
) -> Section:
    first = views[0]
    figures = [chart(view, None if view is first else first) for view in views]
    return Section(name, title, about, code, figures, [sentence(view) for view in views])


def _spectrum(view: View) -> str:
    values = np.asarray(view.geometry.values["singular_values"])
    rest = f", the next {values[1]:.3g}, the least {values[-1]:.3g}" if len(values) > 1 else ""
    return (
        f"The largest singular value is {values[0]:.3g}{rest}; the effective rank is "
        f"{view.geometry.effective_rank:.0f} of {view.geometry.n_features}."
    )


def _explained(view: View) -> str:
    shares = view.geometry.drawn.explained
    assert shares is not None
    if not np.isfinite(shares).all():
        return "There is no variance: all rows are the same."
    half = int(np.searchsorted(shares, 0.5)) + 1
    together = "at least half" if half == 1 else f"the first {half} together half"
    return f"The first component explains {shares[0]:.1%}, {together}."


def _partition(view: View) -> str:
    log10 = view.geometry.log_partition_isotropy / charts.LOG10
    both = view.geometry.partition_isotropy_range
    words = f"I(W) is {view.geometry.partition_isotropy:.3g}, 10 to the power of {log10:.2f}"
    if both is not None:
        words += f"; eigenvalues repeat, and other bases give {both[0]:.3g} to {both[1]:.3g}"
    return f"{words}."


def _cosines(view: View) -> str:
    if not len(view.cosines):
        return "No two of the rows differ."
    words = f"Random pairs have a cosine of {view.cosines.mean():.2f} on average"
    if math.isfinite(view.threshold):
        words += f"; 1 % of them reach {view.threshold:.2f}"
    return f"{words} ({len(view.cosines):,} pairs)."


def _norms(view: View) -> str:
    low, middle, high = np.quantile(view.norms, (0.01, 0.5, 0.99))
    return (
        f"Half of the rows are longer than {middle:.3g}; 98 % lie between {low:.3g} and {high:.3g}."
    )


def _dimensions(view: View) -> str:
    named = ", ".join(f"{i} ({share:.0%})" for i, _, share in charts.rogue(view))
    cosine = view.geometry.mean_cosine
    if math.isnan(cosine):
        return "The mean cosine is not defined: there is no pair of rows that are not zero."
    if not named:
        return (
            f"The mean cosine is {round(cosine, 2) + 0.0:.2f}: there is little that dimensions "
            "could add to."
        )
    return f"The mean cosine is {cosine:.2f}; dimensions {named} add most to it."


def _projection(view: View) -> str:
    shares = ", ".join(f"{share:.1%}" for share in view.axes[2])
    return f"The first three axes hold {shares} of the variance of the rows shown."


def _local(view: View) -> str:
    parts = [
        f"{name.replace('_', ' ')} {whole:.2g}, within clusters {within:.2g}"
        for name, (whole, within) in view.local.items()
    ]
    return "; ".join(parts) + "."


def _layers(found: Mapping[str, Any], metric: str) -> str:
    words = []
    for model in found["models"]:
        values = [charts.LAYER_METRICS[metric](layer["tokens"]) for layer in model["layers"]]
        known = [(value, i) for i, value in enumerate(values) if value is not None]
        if known:
            (low, at_low), (high, at_high) = min(known), max(known)
            name = one_line(model["model"], 100)
            words.append(f"{name}: from {low:.2g} (layer {at_low}) to {high:.2g} (layer {at_high})")
    return "; ".join(words or ["It is not defined in any layer"]) + "."
