"""The contract of every task: items made of texts, and a score from one vector per text."""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from isotropy import checks, linalg
from isotropy.errors import InputError, brief, public
from isotropy.linalg import Floats
from isotropy.models.texts import Span, Text, distinct, whole
from isotropy.tasks import outcomes
from isotropy.tasks.outcomes import Outcome
from isotropy.tasks.reading import PARTS, UNDIVIDED

YES = {"1", "1.0", "true", "t", "yes", "y", "positive", "same", "similar"}
YES |= {"entailment", "equivalent", "duplicate", "paraphrase"}


def classes(labels: Any, n_items: int, name: str) -> tuple[list[Any], NDArray[np.int64]]:
    """(the classes, sorted; the number of each item's class), of which there must be two."""
    array = outcomes.labels(labels, "labels", n_items)
    found, numbers = np.unique(array, return_inverse=True)
    if len(found) < 2:
        raise InputError(
            f"labels of {name!r} must be of two classes or more, got "
            f"{found.tolist()[0]!r} for every item."
        )
    return found.tolist(), numbers.astype(np.int64)


def positive_class(found: list[Any], positive: Any) -> int:
    """Number of the class that says yes, of two: the one that is named, or has such a name."""
    if len(found) != 2:
        raise InputError(f"labels must be of two classes, got {len(found)}.")
    names = [str(label).lower() for label in found]
    if positive is not None:
        if str(positive).lower() not in names:
            raise InputError(
                f"positive must be one of the labels {found[0]!r} and {found[1]!r}, got "
                f"{positive!r}."
            )
        return names.index(str(positive).lower())
    yes = [number for number, label in enumerate(names) if label in YES]
    if len(yes) != 1:
        raise InputError(
            f"positive must say which of the labels {found[0]!r} and {found[1]!r} is the "
            "positive one."
        )
    return yes[0]


Integers = NDArray[np.int64]

PAIRS_AT_ONCE = 4096


