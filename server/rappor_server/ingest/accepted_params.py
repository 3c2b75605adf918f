"""Under which parameters reports are accepted: those of the registry, and of older ones."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from typing import Final

from rappor.counts.popcounts import popcount_range
from rappor.protocol.params import Params
from rappor.registry.metric import MIN_COHORT, Metric
from rappor.registry.registry import Registry
from rappor_server.ingest.stops import Stops

_LOGGED_PAGE_BYTES: Final = 2_100
"""What a page that a key changes takes in SQLite's log, with now and then one that is split."""
_MOST_KEYS: Final = 615_000
"""In the 8 MB that are folded at once: a report takes 13 bytes of them at least."""


def why_unfit(metric: Metric) -> str | None:
    """Return why a metric must not be served, None if it may be."""
    if metric.min_reports and metric.pace == "none" and metric.min_cohort <= MIN_COHORT:
        return (
            f'{metric.name}: interval = "none" lets a device report every event, so one device may '
            f"fill a block of {metric.min_cohort:,} reports. Write a larger min_cohort: "
            f"{MIN_COHORT} times what a device reports on the days of a block"
        )
    return None


class Accepted:
    """One parameter set under which a metric is accepted; what each report needs is at hand.

    `last_day` is the last day of collection, which is stopped up to `stopped_until`. The bits of a
    report are `n_bytes` bytes, as a number below `end`; its cohort is below `m`.
    """

    def __init__(
        self,
        metric: Metric,
        params: Params,
        last_day: datetime.date,
        stopped_until: datetime.date | None = None,
    ) -> None:
        self.metric, self.params, self.last_day = metric, params, last_day
        self.stopped_until = stopped_until
        self.name = metric.name
        self.fingerprint = params.fingerprint
        self.m, self.n_bytes, self.end = params.m, params.n_bytes, 1 << params.k

    @functools.cached_property
    def ones(self) -> tuple[int, int]:
        """The fewest and the most ones that honest devices send."""
        return popcount_range(self.params)


class AcceptedParams:
    """The parameter sets under which each metric of the current registry is accepted.

    A metric with parts has a set for each of them. `registry` is the current registry, `text` the
    file that it was read from and `digest` a name of that text. `find((name, fingerprint))` returns
    what a report names, None if it is not accepted.
    """

    def __init__(
        self,
        current: Registry,
        older: Sequence[Registry] = (),
        *,
        text: str = "",
        digest: str = "",
        stops: Stops | None = None,
    ) -> None:
        """Index the current registry, and older ones for clients that lag behind it."""
        self.registry = current
        self.text = text
        self.digest = digest
        self.stops = stops or Stops()
        accepted: dict[tuple[str, str], Accepted] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                if name in current:  # reports of a metric that was removed are refused
                    last_day = min(metric.expires, current[name].expires)
                    for fingerprint, params in metric.accepted.items():
                        accepted[name, fingerprint] = Accepted(
                            metric, params, last_day, self.stops.get(name)
                        )
        self.find = accepted.get
        self._counter_bytes = sum(each.m * _row_bytes(each.params.k) for each in accepted.values())

    def lookup(self, name: str, fingerprint: str) -> Params | None:
        """Return the parameters that a report names, for the protocol's strict reader."""
        found = self.find((name, fingerprint))
        return None if found is None else found.params

    def fold_bytes(self, waiting_bytes: int, waiting_reports: int) -> int:
        """Return how much room in SQLite's log and file a fold of what waits takes at most.

        Keys take less than 4 times the waiting bytes. In a large table each random key changes a
        page of its own; the log is emptied piece by piece.
        """
        pages = min(waiting_reports, _MOST_KEYS)
        return 2 * self._counter_bytes + 4 * waiting_bytes + pages * _LOGGED_PAGE_BYTES


def _row_bytes(k: int) -> int:
    """Return how much of SQLite's file a counter of k bits takes at most.

    Its key is there twice, and one of more than half a page, of 2,048 bytes, fills pages alone.
    """
    return 8 * k + min(8 * k, 2048) + 320
