"""Random changes to everything that is loaded: it works, or one clear line says why not."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy import stored
from isotropy.errors import InputError, IsotropyError, IsotropyWarning, RepairFileError
from isotropy.repairs import ScoreCalibrator

from . import forging
from .conftest import one_clear_line
from .fuzzing import fuzzed

SOME = forging.ROWS[:5]
UNREAD = {"note", "time", "versions", "feature_names", "n_samples", "level", "checksum"}


ODD = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 6, 7, 10**15, 10**400, 0.5, -0.0, 1e308, float("nan"),
     float("inf"), "", "auto", "zca", "pca", "top", "bottom", "token", "\x1b[31m",
     "\u202e", "\ud800", [], {}, [[]], {"a": []}, "x" * 2000]
).map(copy.deepcopy)  # fmt: skip
ANY = st.recursive(
    ODD | st.integers() | st.floats() | st.text(max_size=8),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3)
    ),
    max_leaves=4,
)
DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint64", "uint8", "bool"]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 6, 7]), max_size=3).map(tuple)


def values(dtype):
    """Values that the dtype holds, or that it rounds."""
    usual = [0, 1, -1, 3, 100, -100]
    if dtype.kind == "f":
        return st.sampled_from(usual) | st.floats(width=32)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.uint8)
    low, high = max(limits.min, -(2**40)), min(limits.max, 2**40)
    return st.sampled_from([x for x in usual if low <= x <= high]) | st.integers(low, high)


@st.composite
def array(draw, like):
    """An array that is like another in some respects."""
    how = draw(st.sampled_from(["values", "value", "shape", "dtype", "scaled", "swapped", "any"]))
    if how == "values":
        return draw(arrays_of.arrays(like.dtype, like.shape))
    if how == "value" and like.size:
        changed = like.copy()
        place, value = draw(st.integers(0, like.size - 1)), draw(values(like.dtype))
        with np.errstate(all="ignore"):
            changed.flat[place] = value
        return changed
    if how == "shape":
        size = draw(SHAPES)
        return np.resize(like, size) if like.size else np.zeros(size, dtype=like.dtype)
    if how == "dtype":
        with np.errstate(all="ignore"):
            return like.astype(draw(st.sampled_from(DTYPES)))
    if how == "scaled":
        with np.errstate(all="ignore"):
            return np.asarray(like * draw(st.floats())).astype(like.dtype)
    if how == "swapped":
        return np.ascontiguousarray(like.T if like.ndim > 1 else like[::-1] if like.ndim else like)
    return draw(arrays_of.arrays(draw(st.sampled_from(DTYPES)), draw(SHAPES)))


@st.composite
def forged(draw, names):
    """(name, header, tensors) with a few things changed, added or taken away."""
    name = draw(st.sampled_from(names))
    header, tensors = forging.fresh(name)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["header", "header", "param", "tensor", "tensor", "tensor"]))
        if kind == "tensor":
            key = draw(st.sampled_from([*sorted(forging.parts(name)[1]), "moments.weight", "x"]))
            if key in tensors and draw(st.booleans()) and draw(st.booleans()):
                del tensors[key]
            else:
                tensors[key] = draw(array(tensors.get(key, np.zeros(3))))
            continue
        place = header
        if kind == "param" and isinstance(header.get("params"), dict):
            place = header["params"]
        key = draw(st.sampled_from([*sorted(place), "level", "side"]) | st.text(max_size=4))
        if draw(st.integers(0, 5)):
            place[key] = draw(ANY)
        else:
            place.pop(key, None)
    return name, header, tensors


def loaded(load, path):
    """What is loaded, or None after one clear line."""
    try:
        return load(path)
    except RepairFileError as error:
        one_clear_line(str(error), "load: ")
    return None


def works(repair, width):
    """A repair gives finite rows of its width, or one clear line."""
    repr(repair)
    for rows in (SOME, SOME.astype(np.float32)):
        try:
            found = repair.transform(rows[:, : repair.n_features_in_])
        except IsotropyError as error:
            one_clear_line(str(error))
            continue
        assert found.shape == (5, width)
        assert found.dtype == rows.dtype
        assert np.isfinite(found).all()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "file"


@fuzzed(1300)
@given(forged(sorted(forging.REPAIRS)))
def test_a_forged_repair_works_or_is_refused(path, case):
    name, header, tensors = case
    forging.forge(path, header, tensors)
    repair = loaded(isotropy.load, path)
    if repair is None:
        return
    works(repair, len(repair.get_feature_names_out()))
    original, kept = forging.parts(name)
    same = {k: v for k, v in header.items() if k not in UNREAD}
    if same == {k: v for k, v in original.items() if k not in UNREAD} and all(
        k in tensors and v.tobytes() == tensors[k].tobytes()
        for k, v in kept.items()
        if "." not in k
    ):
        expected = forging.kept(name).transform(SOME)
        np.testing.assert_array_equal(repair.transform(SOME), expected)


@fuzzed(250)
@given(forged([forging.CALIBRATOR]))
def test_a_forged_calibrator_works_or_is_refused(path, case):
    _, header, tensors = case
    forging.forge(path, header, tensors, forging.CALIBRATOR)
    found = loaded(ScoreCalibrator.load, path)
    if found is not None:
        assert str(found).isprintable()
        assert 0 <= found.percentile(0.3) <= 100
        assert 0 < found.p_value(0.3) <= 1


CHANGE = st.tuples(
    st.sampled_from(["set", "insert", "delete", "cut"]),
    st.integers(0, 10**6),
    st.binary(max_size=9),
)


def damaged(content, changes):
    found = bytearray(content)
    for how, number, data in changes:
        at = number % (len(found) + 1)
        if how == "set":
            found[at : at + len(data)] = data
        elif how == "insert":
            found[at:at] = data
        elif how == "delete":
            del found[at : at + len(data)]
        else:
            del found[at:]
    return bytes(found)


@fuzzed(350)
@given(st.sampled_from([*forging.REPAIRS]), st.lists(CHANGE, min_size=1, max_size=4))
def test_damaged_bytes_are_noticed(path, name, changes):
    forging.forge(path, *forging.parts(name))
    content = path.read_bytes()
    path.write_bytes(damaged(content, changes))
    repair = loaded(isotropy.load, path)
    if repair is not None:
        expected = forging.kept(name).transform(SOME)
        np.testing.assert_array_equal(repair.transform(SOME), expected)


@fuzzed(100)
@given(st.binary(max_size=300) | ANY.map(lambda v: json.dumps(v).encode()))
def test_bytes_of_any_kind_are_refused(path, content):
    path.write_bytes(content)
    assert loaded(isotropy.load, path) is None
    save_file({"mean_": np.zeros(3)}, path, {"isotropy.repair": content.decode("latin-1")})
    assert loaded(isotropy.load, path) is None


METRICS = ["isoscore", "mean_cosine", "norms"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """(rows, folder, bytes of its files, what was measured) of a job that has ended."""
    home = tmp_path_factory.mktemp("checkpoint")
    np.save(home / "x.npy", forging.ROWS)
    source = isotropy.open(home / "x.npy", chunk_rows=50)
    expected = isotropy.measure(source, METRICS, checkpoint=home / "kept").to_dict()
    content = {p: p.read_bytes() for p in sorted((home / "kept").rglob("*")) if p.is_file()}
    return source, home / "kept", content, json.dumps(expected, default=str)


@st.composite
def state(draw, path, content):
    """The bytes of a file of a checkpoint, changed; and whether they may be believed."""
    if draw(st.booleans()):
        return damaged(content, draw(st.lists(CHANGE, min_size=1, max_size=3))), False
    if path.suffix == ".json":
        found = json.loads(content)
        found[draw(st.sampled_from([*found, "x"]))] = draw(ANY)
        return json.dumps(found).encode(), False
    path.write_bytes(content)
    tensors = load_file(path)
    with stored.open_safetensors(path) as file:
        header = json.loads(file.metadata["isotropy.checkpoint"])
    del header["checksum"]
    if draw(st.booleans()):
        header[draw(st.sampled_from([*sorted(header), "x"]))] = draw(ANY)
        altered = False
    else:
        key = draw(st.sampled_from(sorted(tensors)))
        tensors[key] = draw(array(tensors[key]))
        altered = True  # other numbers with a checksum that fits are believed
    whole = header | {"checksum": stored.checksum(header, tensors)}
    save_file(tensors, path, {"isotropy.checkpoint": json.dumps(whole)})
    return path.read_bytes(), altered


@fuzzed(200)
@given(st.data())
def test_a_forged_checkpoint_gives_the_same_digits_or_is_refused(checkpoint, data):
    source, folder, content, expected = checkpoint
    for path, whole in content.items():
        path.write_bytes(whole)
    path = data.draw(st.sampled_from(sorted(content)))
    changed, altered = data.draw(state(path, content[path]))
    path.write_bytes(changed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if altered:  # NaN with its warning
                warnings.simplefilter("ignore", IsotropyWarning)
            found = isotropy.measure(source, METRICS, checkpoint=folder).to_dict()
    except IsotropyError as error:
        one_clear_line(str(error))
        return
    assert altered or json.dumps(found, default=str) == expected


def _places(value, where=()):
    found = [where] if where else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items if isinstance(value, (dict, list)) else ():
        found += [(*where, key)]
        if isinstance(part, (dict, list)):
            found += _places(part, (*where, key))
    return found


@st.composite
def mutated(draw, whole):
    found = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 2))):
        where = draw(st.sampled_from(_places(found) or [()]))
        if not where:
            return draw(ANY)
        part = found
        for key in where[:-1]:
            part = part[key]
        if draw(st.integers(0, 4)):
            part[where[-1]] = draw(ANY)
        else:
            del part[where[-1]]
    return found


@fuzzed(300)
@given(st.data())
def test_evidence_and_layers_are_drawn_or_refused(path, data):
    pytest.importorskip("plotly")
    from isotropy.report import charts, inputs, sections

    from . import test_load_report as known

    whole = data.draw(st.sampled_from([known.LAYERS, known.COMPARED, known.ADVISED]))
    path.write_text(json.dumps(data.draw(mutated(whole))))
    try:
        if whole is known.LAYERS:
            for section in sections.layer_sections(sections.opened_layers(path)):
                json.dumps([figure.to_json() for figure in section.figures])
        else:
            json.dumps(charts.evidence(inputs.opened(path).gains).to_json())
    except InputError as error:
        one_clear_line(str(error))
