"""Bis, Podkorytov and Liu 2021: too much in common, the shifting of embeddings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from isotropy.evidence.significance import Fold, interval
from isotropy.geometry import measure
from isotropy.linalg import Floats
from isotropy.metrics import singular_values
from isotropy.models import Embeddings, KeyedVectors, each, embeddings, holds_vectors, open_texts
from isotropy.papers import drift_training, figures
from isotropy.papers.drift_training import (
    ALONG,
    APART,
    COSINE,
    ERROR,
    LOSS,
    MOVED,
    NORMS,
    OTHERS,
    OUTPUT,
    SIDES,
    TOGETHER,
    UNUSED,
)
from isotropy.papers.experiment import (
    Findings,
    Layout,
    Paper,
    Record,
    experiment,
    matching,
    published,
    record,
)
from isotropy.papers.settings import BOTH_SIGNS, ONE_SIGN, STAND_INS, Settings, isotropy_records
from isotropy.repairs import AllButTheTop, Center, Repair, ScaledCenter
from isotropy.report import View, charts
from isotropy.report.views import frequencies
from isotropy.tasks import Outcome, WordSimilarity

PAPER = Paper(
    "drift",
    title="Too much in common: shifting of embeddings in transformer language models and its "
    "implications",
    authors="Bis, Podkorytov and Liu",
    year=2021,
    about="Every training step pushes the embeddings of all words but the target in one direction, "
    "so they drift away from the origin together. The drift makes them look like a narrow cone, "
    "and subtracting the mean takes most of it away. W is the matrix of a model's input "
    "embeddings, one row for each token of its vocabulary. Its isotropy I(W) is the smallest over "
    "the largest partition function F(u), the sum of exp(u.w) over all rows w, along the "
    "eigenvectors u of W'W: 1 is isotropic, near 0 is not; log10 I is 0 or below. F(u) is not "
    "F(-u), so I depends on the signs of the eigenvectors: we take both signs, and the papers "
    'the one that the linear algebra returned, here "one sign".',
    bibtex="""
