"""Uploads, one a line, to Counts: what a collector does, for files.

Every line is read as strictly as a collector reads a request. A line or a report that is
refused is counted by its reason, and the others are read on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ReportError
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.protocol.wire import Lookup, Report, parse_upload

Collection = tuple[str, str]
"""Whose reports are added up together: a metric's name and a fingerprint."""

_BATCH: Final = 1 << 14
"""Reports of one collection that wait until they are summed: some megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How often a reason occurred, and the line (from 1) where it did first."""

    n: int
    first_line: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregation:
    """The sums of a stream of uploads, and what was left out of them.

    `refused` counts, by reason, whole uploads and single reports alike. `n_uploads` were
    read; `n_repeated` of them were byte for byte the same as an earlier one and not counted.
    """

    counts: dict[Collection, Counts]
    refused: dict[str, Refusal]
    n_uploads: int
    n_repeated: int

    @property
    def n_reports(self) -> int:
        """Reports in all sums."""
        return sum(counts.n_reports for counts in self.counts.values())


def aggregate_jsonl(lines: Iterable[bytes], lookup: Lookup) -> Aggregation:
    """Sum uploads, one JSON document a line; empty lines are skipped.

    It keeps the ids of uploads in memory, about 200 bytes each, but no reports. `lookup` returns
    the parameter set of a metric's name and a fingerprint, or None.
    """
    tally = _Tally(lookup)
    for number, line in enumerate(lines, 1):
        body = line.strip()
        if body:
            tally.add_upload(body, number)
    return tally.finish()


class _Tally:
    """The sums so far, and the reports that wait to be added."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._bodies: dict[str, bytes] = {}
        self._params: dict[Collection, Params] = {}
        self._waiting: dict[Collection, list[Report]] = {}
        self._counts: dict[Collection, Counts] = {}
        self._refused: dict[str, Refusal] = {}
        self._n_uploads = 0
        self._n_repeated = 0

    def add_upload(self, body: bytes, line: int) -> None:
        self._n_uploads += 1
        try:
            if body.startswith(b"["):
                raise ReportError(
                    "an upload must be a JSON object in a line, got an array: pandas writes lines "
                    'with to_json(orient="records", lines=True)'
                )
            upload_id, reports = parse_upload(body, self._find)
            if self._is_fresh(upload_id, body):
                for report in reports:
                    self._add_report(report, line)
        except ReportError as error:
            self._refuse(error, line)

    def _find(self, metric: str, fingerprint: str) -> Params | None:
        """Look a parameter set up, and remember it for the sums."""
        params = self._params.get((metric, fingerprint)) or self._lookup(metric, fingerprint)
        if params is not None:
            self._params[metric, fingerprint] = params
        return params

    def _is_fresh(self, upload_id: str, body: bytes) -> bool:
        """Return whether an upload is new, not a retry; refuse a known id with another body."""
        digest = hashlib.blake2b(body, digest_size=16).digest()
        if upload_id not in self._bodies:
            self._bodies[upload_id] = digest
            return True
        if self._bodies[upload_id] != digest:
            raise ReportError("id must be fresh, got a known one with another body")
        self._n_repeated += 1
        return False

    def _add_report(self, report: Report | ReportError, line: int) -> None:
        if isinstance(report, ReportError):
            self._refuse(report, line)
            return
        collection = (report.metric, report.params)
        waiting = self._waiting.setdefault(collection, [])
        waiting.append(report)
        if len(waiting) >= _BATCH:
            self._sum(collection)

    def _refuse(self, error: ReportError, line: int) -> None:
        earlier = self._refused.get(str(error), Refusal(n=0, first_line=line))
        self._refused[str(error)] = Refusal(n=earlier.n + 1, first_line=earlier.first_line)

    def _sum(self, collection: Collection) -> None:
        metric, params = collection[0], self._params[collection]
        total = self._counts.get(collection, Counts.zero(params, metric))
        fresh = Counts.from_reports(self._waiting.pop(collection), params, metric)
        self._counts[collection] = total + fresh

    def finish(self) -> Aggregation:
        for collection in list(self._waiting):
            self._sum(collection)
        return Aggregation(
            counts=self._counts,
            refused=self._refused,
            n_uploads=self._n_uploads,
            n_repeated=self._n_repeated,
        )