@public
class Task(ABC):
    """Items made of texts, and how well vectors of these texts do on them.

    A subclass defines `_score(X, items, train)`, names in `per_item` its arrays with an entry for
    each item and in `widths` how many texts an item may have, and is found by its `kind`.

    Parameters
    ----------
    items : sequence of tuples of texts
        A text is a string, or a `Span` of one.
    part : sequence of str, optional
        The part of each item, "train", "dev" or "test".
    name : str
        Shown in tables.

    Attributes
    ----------
    texts : list of str or Span
        Every distinct text, in the order of first appearance.
    members : array of shape (n_items, texts of an item)
        The numbers of each item's texts.
    parts : dict of arrays
        Item numbers of each part; {"all": ...} where the task is not divided.
    identities : array of shape (len(texts),)
        Texts with the same number are the same text: they differ in nothing but case, spaces,
        punctuation or how characters are encoded (see `identity`), or are spans of one sentence.
    groups : array of shape (n_items,)
        Items with the same number share a sentence, directly or through other items.
    background : array
        Numbers of the texts that belong to no item: those of the corpus.
    corpus : sequence of texts
        Texts that every item is looked up among, such as the documents of a search.
    n_unlabelled : int
        Items that were read and left out because they have no label.
    """

    kind: ClassVar[str] = ""
    by_kind: ClassVar[dict[str, type[Task]]] = {}
    per_item: ClassVar[tuple[str, ...]] = ()
    widths: ClassVar[tuple[int, ...]] = (2,)
    supervised: ClassVar[bool] = False
    metric: str
    corpus: Sequence[Text] = ()
    n_unlabelled: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            Task.by_kind[cls.kind] = cls

    def __init__(
        self, items: Sequence[tuple[Text, ...]], part: Sequence[str] | None, name: str
    ) -> None:
        self.name = name
        items = checks.listing(items, "items")
        if len(items) < 2:
            raise InputError(f"{name!r} must have at least 2 items, got {len(items)}.")
        for number, item in enumerate(items):
            whole = isinstance(item, (list, tuple, np.ndarray)) and len(item) in self.widths
            if not whole or len(item) != len(items[0]):
                raise InputError(
                    f"item {number} must have "
                    f"{' or '.join(map(str, self.widths))} texts, as many as the others, got "
                    f"{brief(item)}."
                )
            self._expect_text(item, f"item {number}")
        self.part = np.asarray([UNDIVIDED] * len(items) if part is None else part)
        checks.known(np.unique(self.part).tolist(), (*PARTS, UNDIVIDED), "part")
        self._arrange(items)
        self._expect_length(self.part, "part")

    def _arrange(self, items: Sequence[tuple[Text, ...]]) -> None:
        """Number the texts of these items, and say which items belong together."""
        own, _ = distinct([text for item in items for text in item])
        self.texts, numbers = distinct([*own, *self.corpus])
        self.members: Integers = np.array([[numbers[text] for text in item] for item in items])
        self.background: Integers = np.arange(len(own), len(self.texts))
        self.parts: dict[str, Integers] = {
            part: np.flatnonzero(self.part == part)
            for part in (*PARTS, UNDIVIDED)
            if part in self.part
        }
        self.identities = _numbers(map(identity, self.texts))
        self.groups = self._groups()

    @classmethod
    @abstractmethod
    def read(cls, source: str | os.PathLike[str], *, name: str | None = None) -> Self:
        """The task in a file, in a folder, or in a data set of the hub."""

    @property
    def n_items(self) -> int:
        return len(self.members)

    def texts_of(self, items: Any) -> Integers:
        """Sorted numbers of the texts that these items are made of."""
        return np.unique(self.members[self._expect_items(items, "items")])

    def score(self, vectors: Any, items: Any = None, train: Any = None) -> Outcome:
        """What these vectors get on the items.

        Parameters
        ----------
        vectors : array of shape (len(texts), n_features)
            One row a text. Rows of texts that are not asked for may hold anything.
        items : array of item numbers, optional
            All where there are none given.
        train : array of item numbers, optional
            What to learn from, where the task is `supervised`.
        """
        X = np.asarray(linalg.to_numpy(checks.matrix(vectors)))
        if len(X) != len(self.texts):
            raise InputError(
                f"vectors must have a row for each of the {len(self.texts)} "
                f"texts, got {len(X)}. Encode task.texts in their order."
            )
        if self.supervised and train is None:
            raise InputError(
                "train must name the items to learn from, got None. Pass the "
                'numbers of a part, such as task.parts["train"].'
            )
        items = np.arange(self.n_items) if items is None else self._expect_items(items, "items")
        learned = np.empty(0, int) if train is None else self._expect_items(train, "train")
        return self._score(X, items, learned)

    @abstractmethod
    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> Outcome:
        """The outcome of checked arguments; train is empty where there is none."""

    def subset(self, items: Any) -> Self:
        """The same task with these items only, in this order, and the texts that it then needs."""
        items = self._expect_items(items, "items")
        new = copy.copy(self)
        for name in ("part", *self.per_item):
            setattr(new, name, getattr(self, name)[items])
        new._arrange([tuple(self.texts[i] for i in item) for item in self.members[items]])
        return new

    def joined(self, vectors: NDArray[Any]) -> Self:
        """The same task, in which texts with equal vectors are the same text too.

        Rows that are repeated under other names are repeats whatever they are called.
        """
        hashed = (hashlib.blake2b(row + 0.0, digest_size=16) for row in vectors)  # -0.0 is 0.0
        of_row = len(vectors) + _numbers(row.digest() for row in hashed)
        new = copy.copy(self)
        new.identities = components(np.stack([self.identities, of_row], axis=1))
        new.groups = new._groups()
        return new

    def _groups(self) -> Integers:
        """Number of the connected component of each item, where items that share a text touch."""
        return components(self.identities[self.members])

    def _rows(self, X: NDArray[Any], numbers: Integers) -> Floats:
        """These rows in float64."""
        rows = X[numbers].astype(np.float64)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise InputError(
                f"vectors must be finite, got NaN or infinity in the row of text "
                f"{numbers[np.argmin(finite)]}."
            )
        return rows

    def _similarities(self, X: NDArray[Any], items: Integers, kind: str = "cosine") -> Floats:
        """Cosine or product of the two texts of each item; cosine 0 with a vector of zeros."""
        found = np.empty(len(items))
        for start in range(0, len(items), PAIRS_AT_ONCE):
            block = slice(start, start + PAIRS_AT_ONCE)
            u, v = (self._rows(X, numbers) for numbers in self.members[items[block]].T)
            found[block] = np.einsum("ij,ij->i", u, v)
            if kind == "cosine":
                # one root of the product: two equal rows have a cosine of exactly 1
                norms = np.sqrt(np.einsum("ij,ij->i", u, u) * np.einsum("ij,ij->i", v, v))
                found[block] /= np.where(norms > 0, norms, 1.0)
        return found

    def _expect_items(self, items: Any, name: str) -> Integers:
        array = np.asarray(items)
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
            raise InputError(f"{name} must be a list of item numbers.")
        if array.min() < 0 or array.max() >= self.n_items:
            raise InputError(
                f"{name} must be in [0, {self.n_items - 1}], got "
                f"{array.min() if array.min() < 0 else array.max()}."
            )
        return array.astype(np.int64)

    def _expect_length(self, values: NDArray[Any], name: str) -> None:
        if values.shape != (self.n_items,):
            raise InputError(
                f"{name} must have an entry for each of the {self.n_items} items, "
                f"got {len(values)}."
            )

    def _expect_text(self, texts: Iterable[Text], what: str) -> None:
        if not all(_written(text) for text in texts):
            raise InputError(f"{what} must have text, got {texts!r}. Leave it out.")

    def __repr__(self) -> str:
        parts = ", ".join(f"{part} {len(items)}" for part, items in self.parts.items())
        return f"<{type(self).__name__} {self.name!r}: {parts} items, {len(self.texts)} texts>"


