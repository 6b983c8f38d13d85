"""One worker killed with SIGKILL in the middle: the work is finished, with the same digits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import isotropy
from isotropy import engines

pytest.importorskip("distributed", reason="dask is not installed")

PATIENCE = 60


def slow(source, folder):
    """The source with reads that wait a little, and leave a mark with their process's number.

    The class is made here so that it travels to the workers by value.
    """

    class Slow:
        device = "cpu"

        def __init__(self):
            self.n_features, self.n_samples = source.n_features, source.n_samples
            self.chunks = source.chunks

        def read(self, chunk):
            import os
            import time
            import uuid

            time.sleep(0.02)
            yield from source.read(chunk)
            with open(os.path.join(folder, f"{os.getpid()}-{uuid.uuid4().hex}"), "w"):
                pass

    return Slow()


class Killer(threading.Thread):
    """Kills the worker that has read most chunks, once so many were read by all of them."""

    def __init__(self, folder, after):
        super().__init__(daemon=True)
        self.folder, self.after = folder, after
        self.victim, self.n_before = None, None

    def readers(self):
        """The process of every read by a worker so far."""
        pids = [int(name.split("-")[0]) for name in os.listdir(self.folder)]
        return [pid for pid in pids if pid != os.getpid()]

    def run(self):
        deadline = time.monotonic() + PATIENCE
        while len(self.readers()) < self.after and time.monotonic() < deadline:
            time.sleep(0.002)
        found = self.readers()
        self.n_before = len(found)
        self.victim = max(set(found), key=found.count)
        os.kill(self.victim, signal.SIGKILL)


@contextlib.contextmanager
def one_worker_killed(engine, folder, after, n_reads):
    """Within, a worker dies after some chunks; afterwards it is sure that it did so in time."""
    pids = set(engine.client.run(os.getpid).values())
    killer = Killer(folder, after)
    killer.start()
    yield
    killer.join(PATIENCE)
    assert killer.victim in pids
    assert after <= killer.n_before < n_reads - 4, "the worker was killed too late to matter"
    assert len(killer.readers()) >= n_reads
    assert not os.path.exists(f"/proc/{killer.victim}")


@pytest.fixture(scope="module", params=[2, 1], ids=["one of two", "the only one"])
def cluster(request):
    """Clusters of their own: their workers are killed."""
    engine = engines.named("dask", n_workers=request.param)
    yield engine
    engine.close()


@pytest.fixture
def ready(cluster):
    """The cluster with all of its workers there, again."""
    cluster.client.wait_for_workers(len(cluster.cluster.worker_spec), timeout=PATIENCE)
    return cluster


def test_measure_survives_a_lost_worker(source, ready, tmp_path, numbers):
    expected = numbers(isotropy.measure(source, engine=ready))
    with one_worker_killed(ready, tmp_path, after=8, n_reads=2 * len(source.chunks())):
        found = numbers(isotropy.measure(slow(source, str(tmp_path)), engine=ready))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


def test_a_cluster_fit_survives_a_lost_worker(source, ready, tmp_path):
    expected = isotropy.ClusterRemoval(3, 2).fit(source, engine=ready)
    n_chunks = len(source.chunks())
    found = isotropy.ClusterRemoval(3, 2)
    with one_worker_killed(ready, tmp_path, after=n_chunks + 6, n_reads=3 * n_chunks):
        found.fit(slow(source, str(tmp_path)), engine=ready)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-12)
    np.testing.assert_allclose(found.means_, expected.means_, rtol=1e-12)
    np.testing.assert_allclose(found.components_, expected.components_, rtol=0, atol=1e-12)


def test_parts_are_all_written_although_a_worker_is_lost(source, ready, tmp_path, X):
    marks, repair = tmp_path / "marks", isotropy.Center().fit(X)
    marks.mkdir()
    with one_worker_killed(ready, marks, after=8, n_reads=len(source.chunks())):
        written = repair.transform(slow(source, str(marks)), out=tmp_path / "fixed", engine=ready)
    rows = [batch.rows for chunk in written.chunks() for batch in written.read(chunk)]
    np.testing.assert_allclose(np.concatenate(rows), repair.transform(X), rtol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fixed", "marks"]
