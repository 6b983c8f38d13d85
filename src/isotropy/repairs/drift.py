"""Whether new rows have drifted: their distance from the fitted ones, and how much is usual."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isotropy import linalg
from isotropy.errors import InputError, brief
from isotropy.linalg import Floats
from isotropy.repairs.shift import FAR, Shift, expected, frechet
from isotropy.stats import BlockSums
from isotropy.stats.blocks import N_BLOCKS

LEAST_ROWS = 64  # in all blocks together, to tell anything
LEAST_DRIFT = 0.02  # Frechet distance above chance that is never drift
JOINED = 4  # blocks that make a larger one
ROWS_EACH = 8  # of the new rows, for each direction in which they are compared
DIRECTIONS = (16, 1024)  # fewest and most of these


@dataclass(frozen=True)
class HeldOut:
    """How far a block of the fitted rows is from the others, beyond chance: lasting + per_row / n.

    The first part stays however large the block, as with topics that come and go over months; the
    second is that of n dependent rows, such as the sentences of a document.
    """

    lasting: float
    per_row: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not float or not 0 <= value < math.inf:
                raise InputError(f"{name} of held_out must be a float from 0 on, got {value!r}")

    @classmethod
    def from_dict(cls, found: Any) -> HeldOut:
        """What a header holds."""
        if not isinstance(found, dict) or found.keys() != {"lasting", "per_row"}:
            raise InputError(f"held_out must have lasting and per_row, got {brief(found)}")
        return cls(**found)

    def at(self, n_samples: int) -> float:
        """For a block of that many rows."""
        return self.lasting + self.per_row / n_samples


@dataclass(frozen=True)
class Drift:
    """The shift of some rows, and the Frechet distance up to which they are as usual.

    Attributes
    ----------
    shift : Shift
        The covariances are compared in the leading directions only, one for every 8 rows (at least
        16): in more directions, chance would hide more than they show.
    limit : float
        `max_drift` if that was given. Otherwise what chance allows, plus the largest distance
        beyond chance at which a held-out block of the fitted rows is from the others, but at least
        0.02; if that is not known, 0.1.
    held_out : float or None
        That distance, for a block of as many rows; None if it is not known: for fewer than 64
        rows, repairs fitted part by part, and older files.

    Notes
    -----
    Blocks are the 16 sixteenths of the fitted rows in their order, and the four quarters: from the
    largest distances of both follows how it changes with the number of rows. They are compared in
    64 random directions, with at most 1,024 rows of each block, so that a fit takes no further pass
    and hardly more time or memory, where 16 covariances of 4,096 dimensions would take 2 GB.
    """

    shift: Shift
    limit: float
    held_out: float | None

    @property
    def drifted(self) -> bool:
        """Whether the distance is above the limit."""
        return self.shift.frechet > self.limit

    @property
    def n_samples(self) -> int:
        """The number of rows that were compared."""
        return self.shift.n_samples

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `isotropy watch --json` prints them."""
        found = {"drifted": self.drifted, "limit": self.limit, "held_out": self.held_out}
        return found | asdict(self.shift)

    def __str__(self) -> str:
        shift, word = self.shift, "drifted" if self.drifted else "within"
        return (
            f"{word}: Frechet distance {shift.frechet:.3g}, limit {self.limit:.3g}. "
            f"{shift.n_samples:,} rows; means {shift.mean_shift:.2g} deviations apart; "
            f"{100 * shift.outside:.1f} % of the rows farther out than 99 % of the fitted ones."
        )


@dataclass(frozen=True)
class GroupDrift(Drift):
    """The drift of the group that is farthest beyond its limit, and that of every group.

    Attributes
    ----------
    shift, limit, held_out
        Those of `group`.
    group : str or int
    by_group : dict of str or int to Drift
        Each group of the new rows, compared with the fitted rows of that group.
    """

    group: str | int
    by_group: dict[str | int, Drift]

    @classmethod
    def of(cls, by_group: dict[str | int, Drift]) -> GroupDrift:
        """The drift of all these groups."""
        beyond = {label: one.shift.frechet - one.limit for label, one in by_group.items()}
        group = max(beyond, key=lambda label: beyond[label])
        return cls(**vars(by_group[group]), group=group, by_group=by_group)

    @property
    def n_samples(self) -> int:
        return sum(one.n_samples for one in self.by_group.values())

    def to_dict(self) -> dict[str, Any]:
        groups = {str(label): one.to_dict() for label, one in self.by_group.items()}
        return super().to_dict() | {"group": self.group, "groups": groups}

    def __str__(self) -> str:
        word, _, figures = super().__str__().partition(": ")
        return f"{word} (farthest of {len(self.by_group)} groups: {brief(self.group)}): {figures}"


def drift(shift: Shift, held_out: HeldOut | None, max_drift: float | None = None) -> Drift:
    """The drift of rows that were compared in `n_directions` directions."""
    usual = None if held_out is None else held_out.at(shift.n_samples)
    limit = shift.chance + (FAR if usual is None else max(usual, LEAST_DRIFT))
    return Drift(shift, limit if max_drift is None else max_drift, usual)


def n_directions(n_samples: int) -> int:
    """In how many leading directions so many rows are compared."""
    least, most = DIRECTIONS
    return min(max(least, n_samples // ROWS_EACH), most)


def held_out(blocks: BlockSums) -> HeldOut | None:
    """What the blocks of the fitted rows show; None if there are too few rows, or no variance."""
    if blocks.total is None or blocks.rows.sum() < LEAST_ROWS:
        return None
    with np.errstate(all="ignore"):
        small, large = farthest(blocks, 1), farthest(blocks, JOINED)
    if not (math.isfinite(small) and math.isfinite(large)):
        return None
    n_small = blocks.n_samples / N_BLOCKS
    n_large = JOINED * n_small
    per_row = max(small - large, 0.0) / (1 / n_small - 1 / n_large)
    return HeldOut(max(large - per_row / n_large, 0.0), per_row)


def farthest(blocks: BlockSums, n_joined: int) -> float:
    """The largest distance of a run of blocks from all others, beyond what is expected by chance.

    At least zero; infinite if rows don't vary, or are too large for their sums.
    """

    def joined(part: Any) -> Floats:
        found: Floats = part.reshape(-1, n_joined, *part.shape[1:]).sum(axis=1)
        return found

    names = ("rows", "weight", "total", "products")
    rows, *sums = (joined(getattr(blocks, name)) for name in names)
    found = [0.0]
    for block in np.flatnonzero(rows > 1):
        each = float(1 / rows[block] + 1 / (rows.sum() - rows[block]))
        own = Normal.of(*(part[block] for part in sums))
        others = Normal.of(*(part.sum(axis=0) - part[block] for part in sums))
        values = np.square(others.axes).sum(axis=0)
        trace = float(values.sum())
        if not (trace > 0 and math.isfinite(trace) and np.isfinite(own.axes).all()):
            return math.inf
        distance = frechet(others, others.axes, own, own.axes) / trace
        found.append(distance - expected(values, each))
    return max(found)


@dataclass(frozen=True)
class Normal:
    """A mean, and principal axes times deviations, as columns."""

    mean: Floats
    axes: Floats

    @classmethod
    def of(cls, weight: Floats, total: Floats, products: Floats) -> Normal:
        """Of sums over rows."""
        mean = total / weight
        covariance = products / weight - np.outer(mean, mean)
        if not np.isfinite(covariance).all():
            return cls(mean, np.full_like(covariance, np.nan))
        values, vectors = linalg.eigh(covariance)
        return cls(mean, vectors * np.sqrt(np.maximum(values, 0)))
