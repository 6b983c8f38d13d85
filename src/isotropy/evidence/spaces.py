"""The vectors of a task's texts, the candidate repairs, and what these make of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isotropy import checks, linalg
from isotropy.engines import reduce
from isotropy.errors import InputError, public
from isotropy.models.encoder import Encoder, Tokens
from isotropy.models.keyed import KeyedVectors, WordMeans, averaged
from isotropy.models.models import Rows
from isotropy.models.texts import Text
from isotropy.models.tokens import bounded
from isotropy.repairs import ClusterRemoval, Repair
from isotropy.repairs.base import SummedRepair, is_affine
from isotropy.sources import Source
from isotropy.sources.arrays import PickedRows
from isotropy.stats import Moments

Integers = NDArray[np.int64]
TOKEN, SENTENCE = "token", "sentence"


@dataclass(frozen=True)
class Space:
    """Token rows of texts, and how one row a text is made of them.

    Where each text has one row only, as vectors from a file do, there is one level.
    """

    tokens: Tokens
    finish: Callable[[Rows], Rows]

    @cached_property
    def levels(self) -> tuple[str, ...]:
        several = len(self.tokens.rows) > self.tokens.n_texts
        return (TOKEN, SENTENCE) if several else (SENTENCE,)

    @cached_property
    def pooled(self) -> Rows:
        """One row a text, nothing repaired."""
        return self.finish(self._means)

    @cached_property
    def _means(self) -> Rows:
        return self.tokens.means()

    def source(self, level: str, texts: Integers) -> PickedRows:
        """The rows of these texts, as often as each is named, that a repair is fitted on."""
        if level == SENTENCE:
            return PickedRows(self.pooled, texts)
        return PickedRows(self.tokens.rows, self.tokens.of(texts))

    def repaired(self, repair: Repair | None, level: str, texts: Integers) -> Rows:
        """An array with a row for every text, of which those of `texts` are filled."""
        if repair is None:
            return self.pooled
        if level == SENTENCE:
            return _filled(repair.transform(self.pooled[texts]), texts, self.tokens.n_texts)
        return _filled(self._from_tokens(repair, texts), texts, self.tokens.n_texts)

    def _from_tokens(self, repair: Repair, texts: Integers) -> Rows:
        if is_affine(repair):  # the mean of repaired rows is the repaired mean
            return self.finish(repair.transform(self._means[texts]))
        lengths = np.diff(self.tokens.starts)[texts]
        means = []
        for block in bounded(lengths, self.tokens.rows.shape[1]):
            rows = repair.transform(self.tokens.rows[self.tokens.of(texts[block])])
            starts = np.concatenate([[0], np.cumsum(lengths[block])])
            means.append(Tokens(rows, starts.astype(np.int64)).means())
        return self.finish(np.concatenate(means))


def _filled(rows: Rows, texts: Integers, n_texts: int) -> Rows:
    whole = np.zeros((n_texts, rows.shape[1]), dtype=rows.dtype)
    whole[texts] = rows
    return whole


class Given:
    """Rows of an array, looked up by the text that each was made of.

    Parameters
    ----------
    vectors : array of shape (len(texts), n_features)
    texts : sequence of texts
    """

    def __init__(self, vectors: Any, texts: Sequence[Text]) -> None:
        rows = linalg.to_numpy(checks.matrix(vectors))
        if len(rows) != len(texts):
            raise InputError(
                f"vectors must have a row for each of the {len(texts):,} texts of the "
                f"task, got {len(rows):,}. Encode task.texts in their order."
            )
        checks.finite(rows)
        self.rows = rows
        self.places = {text: place for place, text in enumerate(texts)}

    def encode(self, texts: Sequence[Text]) -> Rows:
        unknown = [text for text in texts if text not in self.places]
        if unknown:
            raise InputError(
                f"fit_on must be of the task's texts where vectors are an array, "
                f"got {len(unknown):,} others. Use isotropy.KeyedVectors or an Encoder."
            )
        found: Rows = self.rows[[self.places[text] for text in texts]]
        return found


def encoder_of(vectors: Any, texts: Sequence[Text]) -> Any:
    """What encodes texts: `vectors` where they do, and otherwise the rows of these texts.

    Where the vectors are of words and the texts are not, these are means of their words.
    """
    if isinstance(vectors, (str, os.PathLike)):
        raise InputError(
            f"vectors must be an encoder or an array, got the name {str(vectors)!r}. Use "
            "isotropy.Encoder(...) of a model, isotropy.KeyedVectors.load(...) of a file."
        )
    if isinstance(vectors, KeyedVectors):
        return averaged(vectors, texts)
    return vectors if hasattr(vectors, "encode") else Given(vectors, texts)


def space(vectors: Any, texts: Sequence[Text]) -> Space:
    """The space of texts by an encoder, by whatever else has `encode`, or of their rows."""
    vectors = encoder_of(vectors, texts)
    if isinstance(vectors, Encoder):
        return _of_model(vectors, texts)
    if isinstance(vectors, WordMeans):
        return _of_tokens(vectors.tokens(texts), _as_is)
    rows = linalg.to_numpy(checks.matrix(vectors.encode(list(texts))))
    if len(rows) != len(texts):
        raise InputError(
            f"vectors must encode {len(texts):,} texts as that many rows, got {len(rows):,}."
        )
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused
        rows = rows.astype(np.float32)
    checks.finite(rows)
    return Space(Tokens(rows, np.arange(len(rows) + 1)), _as_is)


def _of_model(encoder: Encoder, texts: Sequence[Text]) -> Space:
    if encoder.pool == "tokens":
        raise InputError(
            "the encoder must pool its tokens, got pool='tokens'. Use Encoder(..., pool='mean')."
        )
    if encoder.repair is not None or encoder.sentence_repair is not None:
        raise InputError(
            "the encoder must be without repair, got one with_repair. Name that repair "
            "among those to try."
        )
    finish = encoder.own.finish if encoder.own else _as_is
    return _of_tokens(encoder.tokens(texts), finish)


def _of_tokens(tokens: Tokens, finish: Callable[[Rows], Rows]) -> Space:
    checks.finite(tokens.rows)
    return Space(tokens, finish)


def _as_is(rows: Rows) -> Rows:
    return rows


NONE = "none"


@public
@dataclass(frozen=True)
class Candidate:
    """A repair with its parameters, on token rows or on the rows of texts; or none.

    Parameters
    ----------
    method : str
        Name of a repair, such as "all-but-the-top", or "none".
    params : mapping
        Parameters that are not at their default.
    level : {"token", "sentence"}
        What is repaired: every token before pooling, or the pooled rows.
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    level: str = SENTENCE

    def __post_init__(self) -> None:
        checks.choice(self.method, "method", [NONE, *Repair.by_name])
        checks.choice(self.level, "level", (SENTENCE, TOKEN))
        known = [] if self.method == NONE else list(signature(self._kind).parameters)
        for name in self.params.keys() - set(known):
            raise InputError(
                f"params of {self.method} must be of {', '.join(known) or 'none'}, got {name!r}."
            )
        if self.method != NONE:
            self.make()._check_params()

    @property
    def _kind(self) -> type[Repair]:
        return Repair.by_name[self.method]

    def make(self, seed: int = 0) -> Repair:
        """The repair, not yet fitted; where it depends on a seed that is not given, on this."""
        return self._kind(**({"random_state": seed} if self.seeded else {}), **self.params)

    @property
    def seeded(self) -> bool:
        """Whether the fit depends on a seed, which the parameters leave open."""
        if self.method == NONE or "random_state" in self.params:
            return False
        return "random_state" in signature(self._kind).parameters

    def __str__(self) -> str:
        if self.method == NONE:
            return NONE
        inside = ", ".join(f"{name}={value}" for name, value in self.params.items())
        where = " on tokens" if self.level == TOKEN else ""
        return f"{self.method}({inside}){where}" if inside else f"{self.method}{where}"

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.method, "params": dict(self.params), "level": self.level}


