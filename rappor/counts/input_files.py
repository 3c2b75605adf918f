"""Input files of an analysis: recognise the format, read the counts, join days, check the metric.

Every command that reads counts uses this module. An analyst has counts in three kinds of files:

    kind of file                               parameters   metric     days
    counts file (`Counts.save`)                yes          optional   no
    JSON of a collector (`ReleasedCounts`)     yes          yes        yes
    CSV table, the result of `rappor sql`      no           no         no

For a CSV table the caller passes the metric, whose parameters apply. Files of reports are refused
with a hint, because analysts confuse them with files of counts.
"""

from __future__ import annotations

import datetime
import itertools
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rappor.base.errors import DecodeError, FileError, MetricError
from rappor.counts.calendar_periods import find_period
from rappor.counts.counts import Counts
from rappor.counts.counts_tables import is_table_of_counts
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.protocol.encodings import get_encoding
from rappor.registry.metric import Metric

_PARQUET: Final = b"PAR1"
"""A Parquet file begins with these bytes."""

_LONGEST_LINE: Final = 1 << 20
"""Largest number of bytes that are read to recognise a format: 1 MiB. The first line of a file of
uploads has to fit. A longer line produces a less helpful error message."""


def read_counts(path: str, metric: Metric | None = None) -> list[Counts]:
    """Read one file of counts, or a collector's result with several counts.

    Parameters
    ----------
    path : path of the file.
    metric : the metric of a CSV table, which does not contain its parameters.

    Raises
    ------
    FileError
        The file is not a counts file, contains reports, or is a table of a metric with parts.
    """
    first_line = _read_first_line(path)
    text = first_line.removeprefix(BOM_UTF8).decode(errors="replace")
    if metric is not None and is_table_of_counts(text):
        if metric.parts:
            # Parts are pieces of a string, such as its first letters, and each has parameters of
            # its own. The columns of the table do not contain the part.
            raise FileError(
                path,
                f"{metric.name} has parts, and a CSV table does not contain the name of its part",
            )
        return [Counts.from_csv(path, metric.params, metric.name)]
    if first_line.startswith(_PARQUET) or _is_upload(first_line):
        raise FileError(
            path,
            f"it has reports, not counts; add them up first: rappor aggregate {path} --registry "
            "FILE --metric NAME --out FILE",
        )
    return Counts.load_all(path)


def read_released(path: str, metric: Metric | None = None) -> ReleasedCounts | None:
    """Read a collector's result with its days; return None for a file of counts without days.

    Parameters
    ----------
    path : path of the file.
    metric : the metric of a CSV table, as for `read_counts`.

    Raises
    ------
    FileError
        The file contains no counts.
    """
    try:
        return ReleasedCounts.load(path)
    except FileError:
        # The file is a file of counts without days, or contains no counts at all. In the second
        # case `read_counts` raises an error that names the format of the file.
        read_counts(path, metric)
        return None


def read_days(path: str) -> tuple[datetime.date, ...]:
    """Return the first and the last day of a collector's result; an empty tuple for other files."""
    with Path(path).open("rb") as file:
        # Only the JSON of a collector begins with a brace. Other files of counts may be large, and
        # are not read.
        if file.read(1) != b"{":
            return ()
        document = json.loads(b"{" + file.read())
    first, last = document.get("from"), document.get("to")
    if not (first and last):
        return ()
    return datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)


def list_epochs(paths: Iterable[str], metric: Metric) -> list[str]:
    """List the epochs that contain the first or the last day of a file, in order.

    An epoch is the time for which devices repeat a permanent response, such as "2026-Q4". Files
    without days are skipped.
    """
    return sorted({metric.epoch_at(day) for path in paths for day in read_days(path)})


def join_released(results: Sequence[ReleasedCounts]) -> ReleasedCounts:
    """Join the periods of several results of a collector, in the order of their days.

    Raises
    ------
    MetricError
        The results are of several metrics.
    DecodeError
        Two periods overlap, so that reports would count twice.
    """
    if len({result.metric for result in results}) > 1:
        names = ", ".join(result.metric for result in results)
        raise MetricError(f"counts must be of one metric, got {names}")
    # Each result has the active installations of its last intervals. The joined result gets the
    # installations of the result with the last day, because they are the present ones.
    latest = max(results, key=lambda result: result.last)
    periods = sorted(
        (period for result in results for period in result.periods),
        key=lambda period: period.first,
    )
    for before, after in itertools.pairwise(periods):
        if after.first <= before.last:
            raise DecodeError(f"periods must not overlap, got {before.name} and {after.name}")
    return ReleasedCounts(
        metric=results[0].metric,
        first=min(result.first for result in results),
        last=max(result.last for result in results),
        periods=tuple(periods),
        withheld=tuple(sorted(day for result in results for day in result.withheld)),
        installations=latest.installations,
    )


def assign_periods(
    files: Sequence[tuple[str, list[Counts]]], first: datetime.date, by: str
) -> ReleasedCounts:
    """Assign consecutive days, weeks or months to counts of files without days.

    Parameters
    ----------
    files : path and counts of each file, in the order of the periods.
    first : first day of the first file.
    by : length of a period: "day", "week" or "month". The first period may be shorter, because
        weeks begin on Monday and months on their first day.

    Raises
    ------
    DecodeError
        A period would be in the year 10000 or later, which a date cannot have.
    """
    periods: list[Period] = []
    following: datetime.date | None = first
    for path, counts in files:
        if following is None:
            raise DecodeError(f"the days of {path} must be before the year 10000")
        last = find_period(following, by, within=(following, datetime.date.max))[1]
        periods.append(Period(first=following, last=last, collections=tuple(counts)))
        following = None if last == datetime.date.max else last + datetime.timedelta(1)
    names = {counts.metric for _, collections in files for counts in collections}
    return ReleasedCounts(
        metric=names.pop() if len(names) == 1 else "",
        first=first,
        last=periods[-1].last,
        periods=tuple(periods),
        withheld=(),
    )


def find_metric_name(counts: Iterable[Counts]) -> str:
    """Return the only metric name in the counts, or an empty text if no counts have a name.

    Raises MetricError for counts of several metrics.
    """
    names = sorted({collection.metric for collection in counts} - {""})
    if len(names) > 1:
        raise MetricError(f"counts must be of one metric, got {', '.join(names)}")
    return names[0] if names else ""


def check_counts(counts: Sequence[Counts], metric: Metric) -> None:
    """Check counts against the entry of their metric.

    Raises
    ------
    MetricError
        The counts belong to another metric, or their encoding differs from the metric's encoding.
    DecodeError
        The counts have fewer reports than the minimum of the metric.
    """
    for collection in counts:
        if collection.metric not in ("", metric.name):
            raise MetricError(f"counts must be of {metric.name}, got {collection.metric}")
        if not get_encoding(metric.params).has_same_encoding(collection.params):
            raise MetricError(
                f"counts must have encoding {metric.params.encoding}, "
                f"got {collection.params.encoding}"
            )
    n_reports = sum(collection.n_reports for collection in counts)
    if n_reports < metric.min_reports:
        raise DecodeError(
            f"counts must have at least {metric.min_reports:,} reports, the minimum of "
            f"{metric.name}, got {n_reports:,}"
        )


def _read_first_line(path: str) -> bytes:
    """Return at most the first mebibyte of the first line, which shows the format of the file."""
    try:
        with Path(path).open("rb") as file:
            return file.readline(_LONGEST_LINE)
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def _is_upload(line: bytes) -> bool:
    """Return whether a line is an upload of reports."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"id", "reports"} <= document.keys()
