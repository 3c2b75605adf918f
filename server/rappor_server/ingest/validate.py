"""From the bytes of an upload to what is stored of it: a pure function, no clock, no database.

The cost is bounded before anything is judged: an upload that holds more values than its reports
can need is refused by counting them. The common spelling of an upload is read fast; whatever else
was sent, and each report that is not accepted at once, is read by the protocol's strict reader.
"""

from __future__ import annotations

import datetime
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rappor.base.errors import ReportError
from rappor.protocol.params import Params
from rappor.protocol.wire import decode_base64url, open_upload, parse_report
from rappor_server.ingest.accepted_params import Accepted, AcceptedParams
from rappor_server.ingest.canonical import Entry, read_canonical, unpack
from rappor_server.ingest.retry_keys import key_of_upload

_VALUES_OF_A_REPORT: Final = 8
"""A report needs 5 of what `count_values` counts; faulty ones may have more."""
_VALUES_OF_AN_UPLOAD: Final = 64
_N_REPORT_KEYS: Final = 4


class Suspicious(enum.Enum):
    """What becomes of a report whose popcount no honest device shows."""

    REFUSE = "refuse"
    ACCEPT = "accept"


class ReportStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the answer to an upload says of one report; only a refused one has a reason."""

    status: str
    reason: str = ""


class UploadAnswer(msgspec.Struct, frozen=True):
    """The answer to an upload: a status for each report, in order.

    `stop` names metrics that devices stop reporting, up to and with a day (UTC). It is added when
    the answer is sent (`stops`).
    """

    reports: list[ReportStatus]
    stop: dict[str, datetime.date] | msgspec.UnsetType = msgspec.UNSET


_ACCEPTED: Final = ReportStatus("accepted")


class AcceptedReport(msgspec.Struct, frozen=True, gc=False):
    """One report to count; `place` is its index in the upload, from 1."""

    metric: str
    params: Params
    fingerprint: str
    cohort: int
    bits: bytes
    place: int

    def __repr__(self) -> str:
        """Name what is counted, and show no bits."""
        return f"AcceptedReport(metric={self.metric!r}, fingerprint={self.fingerprint!r})"


class Submission(msgspec.Struct, frozen=True):
    """One upload that is fit to be stored, with the answer to send once it is.

    `key` stands for the id and the body (`retry_keys`), which are not kept. `refusals` counts
    refused reports by (metric, reason); the metric is empty where the report names none of the
    registry.
    """

    key: bytes
    answer: bytes
    accepted: tuple[AcceptedReport, ...]
    refusals: Mapping[tuple[str, str], int]

    def __repr__(self) -> str:
        """Show how many reports there are, and nothing of them."""
        return f"Submission(accepted={len(self.accepted)}, refusals={dict(self.refusals)})"


def read_upload(
    body: bytes,
    accepted_params: AcceptedParams,
    *,
    today: datetime.date,
    max_reports: int,
    suspicious: Suspicious,
) -> Submission:
    """Read an upload strictly; one bad report does not sink the others.

    Raises ReportError for bytes that are no upload; its `code` is "too-many" above `max_reports`.
    """
    most_values = _VALUES_OF_AN_UPLOAD + _VALUES_OF_A_REPORT * max_reports
    if len(body) > most_values and count_values(body) > most_values:
        raise _too_many(max_reports)
    upload_id, entries = read_canonical(body) or _read_strictly(body)
    if len(entries) > max_reports:
        raise _too_many(max_reports)
    judge = _Judge(accepted_params, today, suspicious)
    judge.hear(entries)
    return Submission(
        key=key_of_upload(upload_id, body),
        answer=judge.answer(),
        accepted=tuple(judge.accepted),
        refusals=judge.refusals,
    )


def count_values(body: bytes) -> int:
    """Return a number that no JSON text exceeds in values, nor in depth, without reading it."""
    return body.count(b",") + body.count(b"[") + body.count(b"{") + 1


def _read_strictly(body: bytes) -> tuple[bytes, list[Any]]:
    upload_id, entries = open_upload(body)
    return decode_base64url("id", upload_id), entries


def _too_many(max_reports: int) -> ReportError:
    return ReportError(f"reports must be at most {max_reports:,}", code="too-many")


class _Judge:
    """What becomes of the reports of one upload."""

    def __init__(
        self, accepted_params: AcceptedParams, today: datetime.date, suspicious: Suspicious
    ) -> None:
        self.accepted: list[AcceptedReport] = []
        self.refusals: dict[tuple[str, str], int] = {}
        self._statuses: list[ReportStatus] = []
        self._known = accepted_params
        self._today = today
        self._refuses_odd = suspicious is Suspicious.REFUSE

    def answer(self) -> bytes:
        """Return the JSON that tells a status for each report."""
        if not self.refusals:
            return _all_accepted(len(self.accepted))
        return msgspec.json.encode(UploadAnswer(self._statuses))

    def hear(self, entries: Sequence[Any]) -> None:
        """Accept or refuse each entry."""
        find = self._known.find
        for entry in entries:
            if type(entry) is Entry:
                known = find((entry.metric, entry.params))
                if known is not None and 0 <= entry.cohort < known.m:
                    bits = unpack(entry.bits)
                    if bits is not None and len(bits) == known.n_bytes:
                        number = int.from_bytes(bits, "little")
                        if number < known.end:
                            self._decide(known, entry.cohort, bits, number.bit_count())
                            continue
                self._hear_strictly(msgspec.structs.asdict(entry))
            else:
                self._hear_strictly(entry)

    def _hear_strictly(self, entry: Any) -> None:
        if type(entry) is not dict or len(entry) != _N_REPORT_KEYS:  # as the reader says, at once
            self._refuse("", "malformed")
            return
        try:
            report = parse_report(entry, self._known.lookup)
        except ReportError as error:
            self._refuse("", self._unknown(entry) if error.code == "unknown" else error.code)
            return
        known = self._known.find((report.metric, report.params))
        assert known is not None  # or it would be an error
        n_ones = int.from_bytes(report.bits, "little").bit_count()
        self._decide(known, report.cohort, report.bits, n_ones)

    def _unknown(self, entry: Mapping[str, str]) -> str:
        """Say what of a report's names is not known here."""
        is_listed = entry["metric"] in self._known.registry
        return "unknown-params" if is_listed else "unknown-metric"

    def _decide(self, known: Accepted, cohort: int, bits: bytes, n_ones: int) -> None:
        """Count a report that is well formed, unless its metric is over or its popcount is odd."""
        if self._today > known.last_day:
            self._refuse(known.name, "expired")
            return
        if known.stopped_until is not None and self._today <= known.stopped_until:
            self._refuse(known.name, "stopped")
            return
        fewest, most = known.ones
        if self._refuses_odd and not fewest <= n_ones <= most:
            self._refuse(known.name, "popcount")
            return
        self._statuses.append(_ACCEPTED)
        self.accepted.append(
            AcceptedReport(
                metric=known.name,
                params=known.params,
                fingerprint=known.fingerprint,
                cohort=cohort,
                bits=bits,
                place=len(self._statuses),
            )
        )

    def _refuse(self, metric: str, reason: str) -> None:
        key = metric, reason
        self.refusals[key] = self.refusals.get(key, 0) + 1
        self._statuses.append(_refused(reason))


@functools.lru_cache(maxsize=64)
def _all_accepted(n: int) -> bytes:
    """Return the answer to an upload of n reports that were all accepted."""
    return msgspec.json.encode(UploadAnswer([_ACCEPTED] * n))


@functools.cache
def _refused(reason: str) -> ReportStatus:
    """Return the status of a refused report; there are few reasons."""
    return ReportStatus("refused", reason)
