"""Index of the parameter sets under which reports are accepted.

Every report carries the name of its metric and the fingerprint of its parameters. The index maps
(metric name, fingerprint) to the limits of such a report. It contains the parameters of the current
registry and of the older registries that the setting `older` names, because devices are updated
weeks after the collector. The current registry alone decides which metrics exist, and until when.
"""

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

_LOGGED_PAGE_BYTES: Final = 4_200
"""Bytes of SQLite's write-ahead log for each page that a new deduplication key changes
(`ingest/retry_keys.py`): a page of 4,096 bytes, a frame header of 24 bytes, and a share of the
pages that are split. A larger value makes the bound on the disk space of a merge larger."""
_MAX_KEYS_PER_MERGE: Final = 615_000
"""Largest number of deduplication keys in one merge. A merge reads batches of at most 8 MB, and a
report takes at least 13 bytes of a batch. A larger value makes the bound on the disk space of a
merge larger."""


class AcceptedParamSet:
    """One parameter set under which a metric is accepted, with the limits of its reports.

    The limits are computed once, because the fast path of `ingest/validate.py` reads them for each
    report.

    Attributes
    ----------
    metric : entry of the metric in the newest registry that has the parameters
    params : the parameters
    name : name of the metric
    fingerprint : fingerprint of the parameters
    last_day : last day (UTC) of collection, included
    stopped_until : last day (UTC) of a stop of the metric, included, or None
    n_bytes : length of the bits of a report, in bytes
    bits_end : 2^k. The bits of a report, read as a number, are smaller.
    m : number of cohorts. The cohort of a report is smaller.
    has_one_bit : whether exactly one bit of a report is 1. Other reports are malformed.
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
        self.m, self.n_bytes, self.bits_end = params.m, params.n_bytes, 1 << params.k
        self.has_one_bit = params.response.is_exclusive

    @functools.cached_property
    def ones(self) -> tuple[int, int]:
        """Smallest and largest number of ones in a report that honest devices send, included.

        An honest device is outside of this range with negligible probability. The computation takes
        milliseconds, so it waits for the first report.
        """
        return compute_popcount_range(self.params)


class AcceptedParams:
    """The parameter sets under which each metric of the current registry is accepted.

    A metric with parts has a parameter set for each part.

    Attributes
    ----------
    registry : the current registry
    older : earlier registries under which reports are still accepted, in the order of the setting
        `older`. If two of them have one fingerprint, the first one decides.
    text : text of the current registry's file
    digest : digest of the text, 16 hexadecimal digits
    stops : stopped metrics
    find : function from (metric name, fingerprint) to `AcceptedParamSet` or None
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
        """Index the current registry, and older registries for devices that are not updated."""
        self.registry, self.older = current, tuple(older)
        self.text = text
        self.digest = digest
        self.stops = stops or Stops()
        # Several registries may have entries for one name and fingerprint. The last entry stays in
        # the dictionary: that of the current registry, or else of the first older registry.
        accepted: dict[tuple[str, str], AcceptedParamSet] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                # An operator removes a metric to end its collection, also on devices with older
                # registries. An earlier last day in the current registry ends it for them, too.
                if name in current:
                    last_day = min(metric.expires, current[name].expires)
                    for fingerprint, params in metric.accepted.items():
                        accepted[name, fingerprint] = AcceptedParamSet(
                            metric, params, last_day, self.stops.get(name)
                        )
        self.find = accepted.get
        self._keys = frozenset(accepted)
        self._counter_bytes = sum(
            entry.m * _bound_row_bytes(entry.params.k) for entry in accepted.values()
        )

    def lookup(self, name: str, fingerprint: str) -> Params | None:
        """Return the parameters of a metric by their fingerprint, or None if they are not accepted.

        The strict parser of the protocol calls this method.
        """
        accepted = self.find((name, fingerprint))
        return None if accepted is None else accepted.params

    def list_metrics_with_lost_params(self, earlier: AcceptedParams) -> list[str]:
        """Return the names of the metrics that have lost an accepted parameter set, sorted.

        Devices with a lost parameter set are refused from now on, and drop the refused reports. A
        metric that has left the registry is not listed: its collection has ended on purpose.

        Parameters
        ----------
        earlier : parameter sets that were accepted before
        """
        lost = {name for name, _ in earlier._keys - self._keys}
        return sorted(lost & self.registry.keys())

    def merge_bytes(self, waiting_bytes: int, waiting_reports: int) -> int:
        """Return an upper bound on the disk space that a merge of the inbox needs, in bytes.

        Uploads are refused while the disk has less free space, because a merge is the only way to
        empty the inbox. The bound has three terms:

        - 2 * (bytes of all counters of one day): they are written to SQLite's write-ahead log and
          to its file.
        - 4 * (bytes of the inbox): the deduplication keys of the uploads, and the index of the
          keys, take less.
        - 4,200 bytes (`_LOGGED_PAGE_BYTES`) for each key: in a large table, each random key
          changes a page of its own in the log. The log is emptied after each transaction of a
          merge, so only the keys of one transaction count.

        Parameters
        ----------
        waiting_bytes : size of the batches in the inbox
        waiting_reports : number of reports in the batches
        """
        pages = min(waiting_reports, _MAX_KEYS_PER_MERGE)
        return 2 * self._counter_bytes + 4 * waiting_bytes + pages * _LOGGED_PAGE_BYTES


def _bound_row_bytes(k: int) -> int:
    """Return an upper bound on the bytes that one row of counters takes in SQLite's file.

    A row has the k sums of one cohort on one day: for each bit, the number of reports with a 1. The
    bound has three terms:

    - 4 * k: a sum takes 4 bytes for fewer than 2^32 reports.
    - min(4 * k, 4096): a page has 4,096 bytes. A row larger than half a page may leave the rest of
      its last page empty. The rest is at most as large as the row, and at most a page.
    - 320: the primary key, which the file contains twice, and the header of the row.
    """
    return 4 * k + min(4 * k, 4096) + 320
