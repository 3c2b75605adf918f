"""Aggregation of uploads in JSON lines, as a collector aggregates requests.

The input is lines, each the JSON of an upload that a device sent. The output is counts by metric
and parameter set, and the number of refusals by reason. Every line is parsed as strictly as a
collector parses a request. If a line or a report is refused, the refusal is counted, and reading
goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ReportError
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.protocol.wire import ParamsLookup, Report, parse_upload

Collection = tuple[str, str]
"""Name of a metric and fingerprint of a parameter set. Reports with equal pairs are added."""

_BATCH_REPORTS: Final = 1 << 14
"""Number of reports of one collection that are stored before they are summed.

They take some megabytes. A larger number takes more memory and saves little time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Number of refusals for one reason, and the first line, counted from 1."""

    n: int
    first_line: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregation:
    """Sums of a stream of uploads, and its refusals.

    Attributes
    ----------
    counts : dict
        Counts of each collection.
    refused : dict
        Refusals by the message of their error. A refused upload is one refusal, and so is a
        refused report.
    n_uploads : int
        Number of uploads that were read.
    n_repeated : int
        Number of uploads that are byte for byte the same as an earlier one. They are not counted
        again.
    """

    counts: dict[Collection, Counts]
    refused: dict[str, Refusal]
    n_uploads: int
    n_repeated: int

    @property
    def n_reports(self) -> int:
        """Number of reports in all sums."""
        return sum(counts.n_reports for counts in self.counts.values())


def aggregate_jsonl(lines: Iterable[bytes], lookup: ParamsLookup) -> Aggregation:
    """Add the reports of uploads, one JSON document in each line.

    Empty lines are skipped. The ids of all uploads are stored, about 200 bytes each. Reports are
    not stored.

    Parameters
    ----------
    lines : iterable of bytes
        The lines.
    lookup : callable
        Returns the parameter set of a metric's name and a fingerprint, or None.

    Returns
    -------
    Aggregation

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.engines import aggregate_jsonl
    >>> from rappor.protocol.wire import Report, Upload
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> report = Report(metric="member", params=params.fingerprint, cohort=0, bits=bytes([1]))
    >>> line = Upload(id=Upload.new_id(), reports=(report,)).to_json()
    >>> def look_up(metric, fingerprint):
    ...     return params if (metric, fingerprint) == ("member", params.fingerprint) else None
    >>> result = aggregate_jsonl([line, line, b"not JSON"], look_up)
    >>> result.n_reports, result.n_repeated, sum(refusal.n for refusal in result.refused.values())
    (1, 1, 1)
    """
    tally = _Tally(lookup)
    for number, line in enumerate(lines, 1):
        body = line.strip()
        if body:
            tally.add_upload(body, number)
    return tally.finish()


class _Tally:
    """Adder of uploads: the sums so far, and the latest reports, which are not summed yet."""

    def __init__(self, lookup: ParamsLookup) -> None:
        self._lookup = lookup
        # Digest of the body of each upload, by the upload's id.
        self._bodies: dict[str, bytes] = {}
        self._params: dict[Collection, Params] = {}
        # Reports that are not summed yet. `_sum` adds up to `_BATCH_REPORTS` of them in one call.
        self._unsummed: dict[Collection, list[Report]] = {}
        self._counts: dict[Collection, Counts] = {}
        self._refused: dict[str, Refusal] = {}
        self._n_uploads = 0
        self._n_repeated = 0

    def add_upload(self, body: bytes, line: int) -> None:
        """Parse the upload of a line, and add its reports or count the refusal."""
        self._n_uploads += 1
        try:
            if body.startswith(b"["):
                raise ReportError(
                    "an upload must be a JSON object in a line, got an array: pandas writes lines "
                    'with to_json(orient="records", lines=True)'
                )
            upload_id, reports = parse_upload(body, self._look_up)
            if self._is_new(upload_id, body):
                for report in reports:
                    self._add_report(report, line)
        except ReportError as error:
            self._refuse(error, line)

    def _look_up(self, metric: str, fingerprint: str) -> Params | None:
        """Look up a parameter set, and store it for the sums."""
        params = self._params.get((metric, fingerprint)) or self._lookup(metric, fingerprint)
        if params is not None:
            self._params[metric, fingerprint] = params
        return params

    def _is_new(self, upload_id: str, body: bytes) -> bool:
        """Return whether an upload is new. A retry has the id and the body of an earlier upload.

        Raises ReportError if an earlier upload had the same id and another body.
        """
        digest = hashlib.blake2b(body, digest_size=16).digest()
        if upload_id not in self._bodies:
            self._bodies[upload_id] = digest
            return True
        if self._bodies[upload_id] != digest:
            raise ReportError(
                "id must be new in each upload, got the id of an earlier upload with another body"
            )
        self._n_repeated += 1
        return False

    def _add_report(self, report: Report | ReportError, line: int) -> None:
        """Store a report, or count the error of a report that could not be parsed."""
        if isinstance(report, ReportError):
            self._refuse(report, line)
            return
        collection = (report.metric, report.params)
        unsummed = self._unsummed.setdefault(collection, [])
        unsummed.append(report)
        if len(unsummed) >= _BATCH_REPORTS:
            self._sum(collection)

    def _refuse(self, error: ReportError, line: int) -> None:
        """Count a refusal by its message."""
        earlier = self._refused.get(str(error), Refusal(n=0, first_line=line))
        self._refused[str(error)] = Refusal(n=earlier.n + 1, first_line=earlier.first_line)

    def _sum(self, collection: Collection) -> None:
        """Sum the stored reports of a collection."""
        metric, params = collection[0], self._params[collection]
        total = self._counts.get(collection, Counts.zero(params, metric))
        increment = Counts.from_reports(self._unsummed.pop(collection), params, metric)
        self._counts[collection] = total + increment

    def finish(self) -> Aggregation:
        """Sum the reports that are still stored, and return the result."""
        for collection in list(self._unsummed):
            self._sum(collection)
        return Aggregation(
            counts=self._counts,
            refused=self._refused,
            n_uploads=self._n_uploads,
            n_repeated=self._n_repeated,
        )
