"""The vectors of a task's texts, the candidate repairs, and the repaired vectors."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isotropy import checks, linalg, specs
from isotropy.engines import reduce
from isotropy.errors import ENCODE_AGAIN, InputError, brief, public
from isotropy.models import (
    Encoder,
    Float32Array,
    KeyedVectors,
    Text,
    TokenRows,
    WordMeans,
    averaged,
    bounded,
)
from isotropy.repairs import ClusterRemoval, PerGroup, Repair, SummedRepair
from isotropy.repairs.per_group import Label, Labels, expect_enough
from isotropy.sources import PickedRows, Source
from isotropy.stats import Moments
from isotropy.tasks import Scorer, as_scorer
from isotropy.threads import over_threads

Integers = NDArray[np.int64]
TOKEN, SENTENCE = "token", "sentence"
NONE = "none"


@dataclass(frozen=True)
class Space:
    """Token rows of texts, and how they are pooled to one row per text.

    If every text has one row only, as with vectors from a file, there is a single level.
    """

    tokens: TokenRows
    finish: Callable[[Float32Array], Float32Array] = field(default=lambda rows: rows)

    @cached_property
    def levels(self) -> tuple[str, ...]:
        several = len(self.tokens.rows) > self.tokens.n_texts
        return (TOKEN, SENTENCE) if several else (SENTENCE,)

    @cached_property
    def pooled(self) -> Float32Array:
        """One row per text, without a repair."""
        return self.finish(self._means)

    @cached_property
    def _means(self) -> Float32Array:
        return self.tokens.means()

    def source(self, level: str, texts: Integers | None = None) -> PickedRows:
        """The rows of these texts, each as often as it is listed; by default of all texts."""
        if texts is None:
            texts = np.arange(self.tokens.n_texts)
        if level == SENTENCE:
            return PickedRows(self.pooled, texts)
        return PickedRows(self.tokens.rows, self.tokens.of(texts))

    def repaired(
        self, repair: Repair | None, level: str, texts: Integers, groups: Labels | None = None
    ) -> Float32Array:
        """An array with a row for every text, in which the rows of `texts` are filled.

        A `PerGroup` repairs rows of texts, and needs the group of each.
        """
        if repair is None:
            return self.pooled
        if isinstance(repair, PerGroup):
            rows = repair.transform(self.pooled[texts], groups=groups)
        elif level == SENTENCE:
            rows = repair.transform(self.pooled[texts])
        else:
            rows = self._from_tokens(repair, texts)
        found = np.zeros((self.tokens.n_texts, rows.shape[1]), dtype=rows.dtype)
        found[texts] = rows
        return found

    def _from_tokens(self, repair: Repair, texts: Integers) -> Float32Array:
        if repair.is_affine:  # the mean of repaired rows is the repaired mean
            return self.finish(repair.transform(self._means[texts]))
        lengths = np.diff(self.tokens.starts)[texts]

        def means(block: slice) -> Float32Array:
            rows = repair.transform(self.tokens.rows[self.tokens.of(texts[block])])
            starts = np.concatenate([[0], np.cumsum(lengths[block])])
            return TokenRows(rows, starts.astype(np.int64)).means()

        blocks = list(bounded(lengths, self.tokens.rows.shape[1]))
        return self.finish(np.concatenate(over_threads(means, blocks)))


class ArrayEncoder:
    """Rows of an array, looked up by their texts."""

    def __init__(self, vectors: Any, texts: Sequence[Text]) -> None:
        self.rows = linalg.to_numpy(checks.matrix(vectors))
        if len(self.rows) != len(texts):
            raise InputError(
                f"vectors must have one row for each of the task's {len(texts):,} texts, got "
                f"{len(self.rows):,} rows. Encode task.texts in their order."
            )
        checks.finite(self.rows, advice=ENCODE_AGAIN)
        self.places = {text: place for place, text in enumerate(texts)}

    def encode(self, texts: Sequence[Text]) -> Float32Array:
        n_unknown = sum(text not in self.places for text in texts)
        if n_unknown:
            raise InputError(
                "fit_on must hold texts of the task when vectors are an array, got "
                f"{n_unknown:,} others. Use isotropy.KeyedVectors or an Encoder."
            )
        return self.rows[[self.places[text] for text in texts]]


def as_encoder(vectors: Any, texts: Sequence[Text]) -> Any:
    """What encodes texts: `vectors` if they can, otherwise a lookup of these texts' rows.

    Texts that are not among the words of keyed vectors become means of their words.
    """
    if isinstance(vectors, (str, os.PathLike)):
        raise InputError(
            f"vectors must be an encoder or an array, got the name {str(vectors)!r}. Use "
            "isotropy.Encoder(...) for a model, isotropy.KeyedVectors.load(...) for a file."
        )
    if isinstance(vectors, KeyedVectors):
        return averaged(vectors, texts)
    return vectors if hasattr(vectors, "encode") else ArrayEncoder(vectors, texts)


def space_of(vectors: Any, texts: Sequence[Text]) -> Space:
    """The space of texts under an encoder, or of the rows given for them."""
    encoder = as_encoder(vectors, texts)
    if isinstance(encoder, Encoder):
        if encoder.pool == "tokens":
            raise InputError(
                "the encoder must pool its tokens, got pool='tokens'. Use "
                "Encoder(..., pool='mean')."
            )
        if encoder.repair is not None or encoder.sentence_repair is not None:
            raise InputError(
                "the encoder must have no repair, got one from with_repair. List that repair "
                "among those to try."
            )
        tokens = encoder.tokens(texts)
        found = Space(tokens, encoder.own.finish) if encoder.own else Space(tokens)
    elif isinstance(encoder, WordMeans):
        found = Space(encoder.tokens(texts))
    else:
        rows = linalg.to_numpy(checks.matrix(encoder.encode(list(texts))))
        if len(rows) != len(texts):
            raise InputError(
                f"vectors must encode {len(texts):,} texts as that many rows, got {len(rows):,}."
            )
        with np.errstate(over="ignore"):  # values that are too large become infinite: see below
            rows = rows.astype(np.float32)
        found = Space(TokenRows(rows, np.arange(len(rows) + 1)))
    checks.finite(found.tokens.rows, advice=ENCODE_AGAIN)
    return found


@public
@dataclass(frozen=True)
class Candidate:
    """A repair with its parameters, applied to tokens or to pooled rows; or no repair.

    In a retrieval task, a scorer may come with it or take its place.
    """

    method: str
    """Name of a repair, such as "all-but-the-top", or "none"."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are not at their default."""
    level: str = SENTENCE
    """What is repaired: every "token" before pooling, or the pooled rows ("sentence")."""
    scorer: Scorer | None = None
    """How documents are scored for a query, such as `CSLS()`; by their cosine if None."""
    per_group: bool = field(default=False, kw_only=True)
    """Whether one repair is fitted to each group of texts; see `PerGroup`."""

    def __post_init__(self) -> None:
        if self.per_group and self.level != SENTENCE:
            raise InputError(f"level must be {SENTENCE!r} per group, got {brief(self.level)}.")
        checks.choice(self.method, "method", [NONE, *Repair.by_name])
        checks.choice(self.level, "level", (SENTENCE, TOKEN))
        specs.expect_known(self.params, self._known, f"params of {self.method}")
        if self.method != NONE:
            self.make()._check_params()

    @property
    def _known(self) -> list[str]:
        made = Repair.by_name.get(self.method)
        return list(signature(made).parameters) if made else []

    @property
    def is_none(self) -> bool:
        """Whether this is neither a repair nor a scorer."""
        return self.method == NONE and self.scorer is None

    def make(self, seed: int = 0) -> Repair:
        """The repair, of one group if there are several, not yet fitted.

        `seed` is its random_state unless that is a parameter.
        """
        given = {"random_state": seed} if self.seeded else {}
        return Repair.by_name[self.method](**given, **self.params)

    @property
    def seeded(self) -> bool:
        """Whether the fit depends on a seed that the parameters don't set."""
        return "random_state" in self._known and "random_state" not in self.params

    def __str__(self) -> str:
        if self.method == NONE:
            return str(self.scorer or NONE)
        inside = ", ".join(f"{name}={value}" for name, value in self.params.items())
        where = " on tokens" if self.level == TOKEN else " per group" if self.per_group else ""
        repair = f"{self.method}({inside}){where}" if inside else f"{self.method}{where}"
        return f"{repair} + {self.scorer}" if self.scorer else repair

    def to_dict(self) -> dict[str, Any]:
        scorer = {"scorer": str(self.scorer)} if self.scorer else {}
        return {
            "method": self.method,
            "params": dict(self.params),
            "level": self.level,
            "per_group": self.per_group,
        } | scorer


