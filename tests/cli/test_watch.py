"""isotropy watch: what it prints, and its exit code."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.repairs import PerGroup


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


@pytest.fixture
def towers(X, tmp_path):
    """Two groups that are far apart, as a file and as the file of their repair."""
    groups = np.where(np.arange(len(X)) % 2, "query", "document")
    rows = X + np.where(groups == "query", 20.0, -20.0)[:, None]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table({"tower": groups, "v": lists})
    pq.write_table(table, tmp_path / "fitted.parquet")
    pq.write_table(table.filter(groups == "query")[:100], tmp_path / "new.parquet")
    PerGroup(isotropy.Center()).fit(tmp_path / "fitted.parquet", groups="tower").save(
        tmp_path / "towers"
    )
    return tmp_path


def test_each_group_is_compared_with_its_own(towers):
    files = [str(towers / "towers"), str(towers / "new.parquet")]
    result = CliRunner().invoke(app, ["watch", *files, "--group-column", "tower", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["drifted"], found["group"], list(found["groups"])) == (False, "query", ["query"])
    result = CliRunner().invoke(app, ["watch", *files])
    assert result.exit_code == 2
    assert "--group-column must be given for a repair with groups" in result.stderr


def test_apply_does_not_warn_of_one_group_alone(towers):
    line = ["apply", str(towers / "towers"), str(towers / "new.parquet"), "--group-column", "tower"]
    result = CliRunner().invoke(app, [*line, "--out", str(towers / "fixed.parquet")])
    assert result.exit_code == 0, result.output
    assert "drifted" not in result.output


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


@pytest.mark.filterwarnings("default::isotropy.errors.IsotropyWarning")
@pytest.mark.parametrize("moved", [0.0, 3.0])
def test_apply_warns_where_watch_finds_drift(moved, tmp_path):
    """The fitted rows are of topics that follow each other, so one topic alone is no drift."""
    random = np.random.default_rng(0)
    topics = np.repeat(random.standard_normal((4, 8)), 400, axis=0)
    rows = topics + random.standard_normal((1600, 8))
    isotropy.Center().fit(rows).save(tmp_path / "repair")
    new = topics[:400] + random.standard_normal((400, 8)) + moved
    watched = watch(tmp_path / "repair", new)
    line = ["apply", tmp_path / "repair", tmp_path / "new.npy", "--out", tmp_path / "out.npy"]
    applied = CliRunner().invoke(app, list(map(str, line)))
    assert isotropy.load(tmp_path / "repair").shift(new).large
    assert watched.exit_code == (3 if moved else 0)
    assert applied.exit_code == 0
    warned = [text for text in applied.stderr.splitlines() if text.startswith("warning: apply: ")]
    if moved:
        assert warned[0].startswith(f"warning: apply: {watched.stdout.strip()} That is a sample")
    else:
        assert warned == []
