"""The pictures of README.md, docs/metrics.md and docs/training.md.

    python docs/figures/make.py [FOLDER]

The demo's word vectors before and after a repair, spaces that fool a metric, each measured with
isotropy, seed 0 throughout; and the runs in results/runs.jsonl and results/runs-search.jsonl.
Writes SVG files, by default beside this script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import scipy.stats

import isotropy
from isotropy.examples import smollm2
from isotropy.metrics import isoscore, local_isotropy, partition_isotropy
from isotropy.stats import LogPartition
from isotropy.tasks import WordSimilarity

N = 400
SIDE = 260  # pixels of a panel
BLUE, RED, GREY = "#3563a8", "#b3392f", "#666"
ROOT = Path(__file__).parents[2]
RUNS = [ROOT / "results" / name for name in ("runs.jsonl", "runs-search.jsonl")]
PAIRS = ROOT / "src" / "isotropy" / "cli" / "data" / "word_pairs.tsv"
METHODS = {
    "isoscore-star": "IsoScore*",
    "isotropy-layer": "isotropy layer",
    "isobn": "IsoBN",
    "spectrum-exponential:on=cls": "spectrum, exp.",
    "cosine:on=cls": "cosine",
    "spectrum-polynomial:on=cls": "spectrum, pol.",
    "flow:lr=0.001": "flow",
}
TILT = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])


class Drawing:
    """A few SVG elements, white behind them so that they read in a dark page too."""

    def __init__(self, width: int, height: int, label: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{label}" '
            'font-family="system-ui, sans-serif" font-size="15">',
            f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
        ]

    def line(self, x1, y1, x2, y2, colour=GREY, width=1.0) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"/>'
        )

    def dots(self, xs, ys, colour=BLUE, radius=2.0, opacity=0.55) -> None:
        self.parts.append(f'<g fill="{colour}" fill-opacity="{opacity}">')
        self.parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in zip(xs, ys, strict=True)
        ]
        self.parts.append("</g>")

    def path(self, xs, ys, colour) -> None:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        self.parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )

    def text(self, x, y, words, colour="#222", anchor="start", weight="normal") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{words}</text>'
        )

    def save(self, path: Path) -> None:
        path.write_text("\n".join([*self.parts, "</svg>", ""]), encoding="utf-8")


def plain(value: float, digits: int = 2) -> str:
    """The number without the sign of a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


class Plane:
    """A square of the plane around the origin, with its axes."""

    def __init__(self, drawing: Drawing, left: float, top: float, reach: float) -> None:
        self.drawing, self.left, self.top = drawing, left, top
        self.reach, self.scale = reach, SIDE / 2 / reach
        self.middle = left + SIDE / 2, top + SIDE / 2
        x, y = self.middle
        drawing.line(left, y, left + SIDE, y, "#bbb")
        drawing.line(x, top, x, top + SIDE, "#bbb")

    def at(self, points):
        x, y = self.middle
        return x + self.scale * points[:, 0], y - self.scale * points[:, 1]

    def cloud(self, X, colour=BLUE) -> None:
        assert np.abs(X).max() <= self.reach, "every row is drawn"
        self.drawing.dots(*self.at(X), colour)


