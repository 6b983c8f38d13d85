"""Folders, globs, data sets and remote paths."""

import json

import numpy as np
import pyarrow as pa
import pytest

import isotropy
from isotropy.errors import InputError, MissingExtraError
from isotropy.sources import open


@pytest.fixture
def folder(tmp_path, X):
    path = tmp_path / "many"
    path.mkdir()
    for i, part in enumerate(np.array_split(X, 3)):
        np.save(path / f"part-{i}.npy", part)
    (path / "README.md").write_text("not vectors")
    (path / "_SUCCESS").touch()
    return path


def test_a_folder_and_a_glob_are_their_files_in_order(folder, X, rows):
    for what in (folder, str(folder / "*.npy"), sorted(folder.glob("*.npy")), f"file://{folder}"):
        source = open(what, chunk_rows=5)
        np.testing.assert_array_equal(rows(source), X)
        assert len(source.chunks()) == 6
        assert len({chunk.file for chunk in source.chunks()}) == 3


def test_a_bad_row_of_many_files_is_named_by_file_and_row(folder):
    X = np.load(folder / "part-1.npy")
    X[2, 3] = np.inf
    np.save(folder / "part-1.npy", X)
    source = open(folder)
    with pytest.raises(InputError, match=r"infinity in 1 row \(first: 2 of '.*part-1\.npy'"):
        list(source.read(source.chunks()[1]))
    with pytest.raises(
        InputError, match=r"^measure: X .* infinity in 1 row \(first: 2 of '.*part-1\.npy'"
    ):
        isotropy.measure(source)


def test_files_of_another_width_are_named(folder):
    np.save(folder / "part-2.npy", np.zeros((4, 3)))
    with pytest.raises(InputError, match=r"part-2\.npy' has 3 features, but '.*part-0\.npy' has 5"):
        open(folder)


def test_a_folder_of_several_kinds_asks_for_a_pattern(folder):
    (folder / "x.csv").write_text("1.5,2.5\n")
    with pytest.raises(InputError, match=r"several kinds: '.csv', '.npy'. Choose with a pattern"):
        open(folder)


def test_a_folder_without_vectors_and_a_glob_without_files_say_so(tmp_path):
    with pytest.raises(InputError, match="holds no file of vectors"):
        open(tmp_path)
    with pytest.raises(InputError, match=r"no file matches '.*\*\.npy'"):
        open(tmp_path / "*.npy")


def test_dtypes_that_differ_give_the_wider(folder, X):
    np.save(folder / "part-2.npy", X.astype(np.float64))
    assert open(folder).dtype == "float64"


def test_a_saved_data_set_is_read_without_its_caches(tmp_path, X, rows):
    path = tmp_path / "set"
    path.mkdir()
    kind = pa.list_(pa.float32())
    for i, part in enumerate(np.array_split(X, 2)):
        batch = pa.table({"text": ["t"] * len(part), "embedding": pa.array(list(part), kind)})
        for name in (f"data-{i:05d}-of-00002.arrow", f"cache-{i}.arrow"):
            with pa.ipc.new_stream(path / name, batch.schema) as writer:
                writer.write_table(batch, max_chunksize=4)
    names = [{"filename": f"data-{i:05d}-of-00002.arrow"} for i in range(2)]
    (path / "state.json").write_text(json.dumps({"_data_files": names}))
    (path / "dataset_info.json").write_text("{}")
    np.testing.assert_array_equal(rows(open(path)), X)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["set"]}')
    with pytest.raises(InputError, match="several splits"):
        open(tmp_path)


def test_datasets_own_folder_is_read(tmp_path, X, rows):
    datasets = pytest.importorskip("datasets", reason="writes a folder with datasets")
    datasets.Dataset.from_dict({"e": X.tolist(), "n": list(range(23))}).save_to_disk(tmp_path / "s")
    source = open(tmp_path / "s")
    np.testing.assert_allclose(rows(source), X, rtol=1e-7)


@pytest.mark.parametrize(
    "which", ["npy", "npz compressed", "parquet", "arrow file", "jsonl", "csv"]
)
def test_remote_files_are_read_like_local_ones(make, X, rows, which):
    fsspec = pytest.importorskip("fsspec", reason="reads memory:// through fsspec")
    path = make(which, X)
    url = f"memory://bucket-{which.replace(' ', '-')}/{path.name}"
    with fsspec.open(url, "wb") as file:
        file.write(path.read_bytes())
    for what in (url, url.rsplit("/", 1)[0], url.replace("x.", "*.")):
        source = open(what, chunk_rows=9)
        np.testing.assert_allclose(rows(source), X, rtol=1e-7)
    assert source.identity()["files"][0][1] == path.stat().st_size


def test_remote_paths_that_cannot_be_opened_say_why(monkeypatch):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(InputError, match=r"'zz://a/b.npy' cannot be opened"):
        open("zz://a/b.npy")
    with pytest.raises(InputError, match=r"there is no file 'memory://nowhere/b.npy'"):
        open("memory://nowhere/b.npy")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r'pip install "fsspec\[memory\]"'):
        open("memory://nowhere/b.npy")
