"""Settings of all tests, and the fast stage.

A stage is a set of tests that run together (README.md). `pytest -m fast` runs the tests of the
packages that every other package imports: protocol, registry and privacy.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from tools import PACKAGES

settings.register_profile(
    "repeatable",
    deadline=None,  # a busy machine is slow, and slowness is no fault of the tested code
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # every run tries the same examples, so that a failure can be repeated
)
settings.load_profile("repeatable")

HERE: Final = Path(__file__).parent

FAST: Final = tuple(HERE / "rappor" / name for name in ("protocol", "registry", "privacy"))
"""Folders of the fast stage. Their tests with the marker `slow` or `acceptance` do not belong to
it."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that the stage cannot import, and in the fast stage all other folders."""
    if _lacks_its_package(collection_path) and "not slow" in config.getoption("markexpr"):
        return True
    if config.getoption("markexpr") != "fast" or not collection_path.is_relative_to(HERE):
        return None
    return None if any(_overlap(collection_path, folder) for folder in FAST) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the fast stage by their folder."""
    for item in items:
        is_in_folder = any(item.path.is_relative_to(folder) for folder in FAST)
        if is_in_folder and not any(map(item.get_closest_marker, ("slow", "acceptance"))):
            item.add_marker("fast")


def _lacks_its_package(path: Path) -> bool:
    """Return whether a file of tests imports a package that is not installed."""
    package = PACKAGES.get(str(path.relative_to(HERE))) if path.is_relative_to(HERE) else None
    return package is not None and importlib.util.find_spec(package) is None


def _overlap(path: Path, folder: Path) -> bool:
    """Return whether one of two paths contains the other."""
    return path.is_relative_to(folder) or folder.is_relative_to(path)
