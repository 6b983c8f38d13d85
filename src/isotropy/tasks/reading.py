"""Tables of items: from a file, a folder with a file for each part, or the hub."""

from __future__ import annotations

import importlib
import logging
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, IsotropyWarning, MissingExtraError, brief
from isotropy.sources import tables
from isotropy.sources.files import listed
from isotropy.tasks.collections import KINDS, Columns, is_table, read_columns, stem

PART = re.compile(
    r"(?:^|[^a-z])(train(?:ing)?|validation|valid|val|dev(?:elopment)?|trial|test(?:ing)?)(?![a-z])"
)
PARTS = ("train", "dev", "test")
UNDIVIDED = "all"
PART_COLUMNS = (("SemEval_set",), ("split",))
ABOUT = re.compile("readme|licen[sc]e|source|citation|changelog|instructions|notes", re.IGNORECASE)

# Columns as common sets call them, the usual name first; case, spaces, _ and - do not matter.
PAIRS = (
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("s1", "s2"),
    ("#1 String", "#2 String"),
    ("query", "document"),
    ("query", "passage"),
    ("text_a", "text_b"),
)
TEXTS = (
    ("text",),
    ("sentence",),
    ("question",),
    ("utterance",),
    ("query",),
    ("document",),
    ("content",),
    ("review",),
    ("headline",),
    ("title",),
)
LABELS = (
    ("label",),
    ("coarse",),
    ("coarse_label",),
    ("answer",),
    ("category",),
    ("intent",),
    ("class",),
    ("topic",),
    ("target",),
    ("gold",),
    ("gold_label",),
    ("is_duplicate",),
    ("entailment_label",),
    ("entailment_judgment",),
    ("entailment",),
    ("quality",),
    ("sentiment",),
    ("emotion",),
    ("cluster",),
)
SCORES = (
    ("score",),
    ("relatedness_score",),
    ("similarity",),
    ("relatedness",),
    ("similarity_score",),
    ("gold",),
    ("gold_score",),
    ("Human (mean)",),
    ("SimLex999",),
    ("mean",),
    ("rating",),
    ("label",),
)


@dataclass(frozen=True)
class Table:
    """Rows of named columns; of each row the part, the file and the line that it stands in."""

    name: str
    columns: Columns
    parts: list[str]
    files: list[str]
    lines: list[int]

    def choose(
        self, *options: Sequence[str], named: str | None = None, option: str | None = None
    ) -> tuple[str, ...]:
        """The first of the options, each one column or several, that is there.

        Parameters
        ----------
        *options : sequence of str
            Case, spaces, underscores and hyphens do not matter where no name is the very same.
        named : str, optional
            What the user says instead, several columns with commas between.
        option : str, optional
            What this is called by the user, as "label" in --option label=intent.
        """
        wanted = list(options) if named is None else [self._named(named, options, option)]
        folded: dict[str, list[str]] = {}
        for name in self.columns:
            folded.setdefault(_folded(name), []).append(name)
        for names in wanted:
            exact = [name if name in self.columns else None for name in names]
            alike = [folded.get(_folded(name), []) for name in names]
            found = [
                a or (b[0] if len(b) == 1 else None) for a, b in zip(exact, alike, strict=True)
            ]
            if None not in found:
                return tuple(map(str, found))
        raise InputError(
            f"{brief(self.name)} must have the columns {_several(wanted)}, got "
            f"{listed(list(self.columns), 12)}. {self._advice(wanted, option)}"
        )

    def _named(
        self, named: str, options: Sequence[Sequence[str]], option: str | None
    ) -> tuple[str, ...]:
        """The columns that the user names: one, or several with commas between."""
        found = (named,) if named in self.columns else tuple(named.split(","))
        widths = sorted({len(names) for names in options})
        if len(found) not in widths:
            raise InputError(
                f"{option} must name {' or '.join(map(str, widths))} columns, got {brief(named)}."
            )
        return found

    def _advice(self, wanted: Sequence[Sequence[str]], option: str | None) -> str:
        if tables.is_row([str(name) for name in self.columns]):
            return (
                "That is a row: the file has no header. Name its columns in their order, as with "
                f"--header {','.join(wanted[0])},... (header= in Python)."
            )
        if option is None:
            return "Rename its columns."
        return f"Name it with --option {option}=NAME ({option}= in Python), or rename it."

    def labelled(self, column: str) -> tuple[Table, int]:
        """(the rows with a value in the column, how many have none).

        No value is an empty cell, a missing field, `-`, and -1 all through a part.
        """
        values = ["" if _is_missing(value) else str(value) for value in self.columns[column]]
        seen: dict[str, set[str]] = {}
        for part, value in zip(self.parts, values, strict=True):
            seen.setdefault(part, set()).add(value)
        hidden = {part for part, found in seen.items() if found <= {"", "-1", "-1.0"}}
        kept = [i for i, v in enumerate(values) if v and self.parts[i] not in hidden]
        return self.rows(kept), len(values) - len(kept)

    def labels(self, column: str | None = None) -> tuple[Table, list[str], int]:
        """(the rows that have a label, their labels, how many have none)."""
        (name,) = self.choose(*LABELS, named=column, option="label")
        table, n_unlabelled = self.labelled(name)
        labels = [str(value) for value in table.columns[name]]
        if name == "fine" and "coarse" in self.columns:  # TREC's fine names are not unique
            coarse = map(str, table.columns["coarse"])
            labels = [":".join(both) for both in zip(coarse, labels, strict=True)]
        return table, labels, n_unlabelled

    def rows(self, kept: Sequence[int]) -> Table:
        return replace(
            self,
            columns={name: [cells[i] for i in kept] for name, cells in self.columns.items()},
            parts=[self.parts[i] for i in kept],
            files=[self.files[i] for i in kept],
            lines=[self.lines[i] for i in kept],
        )

    def texts(self, *names: str) -> list[tuple[str, ...]]:
        """Of each row the texts in the named columns, none of them empty."""
        for name in names:
            for row, text in enumerate(self.columns[name]):
                if isinstance(text, (list, dict)) or text is None or not str(text).strip():
                    raise InputError(
                        f"{self.place(row)} must have text in {brief(name)}, got "
                        f"{brief(text) if isinstance(text, (list, dict)) else 'none'}. "
                        "Fill it in, or delete the line."
                    )
        columns = [[str(text) for text in self.columns[name]] for name in names]
        return list(zip(*columns, strict=True))

    def numbers(self, name: str) -> list[float]:
        """The column as numbers."""
        found = []
        for row, value in enumerate(self.columns[name]):
            number = _number(value)
            if number is None:
                raise InputError(
                    f"{self.place(row)} must have a number in {brief(name)}, got "
                    f"{brief(value)}. {tables.no_number(value)}"
                )
            found.append(number)
        return found

    def subsets(self) -> list[str] | None:
        """The `subset` of each row; else its file, where there are several undivided ones."""
        if "subset" in self.columns:
            return [str(value) for value in self.columns["subset"]]
        if set(self.parts) == {UNDIVIDED} and len(set(self.files)) > 1:
            return [stem(file) for file in self.files]
        return None

    def place(self, row: int) -> str:
        return f"{self.files[row][-80:]}, line {self.lines[row]}"


