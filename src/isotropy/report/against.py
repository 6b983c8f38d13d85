"""The sections that draw a space beside an earlier one, or beside what a repair was fitted on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from isotropy import linalg
from isotropy.errors import InputError, RepairFileError
from isotropy.geometry import measure
from isotropy.linalg import Floats
from isotropy.repairs import Center, Repair, load
from isotropy.report import charts
from isotropy.report.sections import Section
from isotropy.report.views import View
from isotropy.sources import Source, as_source
from isotropy.stats import Moments

NOW, BEFORE = "now", "before"


def opened_old(old: Any, open_rows: Callable[[Any], Source] = as_source) -> Repair | Source:
    """The earlier space: a fitted or saved repair, or vectors."""
    if isinstance(old, Repair):
        return old
    if not isinstance(old, (str, os.PathLike)):
        return as_source(old)
    try:
        return load(old)
    except RepairFileError as error:
        try:
            return open_rows(os.fspath(old))
        except InputError as other:
            damaged = str(os.fspath(old)).endswith(".safetensors")
            raise (error if damaged else other) from None


def against_sections(source: Source, first: View, old: Repair | Source) -> list[Section]:
    """Deviations of both spaces and their distance; cosines of both if there are vectors."""
    fitted = old if isinstance(old, Repair) else Center().fit(old)
    found = fitted.drift(source)
    now = Center().fit(source).moments_
    assert now is not None
    assert fitted.moments_ is not None
    both = {NOW: deviations(now), BEFORE: deviations(fitted.moments_)}
    sections = [
        Section(
            "against",
            "Now and before",
            "Standard deviation along each principal axis of this space, and of the earlier one. "
            "The distance is the squared Frechet distance between normal distributions, over the "
            "variance of the earlier rows.",
            "isotropy.load('repair.safetensors').drift(X)",
            [charts.deviations(both)],
            [f"{str(found)[0].upper()}{str(found)[1:]}"],
        )
    ]
    if not isinstance(old, Repair):
        before = View(measure(old, random_state=first.seed), BEFORE, seed=first.seed)
        current = View(first.geometry, NOW, seed=first.seed)
        means = [
            f"{view.cosines.mean():.2f}" if len(view.cosines) else "undefined"
            for view in (before, current)
        ]
        sections.append(
            Section(
                "against-cosines",
                "Cosines now and before",
                f"The cosines of unrelated rows of both spaces, from {current.sampled} and, "
                f"before, {before.sampled}.",
                "isotropy.report.charts.cosines(X, before=old)",
                [charts.cosines(current, before)],
                [f"The mean cosine of random pairs was {means[0]}, and is {means[1]}."],
            )
        )
    return sections


def deviations(moments: Moments) -> Floats:
    """Standard deviations along the principal axes, largest first."""
    unit = moments.at_unit_scale
    values, _ = linalg.eigh(unit.scatter / unit.weight)
    found: Floats = linalg.scaled(np.sqrt(np.maximum(values, 0)), -moments.exponent)
    return found