def before_after(folder: Path) -> None:
    """Cosines of random pairs and explained variance of the demo's words, raw and whitened."""
    words = smollm2()
    raw = words.vectors[list(words.row_of.values())]
    vectors = isotropy.KeyedVectors(raw, list(words.row_of))
    task = WordSimilarity.read(PAIRS).known(vectors)
    scores = [r.score for r in isotropy.compare(vectors, task, ["whiten"]).results]
    spaces = {"before": (raw, RED), "after whitening": (isotropy.Whiten().fit_transform(raw), BLUE)}
    drawing = Drawing(860, 330, "Word vectors before and after whitening")
    drawing.text(60, 28, "Cosine of two random words", weight="bold")
    drawing.text(490, 28, "Variance in the first k components", weight="bold")
    top, height, width = 50, 190, 330
    ends = np.linspace(-0.4, 1, 71)
    sample = np.random.default_rng(0).choice(len(raw), 2000, replace=False)
    for value in (0, 0.5, 1):
        x, y = 60 + width * (value + 0.4) / 1.4, top + height * (1 - value)
        drawing.line(x, top, x, top + height, "#eee")
        drawing.text(x, top + height + 20, f"{value:g}", GREY, "middle")
        drawing.line(490, y, 490 + width, y, "#eee")
        drawing.text(482, y + 5, f"{value:.0%}", GREY, "end")
    for line, (name, (X, colour)) in enumerate(spaces.items()):
        rows = X[sample] / np.linalg.norm(X[sample], axis=1, keepdims=True)
        cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
        counts = np.histogram(cosines, ends)[0] / len(cosines)
        xs = 60 + width * (np.repeat(ends, 2)[1:-1] + 0.4) / 1.4
        drawing.path(xs, top + height * (1 - np.repeat(counts, 2) / 0.2), colour)
        geometry = isotropy.measure(X, ["mean_cosine", "isoscore"])
        told = f"{name}: mean {plain(geometry.mean_cosine)}"
        drawing.text(*((252, 152) if name == "before" else (178, 96)), told, colour)
        variances = np.linalg.eigvalsh(np.cov(X, rowvar=False, dtype=np.float64))[::-1]
        shares = np.cumsum(variances) / variances.sum()
        ks = np.unique(np.round(np.geomspace(1, len(shares), 60)).astype(int))
        xs = 490 + width * np.log(ks) / np.log(len(shares))
        drawing.path(xs, top + height * (1 - shares[ks - 1]), colour)
        told = f"{name}: IsoScore {plain(geometry.isoscore)}"
        drawing.text(500, 74 + 22 * line, told, colour)
    for k in (1, 10, 100, len(shares)):
        x = 490 + width * np.log(k) / np.log(len(shares))
        drawing.text(x, top + height + 20, f"{k}", GREY, "middle")
    low, high = (f"{100 * score:.1f}" for score in scores)
    told = f"Correlation with the grades of {task.n_items} word pairs: {low} before, {high} after"
    drawing.text(430, 308, told, anchor="middle", weight="bold")
    drawing.save(folder / "before_after.svg")


def clouds(random: np.random.Generator) -> dict[str, np.ndarray]:
    """The three spaces of the first picture."""
    centres = np.repeat(2 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]), N // 4, axis=0)
    return {
        "a line through the origin": random.standard_normal((N, 2)) * [1.0, 0.08] @ TILT.T,
        "a ball away from the origin": random.standard_normal((N, 2)) * 0.35 + [2, 1],
        "four clusters around it": (centres + 0.2 * random.standard_normal((N, 2))) @ TILT.T,
    }


def fooled(folder: Path) -> None:
    """Three clouds, and what three metrics say of each."""
    names = ("mean_cosine", "isoscore", "partition_isotropy")
    words = {"mean_cosine": "mean cosine", "isoscore": "IsoScore", "partition_isotropy": "I(W)"}
    drawing = Drawing(3 * SIDE + 80, SIDE + 146, "Three spaces in the plane with their metrics")
    for number, (title, X) in enumerate(clouds(np.random.default_rng(0)).items()):
        left = 20 + number * (SIDE + 20)
        drawing.text(left, 28, title, weight="bold")
        Plane(drawing, left, 40, 3.6).cloud(X)
        geometry = isotropy.measure(X, [*names, "norms"])
        for line, name in enumerate(names):
            value = geometry.values[name]
            fine = value < 0.2 if name == "mean_cosine" else value > 0.8
            y = SIDE + 64 + 21 * line
            drawing.text(left, y, f"{words[name]} {plain(value)}", GREY if fine else RED)
        if number == 2:
            inside = local_isotropy(X, 4, n_seeds=1)["norms"]["mean"]["mean"]
            whole = geometry.norms["mean"]
            told = f"mean norm {whole:.2f}, in clusters {inside:.2f}"
            drawing.text(left, SIDE + 64 + 21 * 3, told, RED)
    drawing.save(folder / "fooled.svg")


