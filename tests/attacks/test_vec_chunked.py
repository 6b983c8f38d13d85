"""HDF5 files and Zarr folders that are incomplete, point elsewhere, or would run code."""

import json
import pickle
import shutil

import numpy as np
import pytest

import isotropy
from isotropy.sources import chunked

from .vec_files import X, read


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle was loaded",))


@pytest.fixture
def hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File("x.h5", "w") as file:
        yield file


def reading(path, **options):
    return read(isotropy.open(path, **options))


def test_values_in_other_files_are_not_read(folder, raises, hdf5):
    import h5py

    (folder / "secret.bin").write_bytes(X.tobytes())
    hdf5.create_dataset("X", X.shape, "<f4", external=[("secret.bin", 0, X.nbytes)])
    hdf5.close()
    raises(isotropy.open, "x.h5", says="by reference to other files")
    with h5py.File("other.h5", "w") as other:
        other["X"] = X
    layout = h5py.VirtualLayout(X.shape, "<f4")
    layout[:] = h5py.VirtualSource("other.h5", "X", X.shape)
    with h5py.File("x.h5", "w") as file:
        file.create_virtual_dataset("X", layout)
    raises(isotropy.open, "x.h5", says="by reference to other files")


def test_links_to_other_files_are_not_followed(folder, raises, hdf5):
    import h5py

    with h5py.File("other.h5", "w") as other:
        other["X"] = X
    hdf5["link"] = h5py.ExternalLink("other.h5", "/X")
    hdf5.close()
    raises(isotropy.open, "x.h5", says="holds 0 matrices among nothing")
    raises(isotropy.open, "x.h5", column="link", says="has no dataset 'link', only nothing")


def test_links_in_a_circle_end(folder, hdf5):
    import h5py

    hdf5["a/X"] = X
    hdf5["a/up"] = hdf5["/"]
    hdf5["soft"] = h5py.SoftLink("/soft")
    hdf5.close()
    found, _ = reading("x.h5")
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("chunks", [None, (4, 2)])
def test_values_that_were_never_written_are_refused(folder, raises, hdf5, chunks):
    hdf5.create_dataset("X", X.shape, "<f4", chunks=chunks)
    hdf5.close()
    raises(isotropy.open, "x.h5", says="is incomplete: some chunks of")


def test_more_rows_than_any_disk_holds_are_refused(folder, raises, hdf5):
    data = hdf5.create_dataset("X", (2**50, 4), "<f4", chunks=(1024, 4), compression="gzip")
    data[0] = 1
    hdf5.close()
    raises(isotropy.open, "x.h5", says="is incomplete: some chunks of")


def test_chunks_too_large_to_unpack_are_refused(folder, raises, hdf5, monkeypatch):
    monkeypatch.setattr(chunked, "MOST_CHUNK", 100)
    hdf5.create_dataset("X", data=X, chunks=(12, 4), compression="gzip")
    hdf5.close()
    raises(isotropy.open, "x.h5", says="in chunks of 192 bytes, and at most 100")


def test_what_is_no_matrix_of_numbers_is_refused(folder, raises, hdf5):
    hdf5["one"], hdf5["text"] = np.zeros(3), np.array([[b"a", b"b"]])
    hdf5["records"] = np.zeros((2, 2), [("a", "<f4"), ("b", "<f4")])
    hdf5["empty"] = hdf5.file["one"].dtype.type(0)
    hdf5.close()
    raises(isotropy.open, "x.h5", says="holds 2 matrices among")
    raises(isotropy.open, "x.h5", column="one", says="holds 'one' without two dimensions")
    raises(isotropy.open, "x.h5", column="text", says="holds 'text' of dtype |S1")
    raises(isotropy.open, "x.h5", column="records", says="holds 'records' of dtype")


def test_one_of_several_is_chosen_by_its_path(folder, raises, hdf5):
    hdf5["X"], hdf5["obsm/X_pca"] = np.zeros((12, 9)), X
    hdf5.close()
    raises(isotropy.open, "x.h5", says="'X' (12, 9), 'obsm/X_pca' (12, 4). Choose one with column")
    found, _ = reading("x.h5", column="obsm/X_pca")
    np.testing.assert_array_equal(found, X)


def test_rows_with_nan_are_refused_or_left_out(folder, raises, hdf5):
    rows = X.copy()
    rows[3, 1] = np.nan
    hdf5.create_dataset("X", data=rows, chunks=(5, 4))
    hdf5.close()
    raises(reading, "x.h5", says="X must be finite, got NaN in 1 row")
    found, _ = reading("x.h5", skip_bad_rows=True)
    np.testing.assert_array_equal(found, np.delete(rows, 3, axis=0))


