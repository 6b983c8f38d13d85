"""Frames with a column of vectors: the same numbers as from an array, and the same kind back."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isotropy
from isotropy.errors import InputError, WidthError
from isotropy.sources.frames import FrameSource

N, D = 60, 5
X = (np.random.default_rng(0).normal(size=(N, D)) + 0.5).astype(np.float32)
TEXTS = [f"text {i}" for i in range(N)]
LABELS = list(range(N))


def fixed(rows=X):
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def arrow_table(rows=X):
    return pa.table({"text": TEXTS, "vector": fixed(rows), "label": LABELS})


def arrow_lists(rows=X):
    lists = pa.array(rows.tolist(), pa.list_(pa.from_numpy_dtype(rows.dtype)))
    table = pa.table({"text": TEXTS, "vector": lists, "label": LABELS})
    return pa.concat_tables([table[:7], table[7:40], table[40:]])


def arrow_large(rows=X):
    lists = pa.array(rows.tolist(), pa.large_list(pa.from_numpy_dtype(rows.dtype)))
    return pa.table({"text": TEXTS, "vector": lists})


def arrow_batch(rows=X):
    return arrow_table(rows).combine_chunks().to_batches()[0]


def arrow_columns(rows=X):
    return pa.table({"text": TEXTS} | {f"d{j}": rows[:, j] for j in range(D)})


def pandas_objects(rows=X):
    pd = pytest.importorskip("pandas")
    columns = {"text": TEXTS, "vector": list(rows), "label": LABELS}
    return pd.DataFrame(columns, index=pd.Index([f"k{i}" for i in range(N)], name="key"))


def pandas_arrow(rows=X):
    pd = pytest.importorskip("pandas")
    return arrow_table(rows).to_pandas(types_mapper=pd.ArrowDtype)


def pandas_columns(rows=X):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame({"text": TEXTS} | {f"d{j}": rows[:, j] for j in range(D)})


def polars_arrays(rows=X):
    pl = pytest.importorskip("polars")
    kinds = pl.Series(["a", "b"] * (N // 2), dtype=pl.Enum(["a", "b"]))
    return pl.DataFrame({"text": TEXTS, "vector": rows, "kind": kinds})


def polars_lists(rows=X):
    pl = pytest.importorskip("polars")
    kind = pl.List(pl.Float64 if rows.dtype == np.float64 else pl.Float32)
    return pl.DataFrame({"text": TEXTS, "vector": pl.Series(rows.tolist(), dtype=kind)})


def polars_columns(rows=X):
    pl = pytest.importorskip("polars")
    return pl.DataFrame({"text": TEXTS} | {f"d{j}": rows[:, j] for j in range(D)})


def dataset(rows=X):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        text=datasets.Value("string"),
        vector=datasets.List(datasets.Value(str(rows.dtype))),
        label=datasets.ClassLabel(names=[str(i) for i in range(N)]),
    )
    columns = {"text": TEXTS, "vector": rows.tolist(), "label": LABELS}
    return datasets.Dataset.from_dict(columns, features)


KINDS = [
    arrow_table, arrow_lists, arrow_large, arrow_batch, arrow_columns, pandas_objects, pandas_arrow,
    pandas_columns, polars_arrays, polars_lists, polars_columns, dataset,
]  # fmt: skip


def vectors_of(frame):
    """The vectors of a frame, without our own code."""
    if hasattr(frame, "features"):
        frame = frame.with_format("arrow")[:]
    names = list(frame.columns if hasattr(frame, "dtypes") else frame.schema.names)
    if "vector" in names:
        column = frame["vector"]
        rows = column.to_list() if hasattr(column, "to_list") else column.to_pylist()
        return np.array([np.asarray(row) for row in rows])
    own = [name for name in names if name not in ("text", "label", "kind")]
    return np.array([np.asarray(frame[name]) for name in own]).T


def texts_of(frame):
    column = frame["text"]
    return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


@pytest.mark.parametrize("kind", KINDS)
def test_measure_and_fit_are_those_of_the_array(kind):
    frame = kind()
    expected = isotropy.measure(X)
    found = isotropy.measure(frame)
    assert found.isoscore == pytest.approx(expected.isoscore, rel=1e-6)
    assert found.mean_cosine == pytest.approx(expected.mean_cosine, rel=1e-6)
    fitted, reference = isotropy.Whiten().fit(frame), isotropy.Whiten().fit(X)
    np.testing.assert_allclose(fitted.transform(X), reference.transform(X), rtol=1e-5, atol=1e-6)
    assert (fitted.n_features_in_, fitted.n_samples_seen_) == (D, N)
    assert not hasattr(fitted, "feature_names_in_")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transform_gives_the_same_kind_of_frame(kind, dtype):
    rows = X.astype(dtype)
    frame = kind(rows)
    repair = isotropy.AllButTheTop(1).fit(rows)
    found = repair.transform(frame)
    assert type(found) is type(frame)
    if hasattr(frame, "columns") and hasattr(frame, "index"):
        assert found.columns.equals(frame.columns)
        assert found.index.equals(frame.index)
        assert (found.dtypes == frame.dtypes).all()
    elif hasattr(frame, "features"):
        assert found.features == frame.features
    else:
        assert found.schema == frame.schema
    np.testing.assert_array_equal(vectors_of(found), repair.transform(rows))
    assert texts_of(found) == TEXTS
    np.testing.assert_array_equal(vectors_of(frame), rows)  # which is left alone


@pytest.mark.parametrize("kind", KINDS)
def test_narrower_vectors_take_the_place_of_wider_ones(kind):
    repair = isotropy.Whiten(method="pca", n_components=2).fit(X)
    found = repair.transform(kind())
    np.testing.assert_array_equal(vectors_of(found), repair.transform(X))
    assert texts_of(found) == TEXTS


@pytest.mark.parametrize("kind", [arrow_lists, pandas_objects, polars_lists, dataset])
def test_null_vectors_are_bad_rows(kind):
    frame = kind(X.astype(np.float64))
    if hasattr(frame, "features"):
        frame = type(frame).from_dict(frame[:] | {"vector": with_null(frame[:]["vector"])})
    elif isinstance(frame, pa.Table):
        lists = pa.array(with_null(frame["vector"].to_pylist()), pa.list_(pa.float64()))
        frame = frame.set_column(1, "vector", lists)
    elif hasattr(frame, "index"):
        frame["vector"] = with_null(frame["vector"].tolist())
    else:
        import polars as pl

        frame = frame.with_columns(pl.Series("vector", with_null(frame["vector"].to_list())))
    with pytest.raises(InputError, match=r"got NaN in 1 row \(first: 3, counting from 0\)"):
        isotropy.measure(frame)
    source = isotropy.open(frame, skip_bad_rows=True, chunk_rows=25)
    assert isotropy.measure(source).n_skipped == 1
    repair = isotropy.Center().fit(source)
    found = repair.transform(source)
    assert type(found) is type(frame)
    expected = np.delete(X.astype(np.float64), 3, axis=0)
    np.testing.assert_allclose(vectors_of(found), expected - expected.mean(0), atol=1e-12)
    assert texts_of(found) == [text for text in TEXTS if text != "text 3"]


def with_null(rows):
    rows = list(rows)
    rows[3] = None
    return rows


def test_one_of_several_columns_is_chosen_by_name():
    table = arrow_table().append_column("other", fixed(X + 1))
    repair = isotropy.Center()
    hint = r"several columns of vectors: 'vector', 'other'. Choose with column, as in isotropy.open"
    for call in (isotropy.measure, repair.fit, repair.fit(X).transform):
        with pytest.raises(InputError, match=hint):
            call(table)
    source = isotropy.open(table, column="other")
    np.testing.assert_allclose(repair.fit(source).mean_, (X + 1).mean(0), rtol=1e-5)
    found = repair.transform(source)
    assert found["vector"].equals(table["vector"])
    np.testing.assert_allclose(np.array(found["other"].to_pylist()).mean(0), 0, atol=1e-6)


def test_number_columns_are_chosen_by_pattern():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"label": LABELS} | {f"d{j}": X[:, j] for j in range(D)})
    source = isotropy.open(frame, column="d*")
    assert (source.n_samples, source.n_features) == (N, D)
    found = isotropy.Center().fit(source).transform(source)
    assert found["label"].tolist() == LABELS
    np.testing.assert_allclose(found.drop(columns="label").mean(), 0, atol=1e-6)


def test_frames_of_numbers_are_scikit_learns_as_ever():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abcde"))
    repair = isotropy.Center().fit(frame)
    assert repair.feature_names_in_.tolist() == list("abcde")
    assert isinstance(repair.transform(frame), np.ndarray)
    shown = isotropy.Center().set_output(transform="pandas").fit(frame).transform(frame)
    assert shown.columns.tolist() == list("abcde")


def test_set_output_is_refused_where_the_frame_comes_back_whole():
    repair = isotropy.Center().set_output(transform="pandas").fit(X)
    with pytest.raises(InputError, match="numbers only with set_output"):
        repair.transform(arrow_table())


def test_a_frame_is_written_with_its_other_columns(tmp_path):
    repair = isotropy.Center().fit(X)
    for kind in (arrow_table, pandas_objects, polars_arrays, dataset):
        repair.transform(kind(), out=tmp_path / "x.parquet", overwrite=True)
        table = pq.read_table(tmp_path / "x.parquet")
        assert table["text"].to_pylist() == TEXTS
        np.testing.assert_array_equal(np.array(table["vector"].to_pylist()), repair.transform(X))
        assert ("key" in table.column_names) == (kind is pandas_objects)


def test_a_reader_is_repaired_batch_by_batch():
    repair = isotropy.Center().fit(X)
    taken = []

    def batches():
        for batch in arrow_table().to_batches(max_chunksize=20):
            taken.append(batch.num_rows)
            yield batch

    found = repair.transform(pa.RecordBatchReader.from_batches(arrow_table().schema, batches()))
    assert isinstance(found, pa.RecordBatchReader)
    assert taken == []
    first = found.read_next_batch()
    assert (taken, first.num_rows) == ([20], 20)
    rest = found.read_all()
    rows = np.concatenate([vectors_of(pa.Table.from_batches([first])), vectors_of(rest)])
    np.testing.assert_array_equal(rows, repair.transform(X))
    assert isotropy.measure(arrow_table().to_reader()).n_samples == N


def test_the_origin_of_vectors_is_read_but_not_that_of_repaired_ones():
    origin = {"model": "m", "dimension": D}
    table = arrow_table().replace_schema_metadata({"isotropy.origin": json.dumps(origin), "a": "b"})
    assert isotropy.open(table).origin() == origin
    repair = isotropy.Center().fit(table)
    assert repair.origin_.model == "m"
    for found in (repair.transform(table), repair.transform(table.to_reader())):
        assert found.schema.metadata == {b"a": b"b"}
    table = table.replace_schema_metadata({"isotropy.origin": "{"})
    with pytest.raises(InputError, match=r"X has a damaged isotropy\.origin"):
        isotropy.Center().fit(table)


def test_vectors_are_not_copied():
    table = arrow_table()
    source = isotropy.open(table)
    (batch,) = source.read(source.chunks()[0])
    address = table["vector"].chunk(0).flatten().buffers()[1].address
    assert batch.rows.__array_interface__["data"][0] == address


def test_chunks_weights_identity_and_pickles():
    source = isotropy.open(arrow_lists(), chunk_rows=9, sample_weight=np.arange(float(N)))
    assert isinstance(source, FrameSource)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), X)
    assert [batch.weights[0] for batch in batches] == list(range(0, N, 9))
    assert batches[1].carried["text"].to_pylist() == TEXTS[9:18]
    assert all(b.carried is None for c in source.chunks() for b in source.bare().read(c))
    assert (
        source.identity()
        == isotropy.open(arrow_lists(), chunk_rows=9, sample_weight=np.arange(float(N))).identity()
    )
    assert source.identity() != isotropy.open(arrow_lists(X + 1), chunk_rows=9).identity()
    again = pickle.loads(pickle.dumps(source))
    assert again.identity() == source.identity()


def test_what_cannot_be_used_is_explained():
    pd = pytest.importorskip("pandas")
    repair = isotropy.Center().fit(X)
    with pytest.raises(WidthError, match="X has 3 features, but Center is expecting 5"):
        repair.transform(pa.table({"vector": fixed(X[:, :3].copy()), "text": TEXTS}))
    with pytest.raises(InputError, match="X has 2 features in row 1 of column 'v', but 1 in the"):
        isotropy.measure(pa.table({"v": [[1.0], [1.0, 2.0]]}))
    with pytest.raises(InputError, match="X has no column of numbers or lists, only 'a'"):
        isotropy.measure(pa.table({"a": ["x"]}))
    with pytest.raises(InputError, match=r"X has its vectors inside another column, in .a\.b."):
        isotropy.measure(pa.table({"a": [{"b": [1.0, 2.0]}]}))
    with pytest.raises(InputError, match="X has nothing in column 'v'"):
        isotropy.measure(pa.table({"v": pa.array([], pa.list_(pa.float32()))}))
    with pytest.raises(InputError, match="X must have columns that Arrow can hold"):
        isotropy.measure(pd.DataFrame({"v": [[1.0], [2.0]], "odd": [1, {"a": 1}]}))


VALUES = st.floats(-100, 100, width=32)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda d: st.lists(st.lists(VALUES, min_size=d, max_size=d), min_size=1, max_size=12)
    ),
    st.sampled_from(["fixed", "list", "large"]),
    st.integers(1, 5),
    st.integers(0, 1),
)
def test_any_table_gives_its_rows_back(values, kind, chunk_rows, offset):
    rows = np.array(values, np.float32)
    d = rows.shape[1]
    types = {"fixed": pa.list_(pa.float32(), d), "list": pa.list_(pa.float32())}
    array = pa.array(rows.tolist(), types.get(kind, pa.large_list(pa.float32())))
    table = pa.table({"v": pa.chunked_array([array, array]), "t": ["a"] * (2 * len(rows))})
    rows = np.concatenate([rows, rows])[offset:]
    source = isotropy.open(table[offset:], chunk_rows=chunk_rows)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), rows)
    found = isotropy.ScaledCenter().fit(np.eye(d, dtype=np.float32)).transform(source)
    assert found.schema.field("v").type == array.type
    assert found.num_rows == len(rows)
