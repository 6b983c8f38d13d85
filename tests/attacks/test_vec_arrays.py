"""Things that are no arrays of vectors, given to everything that takes some."""

import os
import warnings
from itertools import count
from types import MappingProxyType

import numpy as np
import pytest
import scipy.sparse

import isotropy
from isotropy import metrics, repairs
from isotropy.errors import public
from isotropy.evidence import linear_cka, neighbour_overlap
from isotropy.evidence.advice import diagnose
from isotropy.repairs.base import Repair
from isotropy.sources import open_sink
from isotropy.tasks import STS

from .vec_files import X, read

MASKED = np.ma.masked_array(X, np.arange(48).reshape(12, 4) == 17)
BAD = {
    "None": None,
    "a number": 5,
    "a function": len,
    "a type": int,
    "a mapping": {"a": 1},
    "a set": {1, 2},
    "an iterator": iter([1]),
    "an endless iterator": count(),
    "bytes": b"abc",
    "an empty list": [],
    "ragged lists": [[1.0, 2.0], [3.0]],
    "ragged deeper": [[[1, 2], [3]], [[4]]],
    "ragged arrays": [np.ones(3), np.ones(4)],
    "a list of None": [None],
    "paths and numbers": ["a.npy", 5],
    "texts": np.array([["a" * 5000, "b"]]),
    "objects": np.array([[object()] * 4] * 3),
    "complex": X + 1j,
    "records": np.zeros(3, [("a", "f4"), ("b", "f4")]),
    "void": np.zeros((3, 2), "V4"),
    "dates": np.zeros((3, 2), "M8[s]"),
    "a scalar": np.float64(3),
    "one dimension": np.ones(4),
    "three dimensions": np.ones((2, 2, 2)),
    "no rows": np.ones((0, 4)),
    "no columns": np.ones((4, 0)),
    "a billion columns": np.broadcast_to(np.float32(0), (3, 10**9)),
    "masked": MASKED,
    "a list of masked rows": list(MASKED),
    "all masked": np.ma.masked_all((12, 4)),
    "sparse matrix": scipy.sparse.eye(4).tocsr(),
    "sparse array": scipy.sparse.csr_array(np.eye(4)),
    "numbers past floats": [[10**400, 1.0]],
    "NaN": np.full((12, 4), np.nan),
    "infinity": np.full((12, 4), np.inf),
}
TENSORS = {
    "sparse": lambda torch: torch.eye(4).to_sparse(),
    "sparse rows": lambda torch: torch.eye(4).to_sparse_csr(),
    "meta": lambda torch: torch.ones((12, 4), device="meta"),
    "quantized": lambda torch: torch.quantize_per_tensor(torch.ones(12, 4), 0.1, 0, torch.qint8),
    "nested": lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda torch: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "complex": lambda torch: torch.ones((12, 4), dtype=torch.complex64),
    "scalar": lambda torch: torch.tensor(3.0),
    "three dimensions": lambda torch: torch.ones(2, 2, 2),
    "NaN": lambda torch: torch.full((12, 4), torch.nan),
}
CENTER = repairs.Center().fit(X)
CLUSTERS = repairs.ClusterRemoval(2, 0).fit(X)
TASK = STS([(f"text {i}", f"words {i}") for i in range(6)], range(6))
CALLS = {
    "measure": isotropy.measure,
    "open": lambda x: read(isotropy.open(x)),
    **{name: getattr(metrics, name) for name in metrics.__all__
       if hasattr(getattr(metrics, name), "metric")},
    "weights": lambda x: metrics.mean_cosine(X, sample_weight=np.ones(12) if x is None else x),
    "Center.fit": lambda x: repairs.Center().fit(x),
    "Center.partial_fit": lambda x: repairs.Center().partial_fit(x),
    "Center.transform": CENTER.transform,
    "Center.inverse_transform": CENTER.inverse_transform,
    "Center.shift": CENTER.shift,
    "Center.merge": CENTER.merge,
    "Center.transform to a file": lambda x: CENTER.transform(x, out="y.npy"),
    "ClusterRemoval.fit": lambda x: repairs.ClusterRemoval(2, 1).fit(x),
    "ClusterRemoval.transform": CLUSTERS.transform,
    "KeyedVectors": lambda x: read(isotropy.KeyedVectors(x, ["a"] * 12)),
    "ScoreCalibrator.fit": lambda x: isotropy.ScoreCalibrator().fit(x),
    "linear_cka": lambda x: linear_cka(x, X),
    "neighbour_overlap": lambda x: neighbour_overlap(X, x),
    "compare": lambda x: isotropy.compare(x, TASK, "center"),
    "advise": lambda x: isotropy.advise(x, TASK, candidates=["center"]),
    "diagnose": lambda x: diagnose(x, TASK.texts),
}  # fmt: skip
FINE = {("None", "weights"), ("a number", "weights"), ("a scalar", "weights")}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", BAD)
def test_what_is_no_array_is_refused(raises, call, case):
    if (case, call) not in FINE:
        raises(CALLS[call], BAD[case])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", TENSORS)
