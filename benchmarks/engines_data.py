"""Parquet files with random reports of one metric, for the benchmark of `rappor.engines`.

An engine is a way to add up stored reports, for example Spark (`benchmarks.engines`).
"""

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

FILE_REPORTS: Final = 1_000_000
"""Number of reports in a file. With k = 128 a file has 20 MB. A program that stores a
million reports a day, in a file for each day, writes files of this size."""
_BATCH: Final = 250_000
"""Number of reports that are written at a time. A larger number needs more memory."""


def write_report_files(folder: Path, n_reports: int) -> Path:
    """Write reports of random bits into a new folder, a million in a file; return the folder.

    Full files beyond the tenth are copies of the first ten. A last file with fewer reports is
    drawn.
    """
    folder.mkdir(parents=True)
    params = Registry.loads(REGISTRY)["page"].params
    rng = np.random.default_rng(1)

    def yield_batches(n: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]]:
        """Yield the packed bits and the cohorts of n reports, at most `_BATCH` at a time."""
        for start in range(0, n, _BATCH):
            size = min(_BATCH, n - start)
            packed = rng.integers(0, 256, (size, params.n_bytes), dtype=np.uint8)
            yield packed, rng.integers(0, params.m, size)

    for number in range(-(-n_reports // FILE_REPORTS)):
        path = folder / f"{number:04}.parquet"
        n = min(FILE_REPORTS, n_reports - number * FILE_REPORTS)
        # Drawing takes longer than copying. An engine reads each path, so it counts the reports of
        # a copy like the reports of any other file.
        if number >= 10 and n == FILE_REPORTS:
            path.write_bytes((folder / f"{number % 10:04}.parquet").read_bytes())
        else:
            day = datetime.date(2026, 10, 1) + datetime.timedelta(days=number % 90)
            write_parquet(path, yield_batches(n), params=params, metric="page", day=day)
    return folder
