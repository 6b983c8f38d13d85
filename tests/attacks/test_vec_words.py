"""word2vec's text and binary files whose header is wrong, or whose rows are."""

from pathlib import Path

import numpy as np
import pytest

import isotropy
from isotropy.errors import IsotropyError

from .vec_files import X, binary_words, read, words

ROW = b"w7 " + repr(X[7].tolist()[0]).encode()
TEXT = {
    "one column too few": (words("12 3"), "must have a word and 3 numbers in row 0"),
    "half the columns": (words("12 2"), "must have a word and 2 numbers in row 0"),
    "one column too many": (words("12 5"), "has 4 numbers in its first row"),
    "half the rows": (words("6 4"), "has 12 rows, and its header promises 6"),
    "one row too many": (words("13 4"), "has 12 rows, and its header promises 13"),
    "rows and columns swapped": (words("4 12"), "has 4 numbers in its first row"),
    "no rows": (b"0 4\n", "has no numbers in its first row"),
    "no columns": (words("12 0"), "promises rows of 0 features"),
    "a longer row": (
        words().replace(b"w7 ", b"w7 0.25 "),
        "must have a word and 4 numbers in row 7, got 'w7 0.25",
    ),
    "a shorter row": (
        words().replace(ROW + b" ", b"w7 "),
        "must have a word and 4 numbers in row 7",
    ),
    "a row of one number": (
        b"\n".join(b"w7 0.5" if line[:3] == b"w7 " else line for line in words().split(b"\n")),
        "must have a word and 4 numbers in row 7, got 'w7 0.5'",
    ),
    "a longer row without header": (
        words("").replace(b"w7 ", b"w7 0.25 "),
        "must have a word and 4 numbers in row 7",
    ),
    "text in a row": (words().replace(ROW, b"w7 x"), "must have a word and 4 numbers in row 7"),
    "underscores": (words(rows=np.ones((12, 4))).replace(b"w7 1.0", b"w7 1_0"), "in row 7"),
    "nothing but numbers": (words("", names=["1.5"] * 12), "has no words followed by numbers"),
    "nothing but words": (b"the quick brown fox\n" * 5, "has no words followed by numbers"),
    "a bell in a word": (words().replace(ROW, b"w\x07 x"), r"'w\x07 x "),
    "a word of a megabyte": (words().replace(ROW, b"w" * (1 << 20) + b" x"), "in row 7"),
}
BINARY = {
    "one column too few": (binary_words("12 3"), ""),
    "half the columns": (binary_words("12 2"), ""),
    "one column too many": (binary_words("12 5"), ""),
    "half the rows": (binary_words("6 4"), "has more than the 6 rows of 4 features"),
    "one row": (binary_words("1 4"), "has more than the 1 rows of 4 features"),
    "one row too many": (binary_words("13 4"), "is truncated"),
    "twice the columns, half the rows": (binary_words("6 8"), ""),
    "rows and columns swapped": (binary_words("4 12"), ""),
    "no columns": (binary_words("12 0"), "promises rows of 0 features"),
    "no rows": (binary_words("0 4"), "has more than the 0 rows"),
    "bytes at the end": (binary_words(end=b"more"), "has more than the 12 rows"),
    "spaces at the end": (binary_words(end=b" " * 100), "has more than the 12 rows"),
    "no header": (binary_words("x"), "does not begin with the numbers of rows"),
    "signs": (binary_words("+12 4"), "does not begin with the numbers of rows"),
    "decimals": (binary_words("12.0 4"), "does not begin with the numbers of rows"),
    "no space": (b"2 2\n" + b"x" * 40, "is truncated: 0 of 2 rows are there"),
    "a zero in a word": (binary_words().replace(b"w7 ", b"w\0 "), "must have a word before row 7"),
}


@pytest.mark.parametrize("case", TEXT)
@pytest.mark.parametrize("suffix", [".vec", ".txt"])
def test_text(refused, case, suffix):
    data, says = TEXT[case]
    Path("x" + suffix).write_bytes(data)
    refused("measure", "x" + suffix, says=says)


@pytest.mark.parametrize("case", BINARY)
def test_binary(refused, case):
    data, says = BINARY[case]
    Path("x.bin").write_bytes(data)
    refused("measure", "x.bin", says=says)


@pytest.mark.parametrize("n_features", [1, 2, 3, 5, 7, 8, 9, 16])
@pytest.mark.parametrize("n_rows", [1, 6, 11, 13, 24])
def test_no_other_header_of_a_binary_file_is_believed(folder, n_rows, n_features):
    Path("x.bin").write_bytes(binary_words(f"{n_rows} {n_features}"))
    with pytest.raises(IsotropyError):
        read(isotropy.open("x.bin"))


def test_words_may_hold_spaces_and_be_numbers(folder):
    names = ["New York", "0.5", "nan", ". . .", "to infinity", *"abcdefg"]
    for header in ("12 4", ""):
        Path("x.vec").write_bytes(words(header, names=names))
        rows, table = read(isotropy.open("x.vec"))
        assert table.column("word").to_pylist() == names
        np.testing.assert_allclose(rows, X, rtol=1e-7)


def test_words_that_could_not_be_read_again_are_not_written(refused, folder):
    names = ["Windows 95", *(f"w{i}" for i in range(11))]
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"word": names, "e": X.tolist()}), "x.parquet")
    says = "words must not end in a space and a number"
    refused("repair", "x.parquet", "--method", "center", "--out", "y.vec", says=says)


@pytest.mark.parametrize("blank", [b" ", b"   ", b"\t", b" \t \r"])
@pytest.mark.parametrize("header", [b"", b"2 2\n"])
def test_lines_without_a_word_are_skipped(header, blank, folder):
    (folder / "x.txt").write_bytes(header + b"a 1 2\n" + blank + b"\nb 3 4\n" + blank)
    rows, table = read(isotropy.open("x.txt"))
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert table.column("word").to_pylist() == ["a", "b"]


def test_one_number_is_called_one(raises, folder):
    (folder / "x.txt").write_bytes(b"2 2\na 1\nb 2\n")
    raises(isotropy.open, "x.txt", says="has 1 number in its first row")
