"""Files of counts, and what a registry says of them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.ground.errors import DecodeError, FileError, MetricError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.counts.counts import Counts

_PARQUET: Final = b"PAR1"
_LONGEST_LINE: Final = 1 << 20


def read_counts(path: str) -> list[Counts]:
    """Read one file of counts, or a collector's answer of several."""
    from rappor.counts.counts import Counts

    first_line = _first_line(path)
    if first_line.startswith(_PARQUET) or _is_upload(first_line):
        raise FileError(
            path,
            f"it has reports, not counts; add them up first: rappor aggregate {path} --registry "
            "FILE --metric NAME --out FILE",
        )
    return Counts.load_all(path)


def days_of(path: str) -> tuple[datetime.date, ...]:
    """Return the first and the last day of a collector's answer; nothing for other files."""
    with Path(path).open("rb") as file:
        if file.read(1) != b"{":
            return ()
        document = json.loads(b"{" + file.read())
    first, last = document.get("from"), document.get("to")
    if not (first and last):
        return ()
    return datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)


def _first_line(path: str) -> bytes:
    """Return the first line, or as much of it as tells the kind of file."""
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


def find_metric(
    registry_path: str | None, metric_name: str | None, counts: list[Counts]
) -> Metric | None:
    """Return the metric of a registry, by its name or by the one that the counts have."""
    if registry_path is None:
        if metric_name is not None:
            raise click.UsageError("--metric needs --registry")
        _only_name(counts)
        return None
    registry = Registry.load(registry_path)
    name = metric_name or _only_name(counts)
    if not name:
        raise click.UsageError("give --metric: the files do not name their metric")
    return registry.metric(name)


def _only_name(counts: list[Counts]) -> str:
    """Return the one metric that the counts name; empty if they name none."""
    names = sorted({each.metric for each in counts} - {""})
    if len(names) > 1:
        raise MetricError(f"counts must be of one metric, got {', '.join(names)}")
    return names[0] if names else ""


def check_counts(counts: list[Counts], metric: Metric) -> None:
    """Refuse counts of another metric or encoding, and too few reports."""
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


def is_pair(counts: list[Counts]) -> bool:
    """Return whether some counts are of categories with `other`, and others of what is in it."""
    return len({encoding_of(each.params).hashed for each in counts if each.params.other}) == 2


def check_pair(
    registry_path: str | None, metric_name: str | None, counts: list[Counts]
) -> Metric | None:
    """Check the counts of such a pair against the registry; return the metric of the texts."""
    if registry_path is None:
        return None
    registry = Registry.load(registry_path)
    named = sorted({each.metric for each in counts} - {""})
    names = registry.together(metric_name or (named[0] if named else ""))
    if len(names) < 2 or not set(named) <= set(names):
        raise MetricError(f"counts must be of a metric with other, got {', '.join(named)}")
    metrics = [registry.metric(name) for name in names]
    for metric in metrics:
        hashed = encoding_of(metric.params).hashed
        check_counts([c for c in counts if encoding_of(c.params).hashed == hashed], metric)
    return metrics[1]


def add_by_epoch(paths: Sequence[str], metric: Metric | None, counts: list[Counts]) -> list[Counts]:
    """Add counts of one epoch in which a device reports once: no two reports are of one device.

    Files without days are taken for one epoch's. All other counts stay as they are.
    """
    from rappor.decoding.devices import add_different

    if metric is None or metric.interval != "epoch" or len(_epochs(paths, metric)) > 1:
        return counts
    return add_different(counts)


def _epochs(paths: Sequence[str], metric: Metric) -> list[str]:
    """Return the epochs that the first and last days of some files are in."""
    return sorted({metric.epoch_at(day) for path in paths for day in days_of(path)})


def check_one_epoch(paths: Sequence[str], metric: Metric) -> None:
    """Refuse days of several epochs: in each of them a device answers for another part."""
    epochs = _epochs(paths, metric)
    if len(epochs) > 1:
        raise DecodeError(
            f"counts must be of one epoch of {metric.name}, got days of {' and '.join(epochs)}: "
            "ask the collector for the days of one"
        )
