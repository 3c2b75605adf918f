"""Stored reports for the benchmark of engines: folders of Parquet files of one metric."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.engines import write_parquet
from rappor.registry.registry import Registry

REGISTRY: Final = """
[budget]
total = inf

[metrics.page]
description = "Home page"
owner = "a@example.org"
expires = 2999-12-31
epoch = "quarter"
encoding = "bloom"
profile = "balanced"
"""

FILE: Final = 1_000_000
"""Number of reports of a file. With k = 128 a file has 20 MB, as a daily job may write."""
_BATCH: Final = 250_000
"""Number of reports that are written at a time. A larger number needs more memory."""


def write_lake(folder: Path, n_reports: int) -> Path:
    """Write reports of random bits, a million in a file. All files beyond the tenth are copies."""
    folder.mkdir(parents=True)
    params = Registry.loads(REGISTRY)["page"].params
    rng = np.random.default_rng(1)

    def batches(n: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]]:
        for start in range(0, n, _BATCH):
            size = min(_BATCH, n - start)
            packed = rng.integers(0, 256, (size, params.n_bytes), dtype=np.uint8)
            yield packed, rng.integers(0, params.m, size)

    for number in range(-(-n_reports // FILE)):
        path = folder / f"{number:04}.parquet"
        n = min(FILE, n_reports - number * FILE)
        # Copies save the time of drawing. They have other paths and times, so engines count them.
        if number >= 10 and n == FILE:
            path.write_bytes((folder / f"{number % 10:04}.parquet").read_bytes())
        else:
            day = datetime.date(2026, 10, 1) + datetime.timedelta(days=number % 90)
            write_parquet(path, batches(n), params=params, metric="page", day=day)
    return folder
