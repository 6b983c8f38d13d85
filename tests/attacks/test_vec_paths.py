"""Files that are found twice, lie elsewhere, or change while they are read."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import isotropy
from isotropy.errors import IsotropyError
from isotropy.sources import files, flat

from . import vec_files as made
from .vec_files import X, read, vectors

# Links


@pytest.fixture
def tree(folder):
    """Two files, and folders that link to those above them, to each other and to one file."""
    os.makedirs("top/a/b")
    np.save("top/x.npy", X)
    np.save("top/a/b/y.npy", X[:5])
    for link, target in {"top/a/up": "..", "top/a/b/self": ".", "top/other": "a/b"}.items():
        os.symlink(target, link, target_is_directory=True)
    os.symlink("x.npy", "top/z.npy")
    return folder


@pytest.mark.parametrize(
    ("pattern", "n_rows"),
    [
        ("top/**/*.npy", 17),
        ("top/**", 17),
        ("top/**/**/*.npy", 17),
        ("top/**/b/*.npy", 5),
        ("**/*.npy", 17),
        ("top/*/*.npy", 5),
        ("top/*.npy", 12),
    ],
)
def test_each_file_of_a_pattern_counts_once(tree, pattern, n_rows):
    assert isotropy.open(pattern).n_samples == n_rows


def test_links_that_multiply_end(folder):
    """Eight links back to the top are 8 to the power of the depth in which they are followed."""
    os.mkdir("top")
    np.save("top/x.npy", X)
    for i in range(8):
        os.symlink(".", f"top/link{i}", target_is_directory=True)
    assert isotropy.open("top/**/*.npy").n_samples == 12


def test_hidden_folders_stay_hidden(folder):
    os.makedirs("top/.hidden")
    os.makedirs("top/seen")
    np.save("top/.hidden/x.npy", X)
    np.save("top/seen/x.npy", X)
    assert isotropy.open("top/**/*.npy").n_samples == 12


# Saved data sets


def data_set(names, state=None):
    os.mkdir("set")
    table = pa.table({"e": vectors()})
    for path in ("set/data.arrow", "secret.arrow"):
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": name} for name in names]
    text = json.dumps({"_data_files": files}) if state is None else state
    Path("set/state.json").write_text(text)
    Path("set/dataset_info.json").write_text("{}")


OUTSIDE = ["../secret.arrow", "sub/../../secret.arrow", "..", ".", "a/b.arrow", "..\\secret.arrow"]


@pytest.mark.parametrize("name", [*OUTSIDE, "{absolute}", "x\0.arrow", "\x1b[31m/x.arrow"])
def test_a_data_set_that_names_files_outside_its_folder_is_refused(refused, folder, name):
    data_set([name.format(absolute=folder / "secret.arrow")])
    refused("measure", "set", says="all must lie in its own folder")


STATES = {
    "a list": ("[]", "does not list the files"),
    "no files": ("{}", "does not list the files"),
    "none": ('{"_data_files": []}', "lists no files"),
    "no names": ('{"_data_files": [{}]}', "does not list the files"),
    "numbers": ('{"_data_files": [{"filename": 5}]}', "does not list the files"),
    "texts": ('{"_data_files": ["data.arrow"]}', "does not list the files"),
    "empty": ('{"_data_files": [{"filename": ""}]}', "does not list the files"),
    "a mapping": ('{"_data_files": {"filename": "data.arrow"}}', "does not list the files"),
    "no JSON": ("{", "is not valid JSON"),
    "deep": ("[" * 100_000, "is nested too deeply"),
    "twice": ('{"_data_files": [], "_data_files": []}', "twice"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_data_set_that_lists_nothing_is_refused(refused, case):
    state, says = STATES[case]
    data_set([], state)
    refused("measure", "set", says=says)


def test_a_sound_data_set_is_read(done):
    data_set(["data.arrow"])
    done("measure", "set")


def test_a_file_listed_twice_is_refused(refused):
    data_set(["data.arrow", "data.arrow"])
    refused("measure", "set", says="is listed twice")


# Files that change

WRITERS = {
    "x.npy": made.npy,
    "x.npz": lambda values: made.npz([("e.npy", made.npy(values=values))]),
    "c.npz": lambda values: made.npz([("e.npy", made.npy(values=values))], compressed=True),
    "x.safetensors": lambda values: made.safetensors({"e": made.tensor()}, values),
    "x.fvecs": lambda values: made.fvecs(rows=rows_of(values)),
    "x.vec": lambda values: made.words(rows=rows_of(values)),
    "x.bin": lambda values: made.binary_words(rows=rows_of(values)),
    "x.csv": lambda values: "".join(f"{a},{b}\n" for a, b, *_ in rows_of(values)).encode(),
    "x.parquet": None,
    "x.arrow": None,
}


def rows_of(values):
    return np.frombuffer(values, np.float32).reshape(-1, 4)


def write(name, rows):
    if name == "x.parquet":
        made.parquet(name, {"e": vectors(rows)})
    elif name == "x.arrow":
        table = pa.table({"e": vectors(rows)})
        with pa.ipc.new_file(name, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    elif name == "x.npy":
        Path(name).write_bytes(made.npy(values=rows.tobytes()))
    else:
        Path(name).write_bytes(WRITERS[name](rows.tobytes()))


def replaced(name):
    """Another file of the same shape, size and times takes the place of the first."""
    found = os.stat(name)
    time.sleep(0.05)  # the times of files are counted in steps of up to 10 ms
    os.rename(name, "first")
    write(name, X[::-1])
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.remove("first")


def edited(name):
    """The same file with other values, a while later."""
    data = Path(name).read_bytes()
    found = os.stat(name)
    Path(name).write_bytes(data)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns + 10**9))


def truncated(name):
    os.truncate(name, os.stat(name).st_size // 2)


@pytest.mark.parametrize("change", [replaced, edited, truncated, os.remove])
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_changes_between_chunks_is_refused(folder, name, change):
    write(name, X)
    source = isotropy.open(name, chunk_rows=4)
    chunk, *_ = source.chunks()
    list(source.read(chunk))
    change(name)
    says = "there is no file" if change is os.remove else "has changed since it was opened"
    with pytest.raises(IsotropyError, match=says):
        list(source.read(chunk))


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.vec", "x.bin"])
def test_a_file_that_is_replaced_within_a_chunk_is_refused(folder, monkeypatch, name):
    write(name, X)
    source = isotropy.open(name)
    kind = type(source.files[0])
    read_rows = kind.read

    def late(self, *arguments):
        replaced(name)
        return read_rows(self, *arguments)

    monkeypatch.setattr(kind, "read", late)
    with pytest.raises(IsotropyError, match="has changed since it was opened"):
        read(source)


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(folder, monkeypatch):
    write("x.npy", X)
    parse = flat._read_header

    def late(file):
        found = parse(file)
        replaced("x.npy")
        return found

    monkeypatch.setattr(flat, "_read_header", late)
    with pytest.raises(IsotropyError, match="has changed since it was opened"):
        isotropy.open("x.npy")


def test_a_new_link_and_other_permissions_are_no_change(folder):
    write("x.npy", X)
    source = isotropy.open("x.npy")
    os.link("x.npy", "y.npy")
    os.chmod("x.npy", 0o600)
    np.testing.assert_array_equal(read(source)[0], X)


# Mistakes of ours stay what they are


@pytest.mark.parametrize("mistake", [KeyError, AttributeError, TypeError, ValueError, IndexError])
def test_a_mistake_in_a_reader_is_not_the_users_damaged_file(folder, monkeypatch, mistake):
    write("x.npy", X)
    source = isotropy.open("x.npy")

    def wrong(self, *arguments):
        raise mistake("ours")

    monkeypatch.setattr(flat.FlatFile, "read", wrong)
    with pytest.raises(mistake, match="ours"):
        read(source)


@pytest.mark.parametrize(
    "error", [EOFError("x"), pa.ArrowInvalid("x\ny"), OSError("x"), files.FormatError("is odd.")]
)
def test_what_decoders_raise_is_explained(raises, monkeypatch, error):
    write("x.npy", X)
    source = isotropy.open("x.npy")

    def damaged(self, *arguments):
        raise error

    monkeypatch.setattr(flat.FlatFile, "read", damaged)
    raises(read, source, says="is")


@pytest.mark.parametrize(
    "path", ["", "a\0b.npy", "a\ud800.npy", "n" * 5000 + ".npy", "x" * 300 + "/x.npy", "/", "."]
)
def test_paths_that_cannot_be(raises, path):
    raises(isotropy.open, path)


def test_a_file_that_may_not_be_read(refused, monkeypatch):
    write("x.npy", X)

    def forbidden(path):  # for root, no file is
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("isotropy.sources.paths.open_binary", forbidden)
    refused("measure", "x.npy", says="cannot be read: Permission denied")


def test_a_folder_that_is_named_like_a_file(refused):
    os.mkdir("x.npy")
    refused("measure", "x.npy", says="")
