"""How high a cosine must be to mean something: the scores of unrelated rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg, stored
from isotropy.engines import reduce
from isotropy.errors import InputError, brief, one_line, public
from isotropy.repairs import Repair, files
from isotropy.sources import as_source
from isotropy.stats import Sample
from isotropy.stored import Field
from isotropy.threads import over_threads

NAME = "score-calibrator"
KIND = "calibrator"
SAMPLE_ROWS = 20_000  # from which pairs are drawn
BLOCK_ELEMENTS = 1 << 22
LEARNED = {"scores_": Field("n_pairs", kind="single", low=-1, high=1, ascending=True)}
FEWEST = 10  # false matches that a threshold must be based on


@public
@dataclass(eq=False, repr=False)
class ScoreCalibrator:
    """Turns cosines into percentiles and p-values, and false-match rates into thresholds.

    It learns the cosines of random pairs of unrelated rows, which differ between spaces: a cosine
    of 0.8 may be typical of any two sentences, or only of paraphrases.

    Parameters
    ----------
    n_pairs : int
        Number of pairs to draw; all pairs if there are fewer.
    random_state : int
        Seed of the pairs.

    Attributes
    ----------
    scores_ : float32 array of shape (n_pairs_,)
        Cosines of the pairs, ascending.
    n_pairs_ : int
    mean_, std_ : float
        Mean and standard deviation of the cosines.
    repair_ : str or None
        Name of the repair that was applied to the rows first.

    Notes
    -----
    Pairs are drawn from a random sample of at most 20,000 rows. Zero rows have no direction and
    are left out.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 64)) + 1
    >>> calibrator = ScoreCalibrator(n_pairs=100_000).fit(X)
    >>> print(calibrator)
    unrelated pairs score 0.50 on average; 1 % score above 0.68
    >>> round(calibrator.percentile(0.6), 1)
    88.4
    """

    n_pairs: int = 1_000_000
    random_state: int = 0

    def fit(self, X: Any, groups: Any = None, *, repair: Repair | None = None) -> Self:
        """Learn the scores of unrelated rows of X.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
        groups : array of shape (n_samples,), optional
            Rows of one group, such as the two sentences of a labelled pair, are related and not
            paired with each other. Neither are equal rows.
        repair : Repair, optional
            A fitted repair to apply to the rows first.

        Returns
        -------
        self
        """
        self._check_params()
        n_pairs, seed = int(self.n_pairs), int(self.random_state)
        source = as_source(X)
        labels = _labels(groups, source.n_samples)
        found = reduce(source, [Sample(SAMPLE_ROWS, seed)])
        (sample,) = found.states
        numbers, rows = linalg.to_numpy(sample.numbers), linalg.to_numpy(sample.rows)
        kinds = numbers if labels is None else labels[numbers]
        if repair is not None:
            if not isinstance(repair, Repair):
                raise InputError(f"repair must be a fitted repair, got {brief(repair)}.")
            rows = repair.transform(rows)
        kept = np.flatnonzero(rows.any(axis=1))
        plain = np.ascontiguousarray(rows[kept] + 0)  # -0 becomes 0
        alike = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1])))[:, 0]
        kinds = np.stack([kinds[kept], _numbered(alike)])
        pairs = _pairs(kinds, n_pairs, np.random.default_rng(seed))
        self._learn(_cosines(linalg.unit_rows(rows[kept]), pairs))
        self.n_samples_seen_, self.n_features_in_ = found.n_samples, source.n_features
        self.repair_, self.note_ = None if repair is None else repair.name, ""
        return self

    @property
    def n_pairs_(self) -> int:
        self._expect_fitted()
        return len(self.scores_)

    def threshold(self, false_match_rate: float = 0.01) -> float:
        """The lowest score that at most this share of unrelated pairs reach.

        Parameters
        ----------
        false_match_rate : float
            In (0, 1), and at least 10 / `n_pairs_`.
        """
        n = self.n_pairs_
        rate = checks.real(false_match_rate, "false_match_rate", 0, 1)
        if not 0 < rate < 1:
            raise InputError(
                f"false_match_rate must be a number in (0, 1), got {rate:g}. 0.01 is one "
                "false match in a hundred unrelated pairs."
            )
        matches = min(math.floor(rate * n * (1 + 1e-12)), n - 1)
        if matches < FEWEST:
            raise InputError(
                f"false_match_rate must be at least {FEWEST / n:.3g} for {n:,} pairs, got "
                f"{rate:g}. Fit with more pairs (n_pairs) or more rows."
            )
        score = self.scores_[n - matches]
        if self.scores_[n - matches - 1] == score:  # too many pairs score just this
            above = int(np.searchsorted(self.scores_, score, side="right"))
            score = self.scores_[above] if above < n else np.nextafter(score, np.float32(np.inf))
        return float(score)

    def p_value(self, scores: Any) -> Any:
        """Probability that unrelated rows score as high: (1 + pairs that do)/(1 + pairs).

        Takes a score or an array of them, and returns as many.
        """
        below, _ = self._n_lower(scores)
        return (1 + self.n_pairs_ - below) / (1 + self.n_pairs_)

    def percentile(self, scores: Any) -> Any:
        """Percentage of unrelated pairs that score lower, in [0, 100]; ties count half.

        Takes and returns what `p_value` does.
        """
        below, up_to = self._n_lower(scores)
        return 50 * (below + up_to) / self.n_pairs_

    @public("save")
    def save(self, path: Any, note: str = "", *, overwrite: bool = False) -> None:
        """Write the fitted calibrator to one safetensors file; see `Repair.save`."""
        self._expect_fitted()
        header = {
            "method": NAME,
            "params": {"n_pairs": self.n_pairs, "random_state": self.random_state},
            "n_features": self.n_features_in_,
            "n_samples": self.n_samples_seen_,
            "repair": self.repair_,
            "note": note,
        }
        files.write(path, header, {"scores_": self.scores_}, kind=KIND, overwrite=overwrite)

    @classmethod
    @public("load")
    def load(cls, path: Any) -> Self:
        """Load a calibrator that `save` wrote; raises what `isotropy.load` does."""
        header, tensors = files.read(path, (NAME,), kind=KIND)
        with files.validated(path, KIND):
            files.check_header(header, NAME, ("n_pairs", "random_state"))
            self = cls(**header["params"])
            stored.check(tensors, LEARNED)
            self._check_params()
            scores = tensors["scores_"]
            if not 1 <= len(scores) <= self.n_pairs:
                raise InputError(
                    f"scores_ must be of 1 to n_pairs={self.n_pairs} pairs, got {len(scores)}"
                )
            self._learn(scores)
            self.n_samples_seen_, self.n_features_in_ = header["n_samples"], header["n_features"]
            self.repair_, self.note_ = header.get("repair"), header["note"]
            if self.repair_ is not None:
                files.expect(self.repair_, str, "repair", "a name")
        return self

    def _check_params(self) -> None:
        checks.integer(self.n_pairs, "n_pairs", 1)
        checks.integer(self.random_state, "random_state", 0)

    def _learn(self, scores: NDArray[np.float32]) -> None:
        self.scores_ = np.sort(scores)
        self.mean_ = float(self.scores_.mean(dtype=np.float64))
        self.std_ = float(self.scores_.std(dtype=np.float64))

    def _expect_fitted(self) -> None:
        if not hasattr(self, "scores_"):
            raise InputError("the calibrator is not fitted yet. Call fit first.")

    def _n_lower(self, scores: Any) -> list[Any]:
        """How many pairs score lower, and how many not higher; ints for a single score.

        Scores are compared in the precision of those learned, so that equal ones stay equal.
        """
        self._expect_fitted()
        real = checks.real_numbers(scores, "scores")
        with np.errstate(over="ignore"):
            given = np.asarray(linalg.to_numpy(real), dtype=np.float32)
        bad = given[~np.isfinite(given)]
        if len(bad):
            raise InputError(f"scores must be finite, got {bad[0]}.")
        found = [np.searchsorted(self.scores_, given, side) for side in ("left", "right")]
        return found if given.ndim else [int(count) for count in found]

    def __str__(self) -> str:
        if not hasattr(self, "scores_"):
            return repr(self)
        words = f"unrelated pairs score {self.mean_:.2f} on average"
        rate = max(0.01, FEWEST / self.n_pairs_)
        if rate < 0.5:
            words += f"; {100 * rate:.2g} % score above {self.threshold(rate):.2f}"
        return words + (f" (after {one_line(self.repair_, 60)})" if self.repair_ else "")

    def __repr__(self) -> str:
        made = f"{type(self).__name__}(n_pairs={self.n_pairs}, random_state={self.random_state})"
        return f"<{made}: {self}>" if hasattr(self, "scores_") else made


def _labels(groups: Any, n_samples: int) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    given = np.asarray(linalg.to_numpy(groups))
    if given.shape != (n_samples,):
        raise InputError(
            f"groups must have one entry for each of the {n_samples} rows, got shape {given.shape}."
        )
    return _numbered(given)


def _numbered(values: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each value, the same for equal ones."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _pairs(
    kinds: NDArray[np.int64], n_pairs: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Distinct pairs i < j of rows that differ in every kind, as i * n_rows + j, ascending."""
    n = kinds.shape[1]
    both = kinds[0] * (n + kinds[1].max(initial=0) + 1) + kinds[1]
    related = [_same(kinds[0]), _same(kinds[1]), -_same(both)]
    available = n * (n - 1) // 2 - sum(related)
    if not available:
        raise InputError(
            f"X must have unrelated rows, got none among {n} that are not zero. Pass rows that "
            "differ, and not all in one group."
        )
    if available <= 2 * n_pairs:
        found = _every_pair(kinds)
    else:
        found = np.empty(0, dtype=np.int64)
        while len(found) < n_pairs:
            i, j = np.sort(random.integers(0, n, (2, n_pairs)), axis=0)
            unrelated = (kinds[:, i] != kinds[:, j]).all(axis=0)
            found = np.union1d(found, (i * n + j)[unrelated])
    if len(found) > n_pairs:
        found = np.sort(random.permutation(found)[:n_pairs])
    return found


def _same(kind: NDArray[np.int64]) -> int:
    """Number of pairs of rows of the same kind."""
    _, counts = np.unique(kind, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def _every_pair(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    n = kinds.shape[1]
    rows = max(1, BLOCK_ELEMENTS // n)
    found = []
    for start in range(0, n, rows):
        own = np.arange(start, min(start + rows, n))
        unrelated = (kinds[:, own, None] != kinds[:, None, :]).all(axis=0)
        unrelated &= own[:, None] < np.arange(n)
        found.append(np.flatnonzero(unrelated) + start * n)
    return np.concatenate(found)


def _cosines(units: NDArray[Any], pairs: NDArray[np.int64]) -> NDArray[np.float32]:
    step = max(1, BLOCK_ELEMENTS // units.shape[1] // 4)

    def scored(start: int) -> NDArray[np.float32]:
        i, j = np.divmod(pairs[start : start + step], len(units))
        scores = np.einsum("ij,ij->i", units[i], units[j])
        narrow: NDArray[np.float32] = np.clip(scores, -1, 1).astype(np.float32)
        return narrow

    return np.concatenate(over_threads(scored, range(0, len(pairs), step)))
