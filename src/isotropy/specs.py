"""Specs: a name with options in one line of text, such as "whiten:power=0.5,method=pca"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isotropy.errors import InputError

WORDS = {"true": True, "false": False, "none": None}


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a spec.

    Examples
    --------
    >>> parse("all-but-the-top:n-components=3,normalize=true")
    ('all-but-the-top', {'n_components': 3, 'normalize': True})
    """
    name, _, rest = spec.partition(":")
    pairs = (split(text, f"options of {name}") for text in rest.split(",") if text)
    return name, {key.strip().replace("-", "_"): value(text.strip()) for key, text in pairs}


def render(name: str, options: Mapping[str, Any]) -> str:
    """The spec of a name and its options, which `parse` reads back.

    Examples
    --------
    >>> render("whiten", {"power": 0.5, "normalize": True})
    'whiten:power=0.5,normalize=true'
    """
    words = {given: word for word, given in WORDS.items()}
    pairs = (
        f"{key}={words[given] if given is None or isinstance(given, bool) else given}"
        for key, given in options.items()
    )
    return ":".join(filter(None, [name, ",".join(pairs)]))


def split(text: str, what: str) -> tuple[str, str]:
    """(name, value) of "name=value", both as text."""
    name, equals, found = text.partition("=")
    if not name.strip() or not equals:
        raise InputError(f"{what} must be name=value, got {text!r}.")
    return name, found


def value(text: str) -> Any:
    """The int, float, bool or None that a text spells, else the text."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return WORDS.get(text.lower(), text)


def expect_known(options: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise if an option is not among the known ones."""
    known = list(known)
    for name in options:
        if name not in known:
            among = f"be among {', '.join(known)}" if known else "be left out"
            raise InputError(f"{what} must {among}, got {name!r}.")
