"""Rows with a drift and a spectrum, one Dask cluster for all tests, and sources that tell."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import isotropy
from isotropy import engines
from isotropy.engines.local import Local
from isotropy.sources import SourceView

N_ROWS, N_FEATURES, CHUNK_ROWS = 6000, 16, 250
METRICS = ("isoscore", "mean_cosine", "mean_norm_ratio", "singular_values", "partition_isotropy")


@pytest.fixture(scope="session")
def X():
    """No metric of these is near zero, and no two eigenvalues are near each other."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((N_ROWS, N_FEATURES)) * np.linspace(0.3, 2, N_FEATURES)
    rows[: N_ROWS // 3] += 4
    return (rows + np.linspace(-1, 1.5, N_FEATURES)).astype(np.float32)


@pytest.fixture(scope="session")
def path(X, tmp_path_factory):
    target = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(target, X)
    return target


@pytest.fixture
def source(path):
    return isotropy.open(path, chunk_rows=CHUNK_ROWS)


@pytest.fixture(scope="session")
def dask_engine():
    """Two processes, started once."""
    pytest.importorskip("distributed", reason="dask is not installed")
    engine = engines.named("dask", n_workers=2)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def torch_engine():
    pytest.importorskip("torch", reason="torch is not installed")
    return engines.named("torch", device="cpu")


@pytest.fixture(params=["local", "torch", "dask"])
def engine(request):
    if request.param == "local":
        return Local()
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
def numbers():
    """numbers(geometry) is every number in it as an array, by name."""

    def flat(geometry):
        found = {}

        def add(name, value):
            if isinstance(value, dict):
                for key, part in value.items():
                    add(f"{name}.{key}", part)
            elif isinstance(value, str) or value is None:
                pass
            elif not (isinstance(value, (list, tuple)) and value and isinstance(value[0], str)):
                found[name] = np.asarray(value, dtype=np.float64)

        for key, value in geometry.to_dict().items():
            add(key, value)
        return found

    return flat


class Interrupted(Exception):
    """What a watched source raises in the middle of a pass."""


class Watched(SourceView):
    """Another source that keeps a list of the chunks read, and fails at the k-th."""

    def __init__(self, source, fail_at=None):
        super().__init__(source)
        self.fail_at, self.read_chunks = fail_at, []

    def identity(self):
        return self.source.identity()

    def read(self, chunk):
        self.read_chunks.append(chunk.first_row)
        if len(self.read_chunks) == self.fail_at:
            raise Interrupted("in the middle")
        yield from self.source.read(chunk)


@pytest.fixture
def watched(source):
    """watched(fail_at) is the source, counting; it raises `.error` at the k-th chunk."""

    def make(fail_at=None, of=source):
        found = Watched(of, fail_at)
        found.error = Interrupted
        return found

    return make


HALF = """
import sys, threading
from isotropy import cli
from isotropy.sources import files

read = files.FileSource.read

def half(self, chunk):
    if chunk.first_row >= self.n_samples // 2:
        threading.Event().wait()
    yield from read(self, chunk)

files.FileSource.read = half
cli.app(sys.argv[1:])
"""


@pytest.fixture
def killed_when():
    """killed_when(condition, *arguments) runs a command that stops half-way, and kills it there."""

    def run(condition, *arguments):
        command = [sys.executable, "-c", HALF, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not condition():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        output, _ = process.communicate()
        assert process.returncode == -9
        assert output == b""

    return run


@pytest.fixture
def command():
    """command(*arguments) runs the command line to its end and gives the process."""

    def run(*arguments):
        line = [sys.executable, "-m", "isotropy", *map(str, arguments)]
        environment = os.environ | {"PYTHONWARNINGS": "default"}
        return subprocess.run(line, capture_output=True, text=True, env=environment)

    return run
