"""What every statistic of isotropy.stats promises, found automatically."""

import copy
import inspect
import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotropy import stats
from isotropy.errors import InputError
from isotropy.stats import ClusterMoments, Moments, Projections, Statistic

N, D = 120, 5
RANDOM = np.random.default_rng(4)
ROWS = RANDOM.exponential(size=(N, D)) * np.linspace(2, 0.5, D) - 0.5
ROWS[[3, 50]] = 0.0
WEIGHTS = RANDOM.integers(0, 4, N).astype(float)
SETTINGS = {
    "basis": np.linalg.qr(RANDOM.standard_normal((D, D)))[0],
    "centroids": RANDOM.standard_normal((3, D)) * 2,
    "size": 17,
}
OTHER_SETTINGS = {
    "basis": np.eye(D),
    "centroids": np.zeros((3, D)),
    "size": 18,
    "seed": 1,
    "center": np.ones(D),
}
OWN_SETTINGS = {Projections: {"basis": SETTINGS["basis"][:, :2]}}  # all of it leaves no rest
KINDS = [kind for kind in map(stats.__dict__.get, stats.__all__) if kind is not Statistic]
FAST = settings(max_examples=30, derandomize=True, deadline=None)

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
splits = st.lists(st.integers(1, N - 1), max_size=6, unique=True).map(sorted)


def fresh(kind, **changed):
    """An empty statistic, its required arguments taken from SETTINGS."""
    parameters = inspect.signature(kind).parameters
    unknown = {p.name for p in parameters.values() if p.default is p.empty} - SETTINGS.keys()
    assert not unknown, f"say in SETTINGS what {kind.__name__} should get as {unknown}"
    given = SETTINGS | OWN_SETTINGS.get(kind, {}) | changed
    return kind(**{k: v for k, v in given.items() if k in parameters})


def values(statistic):
    """What a statistic knows, whatever point its sums were taken about."""
    if isinstance(statistic, ClusterMoments):
        parts = [values(c) for c in statistic.clusters]
        return {f"{i}.{k}": v for i, part in enumerate(parts) for k, v in part.items()}
    if not isinstance(statistic, Moments):
        return statistic.state()
    if statistic.weight == 0:
        return {"n_rows": statistic.n_rows, "weight": statistic.weight}
    centred = statistic.centred
    return {
        "n_rows": statistic.n_rows,
        "weight": statistic.weight,
        "mean": statistic.mean,
        "scatter": statistic.scatter,
        "third": centred.third,
        "fourth": centred.fourth,
        "resolution": statistic.resolution,
    }


def assert_same(found, expected, tolerance=1e-12):
    """Equal up to `tolerance` of the largest entry of each array."""
    found, expected = values(found), values(expected)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        got, wanted = np.asarray(found[name]), np.asarray(wanted)
        assert got.shape == wanted.shape, name
        if wanted.dtype.kind in "iu":
            np.testing.assert_array_equal(got, wanted, err_msg=name)
            continue
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-300)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * size, err_msg=name)


def parts_of(kind, X, cuts, w=None, **changed):
    bounds = [0, *cuts, len(X)]
    return [
        fresh(kind, **changed).update(X[a:b], None if w is None else w[a:b], first_row=a)
        for a, b in pairwise(bounds)
    ]


def test_every_kind_of_statistic_is_found():
    assert {"Moments", "Directions", "LogPartition", "ClusterMoments", "Sample"} <= {
        kind.__name__ for kind in KINDS
    }


@each_kind
@pytest.mark.parametrize("offset", [0.0, 1e6])
@FAST
@given(cuts=splits, data=st.data())
def test_any_split_and_merge_order_equals_one_pass(kind, offset, cuts, data):
    X, moved = ROWS + offset, {"centroids": SETTINGS["centroids"] + offset}
    w = data.draw(st.sampled_from([None, WEIGHTS]))
    parts = parts_of(kind, X, cuts, w, **moved)
    while len(parts) > 1:
        taken = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts[data.draw(st.integers(0, len(parts) - 1))].merge(taken)
    assert_same(parts[0], fresh(kind, **moved).update(X, w))


@each_kind
@FAST
@given(cuts=splits)
def test_updating_in_parts_equals_one_pass(kind, cuts):
    statistic = fresh(kind)
    for a, b in pairwise([0, *cuts, N]):
        statistic.update(ROWS[a:b], first_row=a)
    assert_same(statistic, fresh(kind).update(ROWS))


@each_kind
def test_empty_is_the_identity_on_both_sides(kind):
    whole = fresh(kind).update(ROWS, WEIGHTS)
    assert_same(fresh(kind).merge(whole), whole)
    assert_same(fresh(kind).update(ROWS, WEIGHTS).merge(fresh(kind)), whole)
    assert_same(fresh(kind).merge(fresh(kind)), fresh(kind))
    assert_same(fresh(kind).merge(fresh(kind)).update(ROWS, WEIGHTS), whole)
    assert_same(whole.empty(), fresh(kind))
    assert_same(whole.empty().update(ROWS, WEIGHTS), whole)


@each_kind
def test_merging_is_associative(kind):
    def three():
        return parts_of(kind, ROWS, [30, 75])

    a, b, c = three()
    left = a.merge(b).merge(c)
    a, b, c = three()
    assert_same(left, a.merge(b.merge(c)))


