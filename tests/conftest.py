"""Settings of all tests, and the fast stage.

A stage is a set of tests that run together (README.md). `pytest -m fast` runs the tests of the
packages that every other package imports: protocol, registry and privacy.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from postgres import share_postgres
from stages import FAST, TESTS, is_needed

# Tests start hundreds of interpreters, and pytest rewrites each file of tests. Without stored byte
# code, each interpreter compiles the packages again, and each worker of pytest rewrites the files
# again: half of the time of the collection. An environment may have switched it off, as many
# containers do. The workers and the children of tests inherit the variable.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The workers of pytest already use all cores. Further threads of the matrix library (BLAS) and of
# OpenMP in each worker wait for each other, and waiting threads take CPU. The libraries read the
# variables when they are loaded. The children of tests inherit the variables, too.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - Linux mounts a file system in memory here
"""Folder for the temporary files of all tests and of their children, if the system has it."""
_MEMORY_BYTES: Final = 8_000_000_000
"""Free bytes that the folder in memory must have, many times as many as a run of the tests uses."""


def use_memory() -> None:
    """Put all temporary files into memory, if there is room and nobody has chosen a folder.

    Devices and databases wait for the disk (`fsync`) at each change, so tests of devices take a
    third of the time in memory. A killed process loses nothing there: only a failing machine would.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    # Tests start programs that they write into their folders, which a mount may forbid.
    is_executable = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if is_executable and shutil.disk_usage(MEMORY).free > _MEMORY_BYTES:
        for name in ("TMPDIR", "PYTEST_DEBUG_TEMPROOT"):
            os.environ[name] = str(MEMORY)
        tempfile.tempdir = None  # pytest has looked for the folder before


use_memory()

settings.register_profile(
    "repeatable",
    deadline=None,  # a busy machine is slow, and slowness is no fault of the tested code
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # every run tries the same examples, so that a failure can be repeated
)
settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a test of the stage."""
    if not collection_path.is_relative_to(TESTS):
        return None
    return None if is_needed(collection_path, config.getoption("markexpr")) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the fast stage by their folder."""
    for item in items:
        is_in_folder = any(item.path.is_relative_to(folder) for folder in FAST)
        if is_in_folder and not any(map(item.get_closest_marker, ("slow", "acceptance"))):
            item.add_marker("fast")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all workers of a run of the tests have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def postgres(shared_folder: Path, testrun_uid: str) -> Iterator[str]:
    """Yield the address of the PostgreSQL server of all workers."""
    with share_postgres(testrun_uid, shared_folder / "postgres.lock") as server:
        yield server
