"""isotropy watch: what it prints, and its exit code."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app


@pytest.fixture
def X():
    random = np.random.default_rng(0)
    return random.standard_normal((1000, 8)) @ random.standard_normal((8, 8)) + 3


@pytest.fixture
def saved(X, tmp_path):
    isotropy.Whiten().fit(X[:800]).save(tmp_path / "repair", origin=isotropy.repairs.Origin("bert"))
    return tmp_path / "repair"


def watch(saved, rows, *options):
    new = saved.parent / "new.npy"
    np.save(new, rows)
    return CliRunner().invoke(app, ["watch", str(saved), str(new), *map(str, options)])


def test_new_rows_of_the_same_kind_are_within(X, saved):
    result = watch(saved, X[800:])
    assert result.exit_code == 0
    assert result.stdout.startswith("within: Frechet distance 0.0")
    assert "200 rows; means 0." in result.stdout


def test_moved_rows_have_drifted(X, saved):
    moved = X[800:] + 0.5 * X.std(axis=0)
    result = watch(saved, moved)
    assert result.exit_code == 3
    assert result.stdout.startswith("drifted: Frechet distance 0.2")
    assert result.stderr == ""
    result = watch(saved, moved, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found == isotropy.load(saved).drift(moved).to_dict()
    assert found["drifted"] is True
    assert set(found) == {
        "drifted", "limit", "held_out", "frechet", "mean_shift", "outside", "chance", "n_samples",
    }  # fmt: skip


def test_the_limit_can_be_set(X, saved):
    moved = X[800:] + 0.5 * X.std(axis=0)
    assert watch(saved, moved, "--max-drift", 0.5).exit_code == 0
    assert watch(saved, moved, "--max-drift", 0.1).exit_code == 3
    assert watch(saved, moved, "--max-drift", -1).exit_code == 2


def test_an_error_is_no_drift(X, saved):
    result = watch(saved, X[:, :5])
    assert result.exit_code == 2
    assert "X has 5 features, but Whiten is expecting 8" in result.stderr
    result = CliRunner().invoke(app, ["watch", str(saved.parent / "new.npy"), str(saved)])
    assert result.exit_code == 2
    assert f"Run: isotropy watch {saved} {saved.parent / 'new.npy'}\n" in result.stderr
    bad = X[800:].copy()
    bad[0] = np.nan
    assert watch(saved, bad).exit_code == 2
    result = watch(saved, bad, "--skip-bad-rows")
    assert (result.exit_code, result.stderr) == (0, "1 bad row left out\n")