def skewed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A skewed cloud, its eigenvectors, and F of both signs of each over the rows."""
    random = np.random.default_rng(0)
    X = (random.exponential(1, (N, 2)) - 1) * [1, -0.8] @ TILT.T
    vectors = np.linalg.eigh(X.T @ X)[1][:, ::-1]
    vectors = vectors * np.sign(vectors.sum(axis=0))  # a choice, where LAPACK makes another
    partition = LogPartition(vectors).update(X)
    return X, vectors, np.exp([partition.log_plus, partition.log_minus]) / N


def signs(folder: Path) -> None:
    """F along both signs of both eigenvectors, and I(W) for each choice of signs."""
    X, vectors, F = skewed()
    drawing = Drawing(2 * SIDE + 160, SIDE + 60, "A skewed space, whose I(W) depends on signs")
    drawing.text(20, 28, "F(u) over the rows, along both signs of two eigenvectors", weight="bold")
    plane = Plane(drawing, 20, 44, 6)
    plane.cloud(X)
    for sign, values in zip((1, -1), F, strict=True):
        for u, value in zip(vectors.T, values, strict=True):
            tip, label = (np.array([sign * length * u]) for length in (3.2, 4.1))
            (x,), (y,) = plane.at(tip)
            drawing.line(*plane.middle, x, y, RED, 2)
            (x,), (y,) = plane.at(label)
            drawing.text(x, y + 4, f"{value:.2f}", RED, "middle", "bold")
    left, top = SIDE + 60, 80
    drawing.text(left, top, "signs taken", GREY)
    drawing.text(left + 180, top, "I(W) = least / largest", GREY)
    choices = [(a, b) for a in (0, 1) for b in (0, 1)]
    for line, (a, b) in enumerate(choices, 1):
        pair = F[a, 0], F[b, 1]
        y = top + 26 * line
        drawing.text(left, y, f"{'+-'[a]}u₁ {pair[0]:.2f}, {'+-'[b]}u₂ {pair[1]:.2f}")
        drawing.text(left + 180, y, f"{min(pair) / max(pair):.2f}", weight="bold")
    drawing.text(left, top + 26 * 5.5, "both signs of each")
    drawing.text(left + 180, top + 26 * 5.5, f"{partition_isotropy(X):.2f}", RED, weight="bold")
    drawing.save(folder / "signs.svg")


def few_rows(folder: Path) -> None:
    """IsoScore of isotropic rows of 768 dimensions against how many there are."""
    d, counts = 768, 2 ** np.arange(4, 13)
    random = np.random.default_rng(0)
    X = random.standard_normal((counts[-1], d))
    found = np.array([(isoscore(X[:n]), isoscore(X[:n], unbiased=True)) for n in counts])
    drawing = Drawing(600, 330, "IsoScore of isotropic rows against their number")
    drawing.text(20, 28, "IsoScore of isotropic Gaussian rows, 768 dimensions", weight="bold")
    left, top, width, height = 60, 50, 430, 220

    def x(n):
        return left + width * (np.log2(n) - 4) / 8

    def y(value):
        return top + height * (1.15 - value) / 1.15

    for n in counts[::2]:
        drawing.line(x(n), top, x(n), top + height, "#eee")
        drawing.text(x(n), top + height + 20, f"{n:,}", GREY, "middle")
    for value in (0, 0.5, 1):
        drawing.line(left, y(value), left + width, y(value), "#ccc")
        drawing.text(left - 8, y(value) + 4, f"{value:g}", GREY, "end")
    drawing.text(left + width / 2, top + height + 42, "rows", GREY, "middle")
    drawing.path(x(counts), y(found[:, 1]), BLUE)
    drawing.path(x(counts), y(found[:, 0]), RED)
    drawing.dots(x(counts), y(found[:, 1]), BLUE, 3, 1)
    drawing.dots(x(counts), y(found[:, 0]), RED, 3, 1)
    drawing.text(left + width + 10, y(found[-1, 1]) - 8, "unbiased", BLUE)
    drawing.text(left + width + 10, y(found[-1, 0]) + 14, "plain", RED)
    drawing.save(folder / "few_rows.svg")


def changes(records: list[dict]) -> dict[str, np.ndarray]:
    """Points that each method gained over none, in every cell of model and task but WNLI's."""
    found: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        if not record["search"] and record["task"] in ("rte", "mrpc", "cola", "stsb"):
            cell = record["model"], record["task"], record["method"]
            found.setdefault(cell, []).append(100 * record["score"])
    means = {cell: np.mean(scores) for cell, scores in found.items()}
    cells = [cell[:2] for cell in means if cell[2] == "none"]
    return {
        method: np.array([means[(*cell, method)] - means[(*cell, "none")] for cell in cells])
        for method in METHODS
    }


