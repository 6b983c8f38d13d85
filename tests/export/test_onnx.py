"""ONNX models of repairs, run by onnxruntime, against `transform`."""

import json

import numpy as np
import pytest

from isotropy import export, repairs
from isotropy.errors import InputError, InputTypeError, NotAffineError

from .elsewhere import LIMIT, fitted, generated, largest_difference, run_elsewhere, sentences

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

N, D = 1000, 32
APPLY = """
import os, numpy as np, onnxruntime
folder, rows = sys.argv[1:]
X = np.load(rows)
for name in os.listdir(folder):
    if name.endswith(".onnx"):
        session = onnxruntime.InferenceSession(f"{folder}/{name}")
        np.save(f"{folder}/{name}.npy", session.run(["repaired"], {"vectors": X})[0])
"""


def run(model, X):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"vectors": X})[0]


def check_elsewhere(found, X, folder):
    """Write a model for each repair, and run rows through all of them without isotropy."""
    np.save(folder / "rows.npy", X)
    for name, repair in found.items():
        export.onnx(repair, folder / f"{name}.onnx")
    run_elsewhere(APPLY, folder, folder / "rows.npy")
    for name, repair in found.items():
        repaired = np.load(folder / f"{name}.onnx.npy")
        assert repaired.dtype == np.float32
        assert largest_difference(repaired, repair, X) < LIMIT, name


@pytest.mark.parametrize("shift", [0.0, 10.0, 1e4])
def test_the_file_repairs_rows_where_there_is_no_isotropy(shift, tmp_path):
    X = generated(2 * N, D, shift)
    check_elsewhere(fitted(X[:N]), X[N:], tmp_path)


@pytest.mark.parametrize("shift", [0.0, 10.0])
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_the_file_repairs_sentences_where_there_is_no_isotropy(shift, tmp_path, models, data):
    X = sentences(models, data) + np.float32(shift)
    check_elsewhere(fitted(X[N:]), X[:N], tmp_path)


def test_any_number_of_rows_may_come():
    X = generated(N, D)
    for repair in (
        repairs.ClusterRemoval(3, 2, normalize=True),
        repairs.Whiten("pca", n_components=5),
    ):
        model = export.onnx(repair.fit(X))
        for n in (1, 2, 300):
            np.testing.assert_allclose(run(model, X[:n]), repair.transform(X[:n]), atol=1e-5)
        assert run(model, X[:0]).shape == (0, repair.transform(X[:1]).shape[1])


@pytest.mark.parametrize("n_clusters", [1, 3])
@pytest.mark.parametrize("n_components", [0, 2])
def test_clusters_without_components_are_centred(n_clusters, n_components):
    X = generated(N, D)
    repair = repairs.ClusterRemoval(n_clusters, n_components).fit(X)
    assert largest_difference(run(export.onnx(repair), X), repair, X) < LIMIT


def test_a_learned_layer_is_a_matrix():
    pytest.importorskip("torch")
    X = generated(N, 8)
    repair = repairs.LearnedLayer(n_epochs=1, batch_size=64).fit(X, X[:, 1] > 0)
    assert largest_difference(run(export.onnx(repair), X), repair, X) < LIMIT


def test_zero_rows_stay_zero():
    X = generated(N, D)
    X -= X.mean(0)
    zero = np.zeros((2, D), np.float32)
    scaled = repairs.ScaledCenter(normalize=True).fit(X)
    assert not run(export.onnx(scaled), zero).any()
    center = repairs.Center(normalize=True).fit(X)
    mean = center.mean_.astype(np.float32)[None]
    assert np.array_equal(run(export.onnx(center), mean), center.transform(mean))


def test_a_flow_is_refused():
    pytest.importorskip("torch")
    flow = repairs.Flow(n_levels=1, n_steps=1).fit(generated(200, 4))
    with pytest.raises(NotAffineError, match=r"export.onnx: .* got Flow, .* Ship the saved file"):
        export.onnx(flow)
    with pytest.raises(InputTypeError, match="repair must be a fitted repair, got str"):
        export.onnx("repair.safetensors")


def test_the_model_says_what_it_is(tmp_path):
    X = generated(N, D)
    repairs.Whiten("pca", n_components=5).fit(X).save(
        tmp_path / "r.safetensors", note="from a test"
    )
    model = export.onnx(repairs.load(tmp_path / "r.safetensors"))
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    props = {entry.key: entry.value for entry in model.metadata_props}
    assert (props["isotropy.repair"], props["isotropy.note"]) == ("whiten", "from a test")
    assert json.loads(props["isotropy.params"])["n_components"] == "5"
    (rows,), (repaired,) = model.graph.input, model.graph.output
    shapes = [
        [size.dim_param or size.dim_value for size in end.type.tensor_type.shape.dim]
        for end in (rows, repaired)
    ]
    assert (rows.name, repaired.name) == ("vectors", "repaired")
    assert shapes == [["batch", D], ["batch", 5]]


def test_an_existing_file_is_kept(tmp_path):
    repair = repairs.Center().fit(generated(N, D))
    path = tmp_path / "repair.onnx"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        export.onnx(repair, path)
    assert path.read_text() == "mine"
    export.onnx(repair, path, overwrite=True)
    onnx.checker.check_model(str(path))