def test_tensors_without_plain_values_are_refused(raises, call, case):
    torch = pytest.importorskip("torch", reason="makes tensors")
    raises(CALLS[call], TENSORS[case](torch))


@pytest.mark.parametrize("name", sorted(Repair.by_name))
@pytest.mark.parametrize("case", ["ragged lists", "masked", "complex", "sparse matrix", "None"])
def test_every_repair_refuses_what_is_no_array(raises, name, case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = Repair.by_name[name]().fit(X)
    raises(Repair.by_name[name]().fit, BAD[case])
    raises(fitted.transform, BAD[case])


# Masks


@pytest.mark.parametrize("X", [MASKED, list(MASKED)], ids=["array", "list"])
def test_masked_rows_are_left_out_where_bad_rows_are(X):
    rows, _ = read(isotropy.open(X, skip_bad_rows=True))
    np.testing.assert_array_equal(rows, np.delete(MASKED.data, 4, axis=0))


def test_integers_with_a_mask_are_left_out_too():
    X = np.ma.masked_array(np.arange(12).reshape(6, 2), np.arange(12).reshape(6, 2) == 3)
    rows, _ = read(isotropy.open(X, skip_bad_rows=True))
    np.testing.assert_array_equal(rows, np.delete(X.data, 1, axis=0))


def test_a_masked_array_without_masked_values_is_an_array():
    np.testing.assert_array_equal(read(isotropy.open(np.ma.masked_array(X)))[0], X)


# Rows of keys


@pytest.mark.parametrize("row", [-1, 12, True, 1.0, None, "0", 10**30])
def test_rows_of_keys_that_are_not_there(raises, row):
    raises(isotropy.KeyedVectors, X, {"a": 0, "b": row}, says="the row of each key must be")


@pytest.mark.parametrize(
    "keys",
    [None, 5, "abc", b"abc", ["a"] * 11, ["a"] * 13, count(), [["a"]] * 12, np.float64(1)],
    ids=range(9),
)
def test_keys_that_are_no_list_of_keys(raises, keys):
    raises(isotropy.KeyedVectors, X, keys, says="keys must be")


@pytest.mark.parametrize("texts", [None, 5, [["a"]], [None], ["zzz"]], ids=range(5))
def test_texts_that_are_no_keys(raises, texts):
    vectors = isotropy.KeyedVectors(X, [f"w{i}" for i in range(12)])
    raises(vectors.encode, texts, says="texts must be")


# Values that a narrower dtype cannot hold


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 70000.0), ("float32", 1e39), ("float16", -1e30)]
)
def test_values_that_overflow_are_not_written(raises, suffix, dtype, value):
    rows = np.ones((6, 4))
    rows[4, 2] = value

    @public("apply")
    def write():
        with open_sink("y" + suffix, 4, dtype) as sink:
            sink.write(np.ones((10, 4)))
            sink.write(rows)

    raises(write, says=f"apply: the rows must fit {dtype}, got {abs(value):g} in row 14")


def test_values_that_overflow_bfloat16_are_not_written(raises):
    @public("apply")
    def write():
        with open_sink("y.safetensors", 4, "bfloat16") as sink:
            sink.write(np.full((3, 4), np.finfo(np.float32).max))

    raises(write, says="apply: the rows must fit bfloat16, got 3.40282e+38 in row 0")


def growing():
    """Rows of float16 that standardizing makes larger than float16 can hold."""
    rows = np.zeros((12, 4), np.float16)
    rows[0] = 6e-8
    return repairs.Standardize().fit(rows), np.full((3, 4), 60000, np.float16)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_that_overflow_are_not_returned(raises, kind):
    repair, rows = growing()
    if kind == "torch":
        rows = pytest.importorskip("torch", reason="makes tensors").from_numpy(rows)
    raises(repair.transform, rows, says="Standardize: the rows must fit float16, got")