def components(members: Integers) -> Integers:
    """Components of items (rows) that share a number, counted in the order of appearance."""
    n_items, n_each = members.shape
    n_nodes = n_items + int(members.max()) + 1
    ends = np.repeat(np.arange(n_items), n_each), n_items + members.ravel()
    graph = coo_array((np.ones(members.size), ends), shape=(n_nodes, n_nodes))
    _, labels = connected_components(graph, directed=False)
    return labels[:n_items].astype(np.int64)


def identity(text: Text) -> str:
    """What texts have in common that are the same but for how they are written.

    Case, spaces, punctuation, invisible characters and the encoding of characters (NFKC) do not
    count; of a span, its sentence. Numbers stay apart: "1.5" is "1,5" and not "15". Texts of
    nothing but punctuation keep it.

    Examples
    --------
    >>> identity("It is n't 1.5 , no!") == identity("IT ISN\u2019T  1,5... no")
    True
    """
    written = unicodedata.normalize("NFKC", whole(text)).casefold()
    written = unicodedata.normalize("NFKC", written)
    spaced = " ".join(written.translate(_SPACED).split())
    return re.sub(r" (?!\d)|(?<!\d) ", "", spaced) or "".join(written.split())


class _Spaced(dict[int, str | None]):
    """For str.translate: nothing for an invisible character, a space for punctuation."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kind = unicodedata.category(character)
        if kind == "Cf" or unicodedata.name(character, "").startswith("VARIATION SELECTOR"):
            self[code] = None
        else:
            self[code] = " " if kind[0] in "CPZ" else character
        return self[code]


_SPACED = _Spaced()


def _numbers(names: Iterable[Any]) -> Integers:
    """The number of each name, counted in the order of first appearance."""
    found: dict[Any, int] = {}
    return np.array([found.setdefault(name, len(found)) for name in names], dtype=np.int64)


@public
def open_task(kind: str, source: str | os.PathLike[str], **options: Any) -> Task:
    """The task of this kind in a file, in a folder, or in a data set of the hub.

    Parameters
    ----------
    kind : {"sts", "word-similarity", "retrieval", "classification", "pair-classification", \
            "word-in-context", "clustering"}
    source : path or str
        A local path, or "owner/name" or "owner/name:configuration" of the hub.
    **options
        Of the kind's `read`.
    """
    task = Task.by_kind[checks.choice(kind, "kind", list(Task.by_kind))]
    known = list(inspect.signature(task.read).parameters)[1:]
    checks.known(options, known, f"options of {kind}")
    return task.read(source, **options)


def _written(text: Text) -> bool:
    if isinstance(text, Span):
        return 0 <= text.start < text.end <= len(text.text)
    return isinstance(text, str) and bool(text.strip())
