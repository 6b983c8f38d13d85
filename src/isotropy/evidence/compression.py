"""compress: the smallest code of vectors that loses little on a task, with the evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isotropy import checks, tables
from isotropy.codecs import Codec, Rescored
from isotropy.errors import InputError, public
from isotropy.evidence.advice import percent, plain, signed
from isotropy.evidence.bench import (
    OnProgress,
    bench_of,
    distinct_texts,
    grouped_folds,
    no_progress,
)
from isotropy.evidence.codes import (
    CHOOSING,
    OnNeighbours,
    OnTask,
    Setting,
    code_words,
    default_codecs,
    on_task,
    repair_of,
    repair_words,
)
from isotropy.evidence.frontier import (
    LEVEL,
    Loss,
    Size,
    descend,
    frontier,
    items_unseen,
    ladder,
    loss_of,
)
from isotropy.evidence.search import LEAST_GROUPS, LEAST_ITEMS
from isotropy.evidence.significance import Fold, items_needed
from isotropy.evidence.spaces import NONE, as_encoder
from isotropy.evidence.split import disjoint, divided, effective_groups
from isotropy.models import Text
from isotropy.sources import as_source
from isotropy.tasks import Retrieval, Task

POINT = 0.01
MANY_CANDIDATES = 0.01  # of the documents: with more, rescoring hides what the first stage loses
HEAD = ("repair", "code", "bytes", "smaller", "score", "loss", "95 % interval", "note")
NUMBERS = {2, 3, 4, 5}
PLAIN = (
    "verdict", "reason", "task", "metric", "n_features", "n_bytes", "margin", "max_bytes",
    "max_stored_bytes", "n_chosen", "n_tested", "items_needed", "fitted_on", "items",
)  # fmt: skip
USE, BEST, STAY, UNDECIDED = "use", "best", "stay", "undecided"


@dataclass(frozen=True)
class CodeResult:
    """One codec on the tested items; score and losses are fractions.

    Attributes
    ----------
    codec : Codec
        Not fitted.
    repair, code : str
        The repair before the codes, and the rest of the codec, in words.
    n_bytes, n_bytes_stored : int
        Bytes per vector in memory, and with what a second stage reads.
    ratio : float
        Bytes of float32 over `n_bytes`.
    score : float
    loss : Loss
        The score of float32 less this one.
    chosen_loss : Loss
        The same on the items that were used to choose.
    metrics : dict
        Other figures of the tested items.
    on_frontier : bool
        Whether no other code takes as few bytes, in memory and stored, and is better, or takes
        fewer and is as good.
    """

    codec: Codec
    repair: str
    code: str
    n_bytes: int
    n_bytes_stored: int
    ratio: float
    score: float
    loss: Loss
    chosen_loss: Loss
    metrics: dict[str, float]
    on_frontier: bool = False
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.code if self.repair == NONE else f"{self.repair}, {self.code}"

    @property
    def sizes(self) -> Size:
        return self.n_bytes, self.n_bytes_stored

    @property
    def size(self) -> str:
        """Bytes per vector in words."""
        if self.n_bytes_stored == self.n_bytes:
            return f"{self.n_bytes:,} bytes"
        return f"{self.n_bytes:,} bytes in memory and {self.n_bytes_stored:,} stored"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100."""
        return {
            "name": self.name,
            "repair": self.repair,
            "code": self.code,
            "n_bytes": self.n_bytes,
            "n_bytes_stored": self.n_bytes_stored,
            "ratio": round(self.ratio, 2),
            "score": percent(self.score),
            "loss": percent(self.loss.value),
            "interval": [percent(end) for end in self.loss.interval],
            "most": percent(self.loss.most),
            "chosen_loss": percent(self.chosen_loss.value),
            "metrics": {name: percent(value) for name, value in self.metrics.items()},
            "on_frontier": self.on_frontier,
            "seconds": round(self.seconds, 2),
        }

    def cells(self) -> tuple[str, ...]:
        """The row of a table, without the mark."""
        stored = "" if self.n_bytes_stored == self.n_bytes else f", {self.n_bytes_stored:,} stored"
        ends = [signed(100 * end) for end in self.loss.interval if not math.isnan(end)]
        return (
            self.repair,
            f"{self.code}{stored}",
            f"{self.n_bytes:,}",
            f"{self.ratio:.0f}x",
            plain(percent(self.score)),
            signed(percent(self.loss.value)),
            " to ".join(ends),
        )