def test_rows_that_overflow_are_not_written_to_a_file(raises):
    repair, rows = growing()
    np.save("x.npy", rows)
    raises(repair.transform, "x.npy", out="y.npy", says="Standardize: the rows must fit float16")


# Arguments beside the rows

ODD = {"a number": 5, "a text": "bogus", "a list": [1], "an object": object(), "NaN": float("nan")}
ARGUMENTS = {
    "engine": lambda v: isotropy.measure(X, engine=v),
    "metrics": lambda v: isotropy.measure(X, metrics=v),
    "checkpoint": lambda v: isotropy.measure(X, checkpoint=v),
    "center": lambda v: isotropy.measure(X, center=v),
    "out": lambda v: CENTER.transform(X, out=v),
    "fit's engine": lambda v: repairs.Center().fit(X, engine=v),
    "transform's engine": lambda v: CENTER.transform(X, out="y.npy", engine=v),
    "fit's checkpoint": lambda v: repairs.Center().fit(X, checkpoint=v),
    "shift's engine": lambda v: CENTER.shift(X, engine=v),
    "save's path": CENTER.save,
    "normalize": lambda v: repairs.Center(normalize=v).fit(X),
    "skip_bad_rows": lambda v: isotropy.open(X, skip_bad_rows=v),
    "column": lambda v: isotropy.open("x.npy", column=v),
    "load": isotropy.load,
    "ScoreCalibrator.load": isotropy.ScoreCalibrator.load,
    "KeyedVectors.load": isotropy.KeyedVectors.load,
    "random_state": lambda v: metrics.local_isotropy(X, 2, n_seeds=1, random_state=v),
    "tasks": lambda v: isotropy.compare(X, v),
    "task": lambda v: isotropy.advise(X, v),
    "repairs": lambda v: isotropy.compare(X, TASK, v),
    "candidates": lambda v: isotropy.advise(X, TASK, candidates=v),
    "fit_on": lambda v: isotropy.compare(X, TASK, "center", fit_on=v),
    "progress": lambda v: isotropy.compare(X, TASK, "center", progress=v),
    "part": lambda v: isotropy.compare(X, TASK, "center", part=v),
    "repair": lambda v: isotropy.ScoreCalibrator().fit(X, repair=v),
    "items": lambda v: STS(v, range(6)),
    "scores": lambda v: STS([("a", "b")] * 6, v),
}
MEANT = {  # what is no mistake: names of files and folders, and lists
    ("checkpoint", "a text"), ("fit's checkpoint", "a text"), ("out", "a text"),
    ("save's path", "a text"), ("random_state", "a number"),
}  # fmt: skip


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("case", ODD)
def test_arguments_of_another_kind_are_refused(raises, argument, case):
    if (argument, case) not in MEANT:
        raises(ARGUMENTS[argument], ODD[case])


@pytest.mark.parametrize("load", ["load", "ScoreCalibrator.load", "KeyedVectors.load"])
@pytest.mark.parametrize("path", [None, 5, [], b"", "", "a\0b", "nothing"], ids=range(7))
def test_what_is_no_path_is_not_loaded(raises, load, path):
    raises(ARGUMENTS[load], path)


def test_one_metric_may_be_named_by_itself():
    assert list(isotropy.measure(X, "isoscore").values) == ["isoscore"]


@pytest.mark.parametrize("name", [None, 5, [], np.ones(3), "x" * 5000, "a\0b"], ids=range(6))
def test_what_is_no_model(raises, name):
    pytest.importorskip("transformers", reason="makes an encoder")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    raises(isotropy.Encoder, name)
    raises(isotropy.embeddings, name)


@pytest.mark.parametrize("row", [-1, 12, 1.5, None])
def test_rows_of_any_mapping_are_checked(raises, row):
    keys = MappingProxyType({"a": 0, "b": row})
    raises(isotropy.KeyedVectors, X, keys, says="the row of each key must be")


def test_keys_are_checked_once():
    keyed = isotropy.KeyedVectors(X, MappingProxyType({"a": 3}))
    repaired = keyed.with_repair(isotropy.Center().fit(X))
    assert repaired.words is keyed.words
    np.testing.assert_allclose(repaired.encode(["a"])[0], X[3] - X.mean(axis=0), atol=1e-6)
