"""A CUDA device gives the CPU's numbers."""

import numpy as np
import pytest

import isotropy
from isotropy.metrics import METRICS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    mixed = random.standard_normal((20_000, 48)) @ random.standard_normal((48, 48)) / 7 + 0.5
    return mixed.astype(np.float32)


def flat(geometry):
    found = geometry.to_dict()
    names = [name for name in METRICS if name in found and name != "norms"]
    return np.concatenate([np.atleast_1d(np.asarray(found[name])) for name in names])


@pytest.mark.parametrize("place", ["held there", "copied there"])
def test_metrics_agree_with_the_cpu(X, place):
    expected = flat(isotropy.measure(X))
    if place == "held there":
        found = flat(isotropy.measure(torch.from_numpy(X).cuda()))
    else:
        found = flat(isotropy.measure(X, engine="torch"))
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(isotropy.repairs.Repair.by_name))
def test_repairs_agree_with_the_cpu_and_stay_on_the_device(X, name):
    options = {"n_clusters": 4, "n_components": 2} if name == "cluster-removal" else {}
    repair = isotropy.repairs.Repair.by_name[name](**options)
    expected = repair.fit(X).transform(X)
    rows = torch.from_numpy(X).cuda()
    found = repair.fit(rows).transform(rows)
    assert found.device == rows.device
    assert found.dtype == rows.dtype
    assert np.allclose(found.cpu().numpy(), expected, atol=1e-3 * np.abs(expected).max())


def test_a_file_is_streamed_through_the_device(X, tmp_path):
    np.save(tmp_path / "rows.npy", X)
    source = isotropy.open(tmp_path / "rows.npy", chunk_rows=3000)
    repair = isotropy.Whiten().fit(source, engine="torch")
    written = repair.transform(source, out=tmp_path / "fixed.npy", engine="torch")
    assert written.n_samples == len(X)
    assert np.allclose(np.load(tmp_path / "fixed.npy"), repair.transform(X), atol=1e-3)


def test_a_rotation_is_learned_on_the_device(X):
    centred = X - X.mean(axis=0)

    def length(rotation):
        return np.abs(centred @ rotation).sum()

    expected = isotropy.repairs.Rotate().fit(X).rotation_
    found = isotropy.repairs.Rotate().fit(torch.from_numpy(X).cuda()).rotation_
    assert np.allclose(found @ found.T, np.eye(X.shape[1]), atol=1e-10)
    # each path ends where a step adds less than a millionth; they may part by then
    assert length(found) == pytest.approx(length(expected), rel=1e-3)


CODECS = {
    "binary": lambda repair: isotropy.codecs.Binary(repair=repair),
    "float queries": lambda repair: isotropy.codecs.Binary(repair=repair, asymmetric=True),
    "int8": lambda repair: isotropy.codecs.Scalar(repair=repair),
    "int4": lambda repair: isotropy.codecs.Scalar(bits=4, repair=repair),
    "rescored": lambda repair: isotropy.codecs.Rescored(
        coarse=isotropy.codecs.Binary(repair=repair)
    ),
}


@pytest.mark.parametrize("name", CODECS)
def test_codes_are_searched_on_the_device(X, name):
    repair = isotropy.repairs.Chain([isotropy.Center(), isotropy.repairs.Rotate("random")])
    codec = CODECS[name](repair).fit(X)
    rows = torch.from_numpy(X).cuda()
    codes, there = codec.encode(X), codec.encode(rows)
    assert there.device == rows.device
    assert (there.cpu().numpy() == codes).mean() > 0.999  # a value at the edge of a cell may round
    same = torch.from_numpy(codes).cuda()
    expected, indices = codec.search(X[:50], codes, 5)
    scores, found = codec.search(rows[:50], same, 5)
    assert found.device == rows.device
    assert np.allclose(scores.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert (found.cpu().numpy() == indices).mean() > 0.98
