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
from isotropy.models import Span, Text, distinct, plain_text
from isotropy.tasks import outcomes
from isotropy.tasks.outcomes import Integers, Outcome
from isotropy.tasks.reading import PARTS, TEXTS, UNDIVIDED, Table, read_table

PAIRS_AT_ONCE = 4096  # whose vectors are in memory together
YES = {"1", "1.0", "true", "t", "yes", "y", "positive", "same", "similar"}
YES |= {"entailment", "equivalent", "duplicate", "paraphrase"}


@public
class Task(ABC):
    """Items made of texts, and a score of how well vectors of these texts do on them.

    A subclass defines `outcome(X, items, train)` and `read`. It lists in `per_item` its arrays with
    one entry per item, and in `widths` how many texts an item may have. It is registered under
    its `kind`.

    Parameters
    ----------
    items : sequence of tuples of texts
        A text is a string, or a `Span` of one.
    part : sequence of str, optional
        The part of each item, "train", "dev" or "test".
    name : str
        Shown in tables; the kind by default.

    Attributes
    ----------
    texts : list of str or Span
        Every distinct text, in order of first appearance.
    members : array of shape (n_items, texts per item)
        The texts of each item, as positions in `texts`.
    parts : dict of arrays
        Item numbers of each part; {"all": ...} if the task is not divided into parts.
    identities : array of shape (len(texts),)
        Texts with the same number count as the same text: they differ only in case, spaces,
        punctuation or character encoding (see `identity`), or are spans of one sentence.
    groups : array of shape (n_items,)
        Items with the same number share a text, directly or through other items.
    background : array
        Positions in `texts` of the texts that belong to no item: those of the corpus.
    corpus : sequence of texts
        Texts that every item is compared with, such as the documents of a search.
    n_unlabelled : int
        Items left out by `read` because they have no label.
    text_groups : dict of texts to str or int, or None
        The group of each text, such as its language, if `read` was given a column of them.
    """

    kind: ClassVar[str] = ""
    by_kind: ClassVar[dict[str, type[Task]]] = {}
    per_item: ClassVar[tuple[str, ...]] = ()
    widths: ClassVar[tuple[int, ...]] = (2,)
    supervised: ClassVar[bool] = False
    metric: str
    corpus: Sequence[Text] = ()
    subsets: NDArray[Any] | None = None  # of each item, in tasks made of several sets
    n_unlabelled: int = 0
    text_groups: dict[Text, str | int] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            Task.by_kind[cls.kind] = cls

    def __init__(
        self, items: Sequence[tuple[Text, ...]], part: Sequence[str] | None = None, name: str = ""
    ) -> None:
        self.name = name or self.kind
        items = checks.listing(items, "items")
        if len(items) < 2:
            raise InputError(f"{self.name!r} must have at least 2 items, got {len(items)}.")
        for number, item in enumerate(items):
            valid = isinstance(item, (list, tuple, np.ndarray)) and len(item) in self.widths
            if not valid or len(item) != len(items[0]):
                widths = " or ".join(map(str, self.widths))
                raise InputError(
                    f"item {number} must have {widths} texts, as many as the others, got "
                    f"{brief(item)}."
                )
            self._expect_text(item, f"item {number}")
        given = [UNDIVIDED] * len(items) if part is None else part
        self.part = outcomes.labels(given, "part", len(items))
        checks.known(np.unique(self.part).tolist(), (*PARTS, UNDIVIDED), "part")
        self._arrange(items)

    def _arrange(self, items: Sequence[tuple[Text, ...]]) -> None:
        """Number the texts of these items, and group the items that share texts."""
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
        self.groups = self.item_groups()

    @classmethod
    @abstractmethod
    def read(cls, source: str | os.PathLike[str], *, name: str | None = None) -> Self:
        """Read the task from a file, a folder or a dataset on the hub ("owner/name:config")."""

    @classmethod
    def read_options(cls) -> dict[str, inspect.Parameter]:
        """The options of `read` by name, those it passes on to the class included."""
        found = dict(list(inspect.signature(cls.read).parameters.items())[1:])
        if found.pop("options", None):
            of_class = list(inspect.signature(cls).parameters.values())
            names = [parameter.name for parameter in of_class]
            found |= {p.name: p for p in of_class[names.index("name") + 1 :]}
        return found

    @property
    def n_items(self) -> int:
        return len(self.members)

    def texts_of(self, items: Any) -> Integers:
        """Sorted positions in `texts` of the texts of these items."""
        return np.unique(self.members[self._expect_items(items, "items")])

    def score(self, vectors: Any, items: Any = None, train: Any = None) -> Outcome:
        """The score of these vectors on the items.

        Parameters
        ----------
        vectors : array of shape (len(texts), n_features)
            One row per text. Rows of texts that the items don't use may hold anything.
        items : array of item numbers, optional
            All items by default.
        train : array of item numbers, optional
            Items to learn from, if the task is `supervised`.
        """
        return self.outcome(*self._checked(vectors, items, train))

    @abstractmethod
    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Outcome:
        """The outcome for checked arguments; train is empty if none was given.

        Folds are evaluated in threads, so it keeps nothing.
        """

    def _checked(
        self, vectors: Any, items: Any, train: Any
    ) -> tuple[NDArray[Any], Integers, Integers]:
        """The arguments of `score` as those of `outcome`."""
        X = np.asarray(linalg.to_numpy(checks.matrix(vectors)))
        if len(X) != len(self.texts):
            raise InputError(
                f"vectors must have a row for each of the {len(self.texts)} texts, got "
                f"{len(X)}. Encode task.texts in order."
            )
        if self.supervised and train is None:
            raise InputError(
                "train must name the items to learn from, got None. Pass the "
                'numbers of a part, such as task.parts["train"].'
            )
        items = np.arange(self.n_items) if items is None else self._expect_items(items, "items")
        learned = np.empty(0, int) if train is None else self._expect_items(train, "train")
        return X, items, learned

    def subset(self, items: Any) -> Self:
        """The same task with only these items, in this order."""
        items = self._expect_items(items, "items")
        new = copy.copy(self)
        for name in ("part", *self.per_item):
            setattr(new, name, getattr(self, name)[items])
        new._arrange([tuple(self.texts[i] for i in item) for item in self.members[items]])
        return new

    def joined(self, vectors: NDArray[Any]) -> Self:
        """The same task, in which texts with equal vectors count as the same text too."""
        hashed = (hashlib.blake2b(row + 0.0, digest_size=16) for row in vectors)  # -0.0 is 0.0
        of_row = len(vectors) + _numbers(row.digest() for row in hashed)
        new = copy.copy(self)
        new.identities = components(np.stack([self.identities, of_row], axis=1))
        new.groups = new.item_groups()
        return new

    def item_groups(self) -> Integers:
        """The group of each item: items that share a text, directly or through others."""
        return components(self.identities[self.members])

    def rows_of(self, X: NDArray[Any], numbers: Integers) -> Floats:
        """These rows in float64."""
        rows = X[numbers].astype(np.float64)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise InputError(
                f"vectors must be finite, got NaN or infinity in the row of text "
                f"{numbers[np.argmin(finite)]}."
            )
        return rows

    def similarities(self, X: NDArray[Any], items: Integers, kind: str = "cosine") -> Floats:
        """Cosine or dot product of the two texts of each item; the cosine with zero is 0."""
        found = np.empty(len(items))
        for start in range(0, len(items), PAIRS_AT_ONCE):
            block = slice(start, start + PAIRS_AT_ONCE)
            u, v = (self.rows_of(X, numbers) for numbers in self.members[items[block]].T)
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

    def _expect_text(self, texts: Iterable[Text], what: str) -> None:
        for text in texts:
            if isinstance(text, Span):
                written = 0 <= text.start < text.end <= len(text.text)
            else:
                written = isinstance(text, str) and bool(text.strip())
            if not written:
                raise InputError(f"{what} must have text, got {texts!r}. Leave it out.")

    def __repr__(self) -> str:
        parts = ", ".join(f"{part} {len(items)}" for part, items in self.parts.items())
        return f"<{type(self).__name__} {self.name!r}: {parts} items, {len(self.texts)} texts>"