@dataclass(frozen=True)
class Compression:
    """Which code to use instead of float32, if any, and every code that was tried.

    Attributes
    ----------
    verdict : {"use", "stay", "undecided", "best"}
        A code loses less than the margin; none does; there are too few items to tell; or, with
        `max_bytes`, the best code of that size.
    choice : CodeResult or None
    codec : Codec or None
        The choice fitted on everything, ready to be saved.
    reason : str
        The verdict in words.
    baseline : float
        The score of float32 on the tested items.
    results : list of CodeResult
        The largest code first.
    n_chosen, n_tested : int
        Items that were used to choose, and to test.
    items_needed : int or None
        About how many items to test would show that the next smaller code holds, if it loses
        nothing; None if that is known.
    """

    verdict: str
    choice: CodeResult | None
    codec: Codec | None
    reason: str
    task: str
    metric: str
    baseline: float
    n_features: int
    n_bytes: int
    margin: float
    max_bytes: int | None
    max_stored_bytes: int | None
    results: list[CodeResult]
    n_chosen: int
    n_tested: int
    items_needed: int | None
    fitted_on: str
    items: str
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100, as `isotropy compress --json` prints them."""
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "choice": None if self.choice is None else self.choice.name,
            "baseline": percent(self.baseline),
            "codes": [
                result.to_dict() | {"chosen": result is self.choice} for result in self.results
            ],
            "notes": self.notes,
            "seconds": round(self.seconds, 2),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The table: float32, then every code, the chosen one and the frontier marked."""
        first = (NONE, "float32", f"{self.n_bytes:,}", "1x", plain(percent(self.baseline)))
        rows: list[tuple[str, ...]] = [(*first, "", "", "")]
        for result in self.results:
            marks = ["frontier"] * result.on_frontier + ["chosen"] * (result is self.choice)
            rows.append((*result.cells(), ", ".join(marks)))
        return rows

    @property
    def title(self) -> str:
        return f"{self.task}: {self.metric}, {self.n_tested:,} items, fitted on {self.fitted_on}"

    def __str__(self) -> str:
        table = tables.text_table(HEAD, self.rows(), NUMBERS)
        return "\n".join([self.reason, "", self.title, table, "", self.items, *self.notes])

    def _repr_html_(self) -> str:
        table = tables.html_table(HEAD, self.rows(), self.title)
        lines = [tables.paragraph(line) for line in (self.items, *self.notes)]
        return "".join([tables.paragraph(self.reason), table, *lines])


