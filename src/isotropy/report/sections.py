"""The sections of the page: a chart for every view, the same in a sentence, and code."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy.errors import one_line
from isotropy.report import charts, inputs
from isotropy.report.inputs import Codes, Evidence
from isotropy.report.views import N_CLUSTERS, View

NEEDED = (
    "mean_cosine", "rogue_dimensions", "partition_isotropy", "log_partition_isotropy",
    "explained_variance", "singular_values", "effective_rank",
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A chart with its text; `figures` and `sentences` have one per view, or one for all."""

    name: str
    title: str
    about: str
    code: str
    figures: list[Any]
    sentences: list[str]
    table: tuple[str, Sequence[str], Sequence[Sequence[str]]] | None = None  # caption, head, rows


def space_sections(views: Sequence[View]) -> list[Section]:
    first = views[0]
    sections = [
        Section(
            chart.__name__,
            title,
            about,
            code,
            [chart(view, None if view is first else first) for view in views],
            [sentence(view) for view in views],
        )
        for title, about, code, chart, sentence in (
            (
                "Singular values",
                "How much of the space each direction holds. If the first value is far above the "
                "rest, all rows share a common component; if the values fall steeply, many "
                "directions are hardly used.",
                "isotropy.measure(X).singular_values",
                charts.spectrum,
                _spectrum,
            ),
            (
                "Explained variance",
                "Share of the variance in the first principal components. The dotted line is a "
                "space that uses every direction equally.",
                "isotropy.metrics.explained_variance(X, k=10)",
                charts.explained_variance,
                _explained,
            ),
            (
                "Partition function",
                "F(u) is the sum of exp(u.x) over all rows x. In an isotropic space it is the same "
                "in every direction u; I(W) is its smallest value divided by its largest.",
                "isotropy.metrics.partition_isotropy(X)",
                charts.partition,
                _partition,
            ),
            (
                "Cosines of random pairs",
                f"The cosines of unrelated rows, from {first.sampled}. Take a cosine above the "
                "dashed line for a match, rather than one above 0.8.",
                "isotropy.ScoreCalibrator().fit(X).threshold(0.01)",
                charts.cosines,
                _cosines,
            ),
            (
                "Norms",
                f"The lengths of {first.sampled}. They affect inner products, but not cosines.",
                "isotropy.measure(X).norms",
                charts.norms,
                _norms,
            ),
            (
                "Dimensions",
                "What each dimension adds to the mean cosine. If a few stand out (rogue "
                "dimensions), cosines compare little else.",
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
            f"The first principal axes of {first.sampled}. The cross is the origin.",
            'isotropy.report.charts.projection(X, color="cluster", n_dimensions=3)',
            [charts.points(view, n) for view in views for n in (2, 3)],
            [_projection(view) for view in views],
        )
    )
    sections.append(
        Section(
            "local",
            "Within clusters",
            "The rows as they are, and after subtracting from each row the mean of its cluster "
            f"({N_CLUSTERS} k-means clusters), for {first.sampled}. A space can be anisotropic as "
            "a whole and isotropic within its clusters. An isotropic space has a mean cosine of 0, "
            "and 1 for the other two. Compare the two with each other, not with the numbers at the "
            "top of the page: those are for all rows, and a sample looks less isotropic.",
            f"isotropy.report.View(isotropy.measure(X, random_state={first.seed}), "
            f"seed={first.seed}).local",
            [charts.local(view) for view in views],
            [_local(view) for view in views],
        )
    )
    return sections


def _geometry(value: Any, name: str) -> None:
    """Raise unless value has the metrics of which there are charts."""
    metrics = [metric for metric, _ in charts.LAYER_METRICS.values()]
    inputs.each(value, dict.fromkeys(metrics, inputs.number), name)


LAYER = {"layer": inputs.count, "tokens": _geometry, "cls": _geometry}
MODEL = {
    "model": inputs.text,
    "first_token": inputs.optional(inputs.text),
    "layers": inputs.objects(LAYER, least=1),
}


def opened_layers(found: Any) -> Mapping[str, Any]:
    """The output of `isotropy layers --json`, from a file or as it is."""
    fields = {"models": inputs.objects(MODEL, least=1)}
    return inputs.read(found, "layers", "`isotropy layers --json`", lambda _: fields)


def layer_sections(found: Mapping[str, Any]) -> list[Section]:
    about = {
        "-log10 I": "Lower is more isotropic; 0 is isotropic.",
        "mean cosine": "Closer to 0 is better.",
        "IsoScore": "Higher is better; 1 uses every dimension equally.",
    }
    return [
        Section(
            f"layers-{i}",
            f"Layer by layer: {metric}",
            f"{about[metric]} Solid: all tokens; dashed: the first token of each text.",
            "isotropy layers MODEL TEXTS --json",
            [charts.layers(found, metric)],
            [_layers(found, metric)],
        )
        for i, metric in enumerate(charts.LAYER_METRICS)
    ]


def evidence_section(parts: Sequence[Evidence]) -> Section:
    gains = [gain for part in parts for gain in part.gains]
    figure = charts.evidence(gains)
    rows, names = len({gain.repair for gain in gains}), len(figure.data)
    figure.update_layout(height=max(260, 110 + 38 * rows + 22 * names))  # a phone stacks the names
    return Section(
        "evidence",
        "Does it help?",
        "Gain of each repair over no repair on a task, with its 95 % interval. If the interval "
        "contains zero, the repair may not help at all. Results marked as 'while choosing' are "
        "from the folds that `advise` used to choose; only its choice was tested on unseen folds.",
        'isotropy.compare(vectors, isotropy.tasks.open_task("sts", "pairs.tsv"))',
        [figure],
        [" ".join(f"{part.conclusion} {part.words}".strip() for part in parts)],
    )


def compression_section(codes: Codes, number: int) -> Section:
    return Section(
        f"compression-{number}",
        f"How small can vectors get? {codes.task}",
        f"{codes.metric} against the bytes that a vector takes in memory. A line joins the best "
        "code of each size after one repair, with the 95 % interval of its loss against float32 "
        "(dashed). Hollow marks are codes with a second stage, which store more. Small marks are "
        "other codes. Rings mark the frontier: no other code is as small and better. A star marks "
        "the chosen code, if any. It need not be on the frontier: it was chosen on other items "
        "than those drawn here, which test it. \u201cLoss at most\u201d is a limit on one side, "
        "with 5 % beyond it. The intervals have two sides, with 2.5 % beyond each, so their ends "
        "differ from it.",
        'isotropy.compress(vectors, isotropy.tasks.open_task("retrieval", "folder"))',
        [charts.compression(codes)],
        [f"{codes.conclusion} {codes.words}"],
        (f"Every code, {codes.metric}", CODE_HEAD, code_rows(codes)),
    )


def compression_steps(codes: Codes, command: str, codec: Any) -> list[tuple[str, str]]:
    """What to do with the chosen codec, if any, and the command that found it."""
    steps = []
    if any(point.chosen for point in codes.points):
        file = shlex.quote("codec.safetensors" if codec is None else str(codec))
        if codec is None:
            again, in_python = f"{command} --save {file} --overwrite", f"found.codec.save({file!r})"
            steps.append(("Save the chosen codec:", again if command else in_python))
        steps += [
            ("Write the codes of vectors:", f"isotropy apply {file} vectors.npy --out codes.npy"),
            (
                "Or make a faiss index, which codes the vectors that you then add to it:",
                f"isotropy export {file} --to faiss --out index.faiss --verify",
            ),
        ]
    return [*steps, ("This page was made by:", command)] if command else steps


CODE_HEAD = (
    "repair", "code", "bytes", "stored", "smaller", "score", "loss", "95 % interval", "note",
)  # fmt: skip


def code_rows(codes: Codes) -> list[tuple[str, ...]]:
    """float32, and every code."""
    size = f"{codes.n_bytes:,}"
    rows: list[tuple[str, ...]] = [
        ("none", "float32", size, size, "1x", f"{codes.baseline:.1f}", "", "", "")
    ]
    for point in codes.points:
        low, high = point.interval
        marks = ["frontier"] * point.on_frontier + ["chosen"] * point.chosen
        rows.append((
            point.repair, point.code, f"{point.n_bytes:,}", f"{point.n_bytes_stored:,}",
            f"{point.ratio:.0f}x", "" if math.isnan(point.score) else f"{point.score:.1f}",
            _signed(point.loss), "" if math.isnan(low) else f"{_signed(low)} to {_signed(high)}",
            ", ".join(marks),
        ))  # fmt: skip
    return rows


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.1f}".replace("-0.0", "+0.0")


