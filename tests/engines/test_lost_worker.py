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
from isotropy.sources import SourceView

pytest.importorskip("distributed", reason="dask is not installed")
pytestmark = pytest.mark.slow


def held(source, folder, after):
    """The source with reads by workers that leave a mark with their process's number.

    From the given one on, they wait until a worker was killed. The class is made here so that it
    travels to the workers by value.
    """
    here = os.getpid()

    class Held(SourceView):
        def read(self, chunk):
            import os
            import time
            import uuid

            if os.getpid() != here:
                with open(os.path.join(folder, f"{os.getpid()}-{uuid.uuid4().hex}"), "w"):
                    pass
                while len(os.listdir(folder)) >= after:
                    if os.path.exists(f"{folder}.killed"):
                        break
                    time.sleep(0.01)
            yield from source.read(chunk)

    return Held(source)


class Killer(threading.Thread):
    """Kills the worker that began most chunks, once so many were begun by all of them."""

    def __init__(self, folder, after):
        super().__init__(daemon=True)
        self.folder, self.after = folder, after
        self.victim, self.n_before = None, None

    def readers(self):
        """The process of every read by a worker so far."""
        return [int(name.split("-")[0]) for name in os.listdir(self.folder)]

    def run(self):
        while len(self.readers()) < self.after:
            time.sleep(0.01)
        found = self.readers()
        self.n_before = len(found)
        self.victim = max(set(found), key=found.count)
        os.kill(self.victim, signal.SIGKILL)
        while os.path.exists(f"/proc/{self.victim}"):
            time.sleep(0.01)
        with open(f"{self.folder}.killed", "w"):
            pass


@contextlib.contextmanager
def one_worker_killed(engine, folder, after, n_reads):
    """Within, a worker dies after some chunks; afterwards it is sure that it did so in time."""
    pids = set(engine.client.run(os.getpid).values())
    killer = Killer(folder, after)
    killer.start()
    yield
    killer.join()
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
    cluster.client.wait_for_workers(len(cluster.cluster.worker_spec))
    return cluster


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_measure_survives_a_lost_worker(source, ready, marks, numbers):
    expected = numbers(isotropy.measure(source, engine=ready))
    with one_worker_killed(ready, marks, after=8, n_reads=2 * len(source.chunks())):
        found = numbers(isotropy.measure(held(source, str(marks), 8), engine=ready))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_cluster_fit_survives_a_lost_worker(source, ready, marks):
    expected = isotropy.ClusterRemoval(3, 2).fit(source, engine=ready)
    n_chunks = len(source.chunks())
    found = isotropy.ClusterRemoval(3, 2)
    after = n_chunks + 6
    with one_worker_killed(ready, marks, after, n_reads=3 * n_chunks):
        found.fit(held(source, str(marks), after), engine=ready)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(found.means_, expected.means_)
    np.testing.assert_array_equal(found.components_, expected.components_)


def test_parts_are_all_written_although_a_worker_is_lost(source, ready, marks, tmp_path, X):
    repair = isotropy.Center().fit(X)
    with one_worker_killed(ready, marks, after=8, n_reads=len(source.chunks())):
        written = repair.transform(
            held(source, str(marks), 8), out=tmp_path / "fixed", engine=ready
        )
    rows = [batch.rows for chunk in written.chunks() for batch in written.read(chunk)]
    np.testing.assert_allclose(np.concatenate(rows), repair.transform(X), rtol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fixed", "marks", "marks.killed"]
