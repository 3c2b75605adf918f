"""What an operator watches, for Prometheus; of this process, without a word about devices."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rappor_server.ingest import Submission

_OK: Final = 200


class Metrics:
    """Counters of one application."""

    def __init__(self, queue_length: Callable[[], int]) -> None:
        """Make them in a registry of their own."""
        self._registry = CollectorRegistry()
        self.uploads = Counter(
            "rappor_uploads", "Uploads by HTTP status", ["status"], registry=self._registry
        )
        self.reports = Counter(
            "rappor_reports", "Reports accepted", ["metric"], registry=self._registry
        )
        self.refusals = Counter(
            "rappor_refusals", "Refused, by reason", ["reason"], registry=self._registry
        )
        self.commit_seconds = Histogram(
            "rappor_commit_seconds",
            "Time of a group commit",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5),
            registry=self._registry,
        )
        self.commit_uploads = Histogram(
            "rappor_commit_uploads",
            "Uploads in a group commit",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self._registry,
        )
        queue = Gauge(
            "rappor_queue_uploads", "Uploads that wait for a commit", registry=self._registry
        )
        queue.set_function(queue_length)

    def observe_group(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Note a group commit and the uploads in it, once for all of them."""
        self.commit_seconds.observe(seconds)
        self.commit_uploads.observe(len(submissions))
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
        """Write them in Prometheus' text format."""
        return generate_latest(self._registry)