def parsed(spec: Any, levels: Sequence[str]) -> Candidate:
    """The candidate that a spec names: a Candidate, "method", "method:a=1,b=2", "level/method".

    On which level is the first there is where the spec does not say: tokens, as the papers do.
    Where a text has one row, its token and its sentence are the same.
    """
    if isinstance(spec, Candidate):
        return spec
    if isinstance(spec, Repair):
        usual = type(spec)().get_params()
        params = {k: v for k, v in spec.get_params().items() if v != usual[k]}
        return Candidate(spec.name, params, levels[0])
    level, _, rest = str(spec).rpartition("/")
    method, _, options = rest.partition(":")
    pairs = [option.partition("=") for option in options.split(",") if option]
    params = {name.strip().replace("-", "_"): _value(value.strip()) for name, _, value in pairs}
    found = Candidate(method, params, level or levels[0])
    return found if found.level in levels else replace(found, level=levels[0])


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def defaults(levels: Sequence[str]) -> list[Candidate]:
    """Every repair at its default, on the first level."""
    return [Candidate(name, {}, levels[0]) for name in sorted(Repair.by_name)]


def searched(levels: Sequence[str], n_features: int) -> list[Candidate]:
    """What `advise` searches, the simplest first: none, then by how much is fitted and removed."""
    few = math.ceil(n_features / 100)
    removed = [n for n in sorted({1, few, 3 * few}) if n < n_features]
    found = [Candidate(NONE), Candidate("center")]
    found += [Candidate("center", {}, TOKEN)] if TOKEN in levels else []
    found += [Candidate("scaled-center"), Candidate("standardize")]
    for n in removed:
        for level in reversed(levels):
            found.append(Candidate("all-but-the-top", {"n_components": n}, level))
    for power in (0.5, 1.0):
        for level in reversed(levels):
            found.append(Candidate("whiten", {"power": power}, level))
    for k, n in ((27, 0), (10, 12), (27, 12), (10, 30)):
        if n < n_features:
            found.append(
                Candidate("cluster-removal", {"n_clusters": k, "n_components": n}, levels[0])
            )
    return found