@inproceedings{bis-etal-2021-much,
  title = {Too Much in Common: Shifting of Embeddings in Transformer Language Models and its
    Implications},
  author = {Bi{\\'s}, Daniel and Podkorytov, Maksim and Liu, Xiuwen},
  booktitle = {Proceedings of NAACL-HLT 2021},
  year = {2021}
}""",
    models={
        "BERT": "bert-base-uncased",
        "BERT-base-uncased": "bert-base-uncased",
        "BERT-base-cased": "bert-base-cased",
        "BERT-large-uncased": "bert-large-uncased",
        "BERT-large-cased": "bert-large-cased",
        "RoBERTa-base": "roberta-base",
        "RoBERTa-large": "roberta-large",
        "GPT-2 (12 layers)": "gpt2",
        "GPT-2 (24 layers)": "gpt2-medium",
        "GPT-2-small": "gpt2",
        "GPT-2-medium": "gpt2-medium",
    },
)
DB, SM, ML, GT, *_ = STAND_INS
MODELS = STAND_INS[:-1]  # without GloVe
AS_IS, CENTRED, SCALED, PROCESSED = "as it is", "centred", "scaled-centred", "post-processed"
REPAIRS: dict[str, Repair | None] = {
    AS_IS: None,
    CENTRED: Center(),
    SCALED: ScaledCenter(),
    PROCESSED: AllButTheTop(),
}
I_ONE, I_BOTH = "I, one sign", "I"
LOGS = {BOTH_SIGNS: I_BOTH, ONE_SIGN: I_ONE}  # the logarithm of a measure


def matrix(settings: Settings, model: str) -> KeyedVectors:
    """The input embeddings of a model, or the vectors of a folder of words."""
    where = settings.location(model)
    return KeyedVectors.load(where) if holds_vectors(where) else embeddings(where)


def tokens_of(found: KeyedVectors) -> list[str]:
    """The token of each row, as the tokenizer stores it."""
    if isinstance(found, Embeddings):
        return found.tokens
    tokens = [""] * len(found.vectors)
    for word, row in found.words.items():
        tokens[row] = word
    return tokens


def repaired(W: NDArray[Any], repair: Repair | None) -> NDArray[Any]:
    return W if repair is None else repair.fit(W).transform(W)


def _isotropies(W: NDArray[Any], **keys: Any) -> list[Record]:
    """log10 I and I, with both signs and with one."""
    logs = isotropy_records(W, **keys)
    plain = [{**one, "measure": LOGS[one["measure"]], "value": 10 ** one["value"]} for one in logs]
    return [*plain, *logs]


TABLE_1 = {
    "BERT-base-uncased": "0.39 0.98 0.998 1.40 0.94 0.67",
    "BERT-base-cased": "0.59 0.98 0.996 1.29 0.50 0.39",
    "BERT-large-uncased": "0.44 0.97 0.997 1.45 0.80 0.55",
    "BERT-large-cased": "0.52 0.96 0.995 1.53 0.65 0.42",
    "RoBERTa-base": "0.50 0.87 0.959 3.65 0.57 0.16",
    "RoBERTa-large": "0.07 0.64 0.956 4.36 2.53 0.58",
    "GPT-2 (12 layers)": "0.12 0.91 0.969 3.96 2.05 0.52",
    "GPT-2 (24 layers)": "0.52 0.95 0.981 3.68 2.04 0.55",
}
I_TABLE = {model: " ".join(row.split()[:3]) for model, row in TABLE_1.items()}
NORM_TABLE = {model: " ".join(row.split()[3:]) for model, row in TABLE_1.items()}
TREATED = (AS_IS, CENTRED, PROCESSED)
ALIGNED = "alignment of the mean"


def _dots(settings: Settings, records: list[Record], measure: str, y: str) -> Any:
    """A measure of our models and of the paper's, one colour for each setting."""
    values: dict[str, dict[str, float]] = {}
    for one in matching(records, measure=measure):
        values.setdefault(one["setting"], {})[one["model"]] = one["value"]
    for one in matching(settings.experiment.published, measure=measure):
        values.setdefault(one["setting"], {})[f"{one['model']} (paper)"] = one["value"]
    return figures.bars(values, y)


def _isotropy_figure(settings: Settings, records: list[Record]) -> Findings:
    return Findings(figures={"isotropy": _dots(settings, records, I_ONE, "I(W), one sign")})


@experiment(
    PAPER,
    "isotropy",
    shows="table 1, section 5.3",
    title="Isotropy and drift of input embeddings",
    claim="Subtracting the mean makes the embeddings of most models nearly isotropic, and removing "
    "the first principal components makes all of them so. The top eigenvector of W'W is the mean: "
    "their cosine is 0.99 for RoBERTa-large, whose embeddings have a mean cosine of 0.33.",
    models=STAND_INS,
    minutes=3,
    layouts=(
        Layout(
            ("model",),
            ("measure", "setting"),
            dict.fromkeys((I_ONE, I_BOTH), ".3f"),
            "Isotropy I(W) before and after",
            (I_ONE, I_BOTH),
        ),
        Layout(
            ("model",),
            ("measure", "setting"),
            dict.fromkeys(LOGS, ".3f"),
            "The same as log10 I(W)",
            tuple(LOGS),
        ),
        Layout(
            ("model",),
            forms=dict.fromkeys((*NORMS, ALIGNED, COSINE), ".2f"),
            title="The drift of the mean",
            measures=(*NORMS, ALIGNED, COSINE),
        ),
    ),
    published=(
        *published(I_TABLE, columns={"setting": TREATED}, measure=I_ONE),
        *published(
            I_TABLE,
            columns={"setting": TREATED},
            measure="log10 I, one sign",
            convert=math.log10,
        ),
        *published(NORM_TABLE, columns={"measure": NORMS}),
        *published({"RoBERTa-large": "0.99 0.33"}, columns={"measure": (ALIGNED, COSINE)}),
    ),
    conclude=_isotropy_figure,
)
def isotropy(settings: Settings, model: str) -> Findings:
    """I(W) of all rows of W, special and unused tokens included: as it is, after subtracting the
    mean row (centred), and after also removing the first ceil(d/100) of the d principal components
    (post-processed). The drift is the norm of the mean row over the mean norm of the rows: 0 for
    rows around the origin, near 1 for rows that are nearly alike. Its alignment is the cosine
    between the mean row and the top eigenvector of W'W, and the mean cosine that of two different
    rows."""
    W = matrix(settings, model).vectors
    rows = [
        one for name in TREATED for one in _isotropies(repaired(W, REPAIRS[name]), setting=name)
    ]
    found = measure(W, ["norms", "mean_norm_ratio", "mean_alignment", "mean_cosine"])
    norm, ratio = found.norms["mean"], found.mean_norm_ratio
    values = (norm, ratio * norm, ratio, found.mean_alignment, found.mean_cosine)
    rows += [
        record(value, n=len(W), measure=name)
        for name, value in zip((*NORMS, ALIGNED, COSINE), values, strict=True)
    ]
    return Findings(rows)


SETS = {
    "men3000": "MEN",
    "rw2034": "RW",
    "simlex999": "SimLex-999",
    "ws353_sim": "WordSim-Sim",
    "ws353_rel": "WordSim-Rel",
}
SCORES = {"cosine": "cosine", "inner product": "dot"}  # our word for each, and the task's
MEAN = {name: f"mean r, {name}" for name in SCORES}
GAIN = {name: f"gain, {name}" for name in SCORES}


TABLE_2 = """
BERT-base-cased | as it is | 62.29 60.91
BERT-base-cased | centred | 60.44 60.08
BERT-base-cased | scaled-centred | 62.32 62.41
BERT-base-cased | post-processed | 65.57 66.10
RoBERTa-base | as it is | 66.81 66.01
RoBERTa-base | centred | 66.85 67.03
RoBERTa-base | scaled-centred | 67.02 66.95
RoBERTa-base | post-processed | 66.87 67.15
GPT-2-small | as it is | 64.71 59.45
GPT-2-small | centred | 64.95 66.04
GPT-2-small | scaled-centred | 66.57 67.32
GPT-2-small | post-processed | 67.85 67.67
BERT-large-cased | as it is | 61.90 59.42
BERT-large-cased | centred | 58.66 57.99
BERT-large-cased | scaled-centred | 61.18 61.05
BERT-large-cased | post-processed | 65.72 65.89
RoBERTa-large | as it is | 61.29 44.79
RoBERTa-large | centred | 64.09 63.78
RoBERTa-large | scaled-centred | 65.49 64.16
RoBERTa-large | post-processed | 64.38 65.17
GPT-2-medium | as it is | 65.53 59.20
GPT-2-medium | centred | 66.83 67.90
GPT-2-medium | scaled-centred | 67.95 68.22
GPT-2-medium | post-processed | 68.05 67.81
"""
TABLE_3 = """
BERT-base-cased | as it is | 65.53 67.07 61.22 63.72 52.52 52.37 75.03 75.57 50.27 52.70
BERT-base-cased | scaled-centred | 69.32 68.36 63.57 63.94 47.34 47.96 78.58 77.36 53.23 53.96
BERT-base-cased | post-processed | 72.20 70.91 67.71 68.20 53.60 52.53 79.38 78.15 57.63 58.04
BERT-large-cased | as it is | 64.64 67.20 58.94 61.89 52.68 52.91 73.44 76.32 47.40 51.16
BERT-large-cased | scaled-centred | 68.63 67.69 61.67 62.19 48.66 48.53 77.47 77.45 48.81 50.02
BERT-large-cased | post-processed | 72.12 71.07 67.22 68.07 55.41 53.77 78.80 78.88 55.90 56.79
GPT-2-small | as it is | 65.55 71.16 58.08 63.99 50.43 51.45 72.98 78.32 50.19 58.63
GPT-2-small | scaled-centred | 75.55 74.10 64.05 64.94 51.60 50.36 81.41 80.61 63.98 62.86
GPT-2-small | post-processed | 76.00 75.34 65.30 66.56 53.74 53.15 80.70 80.79 62.62 63.40
GPT-2-medium | as it is | 65.01 71.55 58.55 65.22 51.13 52.51 72.67 78.48 48.65 59.90
GPT-2-medium | scaled-centred | 76.10 75.02 64.14 65.34 54.22 53.30 80.85 80.56 65.79 65.51
GPT-2-medium | post-processed | 75.92 75.25 64.80 66.11 54.65 54.19 79.99 80.25 63.71 64.43
RoBERTa-base | as it is | 72.83 72.70 64.72 66.61 55.17 54.84 78.00 78.62 59.31 61.27
RoBERTa-base | scaled-centred | 74.18 73.33 65.38 66.35 54.16 53.77 79.35 79.10 61.66 62.53
RoBERTa-base | post-processed | 74.22 73.13 65.45 66.11 53.87 53.35 79.64 79.08 62.58 62.70
RoBERTa-large | as it is | 42.92 63.44 49.72 64.31 45.75 54.54 58.09 73.46 27.47 50.69
RoBERTa-large | scaled-centred | 70.55 70.95 63.09 65.63 55.24 54.18 75.72 77.34 56.19 59.35
RoBERTa-large | post-processed | 72.01 70.55 63.11 63.64 52.48 50.93 77.87 77.09 60.36 59.71
"""


def _table(text: str) -> dict[tuple[str, ...], str]:
    """The rows of a table, (model, setting): values."""
    lines = (line.split(" | ") for line in text.strip().splitlines())
    return {(model, setting): values for model, setting, values in lines}


def _words(
    settings: Settings, found: KeyedVectors, score: str
) -> tuple[WordSimilarity, dict[str, int]]:
    """The five sets without pairs that have a word of several tokens, and the row of each word."""
    task = WordSimilarity.read(settings.data_folder("wordsim"), similarity=SCORES[score])
    words = [str(word) for word in task.texts]
    if isinstance(found, Embeddings):
        rows: Iterable[int | None] = found.words.rows(words)
    else:
        rows = [found.words.get(word) for word in words]
    row_of = {word: row for word, row in zip(words, rows, strict=True) if row is not None}
    return task.known(row_of), row_of


def _outcome(task: WordSimilarity, W: NDArray[Any], row_of: Mapping[str, int]) -> Outcome:
    return task.score(W[[row_of[str(word)] for word in task.texts]])


def _similarity_figures(settings: Settings, records: list[Record]) -> Findings:
    return Findings(
        figures={
            score.replace(" ", "-"): _dots(settings, records, name, f"mean r x 100, {score}")
            for score, name in MEAN.items()
        }
    )


@experiment(
    PAPER,
    "word-similarity",
    shows="table 2, table 3",
    title="Word similarity before and after",
    claim="More isotropic embeddings agree better with people on how similar two words are, except "
    "in the BERT-cased models, which are the most isotropic from the start. Scaled centring is "
    "nearly as good as post-processing, and inner products gain more than cosines.",
    data=("wordsim",),
    models=STAND_INS,
    minutes=2,
    options={"draws": 2000},
    quick={"draws": 50},
    layouts=(
        Layout(
            ("model", "setting"),
            forms=dict.fromkeys(MEAN.values(), ".2f") | dict.fromkeys(GAIN.values(), "+.2f"),
            title="Mean of the five sets, Pearson's r x 100; gains over the matrix as it is, with "
            "95 % intervals over pairs of words",
            measures=(*MEAN.values(), *GAIN.values()),
        ),
        Layout(
            ("model", "setting"),
            ("data", "measure"),
            dict.fromkeys(SCORES, ".2f"),
            "Each set, Pearson's r x 100",
            tuple(SCORES),
        ),
    ),
    published=(
        *published(
            _table(TABLE_2),
            names=("model", "setting"),
            columns={"measure": tuple(MEAN.values())},
        ),
        *published(
            _table(TABLE_3),
            names=("model", "setting"),
            columns={"data": tuple(SETS.values()), "measure": ("inner product", "cosine")},
        ),
    ),
    conclude=_similarity_figures,
)
def word_similarity(settings: Settings, model: str) -> Findings:
    """Pearson's correlation, times 100, of the similarity of two words with the scores that people
    gave, on MEN, Rare Words, SimLex-999 and both parts of WordSim-353; the mean is that of the five
    sets. A word's vector is its row of W, and pairs with a word of several tokens are left out, so
    models are not compared on the same pairs. Scaled-centred subtracts from each row the mean of
    the unit rows times the row's own norm; the other settings are those of the isotropy table."""
    found = matrix(settings, model)
    tasks = {score: _words(settings, found, score) for score in SCORES}
    rows: list[Record] = []
    base: dict[str, Outcome] = {}
    for name, repair in REPAIRS.items():
        W = repaired(found.vectors, repair)
        for score, (task, row_of) in tasks.items():
            outcome = _outcome(task, W, row_of)
            n, keys = task.n_items, {"setting": name}
            rows.append(record(100 * outcome.value, n=n, measure=MEAN[score], **keys))
            if score in base:
                fold = Fold(outcome, base[score], task.item_groups())
                low, high = interval([fold], settings.options["draws"])
                gain = record(100 * fold.difference, n=n, measure=GAIN[score], **keys)
                rows.append(gain | {"low": 100 * low, "high": 100 * high})
            base.setdefault(score, outcome)
            for data_set, title in SETS.items():
                items = np.flatnonzero(task.subsets == data_set)
                if len(items):
                    value = 100 * _outcome(task.subset(items), W, row_of).value
                    rows.append(record(value, n=len(items), data=title, measure=score, **keys))
    listed = sum(task.n_listed.values())
    note = f"{Path(model).name} has rows for both words of {n:,} of {listed:,} pairs."
    return Findings(rows, notes=[note])


FIRST, SECOND, RATIO = "first singular value", "second singular value", "first over second"
SHARE = "share of the first in the squares"


def _spectrum(values: Floats, **keys: Any) -> list[Record]:
    shares = values**2 / (values**2).sum()
    found = (values[0], values[1], values[0] / values[1], shares[0])
    return [
        record(value, measure=name, **keys)
        for name, value in zip((FIRST, SECOND, RATIO, SHARE), found, strict=True)
    ]


def _spheres(settings: Settings, records: list[Record]) -> Findings:
    """Points on the unit sphere, moved away from the origin."""
    draws = np.random.default_rng(0).standard_normal((settings.options["points"], 3))
    sphere = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    found: list[Record] = []
    shown, curves = {}, []
    for shift in settings.options["shifts"]:
        moved = sphere + np.array([shift, 0.0, 0.0])
        values = singular_values(moved)
        found += _spectrum(values, shift=shift, n=len(moved))
        curves.append(values)
        shown[f"moved by {shift:g}"] = moved[:, :2]
    ends = [*shown.items()]
    shifts = list(settings.options["shifts"])
    series = {
        f"{name} singular value": (shifts, [values[i] for values in curves])
        for i, name in enumerate(("first", "second", "third"))
    }
    drawn = figures.points(dict([ends[0], ends[-1]]), "first axis", "second axis")
    drawn.update_yaxes(scaleanchor="x")
    return Findings(
        found,
        {
            "sphere": drawn,
            "sphere-singular-values": figures.lines(
                series, "distance of the centre from the origin, in radii", "singular value"
            ),
        },
    )


@experiment(
    PAPER,
    "geometry",
    shows="figure 1, figure 2",
    title="A shifted cloud looks like a cone",
    claim="Projected on the first two singular vectors, embeddings look like a narrow cone; after "
    "centring they look like a ball, and the gap after the first singular value closes. A sphere "
    "that moves away from the origin shows the same gap, though it is no cone.",
    models=(DB, SM),
    minutes=1,
    options={"points": 1000, "shifts": (0.0, 1.0, 2.0, 3.0, 4.0)},
    quick={"points": 100},
    layouts=(
        Layout(("model", "setting"), title="Singular values of W", forms={SHARE: ".1%"}),
        Layout(("shift",), title="Singular values of the shifted sphere", forms={SHARE: ".1%"}),
    ),
    conclude=_spheres,
)
def geometry(settings: Settings, model: str) -> Findings:
    """The rows of W along the first two singular vectors of W, and of W less its mean; a sample of
    2,000 tokens, coloured by how frequent their text is as an English word (Zipf scale: log10 of
    occurrences per billion words), or by norm if the package wordfreq is not installed. The cross
    is the origin. Then all singular values before and after centring; their squares add up to the
    squared lengths of the rows, so the share of the first says how much of W one direction holds.
    The sphere is a toy: random points on the unit sphere in three dimensions, whose centre moves
    away from the origin."""
    found = matrix(settings, model)
    W, tokens = found.vectors, tokens_of(found)
    view = View(measure(W, ["norms"]))
    sample = view.geometry.drawn.sample
    assert sample is not None
    view.columns["token"] = [tokens[int(i)] for i in np.asarray(sample.numbers)]
    color = "norm" if frequencies(view.columns["token"]) is None else "frequency"
    spectra = {
        name: singular_values(W, center=center)
        for name, center in ((AS_IS, False), (CENTRED, True))
    }
    rows = [
        one for name, values in spectra.items() for one in _spectrum(values, setting=name, n=len(W))
    ]
    series = {name: (range(1, len(v) + 1), v.tolist()) for name, v in spectra.items()}
    return Findings(
        rows,
        {
            "uncentred": _projection(view, color, centered=False),
            "centred": _projection(view, color),
            "singular-values": figures.lines(
                series, "rank", "singular value", x_log=True, y_log=True, markers=False
            ),
        },
    )


def _projection(view: View, color: str, centered: bool = True) -> Any:
    """The report's projection, with the unit of its colours and the origin in a legend."""
    figure = charts.projection(view, color, centered=centered)
    rows, _ = figure.data
    rows.showlegend = False
    if color == "frequency":
        rows.marker.colorbar.title.text = "log10 frequency<br>per billion words"
    return figure.update_layout(showlegend=True)


PROJECTED = {
    AS_IS: None,
    "centred vector projected": AllButTheTop(),
    "uncentred vector projected": AllButTheTop(centered=False),
}


@experiment(
    PAPER,
    "projection",
    shows="section 5.1, equation 11",
    title="Projecting the centred or the uncentred vector",
    claim="All-but-the-top subtracts the mean and the projections on the first principal "
    "components. Projecting the centred vector is more effective than projecting the uncentred "
    "one, as Mu and Viswanath (2018) do.",
    data=("wordsim",),
    needed=0,
    models=(DB, SM),
    minutes=1,
    layouts=(
        Layout(
            ("model", "setting"),
            forms=dict.fromkeys(LOGS, ".3f") | dict.fromkeys(MEAN.values(), ".2f"),
            measures=(*LOGS, *MEAN.values()),
        ),
    ),
)
def projection(settings: Settings, model: str) -> Findings:
    """With y = w - mean and u_j the first D = ceil(d/100) principal components of the rows, the two
    forms are y - sum_j (u_j.y) u_j (centred) and y - sum_j (u_j.w) u_j (uncentred). log10 I(W) of
    all rows, and Pearson's r x 100 of word similarity, the mean of the five sets. The second form
    is the first less a constant vector along the u_j, to which all rows of the first are
    orthogonal: that shifts all inner products by one constant, so their r is the same, but it
    brings a drift back, which I and the cosines feel."""
    found = matrix(settings, model)
    rows: list[Record] = []
    for name, repair in PROJECTED.items():
        W = repaired(found.vectors, repair)
        rows += isotropy_records(W, setting=name)
        for score in SCORES if settings.data_sets else ():
            task, row_of = _words(settings, found, score)
            value = 100 * _outcome(task, W, row_of).value
            rows.append(record(value, n=task.n_items, setting=name, measure=MEAN[score]))
    return Findings(rows)


BY_BIN, TREND, REFERENCE = "cosine by bin", "rank correlation of bin and cosine", "reference tokens"


def _bin_name(first: int, stop: int) -> str:
    return f"mean cosine with tokens {first:,} to {stop - 1:,}"


def _rare_curves(settings: Settings, records: list[Record]) -> Findings:
    series = {}
    for name in dict.fromkeys(one["model"] for one in records):
        bins = matching(records, model=name, measure=BY_BIN)
        series[name] = ([one["first"] for one in bins], [one["value"] for one in bins])
    x = f"first token of a bin of {settings.options['width']:,} (roughly from frequent to rare)"
    drawn = figures.lines(series, x, "mean cosine with reference tokens")
    return Findings(figures={"cosines": drawn})


@experiment(
    PAPER,
    "rare",
    shows="figure 3, section 4.2",
    title="Rare tokens resemble tokens that were never used",
    claim="Tokens that occur in no text were only ever pushed away from what the model predicted. "
    "Their cosine with other tokens grows as those become rarer: 0.27 with the most frequent words "
    "of BERT's vocabulary, 0.63 with its last ones. RoBERTa's last 1,000 tokens behave alike.",
    models=(DB, SM, ML, GT),
    minutes=1,
    options={"width": 1000, "shown": ((2000, 3000), (28500, 29500)), "least": 50, "last": 1000},
    quick={"width": 8, "shown": ((8, 16), (30, 38)), "least": 5, "last": 8},
    layouts=(
        Layout(
            ("model",),
            forms={REFERENCE: ".0f", TREND: ".2f"}
            | {_bin_name(*ends): ".2f" for ends in ((2000, 3000), (28500, 29500))},
            measures=(
                REFERENCE,
                TREND,
                *(_bin_name(*e) for e in ((2000, 3000), (28500, 29500), (8, 16), (30, 38))),
            ),
        ),
    ),
    published=published(
        {"BERT": "0.27 0.63 994"},
        columns={"measure": (_bin_name(2000, 3000), _bin_name(28500, 29500), REFERENCE)},
    ),
    remarks=(
        "Figure 3 says BERT-base-cased, but its token numbers and its 994 unused tokens are those "
        "of the uncased vocabulary.",
    ),
    conclude=_rare_curves,
)
def rare(settings: Settings, model: str) -> Findings:
    """The mean cosine of reference tokens with bins of 1,000 consecutive tokens. The reference
    tokens are those named [unused...]; a model with fewer than 50 of them has its last 1,000 tokens
    instead. Vocabularies are roughly in the order of frequency, so later bins are rarer; BERT's,
    though, begin and end with single characters, many of them rare. A bin leaves out the reference
    tokens in it. The rank correlation is Spearman's, between the number of a bin and its mean
    cosine."""
    options = settings.options
    found = matrix(settings, model)
    W = found.vectors.astype(np.float64)
    lengths = np.linalg.norm(W, axis=1)
    directed = lengths > 0
    units = W / np.where(directed, lengths, 1)[:, None]
    unused = [i for i, token in enumerate(tokens_of(found)) if token.startswith("[unused")]
    what = f"its {len(unused)} unused tokens"
    if len(unused) < options["least"]:
        n_last = min(options["last"], len(units) // 2)
        unused = list(range(len(units) - n_last, len(units)))
        what = f"its last {len(unused):,} tokens"
    reference: NDArray[np.bool_] = np.zeros(len(units), dtype=bool)
    reference[unused] = True
    towards = units[reference & directed].mean(axis=0)
    others = directed & ~reference

    def cosine(first: int, stop: int) -> tuple[float, int]:
        inside = units[first:stop][others[first:stop]]
        return (float(inside.mean(axis=0) @ towards) if len(inside) else math.nan), len(inside)

    starts = [*range(0, len(units), options["width"]), len(units)]
    bins = [(first, *cosine(first, stop)) for first, stop in pairwise(starts)]
    bins = [one for one in bins if one[2]]
    trend = stats.spearmanr([first for first, *_ in bins], [value for _, value, _ in bins])
    rows = [record(len(unused), measure=REFERENCE, n=len(units))]
    for first, stop in options["shown"]:
        value, n = cosine(first, stop)
        if n:
            rows.append(record(value, measure=_bin_name(first, stop), n=n))
    rows.append(record(trend.statistic, measure=TREND, n=len(bins)))
    rows += [record(value, measure=BY_BIN, first=first, n=n) for first, value, n in bins]
    return Findings(rows, notes=[f"{Path(model).name}: the reference is {what}."])


WORD = re.compile(r"\w+|[^\w\s]")
COVERED = {0.3: "30 %", 0.5: "50 %", 0.98: "98 %"}
NEEDED = {share: f"units that cover {text}" for share, text in COVERED.items()}
DISTINCT, SLOPE = "distinct units", "slope of log frequency on log rank"


def _counted(counts: Mapping[Any, int], kind: str, least_rank: int) -> tuple[list[Record], Any]:
    """Coverage records of a kind of unit, and its curve of rank and frequency."""
    ordered = np.sort(np.fromiter(counts.values(), dtype=np.int64))[::-1]
    total, covered = int(ordered.sum()), np.cumsum(ordered)
    rows = [
        record(int(np.searchsorted(covered, share * total)) + 1, measure=name, unit=kind, n=total)
        for share, name in NEEDED.items()
    ]
    ranks = np.arange(1, len(ordered) + 1)
    drawn = np.unique(np.geomspace(1, len(ordered), 60).astype(int)) - 1
    often = np.flatnonzero(ranks >= least_rank)
    often = often[ordered[often] > 1]  # what occurs once forms a flat end
    slope = float(np.polyfit(np.log(ranks[often]), np.log(ordered[often]), 1)[0])
    rows.append(record(len(ordered), measure=DISTINCT, unit=kind, n=total))
    rows.append(record(slope, measure=SLOPE, unit=kind, n=len(often)))
    return rows, (ranks[drawn], ordered[drawn] / total)


@experiment(
    PAPER,
    "zipf",
    shows="section 2.2, figure 4",
    title="Tokens are as unevenly frequent as words",
    claim="Splitting rare words into pieces does not even out frequencies: 13 tokens cover 30 % of "
    "the CNN news corpus, 85 tokens cover 50 %, and nearly 15,000 are needed for 98 %. So most "
    "tokens are nearly always pushed away as non-targets.",
    data=("cnndm",),
    models=(DB,),
    minutes=1,
    options={"first_rank": 10},
    layouts=(
        Layout(
            ("model", "unit"),
            forms=dict.fromkeys((*NEEDED.values(), DISTINCT), ",.0f") | {SLOPE: ".2f"},
        ),
    ),
    published=published(
        {("BERT", "tokens"): "13 85 15000"},
        names=("model", "unit"),
        columns={"measure": tuple(NEEDED.values())},
    ),
    remarks=('The paper writes "nearly 15000" for 98 %.',),
)
def zipf(settings: Settings, model: str) -> Findings:
    """How many of the most frequent units cover 30, 50 and 98 % of all units in running text (CNN
    and Daily Mail articles): tokens of the model's tokenizer, and words with punctuation marks
    apart. The slope is that of a straight line through log frequency against log rank, from rank 10
    on, without units that occur once; Zipf's law has -1."""
    found = matrix(settings, model)
    if not isinstance(found, Embeddings):
        return Findings(notes=[f"{Path(model).name} has no tokenizer, so it is left out."])
    texts = list(_articles(settings))
    ids = found.words.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    kinds = {
        "tokens": Counter(token for text in ids for token in text),
        "words": Counter(word for text in texts for word in WORD.findall(text)),
    }
    rows: list[Record] = []
    series = {}
    for kind, counts in kinds.items():
        own, series[kind] = _counted(counts, kind, settings.options["first_rank"])
        rows += own
    drawn = figures.lines(series, "rank", "share of the text", x_log=True, y_log=True)
    return Findings(rows, {"rank-and-frequency": drawn}, [f"{len(texts):,} articles were read."])


def _articles(settings: Settings) -> Iterable[str]:
    """The articles of all files of the data set."""
    for path in sorted(settings.data_folder("cnndm").iterdir()):
        if ".jsonl" in path.suffixes:
            yield from map(str, each(open_texts(path, columns=["article"])))


DENSITY, FREQUENCY = "density", "rank correlation of norm and frequency"
OVER_MODELS = {
    "mean norm and I": ("mean norm", I_ONE),
    "ratio and I": (NORMS[2], I_ONE),
    "mean norm and I, both signs": ("mean norm", I_BOTH),
    "ratio and I, both signs": (NORMS[2], I_BOTH),
}
EIGHT = "eight models of the paper"


def _correlations(over: str, values: Mapping[str, Sequence[float]]) -> list[Record]:
    return [
        record(stats.pearsonr(values[one], values[other]).statistic,
               measure=name, over=over, n=len(values[one]))
        for name, (one, other) in OVER_MODELS.items()
        if one in values and other in values and len(values[one]) > 2
    ]  # fmt: skip


def _over_models(settings: Settings, records: list[Record]) -> Findings:
    names = list(dict.fromkeys(one["model"] for one in records))
    measures = ("mean norm", NORMS[2], I_ONE, I_BOTH)
    ours = {name: [one["value"] for one in matching(records, measure=name)] for name in measures}
    columns = list(zip(*(map(float, row.split()) for row in TABLE_1.values()), strict=True))
    paper = {I_ONE: columns[0], "mean norm": columns[3], NORMS[2]: columns[5]}
    rows = _correlations(f"our {len(names)} models", ours)
    rows += _correlations(f"{EIGHT}, from its table 1", paper)
    series = {}
    for name in names:
        found = matching(records, model=name, measure=DENSITY)
        series[name] = ([one["norm"] for one in found], [one["value"] for one in found])
    axes = ("norm of a row", "density (share of rows per decade)")
    notes = [] if len(names) > 2 else ["A correlation over models needs at least three of them."]
    return Findings(rows, {"norms": figures.lines(series, *axes, x_log=True, markers=False)}, notes)


@experiment(
    PAPER,
    "norms",
    shows="figure 5, figure 6, appendix C",
    title="Norms of embeddings, and isotropy over models",
    claim="Models with longer embeddings are less isotropic: mean norm and I correlate with -0.61 "
    "over the paper's models. The less isotropic ones tend to have a larger ratio of the norm of "
    "the mean to the mean norm. More frequent words have shorter vectors.",
    models=MODELS,
    minutes=2,
    options={"bins": 60, "points": 2000},
    layouts=(
        Layout(
            ("over",),
            forms=dict.fromkeys(OVER_MODELS, ".2f"),
            title="Pearson's correlation over models",
        ),
        Layout(
            ("model",),
            forms=dict.fromkeys((*NORMS, FREQUENCY), ".2f") | {"mean norm, centred": ".2f"},
            title="Norms of each model",
            measures=("mean norm", "mean norm, centred", NORMS[2], I_ONE, I_BOTH, FREQUENCY),
        ),
    ),
    published=(
        {"over": f"{EIGHT} (paper)", "measure": "mean norm and I", "value": -0.61},
        *published(
            {model: f"{row.split()[3]} {row.split()[5]}" for model, row in TABLE_1.items()},
            columns={"measure": ("mean norm", NORMS[2])},
        ),
        *published(
            {model: row.split()[0] for model, row in TABLE_1.items()},
            columns={"measure": (I_ONE,)},
        ),
    ),
    conclude=_over_models,
)
def norms(settings: Settings, model: str) -> Findings:
    """Lengths of the rows of W before and after subtracting the mean, and how they go with
    isotropy from model to model. Within a model, the rank correlation (Spearman's) of a token's
    norm with the frequency of its text as an English word (Zipf scale: log10 of occurrences per
    billion words; tokens that are no word are left out): below zero, frequent words are shorter."""
    found = matrix(settings, model)
    W = found.vectors
    geometry = measure(W, ["norms", "mean_norm_ratio"])
    lengths, after = (
        np.linalg.norm(X.astype(np.float64), axis=1) for X in (W, repaired(W, Center()))
    )
    rows = [
        record(geometry.norms["mean"], n=len(W), measure="mean norm"),
        record(after.mean(), n=len(W), measure="mean norm, centred"),
        record(geometry.mean_norm_ratio, n=len(W), measure=NORMS[2]),
        *_isotropies(W)[:2],
    ]
    logs = np.log10(lengths[lengths > 0])
    heights, edges = np.histogram(logs, bins=settings.options["bins"], density=True)
    rows += [
        record(height, norm=float(10**middle), measure=DENSITY)
        for height, middle in zip(heights, (edges[1:] + edges[:-1]) / 2, strict=True)
    ]
    both = {AS_IS: lengths, CENTRED: after}
    drawn = {"before-and-after": figures.densities(both, "norm of a row", "share of rows")}
    often = frequencies(tokens_of(found))
    if often is None:
        return Findings(rows, drawn, ["Frequencies need the package wordfreq."])
    words = np.flatnonzero(often > 0)
    correlation = stats.spearmanr(often[words], lengths[words]).statistic
    rows.append(record(correlation, n=len(words), measure=FREQUENCY))
    chosen = np.random.default_rng(0).permutation(words)[: settings.options["points"]]
    drawn["norm-and-frequency"] = figures.points(
        {"tokens": np.column_stack([often[chosen], lengths[chosen]])},
        "frequency of the word (Zipf scale: log10 per billion words)",
        "norm of its row",
    )
    return Findings(rows, drawn)


TRAINED = {
    "causal": (True, False),
    "causal regularised": (True, True),
    "masked": (False, False),
    "masked regularised": (False, True),
}


def _over_steps(settings: Settings, records: list[Record]) -> Findings:
    edge = f"{settings.options['edge']:,}"
    curves = {  # name of the figure: measure, title of its axis
        "drift": (NORMS[2], "norm of the mean over mean norm"),
        "isotropy": ("log10 I", "log10 I(W), both signs"),
        "mean-cosine": (COSINE, "mean cosine of two rows of W"),
        "unused-and-rare": (UNUSED["rare"], f"cosine of unused with {edge} rarest"),
        "unused-and-frequent": (UNUSED["frequent"], f"cosine of unused with {edge} most frequent"),
        "loss": (LOSS, "validation loss, nats per predicted word"),
    }
    drawn = {}
    for key, (what, title) in curves.items():
        series = {}
        for name in TRAINED:
            rows = matching(records, model=name, measure=what)
            series[name] = ([one["step"] for one in rows], [one["value"] for one in rows])
        drawn[key] = figures.lines(series, "training step", title)
    return Findings(figures=drawn)


@experiment(
    PAPER,
    "training",
    shows="section 3, appendix A",
    title="Drift in training, with and without cosine regularisation",
    claim="At each prediction the embeddings of all words but the target move along -h, away from "
    "the model's output vector h, and only the target moves towards it. Over the training the "
    "embeddings drift together, those of rare words most. Cosine regularisation is the same as "
    "keeping the mean direction short, so it works against the drift.",
    data=("wikitext2",),
    models=(),
    trained=tuple(TRAINED),
    minutes=10,
    options={
        "words": 8000,
        "unused": 200,
        "width": 128,
        "layers": 2,
        "heads": 4,
        "length": 64,
        "batch": 16,
        "masked": 0.15,
        "rate": 1e-3,
        "weight": 1.0,
        "steps": 600,
        "every": 50,
        "edge": 1000,
        "checked": 8,
    },
    quick={
        "words": 30,
        "unused": 6,
        "width": 16,
        "length": 8,
        "batch": 4,
        "steps": 6,
        "every": 3,
        "checked": 4,
    },
    layouts=(
        Layout(
            ("model", "when"),
            forms=dict.fromkeys((*NORMS, MOVED, COSINE, *UNUSED.values(), LOSS), ".3f")
            | dict.fromkeys(LOGS, ".3f"),
            title="The embedding matrix before the first and after the last step",
            measures=(LOSS, *NORMS, MOVED, COSINE, *LOGS, *UNUSED.values()),
        ),
        Layout(
            ("model", "when"),
            forms=dict.fromkeys((*ALONG, OTHERS, OUTPUT), ".1%") | {TOGETHER: ".3f", ERROR: ".1e"},
            title="What one step does to the rows of W (equations 5 and 6)",
            measures=(*ALONG, OTHERS, TOGETHER, OUTPUT, ERROR),
        ),
        Layout(
            ("model",),
            forms=dict.fromkeys(SIDES, ".6f") | dict.fromkeys(APART, ".1e"),
            title="Appendix A: the cosine regulariser after training, computed in two ways",
            measures=(*SIDES, *APART),
        ),
    ),
    conclude=_over_steps,
)
def training(settings: Settings, model: str) -> Findings:
    """A transformer of 2 layers with 128 dimensions, whose output matrix is its input embedding
    matrix W, learns to predict the next word (causal) or 15 % masked words (masked) of WikiText-2,
    in 600 steps of 1,024 words (Adam, rate 0.001). W has rows for the 8,000 most frequent words and
    for 200 unused tokens that never occur. Regularised adds to the loss the sum of the cosines of
    all pairs of rows over |V|^2 (weight 1; |V| is the number of rows). The drift is the norm of the
    mean row over the mean norm. Frequent and rare are the 1,000 most frequent words of W and the
    1,000 rarest. For single predictions we count the rows whose gradient step points along -h
    exactly, and the targets that point along h. For a batch of 1,024 words: the rows that are the
    target of no prediction, the mean cosine of their steps (1 is one common direction), and the
    share of the squared gradient that comes through the output layer; the rest comes through the
    input. Error is the largest difference of equation 5 from automatic differentiation, relative to
    the largest gradient. Appendix A says that the regulariser is the squared norm of the mean of
    the unit rows less 1/|V|."""
    causal, regularized = TRAINED[model]
    return Findings(drift_training.trained(settings, causal, regularized))
