"""Tasks made of structure that unlabelled text has: what belongs together is near in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotropy.errors import InputError
from isotropy.tasks.retrieval import Retrieval


def adjacent(texts: Sequence[str], name: str = "adjacent sentences (pseudo-task)") -> Retrieval:
    """Search in which each text must find the one that follows it in the list.

    Texts are taken two by two, so that no text is in two items. What this shows holds for real
    searches only as far as these look for text from the same place.

    Examples
    --------
    >>> adjacent(["How are you?", "I am fine.", "Rain fell.", "The river rose."]).n_items
    2
    """
    return titled(texts[0 : len(texts) - 1 : 2], texts[1::2], name)


def titled(
    titles: Sequence[str], bodies: Sequence[str], name: str = "title to body (pseudo-task)"
) -> Retrieval:
    """Search in which each title must find its body among all bodies; repeated titles are left out.

    Parameters
    ----------
    titles, bodies : sequences of str of the same length
    name : str
    """
    if len(titles) != len(bodies):
        raise InputError(
            f"titled: titles and bodies must be as many, got {len(titles)} and {len(bodies)}."
        )
    first: dict[str, int] = {}
    for number, title in enumerate(titles):
        first.setdefault(title, number)
    queries = [title for title, number in first.items() if title != bodies[number]]
    judged: list[tuple[Any, Any, float]] = [
        (place, first[title], 1.0) for place, title in enumerate(queries)
    ]
    return Retrieval(queries, list(bodies), judged, name=name)
