"""The pytest fixture `rappor_device`, for the tests of programs that embed the device.

pytest loads this module in every run, whether a test uses the fixture or not. So it imports nothing
but pytest until one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rappor_client.testing import Device


@pytest.fixture
def rappor_device(tmp_path: Path) -> Iterator[Device]:
    """Lend a device without network, randomness or waiting; close its clients at the end."""
    from rappor_client.testing import Device  # noqa: PLC0415 - only for those who use it

    with Device(tmp_path / "rappor_device") as device:
        yield device
