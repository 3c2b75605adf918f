"""Files of tests that a stage needs: an import of the other files would take most of its start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from places import ROOT

TESTS: Final = ROOT / "tests"

FAST: Final = tuple(TESTS / "rappor" / name for name in ("protocol", "registry", "privacy"))
"""Folders of the fast stage. Their tests with the marker `slow` or `acceptance` do not belong to
it."""

_SLOW: Final = re.compile("mark.*slow|ON_BOTH_DATABASES", re.IGNORECASE)
"""Pattern of a line that gives a test the marker `slow`, itself or by `databases.py`."""


def is_needed(path: Path, stage: str) -> bool:
    """Return whether a stage may have a test below a path of the folder `tests`.

    Parameters
    ----------
    path : a file or a folder.
    stage : value of pytest's option `-m`.
    """
    if stage == "fast" and not any(_are_nested(path, folder) for folder in FAST):
        return False
    if not path.name.startswith("test_") or path.suffix != ".py":
        return True
    if stage == "fast" or "not slow" in stage:
        return not _is_slow(path)
    if stage == "slow" or stage.startswith("slow and not "):
        return may_have_slow_test(path)
    return True


def may_have_slow_test(path: Path) -> bool:
    """Return whether a file of tests may have a test with the marker `slow`.

    The marker is in the text of the file, or a fixture of a `conftest.py` in a folder above the
    file sets it. The fixtures of `tests/conftest.py` set no marker.
    """
    folders = [folder for folder in path.parents if TESTS in folder.parents]
    sources = [path, *(folder / "conftest.py" for folder in folders)]
    texts = (source.read_text("utf-8") for source in sources if source.exists())
    return any(_SLOW.search(text) for text in texts)


def _is_slow(path: Path) -> bool:
    """Return whether a file marks all its tests as slow.

    The extra `test` lacks packages that some of these files import, and the import of others takes
    seconds.
    """
    return "\npytestmark = pytest.mark.slow" in path.read_text("utf-8")


def _are_nested(path: Path, folder: Path) -> bool:
    """Return whether one of two paths contains the other."""
    return path.is_relative_to(folder) or folder.is_relative_to(path)
