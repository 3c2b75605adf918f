"""Fixtures of the client: a device with a fixed clock, whose clients are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import Home
from rappor_client.testing import FixedClock


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A device in a temporary folder.

    Its clients have consent, no cap and no background sender by default, and mistakes raise.
    """
    device = Home(tmp_path)
    yield device
    device.close()


@pytest.fixture
def clock(home: Home) -> FixedClock:
    """The clock of the device."""
    return home.clock
