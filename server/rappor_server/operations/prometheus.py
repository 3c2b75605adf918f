"""Counters and gauges of one process, for Prometheus. They contain nothing about single devices.

A counter only grows; Prometheus computes its rate. A gauge is set to the present value. A histogram
counts observations in buckets of durations or sizes. A label divides a counter, gauge or histogram
into several numbers: the counter `rappor_refusals` has a number of its own for each reason of a
refusal. `Metrics` creates all counters, gauges and histograms at the start of the process. In the
names of this module, a metric is what devices report. The following events change the numbers:

| event                                  | caller                       | method or attribute   |
|----------------------------------------|------------------------------|-----------------------|
| a batch of uploads is on the disk      | `app/collector.py`           | `observe_commit`      |
| an upload gets another status than 200 | `http/device_endpoints.py`   | `uploads`             |
| a whole upload is refused              | `app/collector.py`           | `refusals`            |
| an upload has a valid upload key       | `http/device_endpoints.py`   | `key_uploads`         |
| a connection is refused                | `app/serving.py`,            | `refused_connections` |
|                                        | `http/bounded_protocol.py`   |                       |
| a response of any route ends           | `http/middleware.py`         | `observe_request`     |
| the merge process sends its status     | `app/collector.py`           | `show_inbox`          |
| maintenance begins, and counts the     | `app/collector.py`           | `show_maintenance`    |
| overdue work: days whose reports are   |                              |                       |
| not moved to blocks, and expired keys  |                              |                       |
| the database was probed                | `app/collector.py`           | `show_health`         |
| a registry comes into force            | `app/collector.py`           | `show_registry`       |
| GET /metrics                           | `http/operator_endpoints.py` | `render`              |
"""

from __future__ import annotations

import functools
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from rappor_server.ingest.validate import Submission
from rappor_server.storage.merge_process import MergeStatus

_OK: Final = 200
"""Status of an upload that was stored, even if some or all of its reports were refused."""
_STATUSES: Final = (_OK, 400, 401, 408, 413, 415, 422, 429, 503)
"""Statuses that an upload can get. Each is a label of the counter of uploads."""
_REASONS: Final = (
    *("malformed", "unknown-metric", "unknown-params", "cohort", "length", "padding"),
    *("popcount", "expired", "stopped", "too-many", "no-key"),
)
"""Reasons that a refusal can have. Each is a label of the counter of refusals."""

