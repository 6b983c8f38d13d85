"""Tasks made from unlabelled texts: texts that are close in a document belong together."""

from __future__ import annotations

from collections.abc import Sequence

from isotropy.errors import InputError, public
from isotropy.models.texts import distinct
from isotropy.tasks.retrieval import Retrieval


@public
def adjacent(texts: Sequence[str], name: str = "adjacent sentences (pseudo-task)") -> Retrieval:
    """A search in which each text must find the one that follows it in the list.

    Texts are taken in pairs, so that no text is in two items. The result says something about a
    real search only if that search looks for text from the same place.

    Examples
    --------
    >>> adjacent(["How are you?", "I am fine.", "Rain fell.", "The river rose."]).n_items
    2
    """
    if len(texts) < 4:
        raise InputError(f"texts must have at least 4 entries, got {len(texts)}.")
    return titled(texts[0 : len(texts) - 1 : 2], texts[1::2], name)


@public
def titled(
    titles: Sequence[str], bodies: Sequence[str], name: str = "title to body (pseudo-task)"
) -> Retrieval:
    """A search in which each title must find its body among all bodies.

    Repeated titles, and titles that are also a body, are left out.

    Parameters
    ----------
    titles, bodies : sequences of str of the same length
    name : str
    """
    if len(titles) != len(bodies):
        raise InputError(f"titles must be as many as bodies, got {len(titles)} and {len(bodies)}.")
    documents, numbers = distinct(bodies)
    found: dict[str, int] = {}
    for title, body in zip(titles, bodies, strict=True):
        if title not in numbers:
            found.setdefault(title, numbers[body])
    if len(found) < 2:
        raise InputError(
            f"titles must have at least 2 distinct entries that are no bodies, got {len(found)}."
        )
    judged = [(place, number, 1.0) for place, number in enumerate(found.values())]
    return Retrieval(list(found), documents, judged, name=name)