class Fits:
    """Repairs fitted on the same rows, which share what can be shared.

    Repairs that are solved from moments share these. Cluster removals with the same clusters share
    the clustering: their directions are the first of the most that any of them removes, so that
    clusters too small for those are dissolved for all of them.

    Parameters
    ----------
    source : callable
        The source of a level's rows, which are read again for every fit and never held.
    candidates : sequence of Candidate
        All that will be fitted.
    """

    def __init__(self, source: Callable[[str], Source], candidates: Sequence[Candidate]) -> None:
        self.source, self._candidates = source, candidates
        self._moments: dict[str, Moments] = {}
        self._clusters: dict[Any, ClusterRemoval] = {}

    def fitted(self, candidate: Candidate, seed: int = 0) -> Repair | None:
        """The candidate's repair, fitted; None for none."""
        if candidate.method == NONE:
            return None
        repair = candidate.make(seed)
        if isinstance(repair, SummedRepair) and repair.statistic is Moments:
            return repair.fit_statistic(self.moments(candidate.level))
        if isinstance(repair, ClusterRemoval):
            return self._clustered(candidate, repair)
        return repair.fit(self.source(candidate.level))

    def moments(self, level: str) -> Moments:
        if level not in self._moments:
            (self._moments[level],) = reduce(self.source(level), [Moments()])
        return self._moments[level]

    def _clustered(self, candidate: Candidate, repair: ClusterRemoval) -> Repair:
        key = _clustering(candidate.level, repair)
        if key not in self._clusters:
            seed = repair.random_state
            others = [c for c in self._candidates if c.method == repair.name]
            made = [(c.level, c.make(seed)) for c in others]
            alike = [repair, *(other for at, other in made if _clustering(at, other) == key)]
            most = max(other.n_components for other in alike)
            shared = clone(repair).set_params(n_components=most)
            self._clusters[key] = shared.fit(self.source(candidate.level))
        return self._clusters[key].with_components(repair)


def _clustering(level: str, repair: Repair) -> Any:
    """What cluster removals that differ in nothing but their directions have in common."""
    params = repair.get_params()
    params.pop("n_components")
    return level, tuple(params.items())


def fit_alone(candidate: Candidate, source: Source, seed: int = 0) -> Repair:
    """The candidate fitted by itself, as it is shipped."""
    return candidate.make(seed).fit(source)
