"""The repairs that are compared: what they are called, their order, and how they are fitted."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isotropy.errors import InputError
from isotropy.evidence.spaces import SENTENCE, TOKEN
from isotropy.repairs import ClusterRemoval, Repair
from isotropy.repairs.base import SummedRepair
from isotropy.sources.models import Rows
from isotropy.stats import Moments

NONE = "none"


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
        if self.method != NONE and self.method not in Repair.by_name:
            raise InputError(
                f"compare: repairs must be of {', '.join([NONE, *Repair.by_name])}, got "
                f"{self.method!r}."
            )

    def make(self, seed: int = 0) -> Repair:
        """The repair, not yet fitted."""
        kind = Repair.by_name[self.method]
        return kind(**self.params, **({"random_state": seed} if self.seeded else {}))

    @property
    def seeded(self) -> bool:
        """Whether the fit depends on a seed."""
        return self.method != NONE and Repair.by_name[self.method] is ClusterRemoval

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
    """
    if isinstance(spec, Candidate):
        return spec
    if isinstance(spec, Repair):
        defaults = type(spec)().get_params()
        params = {k: v for k, v in spec.get_params().items() if v != defaults[k]}
        return Candidate(spec.name, params, levels[0])
    text = str(spec)
    level, _, rest = text.rpartition("/")
    if level and level not in (TOKEN, SENTENCE):
        raise InputError(f"compare: level must be token or sentence, got {level!r} in {text!r}.")
    method, _, options = rest.partition(":")
    params = {}
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        params[name.strip().replace("-", "_")] = _value(value.strip())
    return Candidate(method, params, level if level in levels else levels[0])


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def defaults(levels: Sequence[str]) -> list[Candidate]:
    """Every repair at its default, on the first level."""
    return [Candidate(name, {}, levels[0]) for name in Repair.by_name]


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
    rows : callable
        The rows of a level, asked for once.
    candidates : sequence of Candidate
        All that will be fitted.
    """

    def __init__(self, rows: Callable[[str], Rows], candidates: Sequence[Candidate]) -> None:
        self._make, self._candidates = rows, candidates
        self._rows: dict[str, Rows] = {}
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
        return repair.fit(self._at(candidate.level))

    def moments(self, level: str) -> Moments:
        if level not in self._moments:
            self._moments[level] = Moments().update(self._at(level))
        return self._moments[level]

    def _at(self, level: str) -> Rows:
        if level not in self._rows:
            self._rows[level] = self._make(level)
        return self._rows[level]

    def _clustered(self, candidate: Candidate, repair: ClusterRemoval) -> Repair:
        key = (candidate.level, repair.n_clusters, repair.side, repair.random_state)
        if key not in self._clusters:
            alike = [
                other.make(repair.random_state)
                for other in self._candidates
                if other.seeded and other.level == candidate.level
            ]
            most = max(
                other.n_components
                for other in [*alike, repair]
                if (other.n_clusters, other.side) == (repair.n_clusters, repair.side)
            )
            shared = copy.copy(repair).set_params(n_components=most)
            self._clusters[key] = shared.fit(self._at(candidate.level))
        return self._clusters[key].with_components(repair)


def fit_alone(candidate: Candidate, rows: Rows, seed: int = 0) -> Repair:
    """The candidate fitted by itself, as it is shipped."""
    return candidate.make(seed).fit(np.asarray(rows))
