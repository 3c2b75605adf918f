"""Several workers look like one collector to those who watch it; `test_serving` kills some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rappor_server.prometheus import shared_by_workers

MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only


@pytest.mark.skipif(not MEMORY.exists(), reason="needs files in memory")
def test_counters_of_workers_need_no_disk() -> None:
    """A full disk would end every process that counts."""
    with shared_by_workers():
        assert Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).parent == MEMORY
