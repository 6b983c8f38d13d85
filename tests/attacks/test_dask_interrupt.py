"""Ctrl-C and SIGTERM in the middle of a pass: silence, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import isotropy

from .. import tiny_models

HOLD = """
import os, time
from isotropy.sources import files

if not hasattr(files, "free"):  # a worker's preload is run twice
    files.free = files.FileSource.read

    def read(self, chunk):
        if chunk.first_row >= self.n_samples // 2:
            open("reading", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
        yield from files.free(self, chunk)

    files.FileSource.read = read
"""
RUN = "import hold; from isotropy.cli import app; app()"
LINES = {
    "measure": ("measure", "x.npy"),
    "repair": ("repair", "x.npy", "--method", "whiten", "--save", "new.safetensors"),
    "apply": ("apply", "r.safetensors", "x.npy"),
}


@pytest.fixture
def begun(folder):
    """begun(*arguments) is a command that has read half of its rows and waits for `go`."""
    (folder / "hold.py").write_text(HOLD)
    X = np.random.default_rng(0).standard_normal((4000, 8)).astype(np.float32)
    np.save("x.npy", X)
    isotropy.Center().fit(X).save("r.safetensors")
    started = []

    def start(*arguments, code=RUN):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*map(os.path.abspath, filter(None, sys.path)), "."]),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": str(folder / "hold.py"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, "
             f"signal.default_int_handler); {code}", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        while not os.path.exists("reading"):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stopped(process, number, whole_group):
    """Asserts that the signal ends the command in silence, and every process that it started."""
    (os.killpg if whole_group else os.kill)(process.pid, number)
    open("go", "w").close()
    output, said = process.communicate()
    assert (process.returncode, output) == (128 + number, ""), said
    assert said.count("\n") <= 1, said
    assert "Traceback" not in said
    while True:  # until no process of its session is left
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    left = set(os.listdir("."))
    assert left == {"go", "hold.py", "r.safetensors", "reading", "x.npy"}


def line(command, engine):
    out = ("--out", "fixed" if engine == "dask" else "fixed.npy") if command == "apply" else ()
    return (*LINES[command], *out, "--chunk-rows", "250", "--engine", engine)


@pytest.mark.parametrize(
    "command", ["measure", *(pytest.param(c, marks=pytest.mark.slow) for c in ("repair", "apply"))]
)
@pytest.mark.parametrize(
    "engine", ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "dask"))]
)
def test_control_c_ends_a_pass_in_silence(begun, engine, command):
    pytest.importorskip({"local": "numpy", "dask": "distributed"}.get(engine, engine))
    device = ("--device", "cpu") if engine == "torch" else ()
    process = begun(*line(command, engine), *device)
    stopped(process, signal.SIGINT, whole_group=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "command"),
    [("local", "measure"), ("local", "apply"), ("dask", "measure"), ("dask", "apply")],
)
def test_a_signal_to_stop_ends_a_pass_in_silence(begun, engine, command):
    pytest.importorskip({"local": "numpy"}.get(engine, "distributed"))
    stopped(begun(*line(command, engine)), signal.SIGTERM, whole_group=False)


HELD_MODEL = """
import os, time, transformers

def forward(self, *arguments, **options):
    open("reading", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)

transformers.BertModel.forward = forward
from isotropy.cli import app
app()
"""


@pytest.mark.slow
def test_control_c_ends_a_model_in_silence(begun, folder, tmp_path_factory):
    pytest.importorskip("transformers")
    model = tmp_path_factory.mktemp("model")
    tiny_models.bert(model)
    texts = tmp_path_factory.mktemp("texts") / "texts.txt"
    texts.write_text("the cat sat\na dog ran\n")
    process = begun("embed", str(model), str(texts), "--out", "fixed.npy", code=HELD_MODEL)
    stopped(process, signal.SIGINT, whole_group=True)
