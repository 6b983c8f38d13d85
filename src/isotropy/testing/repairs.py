"""check_repair: what every repair promises, scikit-learn's checks included."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from isotropy.errors import InputError, IsotropyWarning, NotAffineError
from isotropy.linalg import Floats
from isotropy.repairs import Repair, load
from isotropy.testing.common import expect, expect_close, expect_equal, expect_refused, run


def check_repair(repair: Repair, expected_failed_checks: Mapping[str, str] | None = None) -> None:
    """Check a repair: scikit-learn's checks, files, dtypes, tensors, merging, shifts.

    Parameters
    ----------
    repair : Repair
        Not fitted; it is cloned.
    expected_failed_checks : mapping of str to str, optional
        Checks to leave out, scikit-learn's or ours, each with the reason.

    Raises
    ------
    AssertionError
        If a check fails; the message begins with its name. Scikit-learn's checks raise errors of
        their own.

    Examples
    --------
    >>> import isotropy
    >>> check_repair(isotropy.Center())
    """
    excused = dict(expected_failed_checks or {})
    ours = {check.__name__ for check in REPAIR_CHECKS} & excused.keys()
    theirs = {name: reason for name, reason in excused.items() if name not in ours}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        check_estimator(repair, expected_failed_checks=theirs, on_skip=None)
        run(REPAIR_CHECKS, {name: excused[name] for name in ours}, repair)


def rows() -> Floats:
    """Correlated rows with a mean of their own."""
    random = np.random.default_rng(0)
    found: Floats = random.standard_normal((400, 12)) @ random.standard_normal((12, 12)) + 3
    return found


def fitted(repair: Repair, X: Any = None) -> Repair:
    """A clone that was fitted on these rows."""
    found: Repair = clone(repair).fit(rows() if X is None else X)
    return found


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "repair.safetensors"


def _saved_and_loaded(repair: Repair, **options: Any) -> Repair:
    with _file() as path:
        repair.save(path, **options)
        return load(path)


def _values(repair: Repair) -> dict[str, Any]:
    """The parameters, without repairs, whose own parameters are among them."""
    found = repair.get_params().items()
    return {name: value for name, value in found if not isinstance(value, (Repair, list))}


def _turned(found: Any, wanted: Any) -> Any:
    """found with the signs of wanted's columns, as a principal component has no sign."""
    signs = np.sign((found * wanted).sum(axis=0))
    return found * np.where(signs == 0, 1, signs)


def check_fit_and_transform_leave_the_rows_as_they_were(repair: Repair) -> None:
    X = rows()
    fitted(repair, X).transform(X)
    expect_equal(X, rows(), "the rows")


def check_the_same_fit_gives_the_same_digits(repair: Repair) -> None:
    X = rows()
    expect_equal(clone(repair).fit_transform(X), clone(repair).fit_transform(X), "repaired rows")


def check_save_then_load_is_equal(repair: Repair) -> None:
    X = rows()
    repair = fitted(repair)
    loaded = _saved_and_loaded(repair, note="some text")
    expect(type(loaded) is type(repair), f"load gives {type(loaded).__name__}")
    expect(_values(loaded) == _values(repair), "the loaded repair has other parameters")
    expect(loaded.note_ == "some text", "the note must be kept")
    expect(loaded.n_samples_seen_ == len(X), f"n_samples_seen_ is {loaded.n_samples_seen_}")
    expect_equal(loaded.transform(X), repair.transform(X), "rows repaired by the loaded repair")


def check_feature_names_are_kept(repair: Repair) -> None:
    if find_spec("pandas") is None:
        return
    pandas: Any = importlib.import_module("pandas")
    X = rows()
    frame = pandas.DataFrame(X, columns=[f"d{i}" for i in range(X.shape[1])])
    named = fitted(repair, frame)
    loaded = _saved_and_loaded(named).get_feature_names_out()
    expect_equal(loaded, named.get_feature_names_out(), "names of the loaded repair")
    shown = clone(repair).set_output(transform="pandas")
    columns = list(shown.fit_transform(X).columns)
    expect_equal(columns, shown.get_feature_names_out(), "columns of set_output")


def check_transform_keeps_the_dtype(repair: Repair) -> None:
    for dtype in ("float16", "float32", "float64"):
        X = rows().astype(dtype)
        found = fitted(repair, X).transform(X).dtype
        expect(found == dtype, f"{dtype} rows become {found}")


