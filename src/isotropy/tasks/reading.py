"""Tables of items from a file, a folder with one file per part, or the hub."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, MissingExtraError, brief, warn
from isotropy.sources import listed, tables
from isotropy.tasks.collections import KINDS, Columns, is_table, read_columns, stem

PART = re.compile(
    r"(?:^|[^a-z])(train(?:ing)?|validation|valid|val|dev(?:elopment)?|trial|test(?:ing)?)(?![a-z])"
)
PARTS = ("train", "dev", "test")
UNDIVIDED = "all"
PART_COLUMNS = ("SemEval_set", "split")
ABOUT = re.compile("readme|licen[sc]e|source|citation|changelog|instructions|notes", re.IGNORECASE)


def column_choices(names: str) -> tuple[tuple[str, ...], ...]:
    """Choices separated by semicolons, each of one column or of several separated by commas."""
    return tuple(tuple(map(str.strip, choice.split(","))) for choice in names.split(";"))


# Column names of common sets, the usual one first; case, spaces, _ and - don't matter.
PAIRS = column_choices(
    "sentence1, sentence2; sentence_A, sentence_B; question, sentence; question, passage; "
    "question1, question2; premise, hypothesis; text1, text2; s1, s2; #1 String, #2 String; "
    "query, document; query, passage; text_a, text_b"
)
TEXTS = column_choices(
    "text; sentence; question; utterance; query; document; content; review; headline; title"
)
LABELS = column_choices(
    "label; coarse; coarse_label; answer; category; intent; class; topic; target; gold; "
    "gold_label; is_duplicate; entailment_label; entailment_judgment; entailment; quality; "
    "sentiment; emotion; cluster"
)
SCORES = column_choices(
    "score; relatedness_score; similarity; relatedness; similarity_score; gold; gold_score; "
    "Human (mean); SimLex999; mean; rating; label"
)


@dataclass(frozen=True)
class Table:
    """Rows of named columns, with the part, the file and the line of each row."""

    name: str
    columns: Columns
    parts: list[str]
    files: list[str]
    lines: list[int]
    n_unlabelled: int = 0  # rows left out because they have no label

    @classmethod
    def of_file(
        cls, name: str, columns: Columns, lines: list[int], file: str, part: str = UNDIVIDED
    ) -> Table:
        return cls(name, columns, [part] * len(lines), [file] * len(lines), lines)

    def choose(
        self, *options: Sequence[str], named: str | None = None, option: str | None = None
    ) -> tuple[str, ...]:
        """The first of the options, each one or several columns, that the table has.

        Case, spaces, underscores and hyphens don't matter unless a name matches exactly. `named`
        is the user's choice instead, columns separated by commas; `option` is what the user calls
        it, such as "label" in --option label=intent.
        """
        wanted = list(options)
        if named is not None:
            wanted = [(named,) if named in self.columns else tuple(named.split(","))]
            widths = sorted({len(names) for names in options})
            if len(wanted[0]) not in widths:
                raise InputError(
                    f"{option} must name {' or '.join(map(str, widths))} columns, got "
                    f"{brief(named)}."
                )
        for names in wanted:
            found = [self._column(name) for name in names]
            if None not in found:
                return tuple(map(str, found))
        words = [", ".join(map(brief, names)) for names in wanted[:4]]
        words += ["the like"] if len(wanted) > 4 else []
        raise InputError(
            f"{brief(self.name)} must have the columns {' or '.join(words)}, got "
            f"{listed(list(self.columns), 12)}. {self._advice(wanted, option)}"
        )

    def _column(self, name: str) -> str | None:
        """The column of this name, or else the only one whose name is alike."""
        if name in self.columns:
            return name
        alike = [column for column in self.columns if _folded(column) == _folded(name)]
        return alike[0] if len(alike) == 1 else None

    def _advice(self, wanted: Sequence[Sequence[str]], option: str | None) -> str:
        if tables.is_row([str(name) for name in self.columns]):
            return (
                "That looks like a row: if the file has no header, name its columns in order, as "
                f"with --header {','.join(wanted[0])},... (header= in Python)."
            )
        if option is None:
            return "Rename its columns."
        return f"Name it with --option {option}=NAME ({option}= in Python), or rename it."

    def labelled(self, column: str) -> Table:
        """The rows with a value in the column; `n_unlabelled` counts the others.

        An empty cell, a missing field and `-` are no value, nor is -1 throughout a part.
        """
        values = ["" if v is None or v != v else str(v) for v in self.columns[column]]
        values = ["" if value.strip() in ("", "-") else value for value in values]
        seen: dict[str, set[str]] = {}
        for part, value in zip(self.parts, values, strict=True):
            seen.setdefault(part, set()).add(value)
        hidden = {part for part, found in seen.items() if found <= {"", "-1", "-1.0"}}
        kept = [i for i, v in enumerate(values) if v and self.parts[i] not in hidden]
        return replace(
            self,
            columns={name: [cells[i] for i in kept] for name, cells in self.columns.items()},
            parts=[self.parts[i] for i in kept],
            files=[self.files[i] for i in kept],
            lines=[self.lines[i] for i in kept],
            n_unlabelled=len(values) - len(kept),
        )

    def labels(self, column: str | None = None) -> tuple[Table, list[str]]:
        """(the rows with a label, their labels)."""
        (name,) = self.choose(*LABELS, named=column, option="label")
        table = self.labelled(name)
        labels = [str(value) for value in table.columns[name]]
        if name == "fine" and "coarse" in self.columns:  # TREC's fine names are not unique
            coarse = map(str, table.columns["coarse"])
            labels = [":".join(both) for both in zip(coarse, labels, strict=True)]
        return table, labels

    def texts(self, *names: str) -> list[tuple[str, ...]]:
        """The texts of each row in the named columns, none of them empty."""
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

    def groups(self, items: Sequence[tuple[Any, ...]], named: str) -> dict[Any, str | int]:
        """The group of each text of the rows' items, from one column or one for each text."""
        n_texts = len(items[0]) if items else 1
        columns = self.choose(("group",), ("group",) * n_texts, named=named, option="group_column")
        found: dict[Any, str | int] = {}
        for row, item in enumerate(items):
            cells = [self.columns[column][row] for column in columns]
            for text, cell in zip(item, cells if len(cells) > 1 else cells * n_texts, strict=True):
                if cell is None or str(cell).strip() == "":
                    raise InputError(f"{self.place(row)} must have a group, got none. Fill it in.")
                label = cell if type(cell) is int else str(cell)
                if found.setdefault(text, label) != label:
                    raise InputError(
                        f"{self.place(row)} must have the group that its text has elsewhere, "
                        f"{brief(found[text])}, got {brief(label)}. Delete the line."
                    )
        return found

    def subsets(self) -> list[str] | None:
        """The `subset` of each row, or its file if there are several undivided ones."""
        if "subset" in self.columns:
            return [str(value) for value in self.columns["subset"]]
        if set(self.parts) == {UNDIVIDED} and len(set(self.files)) > 1:
            return [stem(file) for file in self.files]
        return None

    def place(self, row: int) -> str:
        return f"{self.files[row][-80:]}, line {self.lines[row]}"


