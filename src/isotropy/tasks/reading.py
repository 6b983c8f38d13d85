"""Tables of items: from a file, a folder with a file for each part, or the hub."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, MissingExtraError
from isotropy.tasks.files import KINDS, SUFFIX, Columns, read_columns, stem

PART = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])", re.IGNORECASE)
PARTS = ("train", "dev", "test")
UNDIVIDED = "all"
PAIRS = (
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
)
TEXTS = (("text",), ("sentence",), ("question",))
LABELS = (("label",), ("coarse",), ("coarse_label",), ("answer",))


@dataclass(frozen=True)
class Table:
    """Rows of named columns; of each row the part, the file and the line that it stands in."""

    caller: str
    name: str
    columns: Columns
    parts: list[str]
    files: list[str]
    lines: list[int]

    def choose(self, *options: Sequence[str]) -> tuple[str, ...]:
        """The first of the options, each one column or several, that is there."""
        for names in options:
            if all(name in self.columns for name in names):
                return tuple(names)
        wanted = " or ".join(", ".join(map(repr, names)) for names in options)
        found = ", ".join(map(repr, self.columns))
        raise InputError(
            f"{self.caller}: {self.name!r} must have the columns {wanted}, got {found}. "
            "Rename its columns."
        )

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
        (name,) = self.choose(*([(column,)] if column else LABELS))
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
                if text is None or not str(text).strip():
                    raise InputError(
                        f"{self.caller}: {self.place(row)} must have text in {name!r}, got none. "
                        "Fill it in, or delete the line."
                    )
        columns = [[str(text) for text in self.columns[name]] for name in names]
        return list(zip(*columns, strict=True))

    def numbers(self, name: str) -> list[float]:
        """The column as numbers."""
        found = []
        for row, value in enumerate(self.columns[name]):
            try:
                found.append(float(value))
            except (TypeError, ValueError):
                raise InputError(
                    f"{self.caller}: {self.place(row)} must have a number in {name!r}, got "
                    f"{value!r}. Correct that line."
                ) from None
        return found

    def subsets(self) -> list[str] | None:
        """The `subset` of each row; else its file, where there are several undivided ones."""
        if "subset" in self.columns:
            return [str(value) for value in self.columns["subset"]]
        if set(self.parts) == {UNDIVIDED} and len(set(self.files)) > 1:
            return [stem(file) for file in self.files]
        return None

    def place(self, row: int) -> str:
        return f"{self.files[row]}, line {self.lines[row]}"


def read(source: str | os.PathLike[str], caller: str) -> Table:
    """The table of a file, of a folder, of a folder that `datasets` saved, or of the hub.

    Files and splits whose names begin with train, dev (val, valid, validation) or test are parts.
    A folder without such files is undivided, and so is a file given by itself.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(path, caller)
    if path.is_file():
        return read_file(path, UNDIVIDED, caller)
    name = os.fspath(source)
    if SUFFIX.search(name) or path.is_absolute() or name.startswith((".", "~")):
        raise InputError(f"{caller}: data must be a file or a folder, and there is no {name!r}.")
    return joined(hub(name, caller), hub_name(name))


def read_file(path: Path, part: str, caller: str) -> Table:
    columns, lines = read_columns(path, caller)
    return Table(
        caller, stem(path.name), columns, [part] * len(lines), [path.name] * len(lines), lines
    )


def part_of(name: str) -> str:
    """The part that a file or a split is, by the beginning of its name."""
    found = PART.match(name)
    if found is None:
        return UNDIVIDED
    word = found[1].lower()
    return "dev" if word.startswith("val") else word


def tabular(folder: Path, caller: str) -> list[Path]:
    """The files of a folder that hold tables, in the order of their names."""
    files = sorted(path for path in folder.iterdir() if SUFFIX.search(path.name))
    for first, second in pairwise(files):
        if stem(first.name) == stem(second.name):
            raise InputError(
                f"{caller}: {str(folder)!r} must hold each table once, got {first.name!r} and "
                f"{second.name!r}. Move one away."
            )
    return files


def _folder(path: Path, caller: str) -> Table:
    name = path.resolve().name
    if any((path / mark).exists() for mark in ("dataset_dict.json", "dataset_info.json")):
        return joined(_saved(path, caller), name)
    files = tabular(path, caller)
    if not files:
        held = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise InputError(f"{caller}: {str(path)!r} must hold {KINDS} files, got {held}.")
    parts = [file for file in files if part_of(file.name) != UNDIVIDED]
    return joined([read_file(file, part_of(file.name), caller) for file in parts or files], name)


def joined(tables: Sequence[Table], name: str) -> Table:
    """The rows of all tables; a column that one of them does not have is empty there."""
    names = dict.fromkeys(column for table in tables for column in table.columns)

    def cells(column: str) -> list[Any]:
        absent = ([None] * len(table.lines) for table in tables)
        return _chained(t.columns.get(column, a) for t, a in zip(tables, absent, strict=True))

    return Table(
        tables[0].caller,
        name,
        {column: cells(column) for column in names},
        _chained(table.parts for table in tables),
        _chained(table.files for table in tables),
        _chained(table.lines for table in tables),
    )


def hub_name(name: str) -> str:
    """What a data set of the hub is called here: `stsb` for nyu-mll/glue:stsb."""
    return re.split("[/:]", name)[-1]


def hub(name: str, caller: str) -> list[Table]:
    """The splits of a data set of the hub: "owner/name", or "owner/name:configuration"."""
    datasets = _datasets(f"{caller}: {name!r} is no file or folder here, and a data set of the hub")
    path, _, configuration = name.partition(":")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of every attempt to reach the hub
    try:
        splits = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # of many kinds: network, name, configuration, format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"{caller}: data must be a file, a folder or a data set of the hub, got {name!r}: "
            f"there is no such file, and loading it from the hub failed ({reason})."
        ) from None
    finally:
        logging.disable(disabled)
    return _splits(splits, caller)


def _saved(path: Path, caller: str) -> list[Table]:
    datasets = _datasets(f"{caller}: {str(path)!r} was saved by the package datasets: reading it")
    found = datasets.load_from_disk(str(path))
    return _splits(found if isinstance(found, dict) else {UNDIVIDED: found}, caller)


def _datasets(what: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise MissingExtraError(
            f"{what} needs datasets, which is not installed. Run: pip install datasets."
        ) from None


def _splits(splits: Mapping[str, Any], caller: str) -> list[Table]:
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
                caller,
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