def check_float32_and_float64_agree(repair: Repair) -> None:
    X, single = rows(), rows().astype(np.float32)
    wanted, found = fitted(repair, X).transform(X), fitted(repair, single).transform(single)
    expect_close(_turned(found, wanted), wanted, 2e-4, "rows repaired in float32")


def check_many_rows_are_treated_like_few(repair: Repair) -> None:
    wide = np.random.default_rng(1).standard_normal((10_000, 720), dtype=np.float32)
    repair = fitted(repair, wide[:2000])
    together = repair.transform(wide)
    parts = np.concatenate([repair.transform(part) for part in np.array_split(wide, 7)])
    size = 1e-4 * np.abs(together).max()
    np.testing.assert_allclose(parts, together, rtol=1e-4, atol=size)


def check_tensors_stay_tensors(repair: Repair) -> None:
    if find_spec("torch") is None:
        return
    import torch

    for dtype in ("float32", "float64", "bfloat16", "float16"):
        X = torch.from_numpy(rows()).to(getattr(torch, dtype)).requires_grad_()
        found = fitted(repair, X).transform(X)
        expect(isinstance(found, torch.Tensor), f"tensors become {type(found).__name__}")
        expect(found.dtype == X.dtype, f"{dtype} tensors become {found.dtype}")
        double = X.detach().double().numpy()
        wanted = fitted(repair, double).transform(double)
        tolerance = {"float64": 1e-9, "float32": 2e-4}.get(dtype, 0.05)
        turned = _turned(found.detach().double().numpy(), wanted)
        expect_close(turned, wanted, tolerance, f"repaired {dtype} tensors")


def check_affine_form_equals_transform(repair: Repair) -> None:
    X, repair = rows(), fitted(repair)
    try:
        A, b = repair.affine()
    except NotAffineError:
        return
    expect(not repair.normalize, "normalize=True is not affine")
    np.testing.assert_allclose(X @ A.T + b, repair.transform(X), atol=1e-9)


def check_inverse_leads_back(repair: Repair) -> None:
    X, repair = rows(), fitted(repair)
    if not hasattr(repair, "inverse_transform"):
        return
    expect(not repair.normalize, "normalize=True has no inverse")
    repaired = repair.transform(X)
    back = repair.inverse_transform(repaired)
    if repaired.shape == X.shape:
        np.testing.assert_allclose(back, X, atol=1e-8)
    else:  # of fewer components there is one way back that they share
        np.testing.assert_allclose(repair.transform(back), repaired, atol=1e-8)


def check_parts_fitted_apart_equal_one_fit(repair: Repair) -> None:
    X = rows()
    if not hasattr(repair, "partial_fit"):
        return
    wanted = fitted(repair).transform(X)
    one: Any = clone(repair)
    streamed = one.partial_fit(X[:7]).partial_fit(X[7:300]).partial_fit(X[300:])
    other: Any = fitted(repair, X[:150])
    merged = other.merge(fitted(repair, X[150:]))
    for found in (streamed, merged):
        np.testing.assert_allclose(found.transform(X), wanted, atol=1e-9)
        expect(found.n_samples_seen_ == len(X), f"n_samples_seen_ is {found.n_samples_seen_}")
        wanted_shift = dataclasses.astuple(fitted(repair).shift(1.5 * X[:100] - 1))
        found_shift = dataclasses.astuple(found.shift(1.5 * X[:100] - 1))
        np.testing.assert_allclose(found_shift, wanted_shift, rtol=1e-6, atol=1e-12)


def check_shift_tells_fitted_rows_from_moved_ones(repair: Repair) -> None:
    X = rows()
    same = fitted(repair).shift(X)
    expect(same.n_samples == len(X), f"n_samples is {same.n_samples}")
    expect(same.mean_shift < 1e-9, f"the mean of the fitted rows is {same.mean_shift} away")
    expect(same.frechet < 1e-9, f"the fitted rows are at distance {same.frechet}")
    expect(same.outside < 0.03, f"{same.outside} of the fitted rows are outside")
    expect(not same.large, "the shift of the fitted rows must not be large")
    expect(not fitted(repair, X[::2]).shift(X[1::2]).large, "one half must be near the other")
    far = fitted(repair).shift(X + 3 * X.std(axis=0))
    expect(far.large, "three standard deviations must be a large shift")
    expect(abs(far.mean_shift - 3) < 3e-6, f"the mean shift is {far.mean_shift}, not 3")
    new = 1.5 * X[:100] - 1
    loaded = _saved_and_loaded(fitted(repair))
    expect(loaded.shift(new) == fitted(repair).shift(new), "shift must not change by saving")