@each_kind
def test_merge_leaves_the_other_as_it_was(kind):
    left, right = parts_of(kind, ROWS, [40])
    for mine in (fresh(kind), left):
        before = copy.deepcopy(right.state())
        mine.merge(right).update(ROWS[:10], first_row=1000)
        for name, value in right.state().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


@each_kind
def test_rows_and_weights_are_not_modified(kind):
    X, w = ROWS.copy(), WEIGHTS.copy()
    X.flags.writeable = w.flags.writeable = False
    fresh(kind).update(X, w).update(X[:5], first_row=N)
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(w, WEIGHTS)


@each_kind
@pytest.mark.parametrize("n_rows", [0, N])
def test_state_is_plain_arrays_that_bring_the_statistic_back(kind, n_rows):
    statistic = fresh(kind)
    if n_rows:
        statistic.update(ROWS)
    file = io.BytesIO()
    np.savez(file, **statistic.state())
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as saved:
        back = kind.from_state(dict(saved))
    assert back.state().keys() == statistic.state().keys()
    for name, value in statistic.state().items():
        np.testing.assert_array_equal(back.state()[name], value, err_msg=name)
    more = ROWS[:7] + 1
    assert_same(back.update(more, first_row=N), statistic.update(more, first_row=N), 0)
    assert_same(fresh(kind).merge(back), statistic)


@each_kind
def test_a_state_is_not_changed_by_later_updates(kind):
    statistic = fresh(kind).update(ROWS[:60])
    state = statistic.state()
    before = copy.deepcopy(state)
    again = kind.from_state(state)
    statistic.update(ROWS[60:], first_row=60)
    again.update(ROWS[60:], first_row=60)
    for name, value in before.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
    assert_same(again, statistic)


@each_kind
def test_rows_of_another_width_are_refused(kind):
    narrow = np.ones((4, D - 1))
    with pytest.raises(InputError, match=f"rows must have {D} features .* got {D - 1}"):
        fresh(kind).update(ROWS).update(narrow, first_row=N)


@each_kind
def test_states_that_do_not_fit_refuse_to_merge(kind):
    whole = fresh(kind).update(ROWS)
    stranger = next(other for other in KINDS if other is not kind)
    with pytest.raises(InputError, match=f"{kind.__name__}: other must be of the same kind, got"):
        whole.merge(fresh(stranger))
    settable = [name for name in inspect.signature(kind).parameters if name in OTHER_SETTINGS]
    for name in settable:
        other = fresh(kind, **{name: OTHER_SETTINGS[name]})
        with pytest.raises(InputError, match=f"{kind.__name__}: other must have"):
            whole.merge(other)
    if not settable:
        narrow = fresh(kind).update(np.ones((4, D - 1)))
        with pytest.raises(InputError, match=f"rows must have {D} features .* got {D - 1}"):
            whole.merge(narrow)


@each_kind
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8"])
def test_torch_tensors_equal_numpy_arrays(kind, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = torch.asarray(np.abs(ROWS) * 8).to(getattr(torch, dtype))
    wide = torch.float64 if dtype in ("float64", "int64") else torch.float32
    as_tensor = fresh(kind).update(X, torch.asarray(WEIGHTS))
    assert_same(as_tensor, fresh(kind).update(X.to(wide).numpy(), WEIGHTS))
    assert all(isinstance(value, np.ndarray) for value in as_tensor.state().values())
    floats = X.to(wide).numpy()
    mixed = fresh(kind).update(X[:50]).merge(fresh(kind).update(floats[50:], first_row=50))
    assert_same(
        mixed,
        fresh(kind).merge(parts_of(kind, floats, [50])[0]).merge(parts_of(kind, floats, [50])[1]),
    )


@each_kind
def test_tensors_that_require_gradients_are_read_like_others(kind):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = torch.asarray(ROWS).requires_grad_()
    assert_same(fresh(kind).update(X), fresh(kind).update(ROWS))


@each_kind
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("float16", "float32"), ("int8", "float32"), ("int64", "float64"), ("bool", "float32")],
)
def test_narrow_rows_equal_the_same_numbers_in_floats(kind, narrow, wide):
    X = (ROWS * 4).astype(narrow)
    assert_same(fresh(kind).update(X), fresh(kind).update(X.astype(wide)))


@each_kind
def test_rows_of_no_weight_are_rows_that_are_not_there(kind):
    kept = np.flatnonzero(WEIGHTS)
    one_by_one = fresh(kind)
    for i in kept:
        one_by_one.update(ROWS[i : i + 1], WEIGHTS[i : i + 1], first_row=int(i))
    X = ROWS.copy()
    X[WEIGHTS == 0] *= 1e6
    assert_same(fresh(kind).update(X, WEIGHTS), one_by_one, 1e-11)


@each_kind
def test_weights_must_fit_the_rows(kind):
    name = kind.__name__
    for w, message in (
        (np.ones(3), rf"{name}: sample_weight.shape == \(3,\), expected \({N},\)!"),
        (np.ones((N, 1)), f"{name}: Sample weights must be 1D array or scalar, got 2D"),
        (-np.ones(N), f"{name}: sample_weight must not be negative, got -1"),
        (np.full(N, np.nan), f"{name}: sample_weight must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            fresh(kind).update(ROWS, w)
