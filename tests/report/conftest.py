"""A space that needs repair, with columns, and a browser without a network."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isotropy

BESIDE = Path(__file__).parents[2] / ".venv" / "browser" / "node_modules" / "axe-core"
FLAGS = (
    "--no-sandbox", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic", "--enable-unsafe-swiftshader",
)  # fmt: skip
ATTACK = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def rows():
    random = np.random.default_rng(0)
    rows = random.standard_normal((600, 24)) * np.linspace(2, 0.2, 24) + 0.7
    rows[:, 5] += 4
    return rows.astype(np.float32)


@pytest.fixture(scope="session")
def table(rows, tmp_path_factory):
    """A Parquet file of the rows with texts (one of them hostile), a number and a name."""
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    texts = [f"text {i}" for i in range(len(rows))]
    texts[::7] = [f"{ATTACK} {i}" for i in range(len(texts[::7]))]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    columns = {"text": texts, "age": np.arange(len(rows)) / 10.0, "vector": vectors}
    columns["kind"] = [ATTACK if i % 3 else "plain" for i in range(len(rows))]
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


@pytest.fixture(scope="session")
def repairs(rows):
    return [isotropy.Center().fit(rows), isotropy.Whiten().fit(rows)]


@pytest.fixture(scope="session")
def axe():
    path = Path(os.environ.get("ISOTROPY_AXE", BESIDE / "axe.min.js"))
    if not path.is_file():
        pytest.skip("no axe-core here: npm install --prefix .venv/browser axe-core")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("ISOTROPY_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.skip("no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield opened
        opened.close()