@public
def compress(
    vectors: Any,
    task: Task | None = None,
    codecs: Sequence[Codec] | None = None,
    *,
    margin: float = 1.0,
    max_bytes: int | None = None,
    max_stored_bytes: int | None = None,
    fit_on: Sequence[Text] | None = None,
    transductive: bool = False,
    max_items: int = 2000,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> Compression:
    """The smallest code that loses less than a margin against float32, tested on unseen items.

    Parameters
    ----------
    vectors : Encoder, KeyedVectors, array of shape (len(task.texts), n_features), or anything \
            with `encode`; without a task, an array, path or source
    task : Task, optional
        Its training part is used to choose, and its test part to test. A task without parts is
        split: a third of the items to choose, the others to test. Without a task, codes are
        compared by how many of the 10 nearest rows of float32 they find again: fidelity, not
        quality.
    codecs : sequence of Codec, optional
        What to try, not fitted, each with its repair. By default int8, int4 and binary codes, of
        all dimensions or of half of the principal components, as they are, centred, and centred
        and rotated. In searches, bits also with float queries and rescored by int8; with a task,
        codes after a learned rotation also with aligned queries. With faiss also product
        quantisation and RaBitQ.
    margin : float
        Points of the metric, above 0, that a code may lose; a point is 0.01.
    max_bytes : int, optional
        Ask the reverse question: the best code of at most this many bytes in memory, and its loss.
    max_stored_bytes : int, optional
        Choose only among codes that store at most this many bytes, with what a second stage reads.
    fit_on : list of texts, optional
        What codecs are fitted on. By default the corpus, or the text of the other items.
    transductive : bool
        Fit on the evaluated text itself.
    max_items : int
        Most items of the training part to use.
    seed : int
        Seed of samples, of the split, and of the bootstrap.
    progress : callable, optional
        Called with a name, how many codecs are done, and how many there are.

    Notes
    -----
    Of every size, the code with the smallest upper limit of the loss (one-sided, 95 %) on the items
    to choose with is taken, unless a smaller code has a smaller limit. On the other items these are
    tested from the largest to the smallest, and testing stops at the first that is not shown to
    lose less than the margin (one-sided bootstrap, 5 %). Which codes are tested, and in what order,
    does not depend on the tested items, and a code is accepted only if all larger ones were. So
    the chance of accepting any code that loses the margin or more is at most 5 %, however many are
    tried: a fixed-sequence test.

    Codes keep directions, not lengths: rows are scaled to length one. In tasks other than retrieval
    both texts of a pair are decoded codes, so codecs for searches only are refused.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((2000, 64))
    >>> found = compress(X, margin=5)
    >>> found.choice.code, found.choice.n_bytes, found.n_bytes
    ('int8', 64, 256)
    """
    start = time.perf_counter()
    if checks.real(margin, "margin", 0, 100) == 0:
        raise InputError(
            "margin must be above 0, got 0: no number of items shows that a code loses nothing at "
            "all. Allow a small loss, such as 0.5."
        )
    checks.integer(seed, "seed", 0)
    checks.integer(max_items, "max_items", LEAST_ITEMS)
    checks.flag(transductive, "transductive")
    checks.function(progress, "progress")
    for name, limit in {"max_bytes": max_bytes, "max_stored_bytes": max_stored_bytes}.items():
        if limit is not None:
            checks.integer(limit, name, 1)
    if task is None:
        for name, given in {"fit_on": fit_on, "transductive": transductive or None}.items():
            if given is not None:
                raise InputError(f"{name} must come with a task, got none. Leave it out.")
        sampled = OnNeighbours(as_source(vectors), seed)
        setting: Setting = sampled
        items = f"Neighbours of {len(sampled.queries):,} rows among {len(sampled.documents):,}."
        n_used = len(sampled.queries) + len(sampled.documents)
        if n_used < sampled.source.n_samples:
            items += (
                f" They are a sample of {sampled.source.n_samples:,} rows: among all of these, "
                "codes find fewer neighbours again, and those that are rescored fewest."
            )
    else:
        if not isinstance(task, Task):
            raise InputError(f"task must be a Task, got {type(task).__name__}.")
        if transductive and fit_on is not None:
            raise InputError("fit_on must not be given with transductive. Leave one of them out.")
        setting, items = _split(vectors, task, fit_on, transductive, max_items, seed)
    search = task is None or isinstance(task, Retrieval)
    sizes = setting.n_features, setting.n_fitted
    tried = _checked(codecs) or default_codecs(*sizes, search, search and task is not None)
    if not search:
        _expect_pairs(tried)
    results, folds = _results(setting, tried, seed, progress or no_progress)
    allowed = _small_enough(results, max_stored_bytes)
    considered = [results[i] for i in allowed], [folds[i] for i in allowed]
    found = Verdict(setting, *considered, margin * POINT, max_bytes, max_stored_bytes).found()
    choice = found["choice"]
    return Compression(
        **found,
        codec=None if choice is None else setting.everything(choice.codec, found["reason"]),
        task=setting.name,
        metric=setting.metric,
        baseline=_baseline(folds[0]),
        n_features=setting.n_features,
        n_bytes=4 * setting.n_features,
        margin=margin,
        max_bytes=max_bytes,
        max_stored_bytes=max_stored_bytes,
        results=results,
        n_chosen=setting.n_chosen,
        n_tested=len(setting.tested_groups),
        fitted_on=setting.fitted_on,
        items=items,
        notes=[*setting.notes, *_candidates_note(choice, setting.n_documents)],
        seconds=time.perf_counter() - start,
    )


def _candidates_note(choice: CodeResult | None, n_documents: int) -> list[str]:
    """That rescoring looks good because it sees much of a small corpus, if so."""
    if choice is None or not isinstance(choice.codec, Rescored):
        return []
    share = choice.codec.n_candidates / n_documents
    if share <= MANY_CANDIDATES:
        return []
    return [
        f"Rescoring ranks {choice.codec.n_candidates:,} candidates, {100 * min(share, 1):.0f} % of "
        f"the {n_documents:,} documents, so it looks better than it will with many more. Test on a "
        "corpus of the size you have."
    ]


def _checked(codecs: Any) -> list[Codec] | None:
    if codecs is None:
        return None
    listed = list(checks.listing([codecs] if isinstance(codecs, Codec) else codecs, "codecs"))
    if not listed or not all(isinstance(codec, Codec) for codec in listed):
        raise InputError("codecs must be a list of at least one Codec.")
    return listed


def _split(
    vectors: Any,
    task: Task,
    fit_on: Sequence[Text] | None,
    transductive: bool,
    max_items: int,
    seed: int,
) -> tuple[OnTask, str]:
    """The task with items to choose and others to test, and how many these are in words."""
    encoder = as_encoder(vectors, task.texts)
    texts = None if fit_on is None else distinct_texts(fit_on)
    split = divided(task, max_items, seed)
    task, (inside, outside) = split.task(task), split.within()
    bench = bench_of(encoder, task, lambda space: (), texts, transductive)
    words = split.words
    if outside is None:
        strata = None if task.subsets is None else task.subsets[inside]
        dealt = grouped_folds(bench.task.groups[inside], CHOOSING, seed, strata)
        inside, outside = inside[dealt == 0], inside[dealt != 0]
        words = f"Items used: {len(inside):,} to choose, {len(outside):,} others to test."
    else:
        n_before = len(inside)
        inside = disjoint(bench.task, inside, outside)
        words = split.without(n_before - len(inside)).words
    for items, what in ((inside, "choose"), (outside, "test")):
        if len(items) < LEAST_ITEMS:
            raise InputError(
                f"{task.name!r} must have at least {LEAST_ITEMS} labelled items to {what} with, "
                f"got {len(items)}. Give more items."
            )
    return on_task(bench, inside, outside, seed), words


def _results(
    setting: Setting, codecs: Sequence[Codec], seed: int, progress: OnProgress
) -> tuple[list[CodeResult], list[list[Fold]]]:
    """Every codec on the tested items, the largest first, and its folds."""
    found: list[tuple[CodeResult, list[Fold]]] = []
    for number, codec in enumerate(codecs):
        progress(setting.name, number, len(codecs))
        start = time.perf_counter()
        compared = setting.compared(codec)
        tested, fitted = compared.tested, compared.codec
        names = tested[0].system.metrics
        result = CodeResult(
            codec=codec,
            repair=repair_words(repair_of(codec)),
            code=code_words(codec),
            n_bytes=fitted.n_bytes,
            n_bytes_stored=fitted.n_bytes_stored,
            ratio=4 * setting.n_features / fitted.n_bytes,
            score=float(np.mean([fold.system.value for fold in tested])),
            loss=loss_of(tested, seed, whole=isinstance(codec, Rescored)),
            chosen_loss=loss_of(compared.chosen, seed),
            metrics={n: float(np.mean([f.system.metrics[n] for f in tested])) for n in names},
            seconds=time.perf_counter() - start,
        )
        found.append((result, tested))
    progress(setting.name, len(codecs), len(codecs))
    found.sort(key=lambda pair: pair[0].sizes, reverse=True)
    sizes, scores = [pair[0].sizes for pair in found], [pair[0].score for pair in found]
    marks = zip(found, frontier(sizes, scores), strict=True)
    results = [replace(result, on_frontier=mark) for (result, _), mark in marks]
    return results, [tested for _, tested in found]


def _small_enough(results: Sequence[CodeResult], max_stored_bytes: int | None) -> list[int]:
    """Numbers of the codes that store at most so many bytes."""
    if max_stored_bytes is None:
        return list(range(len(results)))
    found = [i for i, one in enumerate(results) if one.n_bytes_stored <= max_stored_bytes]
    if not found:
        least = min(result.n_bytes_stored for result in results)
        raise InputError(
            f"max_stored_bytes must be at least {least}, the bytes of the smallest code, got "
            f"{max_stored_bytes}. Allow more, or try other codecs."
        )
    return found


def _baseline(folds: Sequence[Fold]) -> float:
    return float(np.mean([fold.baseline.value for fold in folds]))


@dataclass(frozen=True, eq=False)
class Verdict:
    """Chooses a code on some items, tests it on the others, and says so."""

    setting: Setting
    results: list[CodeResult]
    folds: list[list[Fold]]  # of each result, on the tested items
    margin: float  # a fraction
    max_bytes: int | None
    max_stored_bytes: int | None  # which all results keep to

    def found(self) -> dict[str, Any]:
        """verdict, choice, reason and items_needed of a `Compression`."""
        if self.max_bytes is not None:
            return self._best(self.max_bytes)
        n_groups = effective_groups(self.setting.tested_groups)
        if n_groups < LEAST_GROUPS:
            reason = (
                f"Not enough items: the {len(self.setting.tested_groups):,} to test amount to "
                f"{n_groups:.0f} independent groups; at least {LEAST_GROUPS} are needed."
            )
            return _verdict(UNDECIDED, None, reason, None)
        sizes = [result.sizes for result in self.results]
        steps = ladder(sizes, [result.chosen_loss.most for result in self.results])
        n_passed = descend([self.results[step].loss.most for step in steps], self.margin)
        choice = self.results[steps[n_passed - 1]] if n_passed else None
        if n_passed == len(steps):
            if choice is None:
                return _verdict(STAY, None, "Stay with float32: no code has a score.", None)
            return _verdict(USE, choice, self._use(choice), None)
        return self._stopped(choice, steps[n_passed])

    def _stopped(self, choice: CodeResult | None, step: int) -> dict[str, Any]:
        """The verdict if the code of that number did not pass."""
        failed = self.results[step]
        what = f"{failed.name} ({failed.size})"
        low, high = (plain(100 * end) for end in failed.loss.interval)
        reason = [] if choice is None else [self._use(choice)]
        points = "1 point" if self.margin == POINT else f"{100 * self.margin:g} points"
        if failed.loss.interval[0] > self.margin:
            start = "Stay with float32:" if choice is None else "The next one is no better:"
            worst = f"{what} loses {low} to {high} (95 % interval), more than {points}."
            reason.append(f"{start} {worst}")
            return _verdict(STAY if choice is None else USE, choice, " ".join(reason), None)
        needed: int | None = max(
            items_needed(self.folds[step], self.margin, alpha=2 * LEVEL),
            items_unseen(_baseline(self.folds[step]), self.margin)
            if isinstance(failed.codec, Rescored)
            else 1,
        )
        assert needed is not None
        more = f"the loss of {what} is between {low} and {high}"
        if needed > len(self.setting.tested_groups):
            more += (
                f"; if it loses nothing, about {needed:,} items to test would show that it is "
                f"less than {points}."
            )
        else:
            needed = None
            more += f", which is too near {points} to tell."
        start = "Not enough items:" if choice is None else "Not enough items for the next one:"
        reason.append(f"{start} {more}")
        return _verdict(UNDECIDED if choice is None else USE, choice, " ".join(reason), needed)

    def _best(self, max_bytes: int) -> dict[str, Any]:
        """The best code of at most so many bytes on the items to choose with."""
        small = [result for result in self.results if result.n_bytes <= max_bytes]
        known = [result for result in small if not math.isnan(result.chosen_loss.value)]
        if not known:
            least, stored = min(result.n_bytes for result in self.results), ""
            if self.max_stored_bytes is not None:
                stored = f" that stores at most {self.max_stored_bytes} bytes"
            raise InputError(
                f"max_bytes must be at least {least}, the bytes of the smallest code{stored}, got "
                f"{max_bytes}. Allow more, or try other codecs."
            )
        choice = min(known, key=lambda r: (r.chosen_loss.value, r.sizes))
        low, high = (plain(100 * end) for end in choice.loss.interval)
        reason = (
            f"Up to {max_bytes:,} bytes, use {self._sized(choice)}: a loss of "
            f"{plain(percent(choice.loss.value))} (95 % interval {low} to {high})."
        )
        return _verdict(BEST, choice, reason, None)

    def _use(self, choice: CodeResult) -> str:
        most = 100 * choice.loss.most
        limit = f"loss at most {plain(most)}" if most >= 0 else f"gain of at least {plain(-most)}"
        return f"Use {self._sized(choice)} ({limit} with 95 % confidence)."

    def _sized(self, choice: CodeResult) -> str:
        baseline = plain(percent(_baseline(self.folds[0])))
        memory = "" if choice.n_bytes_stored == choice.n_bytes else " in memory"
        return (
            f"{choice.name}: {choice.size} instead of {4 * self.setting.n_features:,} "
            f"({choice.ratio:.0f} times smaller{memory}), {self.setting.metric} "
            f"{plain(percent(choice.score))} against {baseline}"
        )


def _expect_pairs(codecs: Sequence[Codec]) -> None:
    """Raise if a codec scores a query against documents in a way that has no meaning for pairs."""
    for codec in codecs:
        one_way = getattr(codec, "asymmetric", False) or codec.align_queries
        if isinstance(codec, Rescored) or one_way:
            raise InputError(
                f"codecs must not be for searches in this task, got {code_words(codec)}. Give a "
                "retrieval task, or leave it out."
            )


def _verdict(
    verdict: str, choice: CodeResult | None, reason: str, needed: int | None
) -> dict[str, Any]:
    return {"verdict": verdict, "choice": choice, "reason": reason, "items_needed": needed}