def read_table(source: str | os.PathLike[str], header: str | Sequence[str] | None = None) -> Table:
    """Read a table from a file, a folder, a folder saved by `datasets`, or the hub.

    Files and splits whose names contain the word train (training), dev (development, val, valid,
    validation, trial) or test (testing) are parts; other files in the same folder are left out,
    with a warning. A folder without such files is undivided, and so is a single file, unless a
    column SemEval_set or split names the part of every row. `header` names the columns of files
    that have no header: "word1,word2,score".
    """
    names = _header(header)
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        return _divided(_folder(path, names))
    if os.path.isfile(path):
        return _divided(read_file(path, UNDIVIDED, names))
    name = os.fspath(source)
    if is_table(name) or path.is_absolute() or name.startswith((".", "~")):
        raise InputError(f"data must be a file or a folder, but {name!r} does not exist.")
    if names:
        raise InputError(f"header is for files, got the dataset {name!r} on the hub.")
    return concatenated(hub(name), hub_name(name))


def _header(header: str | Sequence[str] | None) -> list[str] | None:
    """The column names in a header, which may be separated by commas."""
    if header is None:
        return None
    names = header.split(",") if isinstance(header, str) else list(header)
    names = [str(name).strip() for name in names]
    named = [name for name in names if name != "_"]
    if not all(names) or not named or len(set(named)) < len(named):
        raise InputError(
            "header must name each column once, such as word1,word2,score (_ for a column to "
            f"ignore), got {brief(header)}."
        )
    return [f"_{i}" if name == "_" else name for i, name in enumerate(names)]


def _divided(table: Table) -> Table:
    """The table with the parts that one of its columns names, if its files don't."""
    if set(table.parts) != {UNDIVIDED}:
        return table
    for wanted in PART_COLUMNS:
        name = next((name for name in table.columns if _folded(name) == _folded(wanted)), None)
        if name is None:
            continue
        parts = [part_of(str(value)) for value in table.columns[name]]
        if UNDIVIDED not in parts and len(set(parts)) > 1:
            return replace(table, parts=parts)
    return table


