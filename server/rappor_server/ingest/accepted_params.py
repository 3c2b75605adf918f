"""The parameters under which reports are accepted, of the registry and of older registries."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from typing import Final

from rappor.counts.popcounts import compute_popcount_range
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.ingest.stops import Stops

_LOGGED_PAGE_BYTES: Final = 2_100
"""Bytes of SQLite's log for each page that a key changes, including the pages that are split."""
_MAX_KEYS_PER_MERGE: Final = 615_000
"""Largest number of keys in the 8 MB of one merge: a report takes at least 13 bytes."""


class Accepted:
    """One parameter set under which a metric is accepted, with the limits of its reports.

    Attributes
    ----------
    last_day : last day of collection
    stopped_until : last day of a stop of the metric, or None
    n_bytes : length of the bits of a report, in bytes
    end : 2^k. The bits of a report, read as a number, are smaller.
    m : number of cohorts. The cohort of a report is smaller.
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
        """Smallest and largest number of ones that honest devices send."""
        return compute_popcount_range(self.params)


class AcceptedParams:
    """The parameter sets under which each metric of the current registry is accepted.

    A metric with parts has a parameter set for each part.

    Attributes
    ----------
    registry : the current registry
    older : earlier registries under which reports are still accepted
    text : text of the registry file
    digest : digest of the text
    find : returns the `Accepted` of (metric name, fingerprint), or None
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
        """Index the current registry, and older registries for devices that lag behind."""
        self.registry, self.older = current, tuple(older)
        self.text = text
        self.digest = digest
        self.stops = stops or Stops()
        # The current registry comes last, so that its entry replaces older ones of a fingerprint.
        accepted: dict[tuple[str, str], Accepted] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                # An operator removes a metric to end its collection, on devices with older
                # registries, too. An earlier last day ends it for them as well.
                if name in current:
                    last_day = min(metric.expires, current[name].expires)
                    for fingerprint, params in metric.accepted.items():
                        accepted[name, fingerprint] = Accepted(
                            metric, params, last_day, self.stops.get(name)
                        )
        self.find = accepted.get
        self._counter_bytes = sum(
            entry.m * _row_bytes(entry.params.k) for entry in accepted.values()
        )

    def lookup(self, name: str, fingerprint: str) -> Params | None:
        """Return the parameters of a report, or None, for the strict parser of the protocol."""
        accepted = self.find((name, fingerprint))
        return None if accepted is None else accepted.params

    def merge_bytes(self, waiting_bytes: int, waiting_reports: int) -> int:
        """Return an upper bound on the disk space that a merge of the inbox needs, in bytes.

        The bound has three terms. The counters are in SQLite's log and in its file: 2 * counter
        bytes. Keys and their index take less than 4 times the bytes of the inbox. In a large table,
        each random key changes a page of its own in the log, which is emptied after each
        transaction of the merge.

        Parameters
        ----------
        waiting_bytes : size of the batches in the inbox
        waiting_reports : number of reports in the batches
        """
        pages = min(waiting_reports, _MAX_KEYS_PER_MERGE)
        return 2 * self._counter_bytes + 4 * waiting_bytes + pages * _LOGGED_PAGE_BYTES


def _row_bytes(k: int) -> int:
    """Return an upper bound on the bytes of SQLite's file for a counter of k bits.

    The row contains its primary key twice. A row larger than half a page of 2,048 bytes may leave
    the rest of a page empty.
    """
    return 8 * k + min(8 * k, 2048) + 320
