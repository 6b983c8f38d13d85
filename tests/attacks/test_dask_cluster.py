"""A cluster in trouble: the pass finishes where workers are left or come back, else one line."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import isotropy
from isotropy import engines
from isotropy.errors import ClusterError
from isotropy.sources import SourceView

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="dask is not installed")
pytestmark = pytest.mark.slow

N_CHUNKS = 24
METRICS = ("isoscore", "mean_cosine", "partition_isotropy")  # two passes


@pytest.fixture
def rows(folder):
    """A file of 24 chunks, and a saved repair."""
    X = np.random.default_rng(0).standard_normal((240, 6)).astype(np.float32) + 1
    np.save("x.npy", X)
    isotropy.Center().fit(X).save("r.safetensors")
    return isotropy.open("x.npy", chunk_rows=10)


def numbers(source, engine, **options):
    found = isotropy.measure(source, METRICS, engine=engine, **options).to_dict()
    return json.dumps(found, default=str)


class Marks:
    """Reads by workers: each leaves a mark; from the n-th on they wait until they may go on."""

    def __init__(self, folder):
        self.folder = str(folder)
        os.mkdir(self.folder)

    def held(self, source, at, does=None):
        """The source. The class is made here so that it travels to the workers by value."""
        folder, here = self.folder, os.getpid()

        class Held(SourceView):
            def read(self, chunk):
                import os
                import time
                import uuid

                if os.getpid() != here:
                    with open(f"{folder}/{os.getpid()}-{uuid.uuid4().hex}", "w"):
                        pass
                    if does is not None and len(os.listdir(folder)) >= at:
                        does()
                    while len(os.listdir(folder)) >= at and not os.path.exists(f"{folder}.go"):
                        time.sleep(0.01)
                yield from source.read(chunk)

        return Held(source)

    def readers(self):
        """The process of every read so far."""
        return [int(name.split("-")[0]) for name in os.listdir(self.folder)]

    def wait(self, at):
        while len(self.readers()) < at:
            time.sleep(0.01)

    def go(self):
        with open(f"{self.folder}.go", "w"):
            pass


@pytest.fixture
def marks(tmp_path_factory):
    return Marks(tmp_path_factory.mktemp("marks") / "reads")


@contextlib.contextmanager
def meanwhile(action):
    """Runs the action in a thread, whose errors count."""
    failed = []

    def run():
        try:
            action()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join()
    assert not failed


def killed(pids):
    """Kills processes, and waits until none of them is there."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        while state(pid) not in (None, "Z"):
            time.sleep(0.01)


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


# Workers of this machine, which come back


@pytest.fixture(scope="module")
def local():
    """A cluster where every death of a worker loses the task that it did."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        engine = engines.named("dask", n_workers=2)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("which", "at"),
    [("one", 7), ("one", 2 * N_CHUNKS), ("all", 1), ("all", N_CHUNKS), ("all", N_CHUNKS + 5)],
)
def test_a_pass_outlives_killed_workers_with_the_same_digits(local, rows, marks, which, at):
    expected = numbers(rows, local)

    def kill():
        marks.wait(at)
        pids = set(local.client.run(os.getpid).values())
        reading = [pid for pid in marks.readers() if pid in pids]
        killed(pids if which == "all" else reading[-1:])
        marks.go()

    with meanwhile(kill):
        assert numbers(marks.held(rows, at), local) == expected


def test_parts_are_all_written_although_every_worker_is_killed(local, rows, marks):
    repair = isotropy.load("r.safetensors")

    def kill():
        marks.wait(9)
        killed(set(local.client.run(os.getpid).values()))
        marks.go()

    with meanwhile(kill):
        repair.transform(marks.held(rows, 9), out="fixed", engine=local)
    written = isotropy.open("fixed")
    found = np.concatenate([b.rows for chunk in written.chunks() for b in written.read(chunk)])
    np.testing.assert_array_equal(found, repair.transform(np.load("x.npy")))
    assert sorted(os.listdir(".")) == ["fixed", "r.safetensors", "x.npy"]


def die():
    """What a chunk does that kills every worker which reads it."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def fill():
    """What a chunk does that takes more memory than a worker may have."""
    import time

    import numpy as np

    kept = np.ones(100_000_000)
    while kept.size:
        time.sleep(0.01)


def run_out():
    raise MemoryError


@pytest.mark.parametrize("does", [die, run_out], ids=["killed", "MemoryError"])
def test_a_chunk_that_no_worker_can_read_gets_one_line(local, rows, marks, raises, does):
    source = marks.held(rows, 5, does)
    raises(isotropy.measure, source, METRICS, engine=local, error=ClusterError, says="memory")
    assert numbers(rows, local), "the cluster is of use afterwards"


def test_parts_that_no_worker_can_write_leave_nothing(local, rows, marks, raises):
    repair = isotropy.load("r.safetensors")
    source = marks.held(rows, 5, run_out)
    raises(repair.transform, source, out="fixed", engine=local, error=ClusterError, says="memory")


def test_a_worker_with_too_little_memory_for_a_chunk_gets_one_line(rows, marks, raises):
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="500MiB", dashboard_address=":0"
        ) as cluster,
    ):
        engine = engines.named("dask", scheduler=cluster.scheduler_address)
        source = marks.held(rows, 5, fill)
        raises(isotropy.measure, source, METRICS, engine=engine, error=ClusterError, says="memory")
        engine.close()


