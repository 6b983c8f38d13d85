"""Parquet and Arrow files whose columns differ, repeat, or are very many."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotropy
from isotropy.sources import columnar

from .vec_files import X, parquet, read, vectors

FEATURES = {f"d{j}": X[:, j] for j in range(4)}
IDS = list(range(12))
DIFFERENT = {  # what the second file of a folder holds, and what is said
    "another vector column": ({"f": vectors()}, "has its vectors in 'f', but"),
    "another width": ({"e": vectors(X[:, :3])}, "has 3 features, but"),
    "columns for lists": (FEATURES, "has its vectors in 'd0', 'd1', 'd2', 'd3', but"),
}
CARRIED = {
    "a column more": ({"id": IDS, "more": IDS}, "has int64 in 'more', but"),
    "a column less": ({}, "has no 'id', but"),
    "another name": ({"key": IDS}, "has no 'id', but"),
    "another type": ({"id": [str(i) for i in IDS]}, "has string in 'id', but"),
    "fewer digits": ({"id": pa.array(IDS, pa.int8())}, "has int8 in 'id', but"),
    "floats": ({"id": [i + 0.5 for i in IDS]}, "has double in 'id', but"),
}


def write(folder, first, second):
    os.mkdir(folder)
    parquet(f"{folder}/a.parquet", first)
    parquet(f"{folder}/b.parquet", second)


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("command", ["measure", "repair"])
def test_vectors_in_other_columns_are_refused(refused, case, command):
    second, says = DIFFERENT[case]
    write("many", {"e": vectors()}, second)
    options = ["--method", "center", "--out", "out.parquet"] if command == "repair" else []
    refused(command, "many", *options, says=says)


@pytest.mark.parametrize(
    "names", [["d1", "d0", "d2", "d3"], ["d0", "d1", "d2", "d4"]], ids=["order", "names"]
)
def test_features_in_another_order_or_of_other_names_are_refused(refused, names):
    write("many", FEATURES, dict(zip(names, X.T, strict=True)))
    refused("measure", "many", says="has its vectors in 'd")


@pytest.mark.parametrize("case", CARRIED)
def test_other_columns_beside_the_vectors_are_never_lost(refused, done, case):
    others, says = CARRIED[case]
    write("many", {"id": IDS, "e": vectors()}, {**others, "e": vectors()})
    refused("repair", "many", "--method", "center", "--out", "out.parquet", says=says)
    done("measure", "many")  # which reads the vectors only


def test_columns_in_another_order_are_the_same(done):
    write("many", {"id": IDS, "t": IDS, "e": vectors()}, {"t": IDS, "e": vectors(), "id": IDS})
    done("repair", "many", "--method", "center", "--out", "out.parquet", writes=["out.parquet"])
    found = pq.read_table("out.parquet")
    assert found.column("id").to_pylist() == found.column("t").to_pylist() == IDS * 2


def test_digits_of_the_wider_file_are_kept(folder):
    """Files of one source may differ in precision: rows are then as precise as the widest."""
    wide = X.astype(np.float64) + 1e-12
    write("many", {"e": vectors()}, {"e": vectors(wide, pa.float64())})
    source = isotropy.open("many")
    assert source.dtype == "float64"
    np.testing.assert_array_equal(read(source)[0], np.concatenate([X.astype(np.float64), wide]))


@pytest.mark.parametrize("command", ["measure", "repair", "report"])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("names", [["e", "a", "a"], ["e", "e", "a"], ["d0", "d0", "d1"]])
def test_columns_of_one_name_are_refused(refused, command, suffix, names):
    arrays = [vectors() if name == "e" else pa.array(X[:, 0]) for name in names]
    table = pa.Table.from_arrays(arrays, names=names)
    if suffix == ".parquet":
        pq.write_table(table, "x.parquet")
    else:
        with pa.ipc.new_file("x.arrow", table.schema) as writer:
            writer.write_table(table)
    options = {"measure": [], "repair": ["--method", "center", "--out", "out.npy"]}
    if command == "report":
        pytest.importorskip("plotly", reason="writes a report")
    more = options.get(command, ["--out", "r.html"])
    refused(command, "x" + suffix, *more, says="twice. Give each its own name")


def test_a_column_asked_for_twice_is_refused(raises, folder):
    parquet("x.parquet", FEATURES)
    for column in (["d0", "d0"], ["d*", "d1"]):
        raises(isotropy.open, "x.parquet", column=column, says="is asked for the column")


ODD = {
    "dictionary": pa.array(["a", "b"] * 6).dictionary_encode(),
    "decimal": pa.array([1] * 12, pa.decimal128(5, 2)),
    "dates": pa.array([1] * 12, pa.timestamp("us")),
    "null": pa.nulls(12),
    "map": pa.array([[("a", 1)]] * 12, pa.map_(pa.string(), pa.int64())),
    "half": pa.array(X[:, 0].astype(np.float16)),
    "binary": pa.array([b"\xff\xfe"] * 12),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_of_any_type_may_stand_beside_the_vectors(done, kind, suffix):
    table = pa.table({"odd": ODD[kind], "e": vectors()})
    if suffix == ".parquet":
        pq.write_table(table, "x.parquet", row_group_size=5)
    else:
        with pa.ipc.new_stream("x.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    done("repair", "x" + suffix, "--method", "center", "--out", "y.parquet", writes=["y.parquet"])
    expected = table.column("odd").to_pylist()
    assert pq.read_table("y.parquet").column("odd").to_pylist() == expected


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_without_values_may_be_a_feature(raises, suffix):
    table = pa.table({"d0": X[:, 0], "d1": X[:, 1], "d2": pa.nulls(12)})
    if suffix == ".parquet":
        pq.write_table(table, "x.parquet")
    else:
        with pa.ipc.new_file("x.arrow", table.schema) as writer:
            writer.write_table(table)
    raises(isotropy.open, "x" + suffix, says="has no value in 'd2'. Features may be missing there")
    rows, _ = read(isotropy.open("x" + suffix, column="d*"))
    np.testing.assert_array_equal(rows, X[:, :2])


VECTORS = {
    "an extension type": (pa.FixedShapeTensorArray.from_numpy_ndarray(X), None),
    "large lists": (pa.array(X.tolist(), pa.large_list(pa.float32())), None),
    "fixed lists": (pa.array(X.tolist(), pa.list_(pa.float32(), 4)), None),
    "half floats": (pa.array(list(X.astype(np.float16)), pa.list_(pa.float16())), None),
    "lists of text": (pa.array([["a", "b"]] * 12), "has no column of numbers or lists"),
    "lists of lists": (pa.array([[[1.0], [2.0]]] * 12), "has no column of numbers or lists"),
    "lists of booleans": (pa.array([[True, False]] * 12), "has no column of numbers or lists"),
    "ragged lists": (pa.array([[1.0, 2.0]] * 11 + [[1.0]]), "has 1 features in row 11"),
    "empty lists": (pa.array([[]] * 12, pa.list_(pa.float32())), "holds no vectors"),
    "no lists": (pa.nulls(12, pa.list_(pa.float32())), "has nothing in column 'e'"),
    "a missing list": (pa.array([[1.0, 2.0]] * 11 + [None]), "NaN in 1 row (first: 11, "),
    "a missing number": (pa.array([[1.0, 2.0]] * 11 + [[1.0, None]]), "NaN in 1 row (first: 11, "),
}  # fmt: skip


@pytest.mark.parametrize("case", VECTORS)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_vectors_of_any_type_are_read_or_refused(raises, case, suffix):
    array, says = VECTORS[case]
    table = pa.table({"e": array})
    if suffix == ".parquet":
        pq.write_table(table, "x.parquet")
    else:
        with pa.ipc.new_file("x.arrow", table.schema) as writer:
            writer.write_table(table)
    if says is None:
        rows, _ = read(isotropy.open("x" + suffix))
        np.testing.assert_allclose(rows, X, atol=4e-3 if "half" in case else 0)
    else:
        raises(lambda: read(isotropy.open("x" + suffix)), says=says)


@pytest.mark.parametrize("carry", [True, False])
def test_the_work_for_many_columns_grows_as_their_number(folder, carry):
    """Names are looked at a few times each, however many there are."""
    looked_at = 0

    class Names(list):
        def __contains__(self, name):
            nonlocal looked_at
            looked_at += len(self)
            return list.__contains__(self, name)

        def __iter__(self):
            nonlocal looked_at
            looked_at += len(self)
            return list.__iter__(self)

    counts, top_level = [], columnar.Layout.top_level
    for n_columns in (50, 400):
        parquet("x.parquet", {"id": [1, 2]} | {f"d{j}": [0.5, 1.5] for j in range(n_columns)})
        source = isotropy.open("x.parquet", column="d*")
        source = source if carry else source.bare()
        looked_at = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columnar.Layout, "top_level", lambda own, c: top_level(own, Names(c)))
            rows, table = read(source)
        counts.append(looked_at)
        assert rows.shape == (2, n_columns)
        assert (table is not None) == carry
    assert counts[1] <= 8 * counts[0]  # 64 where every name is compared with every other


@pytest.mark.parametrize("chunk_rows", [None, 1])
@pytest.mark.parametrize(("group", "claimed"), [(0, 0), (0, 1), (1, 0), (1, 3)])
def test_groups_that_lose_rows_are_refused(folder, raises, group, claimed, chunk_rows):
    """A damaged number of rows in a group: those past it would be left out without a word."""
    table = pa.table({name: column[:5] for name, column in FEATURES.items()})
    pq.write_table(table, "x.parquet", row_group_size=3, compression="none")
    data = bytearray((folder / "x.parquet").read_bytes())
    n_rows, place = (3, 2)[group], folder / "x.parquet"
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    n_found = 0
    for at in range(footer, len(data) - 8):
        if data[at] != 2 * n_rows:
            continue
        changed = data.copy()
        changed[at] = 2 * claimed
        try:
            groups = pq.ParquetFile(pa.BufferReader(bytes(changed))).metadata
            sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        except (OSError, ValueError):
            continue
        if len(sizes) != 2 or sizes[group] != claimed:
            continue
        n_found += 1
        place.write_bytes(changed)
        says = f"claims 5 rows, but {5 - n_rows + claimed} in its groups"
        raises(isotropy.open, place, chunk_rows=chunk_rows, says=says)
    assert n_found == 1
