"""Files of repairs and calibrators that are forged, with checksums that fit."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import isotropy
from isotropy.errors import RepairFileError
from isotropy.repairs import Repair, ScoreCalibrator

from . import forging

NAN, INF = float("nan"), float("inf")


def changed_tensor(tensors, name, how):
    """One tensor made wrong."""
    value = tensors[name]
    if how == "missing":
        del tensors[name]
    elif how == "longer":
        tensors[name] = np.concatenate([np.atleast_1d(value), np.atleast_1d(value)])
    elif how == "0-d":
        tensors[name] = np.array(1.0) if value.ndim else np.ones(1)
    elif how == "3-d":
        tensors[name] = value.reshape(1, 1, -1)
    elif how == "empty":
        tensors[name] = np.zeros((0, *value.shape[1:]))
    elif how == "nan":
        tensors[name] = np.full_like(value, NAN, dtype=np.float64)
    elif how == "inf":
        tensors[name] = np.full_like(value, INF, dtype=np.float64)
    elif how == "one nan":
        value[(0,) * value.ndim] = NAN
    else:
        tensors[name] = value.astype(how)


HOW = ["missing", "longer", "0-d", "3-d", "empty", "nan", "inf", "float16", "float32", "int64"]
HOW += ["bool", "one nan"]
ARRAYS = [
    ("center", "mean_"),
    ("standardize", "scale_"),
    ("scaled-center", "direction_"),
    ("pca", "components_"),
    ("whiten", "components_"),
    ("whiten", "scale_"),
    ("whiten", "shrinkage_"),
    ("cluster-removal", "means_"),
    ("cluster-removal", "components_"),
    ("center", "statistic.within"),
    ("center", "statistic.weight"),
    ("scaled-center", "statistic.totals"),
    ("scaled-center", "moments.total"),
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("name", "tensor"), ARRAYS)
def test_a_tensor_that_is_wrong_is_refused(folder, raises, name, tensor, how):
    header, tensors = forging.fresh(name)
    changed_tensor(tensors, tensor, how)
    forging.forge(folder / "r", header, tensors)
    said = raises(isotropy.load, folder / "r", error=RepairFileError)
    assert "holds no valid repair" in said
    assert tensor.rpartition(".")[2] in said


def rotated(tensors):
    tensors["components_"] = tensors["components_"] * 1.5


VALUES = {
    "a scale of zero": ("standardize", lambda t: t["scale_"].__setitem__(0, 0.0)),
    "a negative scale": ("standardize", lambda t: t["scale_"].__setitem__(0, -1.0)),
    "a negative factor": ("whiten", lambda t: t["scale_"].__setitem__(0, -1.0)),
    "a shrinkage of two": ("whiten", lambda t: t.update(shrinkage_=np.array(2.0))),
    "a direction of length two": ("scaled-center", lambda t: t["direction_"].fill(2.0)),
    "components of length 1.5": ("all-but-the-top", rotated),
    "axes of length 1.5": ("whiten", rotated),
    "components that are one": (
        "all-but-the-top",
        lambda t: t["components_"].__setitem__(1, t["components_"][0]),
    ),
    "axes transposed": ("pca", lambda t: t.update(components_=t["components_"].T.copy())),
    "more axes than asked for": ("pca", lambda t: t.update(components_=np.eye(forging.D))),
    "more directions than asked for": (
        "all-but-the-top",
        lambda t: t.update(components_=np.eye(forging.D)[:3]),
    ),
    "negative counts": ("cluster-removal", lambda t: t["n_components_"].fill(-1)),
    "counts past the directions": ("cluster-removal", lambda t: t["n_components_"].fill(9)),
    "counts of fewer directions": ("cluster-removal", lambda t: t["n_components_"].fill(1)),
    "float counts": (
        "cluster-removal",
        lambda t: t.update(n_components_=t["n_components_"].astype(float)),
    ),
    "clusters of one array only": (
        "cluster-removal",
        lambda t: t.update(means_=t["means_"][:1].copy()),
    ),
    "more clusters than asked for": (
        "cluster-removal",
        lambda t: t.update({k: np.concatenate([v, v]) for k, v in t.items() if "." not in k}),
    ),
    "no clusters": (
        "cluster-removal",
        lambda t: t.update({k: v[:0].copy() for k, v in t.items() if "." not in k}),
    ),
    "no weight": ("center", lambda t: t.update({"statistic.weight": np.array(0.0)})),
    "a weight that is nearly none": (
        "center",
        lambda t: t.update({"statistic.weight": np.array(1e-320)}),
    ),
    "a negative weight": ("center", lambda t: t.update({"statistic.weight": np.array(-1.0)})),
    "no rows": ("center", lambda t: t.update({"statistic.n_rows": np.array(0)})),
    "negative rows": ("center", lambda t: t.update({"statistic.n_rows": np.array(-3)})),
    "more rows than samples": ("center", lambda t: t.update({"statistic.n_rows": np.array(201)})),
    "products that are not symmetric": (
        "center",
        lambda t: t["statistic.within"].__setitem__((0, 1), 1e6),
    ),
    "negative squares": ("center", lambda t: t["statistic.within"].__imul__(-1)),
    "negative totals": ("scaled-center", lambda t: t["statistic.totals"].__imul__(-1)),
    "unit rows that are longer": ("scaled-center", lambda t: t["statistic.unit_sum"].__imul__(1e3)),
    "half of the moments": ("cluster-removal", lambda t: t.pop("moments.within")),
    "one more tensor": ("center", lambda t: t.update(colour=np.zeros(3))),
    "moments beside moments": ("center", lambda t: t.update({"moments.weight": np.array(1.0)})),
    "tensors of another repair": ("center", lambda t: t.update(components_=np.eye(forging.D))),
    "nothing at all": ("center", lambda t: t.clear()),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_cannot_be_are_refused(folder, raises, case):
    name, change = VALUES[case]
    header, tensors = forging.fresh(name)
    change(tensors)
    forging.forge(folder / "r", header, tensors)
    raises(isotropy.load, folder / "r", error=RepairFileError, says="holds no valid repair")


HEADERS = {
    "a quadrillion features": {"n_features": 10**15},
    "no features": {"n_features": 0},
    "negative features": {"n_features": -6},
    "features as text": {"n_features": "6"},
    "features as a float": {"n_features": 6.0},
    "features as true": {"n_features": True},
    "features as null": {"n_features": None},
    "features past every float": {"n_features": 10**400},
    "no samples": {"n_samples": 0},
    "samples as text": {"n_samples": "many"},
    "samples as a list": {"n_samples": [200]},
    "params as a list": {"params": ["normalize"]},
    "params as null": {"params": None},
    "a parameter that is none": {"params": {"colour": "blue"}},
    "a parameter of many letters": {"params": {"x" * 100_000: 1}},
    "a parameter with control characters": {"params": {"\x1b[31m\n": 1}},
    "normalize as text": {"params": {"normalize": "yes"}},
    "normalize as a number": {"params": {"normalize": 1}},
    "normalize as null": {"params": {"normalize": None}},
    "normalize as a list": {"params": {"normalize": [True]}},
    "a note that is none": {"note": None},
    "a note that is a list": {"note": ["a"]},
    "a huge note": {"note": "a" * 1_000_000},
    "names as text": {"feature_names": "abcdef"},
    "too few names": {"feature_names": ["a"]},
    "names that are numbers": {"feature_names": [1, 2, 3, 4, 5, 6]},
    "names that are lists": {"feature_names": [[], [], [], [], [], []]},
    "a level that is none": {"level": "word"},
    "a level that is null": {"level": None},
    "a level that is a list": {"level": ["token"]},
    "versions as text": {"versions": "0.1"},
    "versions as numbers": {"versions": {"isotropy": 1}},
    "a time that is none": {"time": 5},
    "a time that is null": {"time": None},
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_cannot_be_is_refused(folder, raises, refused, case):
    header, tensors = forging.fresh("center")
    forging.forge(folder / "r", header | HEADERS[case], tensors)
    said = raises(isotropy.load, folder / "r", error=RepairFileError, says="holds no valid repair")
    expected = said.replace("load: ", "show: ", 1).replace(str(folder / "r"), "r")
    assert refused("show", "r") == expected


WHITEN = {
    "method": ["zca", None, 5, "ica", True],
    "eps": ["small", None, [1e-6], NAN, -1.0, True, 10**400],
    "power": ["x", None, NAN, -1],
    "n_components": ["3", 0, -1, 7, 2.0, True, [3], 10**15],
    "shrinkage": ["much", None, NAN, -0.1, 1.5, False, ["auto"]],
}
WRONG = [(p, v) for p, values in WHITEN.items() for v in values if (p, v) != ("method", "zca")]


@pytest.mark.parametrize(("parameter", "value"), WRONG)
def test_a_parameter_that_breaks_its_rule_is_refused(folder, raises, parameter, value):
    header, tensors = forging.fresh("whiten")
    header["params"][parameter] = value
    forging.forge(folder / "r", header, tensors)
    raises(isotropy.load, folder / "r", error=RepairFileError, says="holds no valid repair")


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("all-but-the-top", "n_components", "2"),
        ("all-but-the-top", "n_components", -1),
        ("all-but-the-top", "n_components", 1),
        ("all-but-the-top", "n_components", True),
        ("all-but-the-top", "side", "left"),
        ("all-but-the-top", "side", ["top"]),
        ("cluster-removal", "n_clusters", 1),
        ("cluster-removal", "n_clusters", None),
        ("cluster-removal", "n_components", 1),
        ("cluster-removal", "n_components", NAN),
        ("cluster-removal", "random_state", -1),
        ("cluster-removal", "random_state", "0"),
    ],
)
def test_a_parameter_of_another_repair_that_breaks_its_rule_is_refused(
    folder, raises, name, parameter, value
):
    header, tensors = forging.fresh(name)
    header["params"][parameter] = value
    forging.forge(folder / "r", header, tensors)
    raises(isotropy.load, folder / "r", error=RepairFileError, says="holds no valid repair")


def deep(n):
    return "[" * n + "]" * n


TEXTS = {
    "no JSON": ("hello", "damaged header: it is not valid JSON"),
    "nothing": ("", "damaged header: it is not valid JSON"),
    "a list": ("[]", "the header must be an object"),
    "a number": ("5", "the header must be an object"),
    "null": ("null", "the header must be an object"),
    "deep lists": (deep(100_000), "nested too deeply"),
    "deep objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    "deep params": (f'{{"format": 1, "method": "center", "params": {deep(900)}}}', "too deeply"),
    "a key twice": ('{"format": 1, "format": 1, "method": "center"}', "names 'format' twice"),
    "a long key twice": (f'{{"{"k" * 9999}": 1, "{"k" * 9999}": 2}}', "twice"),
    "no format": ('{"method": "center"}', "format must be an integer, got None"),
    "format as text": ('{"format": "1", "method": "center"}', "format must be an integer"),
    "format as true": ('{"format": true, "method": "center"}', "format must be an integer"),
    "format as a float": ('{"format": 1.0, "method": "center"}', "format must be an integer"),
    "a huge format": (f'{{"format": {"9" * 4000}, "method": "center"}}', "Upgrade isotropy"),
    "a format of too many digits": (f'{{"format": {"9" * 9000}}}', "damaged header"),
    "no method": ('{"format": 1}', "method must be a name"),
    "method as a list": ('{"format": 1, "method": ["center"]}', "method must be a name"),
    "an unknown method": ('{"format": 1, "method": "magic"}', "holds 'magic' in format 1"),
    "a method of many letters": (f'{{"format": 1, "method": "{"m" * 99999}"}}', "Upgrade"),
    "a method with escapes": ('{"format": 1, "method": "\\u001b[31m\\u202e"}', "Upgrade"),
    "versions as a list": ('{"format": 2, "method": "center", "versions": [1]}', "Upgrade"),
    "a version with escapes": (
        '{"format": 2, "method": "center", "versions": {"isotropy": "\\u001b]0;x\\u0007\\n"}}',
        "Upgrade isotropy",
    ),
    "no checksum": ('{"format": 1, "method": "center"}', "its checksum does not fit"),
    "checksum as text": ('{"format": 1, "method": "center", "checksum": "1"}', "checksum"),
    "half a surrogate": ('{"format": 1, "method": "\\ud800"}', "Upgrade isotropy"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_header_that_is_no_header_is_refused(folder, refused, case):
    text, says = TEXTS[case]
    forging.forge_text(folder / "r", text)
    refused("show", "r", says=says)


BYTES = {
    "nothing": b"",
    "a length and no more": (10**6).to_bytes(8, "little"),
    "a length past every file": (2**63 - 1).to_bytes(8, "little") + b"{}",
    "metadata that is not UTF-8": (
        len(b'{"__metadata__":{"isotropy.repair":"\xff\xfe"}}').to_bytes(8, "little")
        + b'{"__metadata__":{"isotropy.repair":"\xff\xfe"}}'
    ),
    "deep metadata": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "zeros": bytes(10_000),
    "metadata that is a number": (
        len(b'{"__metadata__":{"isotropy.repair":5}}').to_bytes(8, "little")
        + b'{"__metadata__":{"isotropy.repair":5}}'
    ),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_that_are_no_file_are_refused(folder, refused, case):
    (folder / "r").write_bytes(BYTES[case])
    refused("show", "r", says="is damaged or not a safetensors file")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_dtype_that_numpy_lacks_is_refused(folder, raises, dtype):
    width = 1 if dtype.startswith("float8") else 2
    code = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}[dtype]
    table = {"mean_": {"dtype": code, "shape": [2], "data_offsets": [0, 2 * width]}}
    table["__metadata__"] = {"isotropy.repair": json.dumps(forging.parts("center")[0])}
    text = json.dumps(table).encode()
    (folder / "r").write_bytes(len(text).to_bytes(8, "little") + text + bytes(2 * width))
    raises(isotropy.load, folder / "r", error=RepairFileError, says="mean_ is")


@pytest.mark.parametrize("path", ["gone", ".", "r\x1b[31m\nx", "a" * 200])
def test_what_is_no_file_is_refused(refused, path):
    refused("show", path, says="does not exist, or is not a file")


ODD = {
    "ANSI": "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "newlines": "one\ntwo\rthree\x0bfour\u2028five\u2029six\x85seven",
    "bidi": "\u202eevil\u202c\u2066x\u2069\u200f",
    "nul": "a\x00b",
    "a surrogate": "\ud800",
    "the longest": "\x1b" * 10_000,
}


@pytest.mark.parametrize("where", ["note", "time", "version", "feature names"])
@pytest.mark.parametrize("text", ODD)
def test_odd_characters_do_not_reach_the_terminal(folder, done, text, where):
    header, tensors = forging.fresh("center")
    odd = ODD[text]
    header |= {
        "note": {"note": odd},
        "time": {"time": odd},
        "version": {"versions": {"isotropy": odd}},
        "feature names": {"feature_names": [odd] * forging.D},
    }[where]
    forging.forge(folder / "r", header, tensors)
    lines = done("show", "r").stdout.splitlines()
    assert len(lines) == 9
    assert all(line.isprintable() and len(line) <= 2100 for line in lines)
    found = json.loads(done("show", "r", "--json").stdout)
    assert (found["note"], found["time"]) == (header["note"], header["time"])


OUT_OF_RANGE = {
    "a mean that no float32 reaches": ("center", "mean_", 1e200),
    "a scale that is nearly zero": ("standardize", "scale_", 5e-324),
    "a factor that is nearly infinite": ("whiten", "scale_", 1e308),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_a_repair_whose_rows_would_not_be_finite_writes_none(folder, refused, case):
    name, tensor, value = OUT_OF_RANGE[case]
    header, tensors = forging.fresh(name)
    tensors[tensor][:] = value
    forging.forge(folder / "r", header, tensors)
    np.save("x.npy", forging.ROWS.astype(np.float32) * 1e30)
    refused("apply", "r", "x.npy", "--out", "y.npy", says="the rows must fit float32, got ")


LOADED = ["center", "standardize", "scaled-center", "all-but-the-top", "whiten", "pca"]
LOADED += ["cluster-removal", "rotate", "hadamard", "chain", "nested"]


@pytest.mark.parametrize("name", LOADED)
def test_what_was_saved_is_what_is_loaded(folder, name):
    forging.forge(folder / "r", *forging.fresh(name))
    expected = forging.REPAIRS[name]().fit(forging.ROWS)
    found = isotropy.load(folder / "r")
    np.testing.assert_array_equal(found.transform(forging.ROWS), expected.transform(forging.ROWS))


@pytest.mark.parametrize("name", LOADED)
def test_a_file_without_what_came_later_is_loaded(folder, name):
    header, tensors = forging.fresh(name)
    del header["level"]
    tensors = {k: v for k, v in tensors.items() if not k.startswith("moments.")}
    forging.forge(folder / "r", header, tensors)
    assert isotropy.load(folder / "r").level_ == ""


def test_every_repair_declares_what_it_saves():
    for kind in (Repair.by_name | Repair.trained_by_name).values():
        if kind.__module__.startswith("isotropy."):
            assert kind.learned, kind
            assert all("n_features" in f.shape for k, f in kind.learned.items() if k == "mean_")


@pytest.mark.parametrize(
    "change",
    [
        {"n_levels": 3, "hidden": 4},
        {"n_steps": 10**9},
        {"hidden": 10**9},
        {"hidden": 0},
        {"n_levels": "3"},
        {"random_state": 2**70},
        {"learning_rate": NAN},
        {"batch_size": True},
    ],
)
def test_a_flow_that_asks_for_another_network_is_refused(folder, raises, change):
    pytest.importorskip("torch")
    from isotropy.repairs.trained import n_weights

    n = n_weights(forging.D, 2, 1, 3)
    header = forging.fresh("center")[0] | {"method": "flow"}
    header["params"] = {"n_levels": 2, "n_steps": 1, "hidden": 3} | change
    tensors = {"mean_": np.zeros(6), "scale_": np.ones(6), "weights_": np.zeros(n)}
    forging.forge(folder / "r", header, tensors)
    raises(isotropy.load, folder / "r", error=RepairFileError, says="holds no valid repair")


@pytest.mark.parametrize("how", ["none", "nan", "one more", "float32"])
def test_a_flow_with_other_weights_is_refused_and_the_right_one_loaded(folder, raises, how):
    pytest.importorskip("torch")
    from isotropy.repairs.trained import n_weights

    n = n_weights(forging.D, 2, 1, 3)
    header = forging.fresh("center")[0] | {"method": "flow"}
    header["params"] = {"n_levels": 2, "n_steps": 1, "hidden": 3}
    tensors = {"mean_": np.zeros(6), "scale_": np.ones(6), "weights_": np.zeros(n)}
    forging.forge(folder / "r", header, tensors)
    assert np.isfinite(isotropy.load(folder / "r").transform(forging.ROWS)).all()
    weights = {
        "none": np.zeros(0),
        "nan": np.full(n, NAN),
        "one more": np.zeros(n + 1),
        "float32": np.zeros(n, dtype=np.float32),
    }
    forging.forge(folder / "r", header, tensors | {"weights_": weights[how]})
    raises(isotropy.load, folder / "r", error=RepairFileError, says="weights_ must")


@pytest.mark.parametrize(
    "change",
    [
        {"weight_": np.eye(5)},
        {"weight_": np.full((6, 6), INF)},
        {"bias_": np.zeros((6, 1))},
        {"n_epochs_": np.array(0)},
        {"n_epochs_": np.array(51)},
        {"n_epochs_": np.array(1.0)},
    ],
)
def test_a_learned_layer_that_cannot_be_is_refused(folder, raises, change):
    header = forging.fresh("center")[0] | {"method": "learned-layer", "params": {}}
    tensors = {"weight_": np.eye(6), "bias_": np.zeros(6), "n_epochs_": np.array(3)}
    forging.forge(folder / "r", header, tensors)
    np.testing.assert_array_equal(isotropy.load("r").transform(forging.ROWS), forging.ROWS)
    forging.forge(folder / "r", header, tensors | change)
    raises(isotropy.load, "r", error=RepairFileError, says=next(iter(change)))


SCORES = {
    "not ascending": np.array([0.5, 0.1], dtype=np.float32),
    "above one": np.array([0.5, 1.5], dtype=np.float32),
    "NaN": np.array([0.5, NAN], dtype=np.float32),
    "of float64": np.array([0.1, 0.5]),
    "of float16": np.array([0.1, 0.5], dtype=np.float16),
    "a matrix": np.zeros((2, 2), dtype=np.float32),
    "one number": np.array(0.5, dtype=np.float32),
    "none": np.zeros(0, dtype=np.float32),
    "more than asked for": np.zeros(101, dtype=np.float32),
}


@pytest.mark.parametrize("case", SCORES)
def test_scores_that_cannot_be_are_refused(folder, raises, case):
    header, _ = forging.fresh(forging.CALIBRATOR)
    forging.forge(folder / "c", header, {"scores_": SCORES[case]}, forging.CALIBRATOR)
    raises(ScoreCalibrator.load, folder / "c", error=RepairFileError, says="scores_ must ")


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"n_pairs": "many"}},
        {"params": {"n_pairs": 0}},
        {"params": {"n_pairs": True}},
        {"params": {"random_state": -1}},
        {"params": {"colour": 1}},
        {"params": []},
        {"n_features": 0},
        {"n_samples": None},
        {"repair": 5},
        {"repair": ["center"]},
        {"note": None},
        {"note": "a" * 100_000},
        {"method": "center"},
    ],
    ids=str,
)
def test_a_calibrator_with_another_header_is_refused(folder, raises, change):
    header, tensors = forging.fresh(forging.CALIBRATOR)
    forging.forge(folder / "c", header | change, tensors, forging.CALIBRATOR)
    raises(ScoreCalibrator.load, folder / "c", error=RepairFileError, says="load: ")


def test_a_note_that_could_not_be_loaded_is_not_saved(folder, raises):
    repair = isotropy.Center().fit(forging.ROWS)
    raises(repair.save, "r", note="a" * 10_001, says="save: note must have at most 10,000")
    raises(repair.save, "r", note=5, says="save: note must be text, got 5")
    repair.save("r", note="a" * 10_000)
    assert len(isotropy.load("r").note_) == 10_000


def test_a_quadrillion_features_take_no_memory(folder):
    header, tensors = forging.fresh("scaled-center")
    forging.forge(folder / "r", header | {"n_features": 10**15}, tensors)
    code = """
import resource, sys
from isotropy.cli import app
limit = 4 << 30  # of addresses, most of which libraries only reserve
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.argv = ["isotropy", "show", "r"]
app()
"""
    pytest.importorskip("resource")
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder
    )
    assert found.returncode == 2, found.stderr
    assert "holds no valid repair" in found.stderr
    assert found.stderr.count("\n") == 1
