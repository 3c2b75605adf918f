"""Settings of all tests, and the fast lane.

`pytest -m fast` runs the tests of what every other package stands on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    deadline=None,  # a slow or busy machine is no fault of what is tested
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # every run tries the same examples
)
settings.load_profile("repeatable")

HERE: Final = Path(__file__).parent

FAST: Final = tuple(HERE / "rappor" / name for name in ("protocol", "registry", "privacy"))
"""The folders of the fast lane; a test in them leaves it by the marker `slow` or `acceptance`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no other folder for the fast lane: importing all tests takes longer than running it."""
    if config.getoption("markexpr") != "fast" or not collection_path.is_relative_to(HERE):
        return None
    return None if any(_overlap(collection_path, folder) for folder in FAST) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the fast lane by their folder."""
    for item in items:
        in_lane = any(item.path.is_relative_to(folder) for folder in FAST)
        if in_lane and not any(map(item.get_closest_marker, ("slow", "acceptance"))):
            item.add_marker("fast")


def _overlap(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) or folder.is_relative_to(path)
