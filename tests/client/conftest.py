"""A clock that stands still, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devices import Opener, open_device
from rappor_client import Client
from rappor_client.testing import FixedClock

from rappor import Metric


@pytest.fixture
def clock() -> FixedClock:
    """A clock that stands at a Wednesday's noon."""
    return FixedClock("2026-11-18T12:00:00")


@pytest.fixture
def open_client(tmp_path: Path, clock: FixedClock) -> Iterator[Opener]:
    """Open clients on one folder; close them at the end.

    Unless told, they have consent, no caps and no background sender, and mistakes raise.
    """
    opened = []

    def opener(*metrics: Metric, folder: str = "device", **chosen: Any) -> Client:
        client = open_device(tmp_path / folder, *metrics, **{"clock": clock} | chosen)
        opened.append(client)
        return client

    yield opener
    for client in opened:
        client.close()
