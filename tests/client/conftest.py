"""A clock that stands still, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devices import Home
from rappor_client.testing import FixedClock


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A device, whose clients are closed at the end.

    Unless told, they have consent, no caps and no background sender, and mistakes raise.
    """
    own = Home(tmp_path)
    yield own
    own.close()


@pytest.fixture
def clock(home: Home) -> FixedClock:
    """Its clock."""
    return home.clock