def searched(records: list[dict]) -> dict[str, dict[float, float]]:
    """Mean score of each weight over the cells that it was tried in."""
    found: dict[str, dict[float, list[float]]] = {}
    for record in records:
        if record["search"]:
            method, _, weight = record["spec"].partition("weight=")
            found.setdefault(method[:-1], {}).setdefault(float(weight), []).append(
                100 * record["score"]
            )
    return {
        method: {weight: float(np.mean(scores)) for weight, scores in sorted(weights.items())}
        for method, weights in found.items()
    }


def training(folder: Path) -> None:
    """Mean gains in training with their intervals, and scores against a regulariser's weight."""
    lines = [line for path in RUNS for line in path.read_text("utf-8").splitlines()]
    records = [json.loads(line) for line in lines]
    drawing = Drawing(860, 330, "Mean gains of methods in training, and scores against weights")
    drawing.text(20, 28, "Points gained over plain fine-tuning", weight="bold")
    left, scale, middle = 150, 33, 150 + 33 * 6.5
    for value in (-6, -4, -2, 0, 2):
        x = middle + scale * value
        drawing.line(x, 46, x, 270, "#888" if value == 0 else "#eee")
        drawing.text(x, 292, f"{value:+d}" if value else "0", GREY, "middle")
    for line, (method, values) in enumerate(changes(records).items()):
        y, mean = 64 + 31 * line, values.mean()
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, mean, scipy.stats.sem(values))
        drawing.text(left - 14, y + 5, METHODS[method], "#222", "end")
        drawing.line(middle + scale * low, y, middle + scale * high, y, BLUE, 2)
        drawing.dots([middle + scale * mean], [y], BLUE, 4.5, 1)
    drawing.text(470, 28, "Score against weight", weight="bold")

    def at(step, score):
        return 500 + 58 * step, 270 - 28 * (score - 50.5)

    for score in (51, 53, 55, 57):
        drawing.line(500, at(0, score)[1], 750, at(0, score)[1], "#eee")
        drawing.text(492, at(0, score)[1] + 5, f"{score}", GREY, "end")
    for step, words in enumerate(("-1", "least", "x 10", "x 100", "x 1000")):
        drawing.text(at(step, 0)[0], 292, words, GREY, "middle")
    colours = {"cosine:on=cls": BLUE, "isoscore-star": RED, "spectrum-polynomial:on=cls": GREY}
    for method, weights in searched(records).items():
        steps = [0, 2, 3, 4] if -1.0 in weights else [1, 2, 3, 4]
        xs, ys = zip(*map(at, steps, weights.values()), strict=True)
        colour = colours.get(method, "#7a9a3a")
        drawing.path(xs, ys, colour)
        drawing.dots(xs, ys, colour, 3.5, 1)
        drawing.text(xs[-1] + 8, ys[-1] + LOWER.get(method, 5), METHODS[method], colour)
    drawing.save(folder / "training.svg")


# so that names do not meet
LOWER = {"cosine:on=cls": -2, "spectrum-polynomial:on=cls": 8, "isoscore-star": 22}


def main(folder: Path) -> None:
    for make in (before_after, fooled, signs, few_rows, training):
        make(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
