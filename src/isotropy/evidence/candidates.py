"""The repairs that are compared: what they are called, their order, and how they are fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from sklearn.base import clone

from isotropy import checks
from isotropy.engines import reduce
from isotropy.errors import InputError
from isotropy.evidence.spaces import SENTENCE, TOKEN
from isotropy.repairs import ClusterRemoval, Repair
from isotropy.repairs.base import SummedRepair
from isotropy.sources import Source
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
        checks.choice(self.method, "method", "Candidate", [NONE, *Repair.by_name])
        checks.choice(self.level, "level", "Candidate", (SENTENCE, TOKEN))
        known = [] if self.method == NONE else list(signature(self._kind).parameters)
        for name in self.params.keys() - set(known):
            raise InputError(
                f"Candidate: params of {self.method} must be of {', '.join(known) or 'none'}, got "
                f"{name!r}."
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