def read(source: str | os.PathLike[str], header: str | Sequence[str] | None = None) -> Table:
    """The table of a file, of a folder, of a folder that `datasets` saved, or of the hub.

    Files and splits whose names have the word train (training), dev (development, val, valid,
    validation, trial) or test (testing) are parts, and other files beside them are left out, which
    a warning says. A folder without such files is undivided, and so is a file given by itself,
    unless a column SemEval_set or split names the part of every row.

    Parameters
    ----------
    source : path or str
    header : str or sequence of str, optional
        Names of the columns, where files have no header: "word1,word2,score".
    """
    names = _header(header)
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        return _divided(_folder(path, names))
    if os.path.isfile(path):
        return _divided(read_file(path, UNDIVIDED, names))
    name = os.fspath(source)
    if is_table(name) or path.is_absolute() or name.startswith((".", "~")):
        raise InputError(f"data must be a file or a folder, and there is no {name!r}.")
    if names:
        raise InputError(f"header is for files, got the data set {name!r} of the hub.")
    return joined(hub(name), hub_name(name))


def _header(header: str | Sequence[str] | None) -> list[str] | None:
    """The names in a header, which may be written with commas between."""
    if header is None:
        return None
    names = header.split(",") if isinstance(header, str) else list(header)
    names = [str(name).strip() for name in names]
    named = [name for name in names if name != "_"]
    if not all(names) or not named or len(set(named)) < len(named):
        raise InputError(
            f"header must name each column once, as word1,word2,score (_ for one that is "
            f"not needed), got {brief(header)}."
        )
    return [f"_{i}" if name == "_" else name for i, name in enumerate(names)]


def _divided(table: Table) -> Table:
    """The table with the parts that a column of it names, where files do not."""
    if set(table.parts) != {UNDIVIDED}:
        return table
    for (wanted,) in PART_COLUMNS:
        name = next((name for name in table.columns if _folded(name) == _folded(wanted)), None)
        if name is None:
            continue
        parts = [part_of(str(value)) for value in table.columns[name]]
        if UNDIVIDED not in parts and len(set(parts)) > 1:
            return replace(table, parts=parts)
    return table


def read_file(path: Path, part: str, header: Sequence[str] | None = None) -> Table:
    columns, lines = read_columns(path, header)
    return Table(stem(path.name), columns, [part] * len(lines), [path.name] * len(lines), lines)


def part_of(name: str) -> str:
    """The part that a file or a split is, by a word in its name."""
    found = PART.search(name.lower())
    if found is None:
        return UNDIVIDED
    word = found[1]
    return next((part for part in ("train", "test") if word.startswith(part)), "dev")


