"""What an experiment is: a declaration of what it needs and shows, and functions that measure."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from scipy import stats

from isotropy import checks
from isotropy.errors import InputError

if TYPE_CHECKING:
    from isotropy.papers.settings import Settings

Record = dict[str, Any]  # what a value is of (model, data, setting, measure, ...) and the value
NAMES = ("cluster", "drift", "layer", "calibration", "finetuning")


@dataclass(frozen=True)
class Findings:
    """What an experiment found: records, figures by name, and notes on how it was done."""

    records: list[Record] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # plotly figures
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """How records become a table: which of their keys name its rows and its columns."""

    rows: tuple[str, ...]
    columns: tuple[str, ...] = ("measure",)
    forms: Mapping[str, str] = field(default_factory=dict)  # measure: how its values are written
    title: str = ""
    measures: tuple[str, ...] = ()  # those that this table shows; by default all


@dataclass(frozen=True)
class Paper:
    """A paper: how to cite it, and what its models are called on the hub."""

    name: str
    title: str
    authors: str
    year: int
    about: str  # the paper in a few plain sentences
    bibtex: str
    models: Mapping[str, str]  # the paper's name of a model: its name on the hub


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper that can be measured on any model.

    `measure(settings, model)` is called for each model; `conclude(settings, records)` once, with
    the records of all models. Either may be missing.
    """

    paper: Paper
    name: str  # without the paper
    shows: str  # "table 2"
    title: str
    claim: str  # what the paper says of it
    models: tuple[str, ...]  # stand-ins that it runs on by default
    minutes: float  # on two cores, for all of these models
    layouts: tuple[Layout, ...]
    data: tuple[str, ...] = ()  # data sets it reads; missing ones are named and left out
    needed: int = 1  # of the data sets, how many must be there
    trained: tuple[str, ...] = ()  # models that it trains itself, in place of any others
    gpu: bool = False  # whether it takes hours without one
    options: Mapping[str, Any] = field(default_factory=dict)  # as in the paper
    quick: Mapping[str, Any] = field(default_factory=dict)  # those that --quick changes
    seeds: int = 1
    published: tuple[Record, ...] = ()
    remarks: tuple[str, ...] = ()  # on the published figures
    about: str = ""  # what is computed
    measure: Callable[[Settings, str], Findings] | None = None
    conclude: Callable[[Settings, list[Record]], Findings] | None = None

    @property
    def full_name(self) -> str:
        return f"{self.paper.name}/{self.name}"


REGISTERED: dict[str, Experiment] = {}


def experiment(paper: Paper, name: str, **declared: Any) -> Callable[[Any], Any]:
    """Declare an experiment; the decorated function is its `measure`, its docstring is `about`.

    With `over_models=True` the function is its `conclude`.
    """
    whole = declared.pop("over_models", False)

    def declare(function: Any) -> Any:
        own = {"conclude" if whole else "measure": function}
        about = " ".join((function.__doc__ or "").split())
        found = Experiment(paper, name, **{"about": about} | own | declared)
        REGISTERED[found.full_name] = found
        return function

    return declare


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the papers' order."""
    for name in NAMES:
        importlib.import_module(f"isotropy.papers.{name}")
    return {
        key: REGISTERED[key] for name in NAMES for key in REGISTERED if key.startswith(f"{name}/")
    }


def chosen(names: Sequence[str], skip: Sequence[str] = ()) -> list[Experiment]:
    """The experiments of these names, or all those of a paper, without those to skip."""
    known = experiments()
    for argument, given in (("EXPERIMENT", names), ("skip", skip)):
        for name in given:
            if not any(name in (key, one.paper.name) for key, one in known.items()):
                raise InputError(
                    f"{argument} must be a paper ({', '.join(NAMES)}) or one of its experiments, "
                    f"got {name!r}. isotropy reproduce --list shows all."
                )
    named = [one for key, one in known.items() if {key, one.paper.name} & set(names)]
    return [one for one in named if not {one.full_name, one.paper.name} & set(skip)]


def record(value: float, *, n: int | None = None, **keys: Any) -> Record:
    """A value, what it is of, and the number of items it was computed from."""
    return {**keys, "value": float(value), "n": n}


def over_seeds(values: Sequence[float], *, n: int | None = None, **keys: Any) -> Record:
    """The mean of the values of several seeds, with its 95 % interval (Student's t).

    Examples
    --------
    >>> over_seeds([1.0, 2.0, 3.0], measure="score")["seeds"]
    3
    """
    found = record(fmean(values), n=n, **keys) | {"seeds": len(values)}
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
        found |= {"low": found["value"] - half, "high": found["value"] + half}
    return found


def published(
    rows: Mapping[Any, str],
    *,
    names: str | tuple[str, ...] = "model",
    columns: Mapping[str, Sequence[Any]] | None = None,
    convert: Callable[[float], float] = float,
    **keys: Any,
) -> tuple[Record, ...]:
    """Records of figures that a paper prints.

    Parameters
    ----------
    rows : mapping
        The values of a row as text, by what the row is of; "-" stands for no value, and a star
        after a value is its mark.
    names : str or tuple of str
        The keys that name a row.
    columns : mapping of str to sequence
        The keys that name the columns, each with its values; with several, the last varies fastest.
    convert : callable
        Applied to every value, such as `math.log10`.

    Examples
    --------
    >>> found = published({"BERT": "0.1 -"}, columns={"layer": (0, 1)}, measure="I")
    >>> found == ({"model": "BERT", "layer": 0, "measure": "I", "value": 0.1},)
    True
    """
    columns = columns or {}
    places = [
        dict(zip(columns, place, strict=True)) for place in itertools.product(*columns.values())
    ]
    names = (names,) if isinstance(names, str) else names
    found: list[Record] = []
    for row, text in rows.items():
        known = dict(zip(names, row if len(names) > 1 else (row,), strict=True))
        for place, cell in zip(places, text.split(), strict=True):
            if cell != "-":
                mark = {"mark": "*"} if cell.endswith("*") else {}
                value = convert(float(cell.rstrip("*")))
                found.append({**known, **place, **keys, "value": value, **mark})
    return tuple(found)


def matching(records: Iterable[Record], **keys: Any) -> list[Record]:
    """The records with these values of their keys."""
    return [one for one in records if all(one.get(key) == value for key, value in keys.items())]


def check_seeds(seeds: int | None, experiment: Experiment) -> int:
    """The number of seeds: what was asked for, or the paper's."""
    return experiment.seeds if seeds is None else int(checks.integer(seeds, "seeds", 1))
