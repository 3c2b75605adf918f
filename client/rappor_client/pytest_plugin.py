"""The pytest fixture `rappor_device`, for the tests of programs that embed the client.

pytest loads this module in every run, also in projects whose tests do not use the fixture. So the
module imports only pytest, and imports the client when a test uses the fixture.
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
    """Return a device in a temporary folder, without network, randomness or waiting."""
    from rappor_client.testing import Device  # noqa: PLC0415 - see above

    with Device(tmp_path / "rappor_device") as device:
        yield device
