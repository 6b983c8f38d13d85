"""Codecs to try, and how their codes score on a task, or without labels by their neighbours."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from typing import Any, Protocol

import numpy as np
import scipy.stats

from isotropy import linalg
from isotropy.codecs import Binary, Codec, Faiss, Float, Rescored, Scalar
from isotropy.codecs.base import mean_shift
from isotropy.codecs.repaired import RepairedCodec, Shared
from isotropy.engines import reduce
from isotropy.errors import InputError, brief
from isotropy.evidence.bench import NO_ITEMS, Bench, Evaluation, Plan, exclusion_note
from isotropy.evidence.significance import Fold
from isotropy.evidence.spaces import NONE, SENTENCE, Integers, as_candidate
from isotropy.linalg import Floats
from isotropy.models import Float32Array
from isotropy.repairs import Center, Chain, Origin, Repair, Rotate
from isotropy.sources import ArraySource, Source
from isotropy.stats import Sample
from isotropy.tasks import Mean, Outcome, Retrieval
from isotropy.tasks.scorers import Cosine, Documents, Index, Scorer

N_FOLDS = 5
N_DOCUMENTS, N_QUERIES, N_RANKED = 20_000, 1000, 500  # rows that fidelity is measured on, at most
N_NEIGHBOURS = 10
LEAST_ROWS = 150
CENTROIDS_TIMES = 4  # as many rows as centroids are needed to learn them
FIDELITY = f"recall@{N_NEIGHBOURS} of float32's own neighbours"
CHOOSING = 3  # one of so many items is used to choose, if they are not divided
IN_WORDS = {  # parameters that names have words for
    "repair", "repairs", "method", "coarse", "fine", "n_dims", "truncate", "bits", "asymmetric",
    "half", "factory", "align_queries",
}  # fmt: skip
NOT_QUALITY = (
    "This is fidelity, not quality: how many neighbours stay the same, not whether it matters. To "
    "test quality, give a task with labels (--task retrieval --data DIR)."
)


def default_codecs(
    n_features: int, n_samples: int, search: bool = True, aligned: bool = False
) -> list[Codec]:
    """The codecs that `compress` tries: repairs x codes x widths.

    With `aligned`, those of one stage with a learned rotation are also tried with aligned queries.

    With faiss, also product quantisation into 2 bits or 1 bit per dimension, if there are rows
    enough to learn it from, and RaBitQ. Those whose queries are treated unlike rows are for
    searches only. Candidates are rescored by int8 codes of the vectors as they are: a repair that
    helps bits may cost int8 a little.
    """
    rotated = [Chain([Center(), Rotate(method)]) for method in ("random", "itq")]
    spaces: list[dict[str, Any]] = [{"repair": one} for one in (None, Center(), *rotated)]
    half = 8 * (n_features // 16)
    if half:  # principal components are centred already
        kept = {"n_dims": half, "truncate": "pca"}
        spaces += [kept | {"repair": one} for one in (Center(), *rotated)]
    found: list[Codec] = []
    for space in spaces:
        found += [Scalar(bits=8, **space), Scalar(bits=4, **space), Binary(**space)]
        if search:
            found.append(Binary(asymmetric=True, **space))
            found.append(Rescored(coarse=Binary(**space), fine=Scalar(bits=8)))
    if aligned:
        one_stage = [codec for codec in found if not isinstance(codec, Rescored)]
        found += [_aligned(codec) for codec in one_stage if repair_of(codec) is rotated[-1]]
    if find_spec("faiss") and n_features % 8 == 0:
        learnable = n_samples >= CENTROIDS_TIMES * 256
        sizes = (n_features // 4, n_features // 8) if learnable else ()
        found += [Faiss(factory=f"PQ{size}") for size in sizes]
        found += [Faiss(factory="RR,RaBitQ")] if search else []
    return found


def _aligned(codec: Codec) -> Codec:
    """The codec with aligned queries, and with the same repair, which is fitted once."""
    found = copy.copy(codec)
    found.align_queries = True
    return found


def repair_words(repair: Repair | None) -> str:
    """A repair as tables name it: "center + rotate(itq)"."""
    if repair is None:
        return NONE
    if isinstance(repair, Chain):
        return ", ".join([" + ".join(map(repair_words, repair.repairs)), *_changed(repair)])
    if isinstance(repair, Rotate):
        return f"{repair.name}({', '.join([repair.method, *_changed(repair)])})"
    return str(as_candidate(repair, (SENTENCE,))) if repair.name in Repair.by_name else repair.name


def code_words(codec: Codec) -> str:
    """A codec as tables name it, without its repair: "binary, pca 192"."""
    if isinstance(codec, Rescored):
        words = [code_words(codec.coarse), f"rescored by {code_words(codec.fine)}"]
        if (repair := repair_of(codec.fine)) is not None:
            words[1] += f" ({repair_words(repair)})"
    else:
        n_dims = getattr(codec, "n_dims", None)
        width = [] if n_dims is None else [f"{getattr(codec, 'truncate', '')} {n_dims}"]
        words = [_kind(codec), *width]
    aligned = ["aligned queries"] if codec.align_queries else []
    return ", ".join([*words, *aligned, *_changed(codec)])


def _changed(part: Codec | Repair) -> list[str]:
    """The parameters that are not at their default, and that no other words are for."""
    usual = {name: one.default for name, one in signature(type(part)).parameters.items()}
    given = {k: v for k, v in part.get_params(deep=False).items() if k not in IN_WORDS}
    return [f"{k}={_value(v)}" for k, v in given.items() if repr(v) != repr(usual[k])]


def _value(value: Any) -> str:
    return str(value) if np.isscalar(value) else brief(value)


def _kind(codec: Codec) -> str:
    if isinstance(codec, Scalar):
        return f"int{codec.bits}"
    if isinstance(codec, Binary):
        return "binary, float queries" if codec.asymmetric else "binary"
    if isinstance(codec, Float):
        return "float16" if codec.half else "float32"
    if isinstance(codec, Faiss):
        return f"faiss {codec.factory}"
    return codec.name or type(codec).__name__.lower()


def repair_of(codec: Codec) -> Repair | None:
    """The repair that goes before the codes, or before the shorter ones of two."""
    found: Repair | None = getattr(getattr(codec, "coarse", codec), "repair", None)
    return found


class FittedCodecs:
    """Codecs fitted on the same rows, and aligned to the same queries; see `Shared`."""

    def __init__(self, source: Source, queries: Float32Array | None) -> None:
        self.source, self.queries = source, queries
        self._shared: Shared = {}

    @cached_property
    def shift(self) -> Floats | None:
        """What aligns queries."""
        if self.queries is None:
            return None
        return mean_shift(self.source, ArraySource(self.queries))

    def fitted(self, codec: Codec) -> Codec:
        found = copy.copy(codec)  # a clone would forget a repair that is fitted
        shift = self.shift if found.align_queries else None
        if isinstance(found, RepairedCodec):
            return found._learn(self.source, None, shift, shared=self._shared)
        if isinstance(found, Rescored):
            found.coarse, found.fine = self.fitted(found.coarse), self.fitted(found.fine)
        return found._learn(self.source, None, shift)


@dataclass(frozen=True, eq=False)
class CodeSearch(Scorer, Index):
    """Documents as codes, which their codec searches."""

    codec: Codec
    codes: Any

    def index(self, documents: Documents) -> Index:
        return self

    def ranked(self, queries: Floats, n: int) -> Integers:
        found: Integers = self.codec.search(queries, self.codes, min(n, len(self.codes)))[1]
        return found


@dataclass(frozen=True)
class Comparisons:
    """A codec against float32 on the items to choose with and on those to test with."""

    codec: Codec  # fitted
    chosen: list[Fold]
    tested: list[Fold]


class Setting(Protocol):
    """What codes are compared on."""

    name: str
    metric: str
    fitted_on: str
    notes: list[str]
    n_features: int
    n_fitted: int
    n_documents: int  # that are searched
    n_chosen: int
    tested_groups: Integers

    def compared(self, codec: Codec) -> Comparisons:
        """The codec, fitted, against float32."""

    def everything(self, codec: Codec, evidence: str) -> Codec:
        """The codec, fitted on all that a shipped one may be fitted on."""


class OnTask:
    """Codes scored on a task: one plan has the items to choose with, the other those to test."""

    def __init__(self, bench: Bench, chosen: Plan, tested: Plan) -> None:
        self.bench, self.chosen, self.tested = bench, chosen, tested
        self.name, self.metric = bench.task.name, bench.task.metric
        self.notes = [*bench.notes]
        if tested.n_removed:
            self.notes.append(exclusion_note(tested.n_removed))
        self.fitted_on = tested.fitted_on
        self.n_features = int(bench.space.pooled.shape[1])
        self.n_fitted = tested.evaluations[0].fits.source(SENTENCE).n_samples
        self.n_documents = len(bench.task.corpus) if isinstance(bench.task, Retrieval) else 0
        self.n_chosen = sum(len(evaluation.items) for evaluation in chosen.evaluations)
        self.tested_groups = bench.task.groups[tested.evaluations[0].items]
        self._baselines = [
            [self._scored(bench.space.pooled, evaluation) for evaluation in plan.evaluations]
            for plan in (chosen, tested)
        ]
        for plan, baseline in zip((chosen, tested), self._baselines, strict=True):
            bench.expect_defined(baseline, plan)
        chosen_items = np.concatenate([evaluation.items for evaluation in chosen.evaluations])
        self._queries = self._asked(chosen_items)
        self._fits: dict[int, FittedCodecs] = {}

    def _asked(self, items: Integers) -> Float32Array | None:
        """The queries of these items, if it is a search."""
        if not isinstance(self.bench.task, Retrieval):
            return None
        asked: Float32Array = self.bench.space.pooled[np.unique(self.bench.task.members[items, 0])]
        return asked

    def compared(self, codec: Codec) -> Comparisons:
        ready: dict[int, tuple[Codec, Any]] = {}  # by what it is fitted on
        folds = []
        for plan, baseline in zip((self.chosen, self.tested), self._baselines, strict=True):
            outcomes = []
            for evaluation in plan.evaluations:
                key = id(evaluation.fits)
                if key not in ready:
                    ready[key] = self._ready(codec, evaluation)
                outcomes.append(self._outcome(*ready[key], evaluation))
            folds.append(self.bench.folds(plan, outcomes, baseline))
        return Comparisons(ready[id(self.tested.evaluations[0].fits)][0], *folds)

    def _ready(self, codec: Codec, evaluation: Evaluation) -> tuple[Codec, Any]:
        """The codec, fitted, and the codes of the documents if there are any."""
        source = evaluation.fits.source(SENTENCE)
        shared = self._fits.setdefault(id(evaluation.fits), FittedCodecs(source, self._queries))
        fitted, task = shared.fitted(codec), self.bench.task
        if not isinstance(task, Retrieval):
            return fitted, None
        return fitted, fitted.encode(self.bench.space.pooled[task.documents])

    def _outcome(self, codec: Codec, codes: Any, evaluation: Evaluation) -> Outcome:
        task, rows = self.bench.task, self.bench.space.pooled
        if isinstance(task, Retrieval):
            return task.score(rows, evaluation.items, scorer=CodeSearch(codec, codes))
        used = task.texts_of(np.union1d(evaluation.items, evaluation.train))
        decoded = codec.decode(codec.encode(rows[used]))
        found = np.zeros((len(rows), decoded.shape[1]), dtype=np.float32)
        found[used] = decoded
        return self._scored(found, evaluation)

    def _scored(self, rows: Float32Array, evaluation: Evaluation) -> Outcome:
        train = evaluation.train if self.bench.task.supervised else None
        return self.bench.task.score(rows, evaluation.items, train)

    def everything(self, codec: Codec, evidence: str) -> Codec:
        fits = self.bench.everything(np.arange(self.bench.task.n_items))
        queries = self._asked(np.arange(self.bench.task.n_items))
        found = FittedCodecs(fits.source(SENTENCE), queries).fitted(codec)
        found.origin_ = self.bench.origin(SENTENCE, fits.texts, evidence)
        return found


def on_task(bench: Bench, inside: Integers, outside: Integers, seed: int) -> OnTask:
    """Codes chosen on the items inside, and tested on those outside."""
    apart = bench.apart(np.union1d(inside, outside))
    if apart is None or bench.task.supervised:
        return OnTask(bench, bench.across(inside, N_FOLDS, seed), bench.held_out(outside, inside))
    fits, how, n_removed = apart  # one fit serves both
    parts = Evaluation(inside, NO_ITEMS, fits), Evaluation(outside, inside, fits)
    chosen, tested = (Plan([part], how, n_removed) for part in parts)
    return OnTask(bench, chosen, tested)


class OnNeighbours:
    """Codes scored without labels: how many of the 10 nearest rows of float32 they find again."""

    name, metric = "fidelity", FIDELITY
    fitted_on = "the rows that are searched"

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.n_features = source, source.n_features
        self.notes = [NOT_QUALITY]
        (sample,) = reduce(source, [Sample(N_DOCUMENTS + N_QUERIES, seed)]).states
        rows = np.asarray(linalg.to_numpy(sample.rows), dtype=np.float32)
        if len(rows) < LEAST_ROWS:
            raise InputError(f"vectors must have at least {LEAST_ROWS} rows, got {len(rows)}.")
        n_queries = min(N_QUERIES, len(rows) // 5)
        self.queries, self.documents = rows[:n_queries], rows[n_queries:]
        self.n_fitted = self.n_documents = len(self.documents)
        self.n_chosen = n_queries // CHOOSING
        self.tested_groups = np.arange(self.n_chosen, n_queries)
        self._fits = FittedCodecs(ArraySource(self.documents), self.queries[: self.n_chosen])

    @cached_property
    def nearest(self) -> Integers:
        """The documents nearest to each query by cosine."""
        numbers = np.arange(len(self.documents))
        known = Documents(numbers, numbers[:0], lambda i: self.documents[i].astype(np.float64))
        return Cosine().index(known).ranked(self.queries.astype(np.float64), N_NEIGHBOURS)

    @cached_property
    def ranks(self) -> Floats:
        """The rank of some documents for each query."""
        known = Float().fit(self.documents)
        return _ranks(known.scores(self.queries, known.encode(self.documents[:N_RANKED])))

    def compared(self, codec: Codec) -> Comparisons:
        fitted = self._fits.fitted(codec)
        codes = fitted.encode(self.documents)
        _, found = fitted.search(self.queries, codes, N_NEIGHBOURS)
        recall = (found[:, :, None] == self.nearest[:, None, :]).any(axis=2).mean(axis=1)
        ranks = _ranks(fitted.scores(self.queries, codes[:N_RANKED]))
        alike = np.einsum("ij,ij->i", ranks, self.ranks)
        numbers = np.arange(len(self.queries))
        folds = []
        for part in (numbers[: self.n_chosen], numbers[self.n_chosen :]):
            system = Mean(recall[part], {"rank correlation": float(alike[part].mean())})
            folds.append([Fold(system, Mean(np.ones(len(part))), part)])
        return Comparisons(fitted, *folds)

    def everything(self, codec: Codec, evidence: str) -> Codec:
        found = FittedCodecs(self.source, self.queries).fitted(codec)
        found.origin_ = Origin.from_dict(dict(self.source.origin()) | {"evidence": evidence})
        return found


def _ranks(scores: Floats) -> Floats:
    """Ranks of the scores of each query, centred and of length one."""
    ranks = scipy.stats.rankdata(scores, axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    found: Floats = ranks / np.maximum(np.linalg.norm(ranks, axis=1, keepdims=True), 1e-300)
    return found
