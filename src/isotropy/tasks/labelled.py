"""Tasks whose items have labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, public
from isotropy.models import Span, Text
from isotropy.tasks import outcomes
from isotropy.tasks.base import Task
from isotropy.tasks.reading import TEXTS, Table, read_table

YES = {"1", "1.0", "true", "t", "yes", "y", "positive", "same", "similar"}
YES |= {"entailment", "equivalent", "duplicate", "paraphrase"}


@public
class LabelledTask(Task):
    """A task whose items have labels from at least two classes.

    Parameters
    ----------
    items : sequence of texts, or of tuples of texts
    labels : sequence
    part, name
        See `Task`.

    Attributes
    ----------
    classes : list
        The distinct labels, sorted.
    labels : array of shape (n_items,)
        The class of each item, as its position in `classes`.
    """

    per_item = ("labels",)
    text_columns = TEXTS
    known_sets: ClassVar[dict[str, dict[str, Any]]] = {}  # default options of `read` by name

    def __init__(
        self,
        items: Sequence[Text] | Sequence[tuple[Text, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "",
    ) -> None:
        super().__init__(
            [(item,) if isinstance(item, (str, Span)) else item for item in items], part, name
        )
        found, numbers = np.unique(
            outcomes.labels(labels, "labels", self.n_items), return_inverse=True
        )
        self.classes: list[Any] = found.tolist()
        if len(found) < 2:
            raise InputError(
                f"labels of {self.name!r} must be of two classes or more, got "
                f"{self.classes[0]!r} for every item."
            )
        self.labels: NDArray[Any] = numbers.astype(np.int64)

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        header: str | Sequence[str] | None = None,
        text: str | None = None,
        label: str | None = None,
        **options: Any,
    ) -> Self:
        """Read the task from a file, a folder or a dataset on the hub; see `Task.read`."""
        table = read_table(source, header)
        columns = table.choose(*cls.text_columns, named=text, option="text")
        table, labels = table.labels(label)
        name = name or table.name
        options = cls.known_sets.get(name, {}) | options
        task = cls(cls._items(table, columns), labels, table.parts, name, **options)
        task.n_unlabelled = table.n_unlabelled
        return task

    @classmethod
    def _items(cls, table: Table, columns: Sequence[str]) -> Sequence[tuple[Text, ...]]:
        return table.texts(*columns)

    def _positive(self, positive: Any) -> int:
        """Position of the positive class: the one given, or the one whose name means yes."""
        if len(self.classes) != 2:
            raise InputError(f"labels must be of two classes, got {len(self.classes)}.")
        first, second = self.classes
        names = [str(label).lower() for label in self.classes]
        if positive is not None:
            if str(positive).lower() not in names:
                raise InputError(
                    f"positive must be one of the labels {first!r} and {second!r}, got "
                    f"{positive!r}."
                )
            return names.index(str(positive).lower())
        if (names[0] in YES) == (names[1] in YES):
            raise InputError(
                f"positive must say which of the labels {first!r} and {second!r} is the positive "
                "one."
            )
        return int(names[1] in YES)
