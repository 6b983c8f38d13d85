"""Statistics over seeds, against formulas written out and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from isotropy.trial.summary import mean_difference, recorded_geometry, remarks, summary, table


def records(method, scores, task="rte", **more):
    base = {"model": "m", "task": task, "method": method, "metric": "accuracy", "metrics": {}}
    base |= {"status": "finished", "seconds_per_epoch": 2.0, "peak_memory_mb": 10.0}
    return [base | {"score": score} | more for score in scores]


def test_welch_is_the_formula():
    a, b = np.array([0.61, 0.66, 0.64]), np.array([0.58, 0.60, 0.59])
    variances = a.var(ddof=1) / 3, b.var(ddof=1) / 3
    t = (a.mean() - b.mean()) / math.sqrt(sum(variances))
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 2)
    p = 2 * scipy.stats.t.sf(abs(t), freedom)
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    found = mean_difference(a.tolist(), b.tolist())
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.p == pytest.approx(p)
    ends = found.difference - half, found.difference + half
    assert (found.low, found.high) == pytest.approx(ends)


def test_departure_9_the_papers_mark_is_a_two_sample_t_test_with_equal_variances():
    a, b = np.array([0.61, 0.66, 0.64]), np.array([0.58, 0.60, 0.59, 0.61])
    pooled = (2 * a.var(ddof=1) + 3 * b.var(ddof=1)) / 5
    t = (a.mean() - b.mean()) / math.sqrt(pooled * (1 / 3 + 1 / 4))
    expected = 2 * scipy.stats.t.sf(abs(t), 5)
    assert mean_difference(a.tolist(), b.tolist()).p_student == pytest.approx(expected)
    _, row = summary(records("none", b.tolist()) + records("cosine", a.tolist()))
    assert row.p_student == pytest.approx(expected)
    assert row.p != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("scores", "baseline"), [([0.5, 0.5], [0.6, 0.6]), ([0.5], [0.6, 0.7]), ([], [0.6, 0.7])]
)
def test_no_variance_or_too_few_runs_give_nan(scores, baseline):
    found = mean_difference(scores, baseline)
    assert math.isnan(found.p)
    assert math.isnan(found.p_student)


def test_one_side_without_variance_is_still_tested():
    assert 0 < mean_difference([0.5, 0.5, 0.5], [0.6, 0.7, 0.8]).p < 1


def test_rows_have_mean_deviation_median_and_holm_over_methods():
    runs = records("none", [0.50, 0.52, 0.54])
    runs += records("cosine", [0.60, 0.61, 0.65])
    runs += records("flow", [0.40, 0.41, 0.60])
    runs += records("isobn", [0.5, 0.5, 0.5])
    none, cosine, flow, isobn = summary(runs)
    assert (cosine.mean, cosine.median) == pytest.approx((0.62, 0.61))
    assert cosine.sd == pytest.approx(np.std([0.60, 0.61, 0.65], ddof=1))
    assert cosine.difference == pytest.approx(0.10)
    ps = np.array([cosine.p, flow.p, isobn.p])
    smallest, middle, largest = np.sort(ps)
    expected = {smallest: 3 * smallest}
    expected[middle] = max(expected[smallest], 2 * middle)
    expected[largest] = max(expected[middle], largest)
    for row in (cosine, flow, isobn):
        assert row.p_holm == pytest.approx(min(1, expected[row.p]))
    assert math.isnan(none.p)
    assert math.isnan(none.difference)


def test_tasks_are_adjusted_apart():
    runs = records("none", [0.5, 0.6]) + records("cosine", [0.7, 0.9])
    runs += records("none", [0.5, 0.6], "cola") + records("cosine", [0.7, 0.9], "cola")
    assert all(row.p == row.p_holm for row in summary(runs) if row.method == "cosine")


def test_diverged_undefined_and_constant_runs_are_counted_as_what_they_are():
    runs = records("none", [0.5, 0.6, 0.7])
    runs += records("flow", [math.nan], status="diverged") + records("flow", [math.nan, 0.4])
    runs += records("isobn", [0.3, 0.3], metrics={"n_called": 1.0})
    _, flow, isobn = summary(runs)
    assert (flow.n_diverged, isobn.n_one_class) == (1, 2)
    assert flow.mean == 0.4
    assert remarks(flow) == "1 of 3 diverged; 1 of 3 without a defined score"
    assert remarks(isobn) == "2 of 2 called all items the same"
    text = table(summary(runs))
    assert "diverged" in text
    assert "nan" in text


def test_without_none_there_is_nothing_to_compare_with():
    (row,) = summary(records("cosine", [0.5, 0.6]))
    assert math.isnan(row.difference)
    assert row.mean == pytest.approx(0.55)


def test_searches_are_left_out():
    assert summary(records("cosine", [0.5], search=0.2)) == []


def test_geometry_of_runs_without_one_is_nan():
    runs = records("none", [0.5], geometry={"after": {"output": {"i1": 0.9}}})
    runs += records("none", [0.5], geometry={"after": {"output": None}}) + records("none", [0.5])
    found = recorded_geometry(runs, "after", "output", "i1")
    assert found[0] == 0.9
    assert math.isnan(found[1])
    assert math.isnan(found[2])