def tabular(folder: Path) -> list[Path]:
    """The files of a folder that hold tables, in the order of their names.

    Those that end in .txt count where no others are there, and do not begin with README.
    """
    files = sorted(path for path in folder.iterdir() if is_table(path.name))
    tables_only = [path for path in files if tables.suffix(path.name) != "txt"]
    files = tables_only or [path for path in files if not ABOUT.match(path.name)]
    for first, second in pairwise(files):
        if stem(first.name) == stem(second.name):
            raise InputError(
                f"{str(folder)!r} must hold each table once, got {brief(first.name)} and "
                f"{brief(second.name)}. Move one away."
            )
    return files


def _folder(path: Path, header: Sequence[str] | None) -> Table:
    name = path.resolve().name
    if any((path / mark).exists() for mark in ("dataset_dict.json", "dataset_info.json")):
        return joined(_saved(path), name)
    files = tabular(path)
    if not files:
        held = [file.name for file in sorted(path.iterdir())]
        there = ", ".join(brief(name)[1:-1] for name in held[:9]) or "nothing"
        raise InputError(f"{str(path)!r} must hold {KINDS} files, got {there}.")
    files = parts_among(files)
    found = [read_file(file, part_of(stem(file.name)), header) for file in files]
    return joined(found, name)


def parts_among(files: Sequence[Path]) -> list[Path]:
    """The files that are parts by their names, or all where none is; says which are left out."""
    parts = [file for file in files if part_of(stem(file.name)) != UNDIVIDED]
    left = [file.name for file in files if file not in parts]
    if parts and left:
        warnings.warn(
            f"{listed(left, 3)} in {brief(files[0].parent.name)} was not read, as other "
            "files there are named train, dev or test. Name it so too, or give it by itself.",
            IsotropyWarning,
            stacklevel=2,
        )
    return parts or list(files)


def joined(tables: Sequence[Table], name: str) -> Table:
    """The rows of all tables; a column that one of them does not have is empty there."""
    names = dict.fromkeys(column for table in tables for column in table.columns)

    def cells(column: str) -> list[Any]:
        absent = ([None] * len(table.lines) for table in tables)
        return _chained(t.columns.get(column, a) for t, a in zip(tables, absent, strict=True))

    return Table(
        name,
        {column: cells(column) for column in names},
        _chained(table.parts for table in tables),
        _chained(table.files for table in tables),
        _chained(table.lines for table in tables),
    )


def hub_name(name: str) -> str:
    """What a data set of the hub is called here: `stsb` for nyu-mll/glue:stsb."""
    return re.split("[/:]", name)[-1]


def hub(name: str) -> list[Table]:
    """The splits of a data set of the hub: "owner/name", or "owner/name:configuration"."""
    datasets = _datasets(f"{name!r} is no file or folder here, and a data set of the hub")
    path, _, configuration = name.partition(":")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of every attempt to reach the hub
    try:
        splits = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # of many kinds: network, name, configuration, format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"data must be a file, a folder or a data set of the hub, got {name!r}: "
            f"there is no such file, and loading it from the hub failed ({reason})."
        ) from error
    finally:
        logging.disable(disabled)
    return _splits(splits)


def _saved(path: Path) -> list[Table]:
    datasets = _datasets(f"{str(path)!r} was saved by the package datasets: reading it")
    found = datasets.load_from_disk(str(path))
    return _splits(found if isinstance(found, dict) else {UNDIVIDED: found})


def _datasets(what: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs datasets, which is not installed. Run: pip install datasets."
        ) from error


def _splits(splits: Mapping[str, Any]) -> list[Table]:
    """Tables of `datasets`' splits; numbers of classes turn into names, and -1 into None."""
    tables = []
    for name, split in splits.items():
        columns = split.to_dict()
        for column, feature in split.features.items():
            classes = getattr(feature, "names", None)
            if classes:
                columns[column] = [
                    None if i is None or i < 0 else classes[i] for i in columns[column]
                ]
        n_rows = len(split)
        tables.append(
            Table(
                name,
                columns,
                [part_of(name)] * n_rows,
                [name] * n_rows,
                list(range(1, n_rows + 1)),
            )
        )
    return tables


def _chained(lists: Any) -> list[Any]:
    return list(chain.from_iterable(lists))


def _is_missing(value: Any) -> bool:
    return value is None or value != value or str(value).strip() in ("", "-")


def _number(value: Any) -> float | None:
    """The number that a cell or a field holds, None where it is none."""
    if isinstance(value, str):
        return float(value) if tables.NUMBER.fullmatch(value) else None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", str(name)).casefold()


def _several(options: Sequence[Sequence[str]], most: int = 4) -> str:
    words = [", ".join(brief(name) for name in names) for names in options[:most]]
    return " or ".join(words) + (" or the like" if len(options) > most else "")