@public
class TableTask(Task):
    """A task that is read from the columns of a table."""

    text_columns: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Column names that `read` looks for, the first choice first."""
    answer: ClassVar[str] = "label"
    """The option of `read` that names the column of the answers."""
    known_sets: ClassVar[dict[str, dict[str, Any]]] = {}  # default options of `read` by name

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        header: str | Sequence[str] | None = None,
        text: str | None = None,
        group_column: str | None = None,
        **options: Any,
    ) -> Self:
        """Read the task from a file, a folder or a dataset on the hub.

        Parameters
        ----------
        source : path or str
            A local path, or "owner/name" or "owner/name:configuration" on the hub.
        name : str, optional
            By default the name of the file or dataset.
        header : str or sequence of str, optional
            Column names, if the files have no header: "word1,word2,score".
        text : str, optional
            Column of the text; for pairs, two columns separated by a comma.
        group_column : str, optional
            Column of the group that the texts of an item are in, such as their language; for pairs
            also two columns separated by a comma.
        **options
            `label` or `score`: the column of the label, such as "fine" for TREC's 50 classes, or
            of the score. Other parameters of the class.
        """
        table = read_table(source, header)
        columns = table.choose(*cls.text_columns, named=text, option="text")
        table, answers = cls._answers(table, options.pop(cls.answer, None))
        name = name or table.name
        options = cls.known_sets.get(name, {}) | options
        items = cls._items(table, columns)
        task = cls(items, part=table.parts, name=name, **answers, **options)
        task.n_unlabelled = table.n_unlabelled
        if group_column is not None:
            task.text_groups = table.groups(items, group_column)
        return task

    @classmethod
    def read_options(cls) -> dict[str, inspect.Parameter]:
        """The options of `read` by name, the column of the answers included."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        column = inspect.Parameter(cls.answer, keyword, annotation="str | None")
        return super().read_options() | {cls.answer: column}

    @classmethod
    @abstractmethod
    def _answers(cls, table: Table, column: str | None) -> tuple[Table, dict[str, Any]]:
        """(the rows with an answer, arguments of the class: labels, or scores)."""

    @classmethod
    def _items(cls, table: Table, columns: Sequence[str]) -> Sequence[tuple[Text, ...]]:
        return table.texts(*columns)


