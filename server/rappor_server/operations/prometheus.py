"""Counters and gauges of one process for Prometheus; they contain nothing about single devices."""

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
from rappor_server.storage.folder import State

_OK: Final = 200
_STATUSES: Final = (_OK, 400, 401, 408, 413, 415, 429, 503)
_REASONS: Final = (
    *("malformed", "unknown-metric", "unknown-params", "cohort", "length", "padding"),
    *("popcount", "expired", "stopped", "too-many", "no-key"),
)


# The time of a first report is nobody's business.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counters of one application."""

    def __init__(self, queue_length: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._queue_length = queue_length
        self._times: dict[tuple[str, int], Histogram] = {}
        self._fingerprint = ""
        counter = functools.partial(Counter, registry=self._registry)
        gauge = functools.partial(Gauge, registry=self._registry)
        histogram = functools.partial(Histogram, registry=self._registry)
        self.uploads = counter("rappor_uploads", "Uploads by HTTP status", ["status"])
        self.reports = counter("rappor_reports", "Reports accepted", ["metric"])
        self.refusals = counter("rappor_refusals", "Refused, by reason", ["reason"])
        self.key_uploads = counter(
            "rappor_key_uploads", "Uploads by the key that they carried", ["key"]
        )
        self.refused_connections = counter(
            "rappor_refused_connections", "Connections refused, by the bound", ["bound"]
        )
        for bound in ("max_connections", "max_source_connections"):
            self.refused_connections.labels(bound)
        self.commit_seconds = histogram(
            "rappor_commit_seconds",
            "Seconds that a group commit took",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
        )
        self.commit_uploads = histogram(
            "rappor_commit_uploads",
            "Uploads in a group commit",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )
        self.request_seconds = histogram(
            "rappor_http_request_seconds",
            "Seconds from the head of a request to the end of its answer",
            ["route", "status"],
            buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 20),
        )
        self._last_commit = gauge(
            "rappor_last_commit_timestamp_seconds",
            "When the last group was committed, in seconds since 1970",
        )
        self._registry_info = gauge(
            "rappor_registry_info",
            "Processes in which a registry is in force, by its fingerprint",
            ["fingerprint"],
        )
        self._ready = gauge(
            "rappor_ready",
            "1 while the last commit or probe of the database succeeded",
        )
        self._queue = gauge("rappor_queue_uploads", "Uploads that wait for a commit")
        self._inbox = {
            name: gauge(f"rappor_inbox_{name}", text)
            for name, text in (
                ("bytes", "What waits to be folded, in bytes"),
                ("oldest_seconds", "How long the oldest group waits"),
                ("failed_groups", "Groups that cannot be read and are set apart"),
            )
        }
        self._folded = counter("rappor_folded_uploads", "Uploads that were folded into counters")
        self._doubles = counter("rappor_double_uploads", "Retries that counted nothing again")
        version_info = gauge(
            "rappor_build_info",
            "The version of the collector",
            ["version"],
        )
        version_info.labels(version("rappor")).set(1)
        self._ready.set(1)
        ProcessCollector(registry=self._registry)
        self._show_zeros()

    def _show_zeros(self) -> None:
        """Show labels before anything has come, so that the first one makes a rate."""
        for status in _STATUSES:
            self.uploads.labels(status)
        for reason in _REASONS:
            self.refusals.labels(reason)

    def show_health(self, *, is_ready: bool) -> None:
        """Show whether uploads can be stored."""
        self._ready.set(int(is_ready))

    def show_inbox(self, state: State) -> None:
        """Show what waits, and count what was folded."""
        self._inbox["bytes"].set(state.waiting.n_bytes)
        self._inbox["oldest_seconds"].set(state.oldest_seconds)
        self._inbox["failed_groups"].set(state.waiting.failed)
        self._folded.inc(state.folded.uploads)
        self._doubles.inc(state.folded.doubles)

    def show_registry(self, fingerprint: str, metrics: Iterable[str]) -> None:
        """Set which registry is in force in this process, and count its metrics from 0 on.

        Without a report of any metric refusals would have nothing to be compared with.
        """
        for metric in metrics:
            self.reports.labels(metric)
        if self._fingerprint:
            self._registry_info.labels(self._fingerprint).set(0)
        self._registry_info.labels(fingerprint).set(1)
        self._fingerprint = fingerprint

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answer by its route and the class of its status."""
        key = route, status // 100
        if (times := self._times.get(key)) is None:
            times = self._times[key] = self.request_seconds.labels(route, f"{key[1]}xx")
        times.observe(seconds)

    def observe_group(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Count a group commit and all uploads in it."""
        self.commit_seconds.observe(seconds)
        self._last_commit.set(time.time())
        self.commit_uploads.observe(len(submissions))
        self._queue.set(self._queue_length())
        self.uploads.labels(_OK).inc(len(submissions))
        accepted = Tally(report.metric for each in submissions for report in each.accepted)
        for metric, n in accepted.items():
            self.reports.labels(metric).inc(n)
        refused: Tally[str] = Tally()
        for each in submissions:
            for (_, reason), n in each.refusals.items():
                refused[reason] += n
        for reason, n in refused.items():
            self.refusals.labels(reason).inc(n)

    def render(self) -> bytes:
        """Write the counters in the text format of Prometheus."""
        self._queue.set(self._queue_length())
        return generate_latest(self._registry)
