"""The other columns of the sampled rows, shown on hover and as colours of points."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.models.keyed import KEYS
from isotropy.report.views import View
from isotropy.sources import Source

MOST_NAMES = 10
LONGEST = 160
LONGEST_LINES = 320  # for all columns of a row, so that the page stays small
MOST_COLUMNS = 12


@dataclass(frozen=True)
class Colouring:
    """Values for the colours of points: numbers, or codes of a few names."""

    values: NDArray[np.float64]
    names: tuple[str, ...] = ()


def carried(source: Source, view: View) -> dict[str, list[Any]]:
    """The other columns of the source, at the rows that the view shows."""
    sample = view.geometry.drawn.sample
    numbers = np.asarray(linalg.to_numpy(getattr(sample, "numbers", None)), dtype=np.int64)
    if isinstance(source.words, dict):
        return _keyed(source.words, numbers)
    place = np.argsort(numbers, kind="stable")
    ordered = numbers[place]
    found: dict[str, list[Any]] = {}
    for chunk in source.chunks():
        low, high = np.searchsorted(ordered, (chunk.first_row, chunk.first_row + chunk.n_rows))
        if low == high:
            continue
        for batch in source.read(chunk):
            if batch.carried is None:
                return {}
            own = batch.numbers
            if own is None:
                own = batch.first_row + np.arange(len(batch.rows))
            here = np.flatnonzero(np.isin(own, ordered[low:high]))
            at = place[np.searchsorted(ordered, own[here])]
            for name in batch.carried.column_names[:MOST_COLUMNS]:
                values = found.setdefault(name, [None] * len(numbers))
                for i, value in zip(at, batch.carried.column(name).take(here), strict=True):
                    values[i] = _python(value)
    return found


def _python(value: Any) -> Any:
    """The value from Arrow, or None if Python can't hold it, such as a day in the year 300,000."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def _keyed(words: Mapping[Any, int], numbers: NDArray[np.int64]) -> dict[str, list[Any]]:
    word_of = {row: word for word, row in reversed(list(words.items()))}
    return {"word": [word_of.get(int(number)) for number in numbers]}


def label_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """The column with the word or text of a row."""
    texts = [name for name, values in columns.items() if any(isinstance(v, str) for v in values)]
    return next((name for name in KEYS if name in texts), texts[0] if texts else None)


def hover(columns: Mapping[str, Sequence[Any]], n: int) -> list[str]:
    """The text shown for each row: its word or text first, then the other columns."""
    label = label_column(columns)
    others = [name for name in columns if name != label]
    lines = []
    for i in range(n):
        head = [] if label is None else [shortened(columns[label][i])]
        rest = [f"{name}: {shortened(columns[name][i])}" for name in others]
        lines.append(shortened("\n".join(head + rest), LONGEST_LINES))
    return lines


def shortened(value: Any, longest: int = LONGEST) -> str:
    """The value as text, cut off if it is long."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def colourings(view: View) -> dict[str, Colouring]:
    """The colourings of a view: cluster, norm, frequency, and its own columns."""
    clusters = view.clusters
    sizes = np.bincount(clusters)
    names = tuple(f"{i + 1} ({100 * size / len(clusters):.0f} %)" for i, size in enumerate(sizes))
    found = {
        "cluster": Colouring(clusters.astype(np.float64), names),
        "norm": Colouring(view.norms),
    }
    label = label_column(view.columns)
    frequencies = None if label is None else _frequencies(view.columns[label])
    if frequencies is not None:
        found["frequency"] = Colouring(frequencies)
    for name, values in view.columns.items():
        colouring = _colouring(values)
        if colouring is not None:
            while name in found:
                name += " (column)"
            found[name] = colouring
    return found


def _colouring(values: Sequence[Any]) -> Colouring | None:
    if all(v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in values):
        try:
            numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        except OverflowError:  # integers beyond the floats
            return None
        return Colouring(numbers) if np.isfinite(numbers).any() else None
    texts = [shortened(value) for value in values]
    names = sorted(set(texts))
    if len(names) > MOST_NAMES:
        return None
    codes = {name: code for code, name in enumerate(names)}
    return Colouring(np.array([codes[text] for text in texts], dtype=np.float64), tuple(names))


def _frequencies(words: Sequence[Any]) -> NDArray[np.float64] | None:
    """Zipf frequencies of English words by wordfreq; None if the rows are not words."""
    single = [isinstance(word, str) and " " not in word.strip() for word in words]
    if not all(single) or importlib.util.find_spec("wordfreq") is None:
        return None
    from wordfreq import zipf_frequency

    return np.array([zipf_frequency(word.strip(), "en") for word in words])
