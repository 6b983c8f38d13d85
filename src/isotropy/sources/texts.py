"""What a model is run over: texts in a list or a file, and words inside of texts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_SIZE = 1 << 17  # characters or bytes of a block, some 30,000 tokens of English
Block = tuple[int, ...]  # the number of its texts, and where they are


@dataclass(frozen=True)
class Span:
    """The characters from `start` to `end` of a text: one occurrence of a word, in its context."""

    text: str
    start: int
    end: int


Text = str | Span


def distinct(texts: Sequence[Text]) -> tuple[list[Text], dict[Text, int]]:
    """The distinct texts in order of their first appearance, and the number of each."""
    numbers: dict[Text, int] = {}
    for text in texts:
        numbers.setdefault(text, len(numbers))
    return list(numbers), numbers


def expect_texts(texts: Any, name: str, caller: str) -> list[Text]:
    """The texts as a list, which must hold nothing else."""
    found = checks.listing(texts, name, caller)
    for number, text in enumerate(found):
        if not isinstance(text, (str, Span)):
            raise InputError(
                f"{caller}: {name} must be texts, got {type(text).__name__} in place {number}."
            )
    return found


class Texts(Protocol):
    """Texts in blocks of bounded size that can be read, and read again."""

    @property
    def n_texts(self) -> int: ...

    @property
    def n_blank(self) -> int:
        """Blank texts that were left out."""
        ...

    def blocks(self) -> list[Block]: ...

    def read(self, block: Block) -> Sequence[Text]: ...

    def table(self, block: Block) -> pa.Table:
        """The texts of a block, and the columns that stand beside them."""
        ...


class TextList:
    """Texts in memory; none of them may be blank."""

    n_blank = 0

    def __init__(self, texts: Sequence[Text], caller: str = "Encoder") -> None:
        self.texts = checks.listing(texts, "texts", caller)
        if not self.texts:
            raise InputError(f"{caller}: texts must have at least one text, got none.")
        for number, text in enumerate(self.texts):
            if not isinstance(text, (str, Span)):
                raise InputError(
                    f"{caller}: texts must be strings, got {type(text).__name__} in place {number}."
                )
            if not whole(text).strip():
                raise InputError(
                    f"{caller}: texts must not be blank, got a blank one in place {number} "
                    "(counted from 0). Leave it out."
                )
            if not is_unicode(whole(text)):
                raise InputError(
                    f"{caller}: texts must hold whole characters, got half of one (a lone "
                    f"surrogate, \\ud800 to \\udfff) in place {number} (counted from 0). Correct "
                    "that text."
                )
        ends = np.cumsum([len(whole(text)) for text in self.texts])
        edges = [0, *(np.flatnonzero(np.diff(ends // BLOCK_SIZE)) + 1).tolist(), len(self.texts)]
        self._blocks: list[Block] = [
            (end - start, start) for start, end in itertools.pairwise(edges)
        ]

    @property
    def n_texts(self) -> int:
        return len(self.texts)

    def blocks(self) -> list[Block]:
        return self._blocks

    def read(self, block: Block) -> Sequence[Text]:
        n_texts, start = block
        return self.texts[start : start + n_texts]

    def table(self, block: Block) -> pa.Table:
        import pyarrow as pa

        return pa.table({"text": [shown(text) for text in self.read(block)]})


def whole(text: Text) -> str:
    """The text that a span lies in; a text itself."""
    return text.text if isinstance(text, Span) else text


def is_unicode(text: str) -> bool:
    """Whether every character is one that UTF-8 has, as tokenizers expect."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: Text) -> str:
    """The characters of a span; a text itself."""
    return text.text[text.start : text.end] if isinstance(text, Span) else text


def open_texts(texts: Any, columns: Sequence[str] | None = None, caller: str = "Encoder") -> Texts:
    """The texts of a list, or of a file where a path is given."""
    from isotropy.sources.text_files import TextFile

    if isinstance(texts, (TextList, TextFile)):
        return texts
    if isinstance(texts, str) and " " in texts and not os.path.exists(texts):
        raise InputError(
            f"{caller}: there is no file {texts[:60]!r}. Check the path, or give texts in a list."
        )
    if isinstance(texts, (str, os.PathLike)):
        return TextFile(texts, columns, caller)
    if columns is not None:
        raise InputError(f"{caller}: columns are for files, got a list of texts. Leave them out.")
    return TextList(texts, caller)


def each(texts: Texts) -> Iterator[Text]:
    """Every text, in order."""
    for block in texts.blocks():
        yield from texts.read(block)


def sampled(texts: Texts, n_most: int, seed: int = 0) -> list[Text]:
    """At most n_most texts, drawn without replacement, in order."""
    if texts.n_texts <= n_most:
        return list(each(texts))
    drawn = np.random.default_rng(seed).choice(texts.n_texts, n_most, replace=False)
    kept: NDArray[np.bool_] = np.zeros(texts.n_texts, dtype=bool)
    kept[drawn] = True
    return list(itertools.compress(each(texts), kept))