def as_candidate(spec: Any, levels: Sequence[str]) -> Candidate:
    """The candidate for a Candidate, a repair or scorer, or the text of one.

    A text is "method", "method:a=1,b=2" or "level/method", a scorer, or both as in "center+csls".
    Without a level it gets the first of `levels`: tokens, as in the papers. If a text has one row
    only, token and sentence are the same.
    """
    if isinstance(spec, Candidate):
        return spec
    if isinstance(spec, Repair):
        if spec.grouped:
            raise InputError(
                f"a repair to try must be one for all rows, got {type(spec).__name__}. Give the "
                "one inside it."
            )
        if spec.on_request:
            raise InputError(
                f"a repair to try must be one of {', '.join(Repair.by_name)}, got "
                f"{type(spec).__name__}."
            )
        usual = type(spec)().get_params()
        params = {k: v for k, v in spec.get_params().items() if v != usual[k]}
        return Candidate(spec.name, params, levels[0])
    if isinstance(spec, Scorer):
        return Candidate(NONE, scorer=spec)
    repair, _, last = str(spec).rpartition("+")
    scorer = as_scorer(last)
    name, params = specs.parse((repair or NONE) if scorer else str(spec))
    level, _, method = name.rpartition("/")
    found = Candidate(method, params, level or levels[0], scorer)
    return found if found.level in levels else replace(found, level=levels[0])


