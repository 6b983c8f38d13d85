"""A worker that takes its time to come back is waited for."""

from __future__ import annotations

import pytest

from isotropy import engines

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="dask is not installed")
KEY = "distributed.deploy.lost-worker-timeout"


@pytest.mark.slow
def test_a_cluster_of_ours_waits_for_lost_workers_and_leaves_the_setting_as_it_was():
    before = dask.config.get(KEY)
    engine = engines.named("dask", n_workers=1)
    try:
        assert dask.config.get(KEY) == "1 day"
    finally:
        engine.close()
    assert dask.config.get(KEY) == before
