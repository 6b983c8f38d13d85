"""Word pieces as tokenizers store them, and the text that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

SPACE = "Ġ"  # a space before the word, in vocabularies of bytes
MANY = 0.1  # share of pieces with that mark that only vocabularies of bytes have
MARKS = ("##", "▁")  # inside a word, and at its start
ENDS = ("</w>", "@@")


def as_written(pieces: Sequence[str]) -> list[str]:
    """The text of every piece of a vocabulary, without spaces and the tokenizer's marks.

    Examples
    --------
    >>> as_written(["Ġthe", "ing"]), as_written(["the", "##ing"]), as_written(["▁the", "</w>"])
    (['the', 'ing'], ['the', 'ing'], ['the', '</w>'])
    """
    if sum(piece.startswith(SPACE) for piece in pieces) > MANY * len(pieces):
        return [from_bytes(piece).strip() for piece in pieces]
    return [_unmarked(piece).strip() for piece in pieces]


def _unmarked(piece: str) -> str:
    found = piece
    for mark in MARKS:
        found = found.removeprefix(mark)
    for mark in ENDS:
        found = found.removesuffix(mark)
    return found or piece


def from_bytes(token: str) -> str:
    """The text of a byte-level token; the token itself if its bytes are not valid UTF-8.

    As in GPT-2, printable bytes stand for themselves and others for characters from 256 on.
    """
    try:
        return bytes(BYTE_OF[character] for character in token).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return token


PRINTING = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTING]
BYTE_OF = {chr(byte): byte for byte in PRINTING}
BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(OTHERS)}
