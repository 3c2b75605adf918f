"""Files of counts: recognise the format, read the counts, and check them against a metric."""

from __future__ import annotations

import datetime
import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rappor.base.errors import DecodeError, FileError, MetricError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.counts.counts import Counts
    from rappor.counts.released import Released

_PARQUET: Final = b"PAR1"
_LONGEST_LINE: Final = 1 << 20


def read_counts(path: str, metric: Metric | None = None) -> list[Counts]:
    """Read one file of counts, or a collector's result with several counts.

    A CSV table, the result of `rappor sql`, does not contain its parameters. They are the
    parameters of `metric`.
    """
    from rappor.counts.counts import Counts
    from rappor.counts.tables import is_table_of_counts

    first_line = _first_line(path)
    text = first_line.removeprefix(BOM_UTF8).decode(errors="replace")
    if metric is not None and is_table_of_counts(text):
        if metric.parts:
            raise FileError(
                path, f"{metric.name} has parts, and a table of CSV does not say which it is of"
            )
        return [Counts.from_csv(path, metric.params, metric.name)]
    if first_line.startswith(_PARQUET) or _is_upload(first_line):
        raise FileError(
            path,
            f"it has reports, not counts; add them up first: rappor aggregate {path} --registry "
            "FILE --metric NAME --out FILE",
        )
    return Counts.load_all(path)


def read_released(path: str, metric: Metric | None = None) -> Released | None:
    """Read a collector's result with its days; return None for a file of counts without days."""
    from rappor.counts.released import Released

    try:
        return Released.load(path)
    except FileError:
        read_counts(path, metric)  # a file of no counts at all has its own sentence
        return None


def days_of(path: str) -> tuple[datetime.date, ...]:
    """Return the first and the last day of a collector's result; empty for other files."""
    with Path(path).open("rb") as file:
        if file.read(1) != b"{":
            return ()
        document = json.loads(b"{" + file.read())
    first, last = document.get("from"), document.get("to")
    if not (first and last):
        return ()
    return datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)


def _first_line(path: str) -> bytes:
    """Return at most the first mebibyte of the first line, which shows the format of the file."""
    try:
        with Path(path).open("rb") as file:
            return file.readline(_LONGEST_LINE)
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def _is_upload(line: bytes) -> bool:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"id", "reports"} <= document.keys()


def only_name(counts: list[Counts]) -> str:
    """Return the only metric name in the counts, or an empty text if no counts have a name."""
    names = sorted({each.metric for each in counts} - {""})
    if len(names) > 1:
        raise MetricError(f"counts must be of one metric, got {', '.join(names)}")
    return names[0] if names else ""


def check_counts(counts: list[Counts], metric: Metric) -> None:
    """Raise an error for counts of another metric or encoding, and for too few reports."""
    for each in counts:
        if each.metric not in ("", metric.name):
            raise MetricError(f"counts must be of {metric.name}, got {each.metric}")
        if not encoding_of(metric.params).takes_values_of(each.params):
            raise MetricError(
                f"counts must have encoding {metric.params.encoding}, got {each.params.encoding}"
            )
    n_reports = sum(each.n_reports for each in counts)
    if n_reports < metric.min_reports:
        raise DecodeError(
            f"counts must have at least {metric.min_reports:,} reports, the minimum of "
            f"{metric.name}, got {n_reports:,}"
        )
