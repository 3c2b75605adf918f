"""Stored reports in files of every kind, and their sums."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rappor import Counts, Registry
from rappor.engines import write_parquet

REGISTRY: Final = """
[budget]
total = inf

[metrics.page]
description = "Home page"
owner = "a@example.org"
expires = 2999-12-31
epoch = "life"
encoding = "bloom"
k = 20
m = 8
f = 0.5
p = 0.25
q = 0.75

[metrics.theme]
description = "Light or dark"
owner = "a@example.org"
expires = 2999-12-31
epoch = "life"
encoding = "onehot"
categories = ["light", "dark", "other"]
profile = "strict"
"""
"""Two metrics. Their reports have unused bits, which must be 0."""

METRICS: Final = Registry.loads(REGISTRY)
DAYS: Final = (datetime.date(2026, 11, 1), datetime.date(2026, 11, 2))
"""Stored reports belong to one of these two days."""

FAULTS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("format", {"format": 9}),
    ("format", {"format": None}),
    ("unknown-metric", {"metric": "site"}),
    ("unknown-metric", {"metric": None}),
    ("unknown-params", {"params": "0123456789abcdef"}),
    ("cohort", {"cohort": 8}),
    ("cohort", {"cohort": -1}),
    ("cohort", {"cohort": None}),
    ("length", {"bits": b"\x00\x00"}),
    ("length", {"bits": b"\x00" * 4}),
    ("length", {"bits": b""}),
    ("length", {"bits": None}),
    ("padding", {"bits": b"\x00\x00\x10"}),
    ("padding", {"bits": b"\xff\xff\xff"}),
]
"""Pairs of a reason to refuse a row, and the change of a good row of the metric `page` that causes
the refusal."""

Row = dict[str, Any]
"""Type of a stored report: the values of the columns by name."""


def draw_rows(name: str, n: int, *, seed: int = 1, day: datetime.date = DAYS[0]) -> list[Row]:
    """Draw n random reports of a metric, and return them as rows with packed bits."""
    params = METRICS[name].params
    rng = np.random.default_rng([seed, params.k, day.toordinal()])
    bits = np.packbits(rng.integers(0, 2, (n, params.k)), axis=1, bitorder="little")
    cohorts = rng.integers(0, params.m, n).tolist()
    return [
        {
            "format": 1,
            "metric": name,
            "params": params.fingerprint,
            "day": day,
            "cohort": cohort,
            "bits": row.tobytes(),
        }
        for cohort, row in zip(cohorts, bits, strict=True)
    ]


def count_rows_by_hand(rows: list[Row]) -> dict[tuple[str, ...], Counts]:
    """Add rows one by one, and return their counts by metric and fingerprint.

    The function is a second implementation: slow, and without numpy. It does not compute sums of
    squared reports, so a test drops them from the other counts (`drop_squared_reports`).
    """
    by_key: dict[tuple[str, ...], Counts] = {}
    for key in sorted({(row["metric"], row["params"]) for row in rows}):
        params = METRICS[key[0]].params
        bit_counts = [[0] * params.k for _ in range(params.m)]
        cohort_reports = [0] * params.m
        for row in rows:
            if (row["metric"], row["params"]) == key:
                cohort_reports[row["cohort"]] += 1
                number = int.from_bytes(row["bits"], "little")
                for i in range(params.k):
                    bit_counts[row["cohort"]][i] += number >> i & 1
        by_key[key] = Counts(params, bit_counts, cohort_reports, key[0])
    return by_key


def drop_squared_reports(counts: dict[tuple[str, ...], Counts]) -> dict[tuple[str, ...], Counts]:
    """Return counts without their sums of squared reports."""
    return {
        key: Counts(total.params, total.bit_counts, total.cohort_reports, total.metric)
        for key, total in counts.items()
    }


def format_row(row: Row) -> Row:
    """Return a row as CSV and JSON store it, with the bits in base64url and the day as text."""
    bits = base64.urlsafe_b64encode(row["bits"]).decode().rstrip("=")
    return row | {"bits": bits} | ({"day": str(row["day"])} if "day" in row else {})


def write_rows(path: Path, rows: list[Row]) -> Path:
    """Write rows to a file: Parquet, CSV or JSON by the ending of its name, `.gz` compressed.

    The keys of the first row are the columns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    texts = [format_row(row) if isinstance(row.get("bits"), bytes) else row for row in rows]
    if name.endswith(".csv"):
        lines = [",".join(texts[0]), *(",".join(map(str, row.values())) for row in texts)]
    else:
        lines = [json.dumps(row) for row in texts]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_packed(path: Path, name: str, n: int, *, seed: int, day: datetime.date = DAYS[0]) -> Path:
    """Write n random reports of a metric as Parquet. The function makes no objects for rows."""
    params = METRICS[name].params
    rng = np.random.default_rng([seed, params.k])
    packed = rng.integers(0, 256, (n, params.n_bytes), dtype=np.uint8)
    packed[:, -1] &= 0xFF >> (8 * params.n_bytes - params.k)
    cohorts = rng.integers(0, params.m, n)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, [(packed, cohorts)], params=params, metric=name, day=day)
    return path
