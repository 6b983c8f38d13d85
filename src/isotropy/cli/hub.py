"""Whether the hub of models and data sets can be reached, asked once and quickly."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from urllib.parse import urlsplit

PATIENCE = 3.0  # seconds


def offline_unless_reached(*names: str | None) -> None:
    """Keep the libraries below from retrying for a minute, where a name is not a local path.

    What they have in their cache is then used, or they fail at once.
    """
    away = any(name is not None and not os.path.exists(name) for name in names)
    if away and not reached():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when they are imported


def reached() -> bool:
    """Whether the hub answers, or is behind a proxy that is not asked."""
    if urllib.request.getproxies().keys() - {"no"}:  # no_proxy alone is no proxy
        return True
    place = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = place.port or (80 if place.scheme == "http" else 443)
    with contextlib.suppress(OSError), socket.create_connection((place.hostname, port), PATIENCE):
        return True
    return False
