"""Records of runs: one line of JSON each, in a file that grows by whole lines."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from isotropy.errors import InputError
from isotropy.tables import finite
from isotropy.trial.settings import Job
from isotropy.trial.summary import RunRecord
from isotropy.writing import atomic_write, quoted, write_errors

Run = tuple[str, str, str, int, bool]  # model, task, method and seed, and whether it is a search
START = b'{"task":"'  # of every record, by which a torn one is recognised


class RunRecords:
    """The records in a file, which need not exist; the last of a run counts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._by_run = {run_of(record): record for record in read_records(path)}

    def of(self, job: Job) -> RunRecord | None:
        """The record of a job, or None; raises if it was made with something else."""
        record = self._by_run.get(run_of(job.identity()))
        if record is None:
            return None
        for name, wanted in job.identity().items():
            if record.get(name) != wanted:
                raise self._other_run(job, _apart(record.get(name), wanted))
        changed = [
            name for name, now in job.inputs().items() if record.get(name) not in (None, now)
        ]
        if changed:
            raise self._other_run(job, f"other {' and '.join(changed)}")
        return record

    def spec_of(self, job: Job) -> str | None:
        """The spec that a run was made with, or None."""
        record = self._by_run.get(run_of(job.identity()))
        return None if record is None else str(record["spec"])

    def add(self, record: RunRecord) -> None:
        """Append a record; one of the same run no longer counts."""
        line = _line(record)
        with write_errors(self.path), open(self.path, "ab") as file:
            content = self.path.read_bytes()
            kept = _whole(content)
            if len(kept) < len(content):
                file.truncate(len(kept))
            if kept and not kept.endswith(b"\n"):
                file.write(b"\n")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._by_run[run_of(record)] = _parsed(line, quoted(self.path))

    def compact(self) -> None:
        """Drop the lines of records that no longer count."""
        counting = current_records(self.path)
        if len(counting) < len(read_records(self.path)):
            with write_errors(self.path), atomic_write(self.path) as part:
                part.write_bytes(b"".join(map(_line, counting)))

    def _other_run(self, job: Job, what: str) -> InputError:
        return InputError(
            f"{quoted(self.path)} records a run of {run_name(job)} with {what}. Choose another "
            "--out, move the file away, or add --overwrite to isotropy train."
        )


def read_records(path: str | os.PathLike[str]) -> list[RunRecord]:
    """The records in a file, none if there is no file; scores that are null become NaN.

    A last line that was torn when its run was killed is left out.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{quoted(path)} could not be read: {error.strerror}.") from error
    return [
        _parsed(line, f"{quoted(path)}, line {number}")
        for number, line in enumerate(_whole(content).splitlines(), 1)
    ]


def current_records(path: str | os.PathLike[str]) -> list[RunRecord]:
    """The records in a file, the last of each run."""
    return list({run_of(record): record for record in read_records(path)}.values())


def run_of(record: RunRecord) -> Run:
    """What a file has one record of."""
    model, task, method, seed = (record[name] for name in ("model", "task", "method", "seed"))
    return model, task, method, seed, bool(record["search"])


def run_name(job: Job) -> str:
    """The run as the name of a folder, and in messages."""
    parts = (Path(job.model).name, job.task, job.method, f"seed{job.seed}")
    return "--".join(re.sub(r"[^\w.=-]+", "_", part) for part in parts)


def _line(record: RunRecord) -> bytes:
    """A record as a line of JSON; null stands for values that are not finite."""
    text = json.dumps(finite(record), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _whole(content: bytes) -> bytes:
    """The content without a torn last line."""
    end = content.rfind(b"\n") + 1
    torn = content[end:]
    if not (torn.startswith(START) or START.startswith(torn)):
        return content
    try:
        json.loads(torn)
    except ValueError:
        return content[:end]
    return content  # complete, though the end of its line was lost


def _parsed(line: bytes, place: str) -> RunRecord:
    try:
        record: Any = json.loads(line)
        run_of(record)
        score = record["score"]
        _ = record["spec"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{place} must be the record of a run, got something else. Move the file away."
        ) from error
    found: RunRecord = record | {"score": math.nan if score is None else score}
    return found


def _apart(found: Any, wanted: Any) -> str:
    """How what is recorded differs from what is wanted."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = [name for name in found | wanted if found.get(name) != wanted.get(name)]
        return ", ".join(f"{name} {found.get(name)} (now {wanted.get(name)})" for name in names)
    return f"{found} (now {wanted})"