@public
class LabelledTask(TableTask):
    """A task whose items, texts or tuples of texts, have labels from at least two classes.

    Attributes
    ----------
    classes : list
        The distinct labels, sorted.
    labels : array of shape (n_items,)
        The class of each item, as its position in `classes`.
    """

    per_item = ("labels",)
    text_columns = TEXTS

    def __init__(
        self, items: Sequence[Any], labels: Any, part: Sequence[str] | None = None, name: str = ""
    ) -> None:
        tuples = [(item,) if isinstance(item, (str, Span)) else item for item in items]
        super().__init__(tuples, part, name)
        given = outcomes.labels(labels, "labels", self.n_items)
        found, numbers = np.unique(given, return_inverse=True)
        self.classes: list[Any] = found.tolist()
        if len(found) < 2:
            raise InputError(
                f"labels of {self.name!r} must be of two classes or more, got "
                f"{self.classes[0]!r} for every item."
            )
        self.labels: NDArray[Any] = numbers.astype(np.int64)

    @classmethod
    def _answers(cls, table: Table, column: str | None) -> tuple[Table, dict[str, Any]]:
        table, labels = table.labels(column)
        return table, {"labels": labels}

    def _positive(self, positive: Any) -> int:
        """Position of the positive class: the one given, or the one whose name means yes."""
        if len(self.classes) != 2:
            raise InputError(f"labels must be of two classes, got {len(self.classes)}.")
        first, second = self.classes
        names = [str(label).lower() for label in self.classes]
        wanted = YES if positive is None else {str(positive).lower()}
        if (names[0] in wanted) != (names[1] in wanted):
            return int(names[1] in wanted)
        if positive is None:
            raise InputError(
                f"positive must say which of the labels {first!r} and {second!r} is the positive "
                "one."
            )
        raise InputError(
            f"positive must be one of the labels {first!r} and {second!r}, got {positive!r}."
        )


def components(members: Integers) -> Integers:
    """Connected components of items (rows) that share a number, in order of appearance."""
    n_items, n_each = members.shape
    n_nodes = n_items + int(members.max()) + 1
    ends = np.repeat(np.arange(n_items), n_each), n_items + members.ravel()
    graph = coo_array((np.ones(members.size), ends), shape=(n_nodes, n_nodes))
    _, labels = connected_components(graph, directed=False)
    return labels[:n_items].astype(np.int64)


def identity(text: Text) -> str:
    """A form shared by texts that differ only in how they are written.

    Case, spaces, punctuation, invisible characters and character encoding (NFKC) are ignored; a
    span counts as its sentence. Numbers stay apart: "1.5" equals "1,5" but not "15". Texts of
    nothing but punctuation keep it.

    Examples
    --------
    >>> identity("It is n't 1.5 , no!") == identity("IT ISN\u2019T  1,5... no")
    True
    """
    written = unicodedata.normalize("NFKC", plain_text(text)).casefold()
    written = unicodedata.normalize("NFKC", written)
    spaced = " ".join(written.translate(_SPACED).split())
    return re.sub(r" (?!\d)|(?<!\d) ", "", spaced) or "".join(written.split())


class _Spaced(dict[int, str | None]):
    """For str.translate: drops invisible characters and turns punctuation into spaces."""

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
    """A number for each distinct name, in order of first appearance."""
    found: dict[Any, int] = {}
    return np.array([found.setdefault(name, len(found)) for name in names], dtype=np.int64)


@public
def open_task(kind: str, source: str | os.PathLike[str], **options: Any) -> Task:
    """Read a task of this kind from a file, a folder or a dataset on the hub.

    Parameters
    ----------
    kind : {"sts", "word-similarity", "retrieval", "classification", "pair-classification", \
            "word-in-context", "clustering"}
    source, **options
        As for the `read` method of this kind.
    """
    task = Task.by_kind[checks.choice(kind, "kind", list(Task.by_kind))]
    checks.known(options, list(task.read_options()), f"options of {kind}")
    return task.read(source, **options)