def read_file(path: Path, part: str = UNDIVIDED, header: Sequence[str] | None = None) -> Table:
    columns, lines = read_columns(path, header)
    return Table.of_file(stem(path.name), columns, lines, path.name, part)


def part_of(name: str) -> str:
    """The part that a word in the name of a file or split stands for."""
    found = PART.search(name.lower())
    if found is None:
        return UNDIVIDED
    word = found[1]
    return next((part for part in ("train", "test") if word.startswith(part)), "dev")


def tabular(folder: Path) -> list[Path]:
    """The files of a folder that hold tables, sorted by name.

    Files ending in .txt count only if there are no others, and not if they begin with README.
    """
    files = sorted(path for path in folder.iterdir() if is_table(path.name))
    tables_only = [path for path in files if tables.suffix(path.name) != "txt"]
    files = tables_only or [path for path in files if not ABOUT.match(path.name)]
    for first, second in pairwise(files):
        if stem(first.name) == stem(second.name):
            raise InputError(
                f"{str(folder)!r} must hold each table once, got {brief(first.name)} and "
                f"{brief(second.name)}. Move one of them away."
            )
    return files


def _folder(path: Path, header: Sequence[str] | None) -> Table:
    if any((path / mark).exists() for mark in ("dataset_dict.json", "dataset_info.json")):
        datasets = _datasets(f"{str(path)!r} was saved by the package datasets: reading it")
        saved = datasets.load_from_disk(str(path))
        splits = _splits(saved if isinstance(saved, dict) else {UNDIVIDED: saved})
        return concatenated(splits, path.resolve().name)
    files = tabular(path)
    if not files:
        held = [file.name for file in sorted(path.iterdir())]
        there = ", ".join(brief(name)[1:-1] for name in held[:9]) or "nothing"
        raise InputError(f"{str(path)!r} must hold {KINDS} files, got {there}.")
    parts = parts_among(files)
    found = [read_file(file, part_of(stem(file.name)), header) for file in parts]
    return concatenated(found, path.resolve().name)


def parts_among(files: Sequence[Path]) -> list[Path]:
    """The files named as parts, or all files if none is; warns of those left out."""
    parts = [file for file in files if part_of(stem(file.name)) != UNDIVIDED]
    left = [file.name for file in files if file not in parts]
    if parts and left:
        warn(
            f"{listed(left, 3)} in {brief(files[0].parent.name)} was not read, because other "
            "files there are named train, dev or test. Name it so too, or pass it by itself."
        )
    return parts or list(files)


def concatenated(parts: Sequence[Table], name: str) -> Table:
    """The rows of all tables; a column that one of them lacks is empty there."""
    columns: Columns = {column: [] for table in parts for column in table.columns}
    found = Table.of_file(name, columns, [], name)
    for table in parts:
        for column, cells in columns.items():
            cells += table.columns.get(column) or [None] * len(table.lines)
        found.parts.extend(table.parts)
        found.files.extend(table.files)
        found.lines.extend(table.lines)
    return found


def hub_name(name: str) -> str:
    """The last part of a dataset's name: `stsb` for nyu-mll/glue:stsb."""
    return re.split("[/:]", name)[-1]


def hub(name: str) -> list[Table]:
    """The splits of a dataset on the hub: "owner/name", or "owner/name:configuration"."""
    datasets = _datasets(f"{name!r} is not a file or folder here, and a dataset on the hub")
    path, _, configuration = name.partition(":")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # one for every attempt to reach the hub
    try:
        splits = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # network, name, configuration, format: any
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"data must be a file, a folder or a dataset on the hub, got {name!r}: there is no "
            f"such file, and loading it from the hub failed ({reason})."
        ) from error
    finally:
        logging.disable(disabled)
    return _splits(splits)


def _datasets(what: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs datasets, which is not installed. Run: pip install datasets."
        ) from error


def _splits(splits: Mapping[str, Any]) -> list[Table]:
    """The table of each split; class numbers become names, and -1 becomes None."""
    found = []
    for name, split in splits.items():
        columns = split.to_dict()
        for column, feature in split.features.items():
            classes = getattr(feature, "names", None)
            if classes:
                columns[column] = [
                    None if i is None or i < 0 else classes[i] for i in columns[column]
                ]
        lines = list(range(1, len(split) + 1))
        found.append(Table.of_file(name, columns, lines, name, part_of(name)))
    return found


def _number(value: Any) -> float | None:
    """The number in a cell or field, or None."""
    if isinstance(value, str):
        return float(value) if tables.NUMBER.fullmatch(value) else None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", str(name)).casefold()
