"""Where models and data are, and the rule that in CI nothing that is present may skip."""

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn checks array API input only with it

from pathlib import Path

import numpy as np
import pytest

MODELS = Path(os.environ.get("ISOTROPY_MODELS", "~/.cache/isotropy-models")).expanduser()
MAY_SKIP = ("no CUDA device",)


@pytest.fixture(scope="session")
def models():
    """Folder of pretrained models."""
    return MODELS


@pytest.fixture(scope="session")
def data():
    """Folder of benchmark sets."""
    folder = os.environ.get("ISOTROPY_DATA")
    if not folder:
        pytest.skip("ISOTROPY_DATA is not set")
    return Path(folder)


@pytest.fixture
def rows():
    """rows(source) reads all of it."""

    def read(source):
        batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
        return np.concatenate([batch.rows for batch in batches])

    return read


def pytest_sessionfinish(session, exitstatus):
    if not os.environ.get("ISOTROPY_NO_SKIPS") or exitstatus:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    refused = [text for text in skipped if not any(reason in text for reason in MAY_SKIP)]
    if refused:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("failed: ISOTROPY_NO_SKIPS is set, and these were skipped:", red=True)
        for text in refused:
            reporter.write_line(f"  {text}", red=True)