def test_a_damaged_chunk_is_refused(folder, raises, hdf5):
    data = hdf5.create_dataset("X", data=X, chunks=(12, 4), compression="gzip")
    place = data.id.get_chunk_info(0).byte_offset
    hdf5.close()
    whole = bytearray((folder / "x.h5").read_bytes())
    whole[place : place + 4] = b"\xff" * 4
    (folder / "x.h5").write_bytes(whole)
    raises(reading, "x.h5", says="is damaged or not a HDF5 file")


def test_a_file_cut_short_is_refused(folder, raises, hdf5):
    hdf5["X"] = X
    hdf5.close()
    whole = (folder / "x.h5").read_bytes()
    for size in (8, 100, len(whole) // 2, len(whole) - 1):
        (folder / "x.h5").write_bytes(whole[:size])
        raises(reading, "x.h5", says="is damaged or not a HDF5 file")


def test_anndata_gives_its_dense_arrays(folder, raises):
    anndata = pytest.importorskip("anndata")
    import pandas as pd
    import scipy.sparse

    with pd.option_context("future.infer_string", False):  # anndata writes no other text
        names = pd.DataFrame(index=[f"w{i}" for i in range(12)])
        sparse = scipy.sparse.csr_matrix(X)
        whole = anndata.AnnData(sparse, names, names[:4], obsm={"X_pca": X[:, :2].astype("f8")})
        whole.write_h5ad("x.h5ad")
    found, _ = reading("x.h5ad")
    np.testing.assert_array_equal(found, X[:, :2])
    raises(isotropy.open, "x.h5ad", column="X", says="has no dataset 'X'")


@pytest.fixture
def zarr(folder):
    return pytest.importorskip("zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunks_are_refused(folder, raises, zarr, version):
    zarr.create_array("x.zarr", data=X, chunks=(5, 4), zarr_format=version)
    found, _ = reading("x.zarr")
    np.testing.assert_array_equal(found, X)
    lost = folder / "x.zarr" / ("1.0" if version == 2 else "c/1/0")
    lost.unlink()
    raises(isotropy.open, "x.zarr", says="is incomplete: some chunks of")


def test_missing_shards_are_refused(folder, raises, zarr):
    group = zarr.open_group("x.zarr", mode="w")
    group.create_array("e", data=X, chunks=(2, 4), shards=(6, 4))
    shutil.rmtree(folder / "x.zarr" / "e" / "c" / "1")
    raises(isotropy.open, "x.zarr", says="is incomplete: some chunks of")


def test_codecs_that_run_code_are_never_used(folder, raises, zarr, capsys):
    for version, name in ((2, ".zarray"), (3, "zarr.json")):
        zarr.create_array("x.zarr", data=X, chunks=(12, 4), zarr_format=version, overwrite=True)
        meta = json.loads((folder / "x.zarr" / name).read_text())
        if version == 2:
            meta["compressor"] = {"id": "pickle"}
        else:
            pickled = {"name": "numcodecs.pickle", "configuration": {}}
            meta["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}, pickled]
        (folder / "x.zarr" / name).write_text(json.dumps(meta))
        chunk = folder / "x.zarr" / ("0.0" if version == 2 else "c/0/0")
        chunk.write_bytes(pickle.dumps(Bomb()))
        raises(reading, "x.zarr")
    assert "a pickle was loaded" not in capsys.readouterr().out


def test_metadata_that_lies_is_refused(folder, raises, zarr):
    changes = [
        {"shape": [10**12, 4]}, {"shape": [12, 5]}, {"shape": [-12, 4]}, {"shape": [48]},
        {"shape": "many"}, {"data_type": "string"}, {"data_type": "complex64"}, {"codecs": []},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 0]}}},
        {"chunk_grid": None}, {"zarr_format": 99}, {"data_type": "float64"},
    ]  # fmt: skip
    zarr.create_array("x.zarr", data=X, chunks=(12, 4))
    meta = json.loads((folder / "x.zarr" / "zarr.json").read_text())
    for change in changes:
        (folder / "x.zarr" / "zarr.json").write_text(json.dumps(meta | change))
        raises(reading, "x.zarr", says="x.zarr'")


def test_a_folder_that_is_no_zarr_is_refused(folder, raises, zarr):
    (folder / "x.zarr").mkdir()
    raises(isotropy.open, "x.zarr", says="is empty")
    (folder / "x.zarr" / "notes.txt").write_text("nothing")
    raises(isotropy.open, "x.zarr", says="holds no array")
    raises(isotropy.open, "y.zarr", says="there is no file")


def test_changed_chunks_are_noticed(folder, raises, zarr):
    zarr.create_array("x.zarr", data=X, chunks=(5, 4))
    source = isotropy.open("x.zarr")
    before = source.identity()
    zarr.create_array("x.zarr", data=X + 1, chunks=(5, 4), overwrite=True)
    raises(read, source, says="has changed since it was opened")
    assert isotropy.open("x.zarr").identity() != before
