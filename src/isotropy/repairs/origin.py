"""Where the rows of a repair come from: which model made them, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from isotropy.errors import InputError, brief, public

LONGEST = 10_000  # characters of a text
KINDS: dict[str, tuple[type, ...]] = {  # of the fields that are not text
    "layer": (int, str),
    "normalised": (bool,),
    "dimension": (int,),
}
WORDS = {str: "text", int: "an integer", bool: "true or false"}


@public
@dataclass(frozen=True)
class Origin:
    """What is known about how the fitted vectors were made; None where it is not known.

    Attributes
    ----------
    model : str or None
        Name on the hub, or of the model's folder, without the path to it.
    revision : str or None
        Commit of the model on the hub.
    layer : int, str or None
        Hidden layer, counted from 0, the embedding layer; or "first-last".
    pooling : str or None
        "own" (the model's), "mean", "cls", "last" or "tokens"; of the last four, those that include
        special tokens end in "+special". Token-level repairs have the pooling that follows them.
    prompt : str or None
        Text that was prepended to every text.
    normalised : bool or None
        Whether the vectors were fitted after the model's own Normalize (False: before it, or the
        model has none). None means: as the model's own `encode` returns them.
    dimension : int or None
    fingerprint : str or None
        Checksum of the texts that were encoded.
    evidence : str or None
        Why this repair was recommended, in one line.

    Examples
    --------
    >>> Origin(model="all-MiniLM-L6-v2", pooling="own", normalised=True).to_dict()
    {'model': 'all-MiniLM-L6-v2', 'pooling': 'own', 'normalised': True}
    """

    model: str | None = None
    revision: str | None = None
    layer: int | str | None = None
    pooling: str | None = None
    prompt: str | None = None
    normalised: bool | None = None
    dimension: int | None = None
    fingerprint: str | None = None
    evidence: str | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            kinds = KINDS.get(name, (str,))
            if value is not None and type(value) not in kinds:
                words = " or ".join(WORDS[kind] for kind in kinds)
                raise InputError(f"{name} of an origin must be {words}, got {brief(value)}.")
            if isinstance(value, str) and len(value) > LONGEST:
                most = f"{LONGEST:,} characters"
                raise InputError(f"{name} of an origin must have at most {most}, got {len(value)}.")

    @classmethod
    def from_dict(cls, values: Any) -> Origin:
        """The origin with these fields, all of which must be known."""
        if not isinstance(values, Mapping):
            raise InputError(f"an origin must be an object, got {brief(values)}.")
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise InputError(f"an origin must have only {', '.join(known)}, got {brief(name)}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def common(self, other: Origin) -> Origin:
        """What holds for both."""
        theirs = other.to_dict()
        return Origin(**{k: v for k, v in self.to_dict().items() if theirs.get(k) == v})

    def __str__(self) -> str:
        return ", ".join(f"{name} {_shown(value)}" for name, value in self.to_dict().items())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


COMPARED = ("model", "revision", "layer", "pooling", "prompt", "normalised", "dimension")


def origin_warning(declared: Origin, fitted: Origin) -> str | None:
    """How vectors of the declared origin differ from the fitted ones; None if nothing tells.

    Models are the same if the last parts of their names are.

    Examples
    --------
    >>> origin_warning(Origin(pooling="cls"), Origin(model="bert-base-cased", pooling="mean"))
    "the vectors come from pooling 'cls', and those fitted on from pooling 'mean'. Fit again."
    >>> origin_warning(Origin(model="./minilm"), Origin(model="sentence-transformers/minilm"))
    """
    for name in COMPARED:
        mine, theirs = getattr(declared, name), getattr(fitted, name)
        if mine is None or theirs is None:
            continue
        same = _last(mine) == _last(theirs) if name == "model" else mine == theirs
        if not same:
            return (
                f"the vectors come from {name} {brief(mine)}, and those fitted on from {name} "
                f"{brief(theirs)}. Fit again."
            )
    return None


def _last(name: str) -> str:
    return os.path.basename(name.rstrip("/\\"))