def _spectrum(view: View) -> str:
    values = np.asarray(view.geometry.values["singular_values"])
    rest = f", the next {values[1]:.3g}, the smallest {values[-1]:.3g}" if len(values) > 1 else ""
    return (
        f"The largest singular value is {values[0]:.3g}{rest}; the effective rank is "
        f"{view.geometry.effective_rank:.0f} of {view.geometry.n_features}."
    )


def _explained(view: View) -> str:
    shares = view.geometry.drawn.explained
    assert shares is not None
    if not np.isfinite(shares).all():
        return "There is no variance: all rows are equal."
    half = int(np.searchsorted(shares, 0.5)) + 1
    together = "" if half == 1 else f"; the first {half} explain half"
    return f"The first component explains {100 * shares[0]:.1f} % of the variance{together}."


def _partition(view: View) -> str:
    log10 = view.geometry.log_partition_isotropy / charts.LOG10
    both = view.geometry.partition_isotropy_range
    words = f"I(W) is {view.geometry.partition_isotropy:.3g}, 10 to the power of {log10:.2f}"
    if both is not None:
        words += f"; eigenvalues repeat, so other bases give {both[0]:.3g} to {both[1]:.3g}"
    return f"{words}."


def _cosines(view: View) -> str:
    if not len(view.cosines):
        return "All rows are equal."
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
    named = ", ".join(f"{i} ({100 * share:.0f} %)" for i, _, share in charts.rogue(view))
    cosine = view.geometry.mean_cosine
    if math.isnan(cosine):
        return "The mean cosine is undefined: no two rows are nonzero."
    if not named:
        return f"The mean cosine is {round(cosine, 2) + 0.0:.2f}, so no dimension adds much to it."
    return f"The mean cosine is {cosine:.2f}; dimensions {named} add the most to it."


def _projection(view: View) -> str:
    shares = ", ".join(f"{100 * share:.1f} %" for share in view.axes[2])
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
        values = [charts.height(layer["tokens"], metric) for layer in model["layers"]]
        known = [(value, i) for i, value in enumerate(values) if value is not None]
        if known:
            (low, at_low), (high, at_high) = min(known), max(known)
            name = one_line(model["model"], 100)
            words.append(f"{name}: from {low:.2g} (layer {at_low}) to {high:.2g} (layer {at_high})")
    return "; ".join(words or ["It is undefined in every layer"]) + "."