def check_rows_of_another_width_are_refused(repair: Repair) -> None:
    narrow, found = rows()[:, :5], fitted(repair)
    message = f"X has 5 features, but {type(repair).__name__} is expecting 12 features"
    expect_refused(partial(found.transform, narrow), message)
    expect_refused(partial(found.shift, narrow), message)
    if hasattr(found, "inverse_transform"):
        message = f"features, but {type(repair).__name__} is expecting"
        expect_refused(partial(found.inverse_transform, narrow[:, :1]), message)
    expect_refused(partial(clone(repair).shift, rows()), "not fitted yet")


def check_normalize_gives_unit_rows(repair: Repair) -> None:
    norms = np.linalg.norm(clone(repair).fit_transform(rows()), axis=1)
    expect(np.allclose(norms, 1) == repair.normalize, "rows must have norm 1 only with normalize")


def check_it_works_in_a_pipeline(repair: Repair) -> None:
    found = make_pipeline(StandardScaler(), clone(repair)).fit_transform(rows())
    expect(np.isfinite(found).all(), "repaired rows must be finite")


def awkward() -> dict[str, Floats]:
    """Rows that are easy to get wrong."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        found: Floats = random.standard_normal(shape)
        return found

    return {
        "few": normal(3, 40),
        "one": normal(1, 5),
        "constant": np.ones((50, 6)),
        "zero": np.zeros((30, 4)),
        "duplicate": np.repeat(normal(4, 6), 25, axis=0),
        "constant in a dimension": np.where(np.arange(8) == 3, 1.5, normal(60, 8)),
        "partly zero": np.where(np.arange(60)[:, None] % 7 == 0, 0.0, normal(60, 8)),
        "shifted": normal(60, 8) + 1e6,
        "one-dimensional": normal(60, 1),
        "large": 1e5 * normal(60, 8),
    }


def check_awkward_rows_give_finite_rows(repair: Repair) -> None:
    for name, wide in awkward().items():
        for dtype in ("float32", "float64"):
            X = wide.astype(dtype)
            try:
                found = fitted(repair, X)
            except InputError as error:  # more components than dimensions
                names = (name.rpartition("__")[2] for name in repair.get_params())
                known = X.shape[1] == 1 and any(name in str(error) for name in names)
                expect(known, f"rows that are {name} must not be refused, got: {error}")
                continue
            new = X + np.random.default_rng(1).standard_normal(X.shape).astype(dtype)
            for part in (X, new):
                finite = np.isfinite(found.transform(part)).all()
                expect(finite, f"{dtype} rows that are {name} must give finite rows")
            distance = found.shift(X).frechet  # a float32 step where rows are far away
            expect(distance < 1e-3, f"{dtype} rows that are {name} are {distance} from themselves")
            known = not np.isnan(dataclasses.astuple(found.shift(new))).any()
            expect(known, f"the shift of {dtype} rows that are {name} must not be NaN")


def check_bad_rows_are_named(repair: Repair) -> None:
    X = rows()
    X[[17, 30], 2] = np.nan
    for call in (clone(repair).fit, fitted(repair).transform):
        expect_refused(partial(call, X), rf"^{type(repair).__name__}: .* in 2 rows \(first: 17\b")


REPAIR_CHECKS = [
    check_fit_and_transform_leave_the_rows_as_they_were,
    check_the_same_fit_gives_the_same_digits,
    check_save_then_load_is_equal,
    check_feature_names_are_kept,
    check_transform_keeps_the_dtype,
    check_float32_and_float64_agree,
    check_many_rows_are_treated_like_few,
    check_tensors_stay_tensors,
    check_affine_form_equals_transform,
    check_inverse_leads_back,
    check_parts_fitted_apart_equal_one_fit,
    check_shift_tells_fitted_rows_from_moved_ones,
    check_rows_of_another_width_are_refused,
    check_normalize_gives_unit_rows,
    check_it_works_in_a_pipeline,
    check_awkward_rows_give_finite_rows,
    check_bad_rows_are_named,
]
