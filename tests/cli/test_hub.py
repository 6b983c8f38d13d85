"""Whether the hub can be reached is asked quickly, and only where a name may be there."""

from __future__ import annotations

import os
import socket

import pytest

from isotropy.cli import common


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_libraries_stay_offline_where_the_hub_is_not_reached(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    common.offline_unless_reached(str(tmp_path), None)
    assert "HF_HUB_OFFLINE" not in os.environ
    common.offline_unless_reached(str(tmp_path), "owner/name")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_hub_that_is_reached_is_used(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        common.offline_unless_reached("owner/name")
    assert "HF_HUB_OFFLINE" not in os.environ


def test_a_proxy_is_trusted(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    assert common.reached()


def test_exceptions_from_a_proxy_are_no_proxy(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"no": "localhost"})
    assert not common.reached()