def default_candidates(levels: Sequence[str]) -> list[Candidate]:
    """Every repair with its default parameters, on the first level."""
    return [Candidate(name, {}, levels[0]) for name in sorted(Repair.by_name)]


def search_grid(levels: Sequence[str], n_features: int) -> list[Candidate]:
    """The candidates of `advise`, simplest first: none, then by how much is fitted and removed."""
    few = math.ceil(n_features / 100)
    upwards = tuple(reversed(levels))
    found = [Candidate(NONE), *(Candidate("center", {}, level) for level in upwards)]
    found += [Candidate("scaled-center"), Candidate("standardize")]
    found += [
        Candidate("all-but-the-top", {"n_components": n}, level)
        for n in sorted({1, few, 3 * few})
        if n < n_features
        for level in upwards
    ]
    found += [Candidate("whiten", {"power": p}, level) for p in (0.5, 1.0) for level in upwards]
    found += [
        Candidate("cluster-removal", {"n_clusters": k, "n_components": n}, levels[0])
        for k, n in ((27, 0), (10, 12), (27, 12), (10, 30))
        if n < n_features
    ]
    return found


def by_sharing(candidates: Sequence[Candidate]) -> list[int]:
    """Numbers of the candidates: none first, then clusterings, whose moments serve the others."""
    ranks = {NONE: 0, ClusterRemoval.name: 1}
    return sorted(range(len(candidates)), key=lambda i: ranks.get(candidates[i].method, 2))


