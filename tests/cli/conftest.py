"""What a command sets for its own process does not outlive a test."""

import pytest


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # remembers what was there
    monkeypatch.delenv("HF_HUB_OFFLINE")