# A cluster of processes that nobody starts again


class Cluster:
    """A scheduler and workers without nannies, each a process."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        }
        self.scheduler = self.start_scheduler(0)

    def start(self, kind, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *arguments],
            env=self.environment, cwd=self.folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.started.append(process)
        return process

    def start_scheduler(self, port):
        file = self.folder / f"scheduler-{len(self.started)}.json"
        process = self.start(
            "scheduler", "--host", "127.0.0.1", "--port", str(port), "--scheduler-file", str(file)
        )
        while True:
            assert process.poll() is None
            with contextlib.suppress(OSError, ValueError):
                self.address = json.loads(file.read_text())["address"]
                return process
            time.sleep(0.01)

    def start_worker(self):
        return self.start("worker", "--no-nanny", "--nthreads", "1", self.address)

    def close(self):
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A scheduler that never has workers."""
    found = Cluster(tmp_path_factory.mktemp("idle"))
    yield found
    found.close()


@pytest.mark.parametrize(
    "line",
    [
        ("measure", "x.npy"),
        ("measure", "x.npy", "--json"),
        ("repair", "x.npy", "--method", "whiten", "--save", "new.safetensors"),
        ("repair", "x.npy", "--method", "whiten", "--out", "fixed"),
        ("apply", "r.safetensors", "x.npy", "--out", "fixed"),
        ("report", "x.npy", "--out", "page.html"),
    ],
    ids=lambda line: " ".join(line[::2]),
)
def test_a_scheduler_without_workers_gets_one_line(idle, rows, refused, line):
    options = ("--engine", "dask", "--scheduler", idle.address, "--worker-timeout", "0.5")
    refused(*line, *options, says="has had no workers")


def test_waiting_for_workers_is_said_once(idle, rows, caplog, raises):
    engine = engines.named("dask", scheduler=idle.address, worker_timeout=1)
    says = "has had no workers for 1 s"
    raises(isotropy.measure, rows, engine=engine, error=ClusterError, says=says)
    raises(isotropy.measure, rows, engine=engine, error=ClusterError)
    engine.close()
    said = [r.getMessage() for r in caplog.records if r.name.startswith("isotropy")]
    assert len(said) == 1
    assert "has no workers" in said[0]
    assert "waiting for up to 1 s" in said[0]


@pytest.mark.parametrize("seconds", [-1, "long", float("nan"), True])
def test_a_timeout_that_is_no_number_of_seconds_gets_one_line(idle, raises, seconds):
    raises(
        engines.named,
        "dask",
        scheduler=idle.address,
        worker_timeout=seconds,
        says="worker_timeout must",
    )


def test_a_worker_that_comes_late_is_waited_for(cluster, rows, caplog):
    expected = numbers(rows, "local")
    said = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: said.set()
    logger = logging.getLogger("isotropy.engines.dask")
    logger.addHandler(handler)
    engine = engines.named("dask", scheduler=cluster.address)

    def come():
        said.wait()
        cluster.start_worker()

    with pytest.MonkeyPatch.context() as patched, meanwhile(come):
        patched.setattr("isotropy.engines.dask.SAID_AFTER", 0)
        found = numbers(rows, engine)
    logger.removeHandler(handler)
    engine.close()
    for name, value in json.loads(expected).items():
        if isinstance(value, float):
            assert json.loads(found)[name] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("what", ["measure", "transform"])
@pytest.mark.parametrize("who", ["worker", "scheduler"])
def test_what_is_lost_and_does_not_come_back_gets_one_line(cluster, rows, marks, raises, who, what):
    worker = cluster.start_worker()
    engine = engines.named("dask", scheduler=cluster.address, worker_timeout=1)
    engine.client.wait_for_workers(1)
    source = marks.held(rows, 5)

    def kill():
        marks.wait(5)
        victim = worker if who == "worker" else cluster.scheduler
        victim.kill()
        victim.wait()
        marks.go()

    with meanwhile(kill):
        says = "has had no workers" if who == "worker" else "was lost"
        if what == "measure":
            raises(isotropy.measure, source, engine=engine, error=ClusterError, says=says)
        else:
            repair = isotropy.load("r.safetensors")
            raises(
                repair.transform, source, out="fixed", engine=engine, error=ClusterError, says=says
            )
    engine.close()


def test_a_scheduler_that_is_gone_between_two_passes_gets_one_line(cluster, rows, raises):
    cluster.start_worker()
    engine = engines.named("dask", scheduler=cluster.address, worker_timeout=1)
    engine.client.wait_for_workers(1)
    numbers(rows, engine)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    raises(isotropy.measure, rows, engine=engine, error=ClusterError, says="was lost")
    raises(isotropy.measure, rows, engine=engine, error=ClusterError, says="was lost")
    engine.close()


def test_a_scheduler_that_comes_back_goes_on_with_the_same_digits(cluster, rows, marks):
    cluster.start_worker()
    engine = engines.named("dask", scheduler=cluster.address)
    expected = numbers(rows, engine)

    def restart():
        marks.wait(30)
        cluster.scheduler.kill()
        cluster.scheduler.wait()
        cluster.start_scheduler(cluster.address.rpartition(":")[2])
        cluster.start_worker()
        marks.go()

    with meanwhile(restart):
        assert numbers(marks.held(rows, 30), engine) == expected
    engine.close()
