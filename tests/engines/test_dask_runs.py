"""Which tasks a pass on a cluster consists of, and in which order states are merged."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import numpy as np
import pytest

import isotropy
from isotropy import engines
from isotropy.engines import base
from isotropy.engines.base import PassCheckpoint, Tree, fresh, runs
from isotropy.engines.dask import executing
from isotropy.sources import SourceView
from isotropy.stats import Directions, LogPartition, Moments, Sample
from isotropy.threads import one_blas_thread

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="dask is not installed")


@pytest.fixture
def spied(dask_engine, monkeypatch):
    """Counts the tasks that are submitted, by the name of their function."""
    counted = Counter()
    submit, map_ = dask_engine.client.submit, dask_engine.client.map

    def submitted(function, *args, **options):
        counted[function.__name__] += 1
        return submit(function, *args, **options)

    def mapped(function, *lists, **options):
        counted[function.__name__] += len(lists[0])
        return map_(function, *lists, **options)

    monkeypatch.setattr(dask_engine.client, "submit", submitted)
    monkeypatch.setattr(dask_engine.client, "map", mapped)
    return counted


def statistics(source, X):
    first = next(source.read(source.chunks()[0])).rows
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((X.shape[1],) * 2))[0]
    asked = [Moments(), Directions(), Sample(100), LogPartition(basis)]
    return [statistic.settled(first, source.n_samples) for statistic in asked]


def one_after_the_other(source, statistics):
    """The same sums, with neither processes nor packing."""
    parts = runs(source.chunks(), source.n_features)
    done = Tree(len(parts))
    with one_blas_thread():
        for i, run in enumerate(parts):
            partial = fresh(statistics)
            for chunk in run:
                partial.add(source.read(chunk), lambda n_rows: None)
            done.add(i, partial)
    return done.total


@pytest.mark.parametrize(
    ("chunk_rows", "expected"),
    [
        (6000, {"together": 1, "run_state": 1}),
        (3000, {"together": 1, "run_state": 2, "merged_states": 1}),
        (1200, {"together": 1, "run_state": 5, "merged_states": 2}),
        (375, {"together": 1, "run_state": 16, "merged_states": 5}),
        (250, {"together": 1, "run_state": 24, "merged_states": 5 + 3}),
        (80, {"together": 1, "run_state": 32, "merged_states": 2 * 5}),
        (20, {"together": 1, "run_state": 75, "merged_states": 4 * 5 + 4}),
    ],
)
def test_a_pass_is_a_task_per_run_and_five_merges_per_group_of_16(
    path, X, dask_engine, spied, chunk_rows, expected, monkeypatch
):
    monkeypatch.setattr(base, "RUN_ROWS", 1)
    source = isotropy.open(path, chunk_rows=chunk_rows)
    asked = statistics(source, X)
    found = dask_engine.reduce(source, asked, PassCheckpoint(), lambda n_rows: None)
    assert spied == expected
    wanted = one_after_the_other(source, asked)
    assert found.n_chunks == wanted.n_chunks == len(source.chunks())
    for state, other in zip(found.states, wanted.states, strict=True):
        for name, value in other.state().items():
            np.testing.assert_array_equal(state.state()[name], value, err_msg=name)


def test_a_pass_of_groups_goes_on_with_those_that_are_left(path, dask_engine, spied, tmp_path):
    source = isotropy.open(path, chunk_rows=200)  # 30 chunks, each of which is a run
    metrics = ("isoscore", "mean_cosine")
    expected = isotropy.measure(source, metrics, engine=dask_engine, checkpoint=tmp_path / "kept")
    files = sorted((tmp_path / "kept" / "pass-000").glob("run-*"))
    assert [file.name for file in files] == ["run-00000.safetensors", "run-00001.safetensors"]
    files[1].unlink()
    spied.clear()
    found = isotropy.measure(source, metrics, engine=dask_engine, checkpoint=tmp_path / "kept")
    assert spied == {"together": 1, "run_state": 14, "merged_states": 5}
    assert json.dumps(found.to_dict(), default=str) == json.dumps(expected.to_dict(), default=str)


def meeting(source, folder, here):
    """The source whose reads wait until two workers read. It travels to them by value."""

    class Meeting(SourceView):
        def read(self, chunk):
            if os.getpid() != here:
                with open(os.path.join(folder, str(os.getpid())), "w"):
                    pass
                end = time.monotonic() + 300
                while len(os.listdir(folder)) < 2:
                    if time.monotonic() > end:
                        raise TimeoutError("the other worker got no task")
                    time.sleep(0.01)
            yield from source.read(chunk)

    return Meeting(source)


@pytest.mark.slow
def test_tasks_are_spread_over_workers_from_the_start(path, tmp_path, monkeypatch):
    monkeypatch.setattr("isotropy.engines.dask.SPREADING", 300)
    alone = {
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
    }
    source = isotropy.open(path, chunk_rows=3000)
    with dask.config.set(alone):
        engine = engines.named("dask", n_workers=2)
    try:
        held = meeting(source, str(tmp_path), os.getpid())
        found = engine.reduce(held, [Directions()], PassCheckpoint(), lambda n_rows: None)
    finally:
        engine.close()
    assert found.n_chunks == 2


def failing(source, folder):
    """The source whose first chunk fails while another is being read, which goes on for a while."""

    class Failing(SourceView):
        def read(self, chunk):
            if chunk.first_row == 0:
                end = time.monotonic() + 60
                while not os.listdir(folder) and time.monotonic() < end:
                    time.sleep(0.01)
                raise ValueError("in the middle")
            with open(os.path.join(folder, str(chunk.first_row)), "w"):
                pass
            time.sleep(2)
            yield from source.read(chunk)

    return Failing(source)


@pytest.mark.slow
def test_nothing_is_running_after_an_error(path, tmp_path):
    (tmp_path / "begun").mkdir()
    source = failing(isotropy.open(path, chunk_rows=1000), str(tmp_path / "begun"))
    engine = engines.named("dask", n_workers=2)
    try:
        with pytest.raises(ValueError, match="in the middle"):
            engine.reduce(source, [Directions()], PassCheckpoint(), lambda n_rows: None)
        assert engine._waited_for(engine._begun(executing(engine.client))) == set()
    finally:
        engine.close()


@pytest.mark.parametrize("chunk_rows", [500, 90])
def test_dask_and_local_give_the_same_digits(path, dask_engine, numbers, chunk_rows):
    source = isotropy.open(path, chunk_rows=chunk_rows)
    expected = numbers(isotropy.measure(source))
    found = numbers(isotropy.measure(source, engine=dask_engine))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
