"""Checkpoints that are damaged, forged, of another version, or cut short by a full disk."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy import stored
from isotropy.errors import InputError

ROWS = np.random.default_rng(0).standard_normal((600, 4)) + 3
METRICS = ["isoscore", "mean_cosine", "partition_isotropy", "norms"]
KEY = "isotropy.checkpoint"


@pytest.fixture
def every_chunk_is_kept(monkeypatch):
    monkeypatch.setattr("isotropy.engines.checkpoint.SAVING_SHARE", 0)


@pytest.fixture
def kept(folder):
    """The checkpoint of a job that has ended."""
    np.save("x.npy", ROWS)
    measured(folder, folder / "kept")
    return folder / "kept"


def measured(home, kept):
    source = isotropy.open(home / "x.npy", chunk_rows=50)
    found = isotropy.measure(source, METRICS, checkpoint=kept).to_dict()
    return json.dumps(found, default=str)


def parts(path):
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
    del header["checksum"]
    return header, load_file(path)


def forge(path, header, arrays):
    whole = header | {"checksum": stored.checksum(header, arrays)}
    save_file(arrays, path, metadata={KEY: json.dumps(whole)})


BEGUN = {
    "n_runs huge": {"n_runs": 10**12},
    "n_runs past every count": {"n_runs": 10**400},
    "more runs than chunks": {"n_runs": 13},
    "no runs": {"n_runs": 0},
    "negative runs": {"n_runs": -1},
    "runs as text": {"n_runs": "1"},
    "runs as a float": {"n_runs": 1.0},
    "runs as true": {"n_runs": True},
    "runs as null": {"n_runs": None},
    "runs as a list": {"n_runs": [1]},
    "key as a number": {"key": 5},
    "key as null": {"key": None},
}


@pytest.mark.parametrize("case", BEGUN)
def test_a_beginning_that_cannot_be_is_refused(kept, folder, raises, case):
    begun = kept / "pass-000" / "begun.json"
    begun.write_text(json.dumps(json.loads(begun.read_text()) | BEGUN[case]))
    raises(measured, folder, kept, says="begun.json' is damaged")
    begun.unlink()
    assert measured(folder, kept)


TEXTS = {
    "nothing": "",
    "no JSON": "hello",
    "a list": "[]",
    "deep": "[" * 100_000,
    "a key twice": '{"isotropy": "x", "isotropy": "y"}',
    "not UTF-8": b"\xff\xfe",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_beginning_that_is_no_object_is_refused(kept, folder, raises, case):
    text = TEXTS[case]
    (kept / "pass-000" / "begun.json").write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )
    raises(measured, folder, kept, says="begun.json' is damaged")


@pytest.mark.parametrize("version", ["0.0.1", "99.0", None, 5, "\x1b[31m\n" * 1000])
@pytest.mark.parametrize("name", ["begun.json", "run-00000.safetensors", "settled.safetensors"])
def test_a_checkpoint_of_another_version_is_refused(kept, folder, raises, name, version):
    path = kept / "pass-000" / name
    header, arrays = ({}, {}) if name == "begun.json" else parts(path)
    header = json.loads(path.read_text()) if name == "begun.json" else header
    del header["isotropy"]
    if version is not None:
        header["isotropy"] = version
    if name == "begun.json":
        path.write_text(json.dumps(header))
    else:
        forge(path, header, arrays)
    said = raises(measured, folder, kept, says="was written by")
    assert "Delete it" in said
    assert isotropy.__version__ in said


COUNTS = {
    "more chunks than there are": {"n_chunks": 13},
    "chunks past every count": {"n_chunks": 10**300},
    "negative chunks": {"n_chunks": -1},
    "chunks as text": {"n_chunks": "3"},
    "chunks as true": {"n_chunks": True},
    "chunks as null": {"n_chunks": None},
    "more bad rows than rows": {"n_skipped": 601},
    "as many bad rows as rows": {"n_skipped": 300},
    "negative bad rows": {"n_skipped": -1},
    "another pass's key": {"key": "0" * 64},
    "another run's rows": {"first_row": 50},
    "fewer rows": {"n_rows": 10},
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts_that_cannot_be_are_refused(kept, folder, raises, case):
    path = kept / "pass-000" / "run-00000.safetensors"
    header, arrays = parts(path)
    forge(path, header | COUNTS[case], arrays)
    raises(measured, folder, kept, says="run-00000.safetensors' is damaged")


def first(arrays, name):
    return next(key for key in sorted(arrays) if key.endswith(f"/{name}"))


STATES = {
    "NaN": lambda a: a[first(a, "total")].fill(np.nan),
    "infinite": lambda a: a[first(a, "within")].fill(np.inf),
    "a mean past every row": lambda a: a[first(a, "total")].fill(1e200),
    "squares past every row": lambda a: a[first(a, "within")].__imul__(1e200),
    "cubes past every row": lambda a: a[first(a, "third")].fill(1e200),
    "infinite cubes": lambda a: a[first(a, "third")].fill(np.inf),
    "fourth powers past every row": lambda a: a[first(a, "fourth")].fill(1e300),
    "a weight past every row's": lambda a: a[first(a, "weight")].fill(1e200),
    "weights past every row's": lambda a: a[first(a, "totals")].__imul__(1e200),
    "a weight in the sample": lambda a: a[first(a, "weights")].fill(1e308),
    "another width": lambda a: a.update({first(a, "total"): np.zeros(5)}),
    "transposed away": lambda a: a.update({first(a, "within"): np.zeros((4, 5))}),
    "float32": lambda a: a.update({first(a, "total"): np.zeros(4, dtype=np.float32)}),
    "no weight": lambda a: a.update({first(a, "weight"): np.array(0.0)}),
    "a negative count": lambda a: a.update({first(a, "n_rows"): np.array(-1)}),
    "more rows than were read": lambda a: a.update({first(a, "n_rows"): np.array(10**6)}),
    "one missing": lambda a: a.pop(first(a, "total")),
    "one more": lambda a: a.update({"0/colour": np.zeros(3)}),
    "one of no statistic": lambda a: a.update({"9/total": np.zeros(4)}),
    "one of no number": lambda a: a.update({"x/total": np.zeros(4)}),
    "another origin": lambda a: a[first(a, "origin")].__iadd__(1),
    "another sample": lambda a: a[first(a, "keys")].__iadd__(1),
    "nothing": lambda a: a.clear(),
}


@pytest.mark.parametrize("case", STATES)
def test_states_that_cannot_be_are_refused(kept, folder, raises, case):
    path = kept / "pass-000" / "run-00000.safetensors"
    header, arrays = parts(path)
    STATES[case](arrays)
    forge(path, header, arrays)
    raises(measured, folder, kept, says="run-00000.safetensors' is damaged")


@pytest.mark.parametrize("case", ["counted", "another width", "NaN"])
def test_what_was_settled_is_checked_too(kept, folder, raises, case):
    path = kept / "pass-000" / "settled.safetensors"
    header, arrays = parts(path)
    if case == "counted":
        shutil.copy(kept / "pass-000" / "run-00000.safetensors", path)
    else:
        arrays[first(arrays, "origin")] = (
            np.zeros(5) if case == "another width" else np.full(4, np.nan)
        )
        forge(path, header, arrays)
    raises(measured, folder, kept, says="is damaged")


def test_a_state_of_fewer_chunks_is_gone_on_from(kept, folder, every_chunk_is_kept):
    expected = measured(folder, kept)
    path = kept / "pass-000" / "run-00000.safetensors"
    path.unlink()
    assert measured(folder, kept) == expected


def test_a_flipped_bit_is_noticed(kept, folder, raises):
    path = kept / "pass-000" / "run-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    raises(measured, folder, kept, says="is damaged (its checksum does not fit)")


@pytest.mark.parametrize(
    "name", ["pass-000/notes.txt", "notes.txt", "pass-x/begun.json", "pass-000/run-1.txt"]
)
def test_files_of_somebody_else_are_neither_removed_nor_mixed_in(kept, folder, raises, name):
    (kept / name).parent.mkdir(exist_ok=True)
    (kept / name).write_text("mine")
    raises(measured, folder, kept, says="holds other things than a checkpoint")


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_killed_run_left_is_removed(kept, folder, begun, monkeypatch):
    from isotropy import writing

    expected = measured(folder, kept)
    if not begun:
        (kept / "pass-000" / "begun.json").unlink()
    left = [".run-00000.safetensors.0123456789abcdef.isotropy-part"]
    left += [".begun.json.fedcba9876543210.isotropy-part"]
    for name in left:
        (kept / "pass-000" / name).write_bytes(b"half")
    monkeypatch.setattr(writing, "_swept", set())  # as in the process that comes after
    assert measured(folder, kept) == expected
    assert not [p for p in kept.rglob("*") if p.name in left]


@pytest.mark.parametrize("at", ["settled.safetensors", "begun.json", "run-00000.safetensors"])
@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch, at, existed):
    np.save("x.npy", ROWS)
    if existed:
        (folder / "kept").mkdir()
    from isotropy.engines import checkpoint

    whole = checkpoint.atomic_write

    def full(path, **options):
        if path.name >= at if at.startswith("run") else path.name == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, **options)

    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(InputError, match="could not be written: the disk is full"):
        measured(folder, folder / "kept")
    assert (folder / "kept").exists() == existed
    assert {p.name for p in folder.rglob("*")} - {"kept"} == {"x.npy"}


def test_a_full_disk_keeps_what_is_finished(folder, monkeypatch, every_chunk_is_kept):
    np.save("x.npy", ROWS)
    from isotropy.engines import checkpoint

    whole = checkpoint.atomic_write
    expected = measured(folder, folder / "other")

    def full(path, **options):
        if path.parent.name == "pass-001":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "atomic_write", full)
        with pytest.raises(InputError, match="the disk is full"):
            measured(folder, folder / "kept")
    assert [p.name for p in (folder / "kept").iterdir()] == ["pass-000"]
    assert measured(folder, folder / "kept") == expected


def test_the_command_says_it_in_one_line(kept, folder, refused):
    begun = kept / "pass-000" / "begun.json"
    begun.write_text(json.dumps(json.loads(begun.read_text()) | {"n_runs": 10**12}))
    options = ("--chunk-rows", 50, "--metrics", ",".join(METRICS), "--checkpoint", "kept")
    refused("measure", "x.npy", *options, says="n_runs must be 12")