def with_groups(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, each followed by its form per group, which is for rows of texts."""
    found: list[Candidate] = []
    for candidate in candidates:
        form = replace(candidate, level=SENTENCE, per_group=True)
        found += [one for one in (candidate, form) if one not in found]
    return found


class Fits:
    """Repairs fitted on the same rows, sharing the work that they have in common.

    Repairs that are computed from moments share the moments, which are those of a clustering of
    the same rows if there is one. Cluster removals with the same clusters share the clustering:
    their directions are the first of the most that any of them removes, so clusters that are too
    small for that many are dissolved for all of them. The rows of a level are read again from its
    `source` for every fit, and never kept. Candidates per group are fitted on the rows of each
    group, in `by_group`.
    """

    def __init__(
        self,
        source: Callable[[str], Source],
        candidates: Sequence[Candidate],
        texts: Sequence[Text] = (),
        by_group: Mapping[Label, Fits] | None = None,
    ) -> None:
        self.source, self._candidates = source, candidates  # all that will be fitted
        self.texts = texts  # of the rows
        self.by_group = by_group or {}
        self._moments: dict[str, Moments] = {}
        self._clusters: dict[Any, ClusterRemoval] = {}

    def gather(self, candidate: Candidate, seed: int = 0) -> None:
        """Make what the candidate's repair shares with others, in passes that use all threads."""
        if candidate.method == NONE:
            return
        repair = candidate.make(seed)
        for fits in self.by_group.values() if candidate.per_group else [self]:
            if _of_moments(repair):
                fits.moments(candidate.level)
            elif isinstance(repair, ClusterRemoval):
                fits._clustered(candidate.level, repair)

    def fitted(self, candidate: Candidate, seed: int = 0) -> Repair | None:
        """The candidate's repair, fitted; None for no repair."""
        if candidate.method == NONE:
            return None
        return self._one_or_each(candidate, lambda fits: fits._fitted(candidate, seed))

    def alone(self, candidate: Candidate) -> Repair:
        """The candidate's repair, fitted without the others, but with all that `fit` does."""
        if candidate.per_group:
            texts = {label: fits.texts for label, fits in self.by_group.items()}
            expect_enough(texts, self.source(candidate.level).n_features)
        return self._one_or_each(
            candidate, lambda fits: candidate.make().fit(fits.source(candidate.level))
        )

    def texts_for(self, candidate: Candidate) -> list[Text]:
        """The texts that a candidate is fitted on."""
        parts = self.by_group.values() if candidate.per_group else [self]
        return [text for part in parts for text in part.texts]

    def filled(self, by_group: Mapping[Label, Fits]) -> Fits:
        """The same, sharing what was fitted, with these groups in place of its own."""
        found = copy.copy(self)
        found.by_group = {**self.by_group, **by_group}
        return found

    def _one_or_each(self, candidate: Candidate, fitted: Callable[[Fits], Repair]) -> Repair:
        if not candidate.per_group:
            return fitted(self)
        return PerGroup.of({label: fitted(fits) for label, fits in self.by_group.items()})

    def _fitted(self, candidate: Candidate, seed: int) -> Repair:
        repair = candidate.make(seed)
        if _of_moments(repair):
            return repair.fit_statistic(self.moments(candidate.level))
        if isinstance(repair, ClusterRemoval):
            return self._clustered(candidate.level, repair).with_components(repair)
        return repair.fit(self.source(candidate.level))

    def moments(self, level: str) -> Moments:
        if level not in self._moments:
            clustered = [made for key, made in self._clusters.items() if key[0] == level]
            known = clustered[0].moments_ if clustered else None
            self._moments[level] = known or reduce(self.source(level), [Moments()]).states[0]
        return self._moments[level]

    def _clustered(self, level: str, repair: ClusterRemoval) -> ClusterRemoval:
        """The repair with as many directions as any candidate with the same clusters removes."""
        key = _clustering(level, repair)
        if key not in self._clusters:
            others = [c for c in self._candidates if c.method == repair.name]
            made = [(c.level, c.make(repair.random_state)) for c in others]
            alike = [repair, *(other for at, other in made if _clustering(at, other) == key)]
            most = max(other.n_components for other in alike)
            shared = clone(repair).set_params(n_components=most)
            self._clusters[key] = shared.fit(self.source(level))
        return self._clusters[key]


def _of_moments(repair: Repair) -> TypeGuard[SummedRepair]:
    """Whether the repair is computed from moments."""
    return isinstance(repair, SummedRepair) and repair.statistic is Moments


def _clustering(level: str, repair: Repair) -> Any:
    """Equal for cluster removals that differ only in how many directions they remove."""
    params = repair.get_params()
    params.pop("n_components")
    return level, tuple(params.items())
