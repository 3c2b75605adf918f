"""The cooldown of a program: a time in which its runs record nothing and start no process.

A run of the program checks the cooldown first, because most runs end here. The cases that set it
(`kit/host.py`):

    a run has started a recording process              10 seconds
    the collector was not reached                      an hour
    nothing more can be recorded today                 until midnight (UTC)

The file `cooldown` in the folder of the program has one line: the end of the cooldown in seconds
since 1970, and the version of the registry (size in bytes, modification time in nanoseconds):

    1795046400.0 2144 1795000000123456789

A new version of the registry ends the cooldown, because it may have other metrics. A cooldown of
more than a day is ignored, because the clock was wrong when it was set.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

DAY: Final = 86400
"""Seconds of a day: the longest cooldown."""
_FILE_NAME: Final = "cooldown"


class RunCooldown:
    """The cooldown of one program in one folder.

    Parameters
    ----------
    folder
        Folder of the program. It is created with the first cooldown.
    registry
        Path of the registry.
    clock
        Returns seconds since 1970.
    """

    def __init__(self, folder: str, registry: str, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._registry = registry
        self._clock = clock

    def is_running(self) -> bool:
        """Return whether a cooldown is running for the present registry.

        False if the file is absent or damaged, or the registry does not exist.
        """
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self._folder, _FILE_NAME), encoding="utf-8") as file:
                until, _, version = file.read().partition(" ")
            is_ahead = 0 < float(until) - self._clock() <= DAY
            return is_ahead and version == self._registry_version()
        return False

    def start(self, until: float) -> None:
        """Start a cooldown until a time in seconds since 1970; OSError if the disk fails."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with open(os.path.join(self._folder, _FILE_NAME), "w", encoding="utf-8") as file:
            file.write(f"{until} {self._registry_version()}")

    def end(self) -> None:
        """End the cooldown. A failure of the disk is ignored."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, _FILE_NAME))

    def _registry_version(self) -> str:
        """Return size and modification time of the registry, which identify its version.

        Parsing the registry would delay every start of the program.
        """
        status = os.stat(self._registry)
        return f"{status.st_size} {status.st_mtime_ns}"
