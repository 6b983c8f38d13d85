"""A killed run goes on where it was, with the same digits, and reads only what was left."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import isotropy
from isotropy import engines, threads
from isotropy.engines.base import runs
from isotropy.engines.checkpoint import PassFolder
from isotropy.errors import InputError

METRICS = ("isoscore", "mean_cosine", "mean_norm_ratio", "singular_values", "partition_isotropy")


@pytest.fixture
def every_chunk_is_kept(monkeypatch):
    """States are kept after every chunk, however long that takes."""
    monkeypatch.setattr("isotropy.engines.checkpoint.SAVING_SHARE", 0)


def as_text(geometry):
    return json.dumps(geometry.to_dict(), default=str)


def refused(match, X, *arguments, **options):
    with pytest.raises(InputError, match=match) as error:
        isotropy.measure(X, *arguments, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "fail_at"),
    [*(("local", k) for k in (1, 2, 7, 25, 30, 48)), ("torch", 7), ("torch", 30)],
)
def test_measure_goes_on_and_reads_only_what_was_left(
    source, watched, tmp_path, every_chunk_is_kept, request, name, fail_at
):
    engine = engines.Local() if name == "local" else request.getfixturevalue("torch_engine")
    n_chunks = len(source.chunks())
    expected = as_text(isotropy.measure(source, METRICS, engine=engine))
    first, then = watched(fail_at), watched()
    with pytest.raises(first.error):
        isotropy.measure(first, METRICS, engine=engine, checkpoint=tmp_path / "kept")
    found = isotropy.measure(then, METRICS, engine=engine, checkpoint=tmp_path / "kept")
    assert as_text(found) == expected
    # the read that failed, and those of the other threads that were not finished then
    n_lost = len(first.read_chunks) + len(then.read_chunks) - 2 * n_chunks
    assert 1 <= n_lost <= 1 + threads.n_threads()


def test_runs_share_the_time_for_writing_states(path, tmp_path, monkeypatch):
    source = isotropy.open(path, chunk_rows=60)
    monkeypatch.setattr("isotropy.engines.checkpoint.SAVING_SHARE", float("inf"))
    written, write = [], PassFolder._write
    monkeypatch.setattr(
        PassFolder, "_write", lambda *given: written.append(given[1].name) or write(*given)
    )
    n_runs = len(runs(source.chunks(), source.n_features))
    assert len(source.chunks()) > n_runs
    isotropy.measure(source, ["mean_cosine"], checkpoint=tmp_path / "kept")
    # the first chunks of runs that begin before any state is written, and the end of each run
    assert len(written) <= threads.n_threads() + n_runs + written.count("settled.safetensors")


@pytest.mark.parametrize("fail_at", [3, 30, 60])
def test_a_cluster_fit_goes_on_and_reads_only_what_was_left(
    source, watched, tmp_path, every_chunk_is_kept, fail_at
):
    whole, first, then = watched(), watched(fail_at), watched()
    expected = isotropy.ClusterRemoval(3, 2).fit(whole)
    with pytest.raises(first.error):
        isotropy.ClusterRemoval(3, 2).fit(first, checkpoint=tmp_path / "kept")
    found = isotropy.ClusterRemoval(3, 2).fit(then, checkpoint=tmp_path / "kept")
    for name in expected.learned:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    n_lost = len(first.read_chunks) + len(then.read_chunks) - len(whole.read_chunks)
    assert 1 <= n_lost <= 1 + threads.n_threads()


def test_dask_goes_on_with_the_groups_that_are_left(source, path, dask_engine, tmp_path):
    expected = isotropy.measure(source, METRICS, engine=dask_engine)
    kept = tmp_path / "kept"
    isotropy.measure(source, METRICS, engine=dask_engine, checkpoint=kept)
    shutil.rmtree(kept / "pass-001")
    (kept / "pass-000" / "run-00001.safetensors").unlink()
    found = isotropy.measure(source, METRICS, engine=dask_engine, checkpoint=kept)
    assert as_text(found) == as_text(expected)


def test_a_finished_run_reads_nothing_again(watched, tmp_path):
    first, then = watched(), watched()
    expected = isotropy.measure(first, METRICS, checkpoint=tmp_path / "kept")
    assert first.read_chunks
    found = isotropy.measure(then, METRICS, checkpoint=tmp_path / "kept")
    assert then.read_chunks == []
    assert as_text(found) == as_text(expected)


def test_bad_rows_are_still_counted_after_going_on(X, watched, tmp_path, every_chunk_is_kept):
    bad = X.copy()
    bad[[10, 5990]] = np.nan
    np.save(tmp_path / "x.npy", bad)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=250, skip_bad_rows=True)
    first = watched(20, of=source)
    with pytest.raises(first.error):
        isotropy.measure(first, METRICS, checkpoint=tmp_path / "kept")
    found = isotropy.measure(source, METRICS, checkpoint=tmp_path / "kept")
    assert found.n_skipped == 2
    assert as_text(found) == as_text(isotropy.measure(source, METRICS))


def test_arrays_can_be_gone_on_with_too(X, tmp_path):
    rows = isotropy.open(X, chunk_rows=250)
    expected = as_text(isotropy.measure(rows, METRICS))
    for _ in range(2):
        found = isotropy.measure(rows, METRICS, checkpoint=tmp_path / "kept")
        assert as_text(found) == expected
    other = X.copy()
    other[0] += 1
    refused(
        "of other data or settings",
        isotropy.open(other, chunk_rows=250),
        METRICS,
        checkpoint=tmp_path / "kept",
    )


@pytest.mark.parametrize("what", ["data", "chunk_rows", "metrics", "engine", "order", "skipping"])
def test_a_checkpoint_of_something_else_is_refused(path, X, tmp_path, torch_engine, what):
    mine = tmp_path / "x.npy"
    shutil.copy(path, mine)
    kept = tmp_path / "kept"
    isotropy.measure(isotropy.open(mine, chunk_rows=250), ["mean_cosine"], checkpoint=kept)
    before = {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()}
    options, metrics, engine = {"chunk_rows": 250}, ["mean_cosine"], None
    if what == "data":
        np.save(mine, X + 1)
    elif what == "order":
        np.save(mine, X[::-1])
    elif what == "chunk_rows":
        options = {"chunk_rows": 251}
    elif what == "metrics":
        metrics = ["isoscore"]
    elif what == "engine":
        engine = torch_engine
    else:
        options["skip_bad_rows"] = True
    match = r"measure: the checkpoint '.*kept' is of other data or settings. Give them as they were"
    refused(match, isotropy.open(mine, **options), metrics, checkpoint=kept, engine=engine)
    assert {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()} == before


def test_a_checkpoint_begun_and_no_more_does_not_mix_with_other_data(source, X, path, tmp_path):
    """Killed after the first look at the rows, before the pass is begun."""
    kept = tmp_path / "kept"
    isotropy.measure(source, ["isoscore"], checkpoint=kept)
    for file in kept.rglob("*"):
        if file.is_file() and not file.name.startswith("settled"):
            file.unlink()
    far = isotropy.open(X.astype(np.float64) + 1e6, chunk_rows=250)
    expected = as_text(isotropy.measure(far, ["isoscore"]))
    assert as_text(isotropy.measure(far, ["isoscore"], checkpoint=kept)) == expected


def test_a_fit_with_other_parameters_is_refused(source, tmp_path):
    isotropy.ClusterRemoval(3, 2).fit(source, checkpoint=tmp_path / "kept")
    with pytest.raises(InputError, match=r"ClusterRemoval: the checkpoint .* of other data or"):
        isotropy.ClusterRemoval(3, 2, random_state=1).fit(source, checkpoint=tmp_path / "kept")


def test_a_folder_with_other_things_is_refused(source, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused("holds other things than a checkpoint", source, checkpoint=tmp_path)
    refused("checkpoint must be a folder", source, checkpoint=tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["run-00000.safetensors", "settled.safetensors", "begun.json"])
@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "cut"])
def test_a_damaged_state_gets_one_line(source, tmp_path, name, content):
    kept = tmp_path / "kept"
    isotropy.measure(source, ["isoscore"], checkpoint=kept)
    file = kept / "pass-000" / name
    file.write_bytes(file.read_bytes()[:-20] if content is None else content)
    refused(rf"{name}' is damaged", source, ["isoscore"], checkpoint=kept)
    file.unlink()
    found = isotropy.measure(source, ["isoscore"], checkpoint=kept)
    assert found.isoscore == pytest.approx(isotropy.measure(source, ["isoscore"]).isoscore)


def test_a_folder_that_cannot_be_made_gets_one_line(source, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused("checkpoint", source, ["isoscore"], checkpoint=tmp_path / "file" / "kept")


@pytest.mark.slow
def test_a_killed_command_goes_on_and_prints_the_same(path, tmp_path, killed_when, command):
    kept = tmp_path / "kept"
    line = ("measure", path, "--json", "--chunk-rows", "250", "--metrics", ",".join(METRICS))
    killed_when(
        lambda: len(list(kept.glob("*/run-*.safetensors"))) >= 1, *line, "--checkpoint", kept
    )
    assert not (kept / "pass-001").exists(), "it was killed too late to matter"
    resumed = command(*line, "--checkpoint", kept)
    undisturbed = command(*line)
    assert (resumed.returncode, undisturbed.returncode) == (0, 0), resumed.stderr
    assert resumed.stdout == undisturbed.stdout
    assert (resumed.stderr, undisturbed.stderr) == ("", "")
    again = command(*line, "--checkpoint", kept)
    assert again.stdout == undisturbed.stdout
    other = command(*line[:-1], "isoscore", "--checkpoint", kept)
    assert other.returncode == 2
    assert "is of other data or settings" in other.stderr
    assert other.stderr.count("\n") == 1
    assert other.stdout == ""