# The library would publish the time at which each counter was created. Some counters are created
# at the first event of their label, so the time could be that of an upload.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counters and gauges of one application."""

    def __init__(self, queue_length: Callable[[], int]) -> None:
        """Create all metrics with value 0; `queue_length` returns the number of queued uploads."""
        self._registry = CollectorRegistry()
        self._queue_length = queue_length
        self._times: dict[tuple[str, int], Histogram] = {}
        self._fingerprint = ""
        counter = functools.partial(Counter, registry=self._registry)
        gauge = functools.partial(Gauge, registry=self._registry)
        histogram = functools.partial(Histogram, registry=self._registry)
        self.uploads = counter("rappor_uploads", "Uploads by HTTP status", ["status"])
        self.reports = counter("rappor_reports", "Reports accepted", ["metric"])
        self.refusals = counter("rappor_refusals", "Refusals, by reason", ["reason"])
        self.key_uploads = counter("rappor_key_uploads", "Uploads by upload key", ["key"])
        self.refused_connections = counter(
            "rappor_refused_connections", "Refused connections, by limit", ["bound"]
        )
        # Prometheus computes a rate from the difference of two scraped values. If the counter
        # appeared with the first event, with value 1, the difference would miss this event.
        for bound in ("max_connections", "max_source_connections"):
            self.refused_connections.labels(bound)
        self.commit_seconds = histogram(
            "rappor_commit_seconds",
            "Duration of the commit of a batch, in seconds",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
        )
        self.commit_uploads = histogram(
            "rappor_commit_uploads",
            "Number of uploads in a batch",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )
        self.request_seconds = histogram(
            "rappor_http_request_seconds",
            "Time from the head of a request to the end of its response, in seconds",
            ["route", "status"],
            buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 20),
        )
        self._last_commit = gauge(
            "rappor_last_commit_timestamp_seconds",
            "Minute of the last commit of a batch, in seconds since 1970",
        )
        self._registry_info = gauge(
            "rappor_registry_info",
            "1 for the fingerprint of the registry in force in this process, else 0",
            ["fingerprint"],
        )
        self._ready = gauge(
            "rappor_ready",
            "1 if the last commit or probe of the database succeeded, else 0",
        )
        self._queue = gauge("rappor_queue_uploads", "Number of uploads that wait for a commit")
        self._inbox = {
            name: gauge(f"rappor_inbox_{name}", text)
            for name, text in (
                ("bytes", "Size of the batches that wait for a merge, in bytes"),
                ("oldest_seconds", "Age of the oldest batch that waits for a merge, in seconds"),
                ("failed_batches", "Number of batches that no merge could read"),
            )
        }
        self._unclosed_days = gauge(
            "rappor_unclosed_days",
            "Number of ended days whose reports are not in a block yet: the largest number over "
            "all metrics",
        )
        self._overdue_key_days = gauge(
            "rappor_overdue_key_days",
            "Days for which deduplication keys are stored too long, because prune has not run",
        )
        self._merged = counter("rappor_merged_uploads", "Uploads that were merged into counters")
        self._duplicates = counter("rappor_duplicate_uploads", "Uploads that were counted before")
        version_info = gauge(
            "rappor_build_info",
            "Version of the collector",
            ["version"],
        )
        version_info.labels(version("rappor")).set(1)
        self._ready.set(1)
        ProcessCollector(registry=self._registry)
        self._create_labels()

    def _create_labels(self) -> None:
        """Create the labels with value 0, so that a rate includes the first event."""
        for status in _STATUSES:
            self.uploads.labels(status)
        for reason in _REASONS:
            self.refusals.labels(reason)

    def show_health(self, *, is_ready: bool) -> None:
        """Set whether uploads can be stored."""
        self._ready.set(int(is_ready))

    def show_maintenance(self, unclosed_days: int, overdue_key_days: int) -> None:
        """Set the numbers of days that maintenance has still to do.

        Parameters
        ----------
        unclosed_days : number of ended days whose reports are not in a block (the stored counts
            of ended days) yet. It is the largest number over all metrics.
        overdue_key_days : days for which `prune` should have deleted deduplication keys already
        """
        self._unclosed_days.set(unclosed_days)
        self._overdue_key_days.set(overdue_key_days)

    def show_inbox(self, status: MergeStatus) -> None:
        """Set the contents of the inbox, and count the uploads of the last merge."""
        self._inbox["bytes"].set(status.contents.n_bytes)
        self._inbox["oldest_seconds"].set(status.oldest_seconds)
        self._inbox["failed_batches"].set(status.contents.unreadable)
        self._merged.inc(status.merged.uploads)
        self._duplicates.inc(status.merged.duplicates)

    def show_registry(self, fingerprint: str, metrics: Iterable[str]) -> None:
        """Set the registry in force, and create the counters of its metrics with value 0.

        An alert compares refusals with reports. The comparison has no result while no counter of
        reports exists.
        """
        for metric in metrics:
            self.reports.labels(metric)
        if self._fingerprint:
            # The previous registry stays visible with the value 0 after a reload.
            self._registry_info.labels(self._fingerprint).set(0)
        self._registry_info.labels(fingerprint).set(1)
        self._fingerprint = fingerprint

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count a response by its route and the class of its status."""
        # `labels` takes longer than the observation itself, so the histograms are cached.
        key = route, status // 100
        if (histogram := self._times.get(key)) is None:
            histogram = self._times[key] = self.request_seconds.labels(route, f"{key[1]}xx")
        histogram.observe(seconds)

    def observe_commit(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Count the commit of a batch, its uploads, and their accepted and refused reports."""
        self.commit_seconds.observe(seconds)
        # Whole minutes: Prometheus stores the value of each scrape, and an exact time would be the
        # time of an upload.
        self._last_commit.set(time.time() // 60 * 60)
        self.commit_uploads.observe(len(submissions))
        self._queue.set(self._queue_length())
        self.uploads.labels(_OK).inc(len(submissions))
        accepted = Tally(
            report.metric for submission in submissions for report in submission.accepted
        )
        for metric, n in accepted.items():
            self.reports.labels(metric).inc(n)
        refused: Tally[str] = Tally()
        for submission in submissions:
            for (_, reason), n in submission.refusals.items():
                refused[reason] += n
        for reason, n in refused.items():
            self.refusals.labels(reason).inc(n)

    def render(self) -> bytes:
        """Return all counters and gauges in the text format of Prometheus."""
        self._queue.set(self._queue_length())
        return generate_latest(self._registry)
