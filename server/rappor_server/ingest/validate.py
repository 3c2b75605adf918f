"""Validation of uploads: decides for each report whether it is accepted, without clock or database.

Input is the body of an HTTP request, for example

    {"v":1,"id":"AiKlGvg6DfqjeloIA95laQ","reports":[
     {"metric":"theme","params":"9c12ac69d4c0f430","cohort":71,"bits":"EsBg..."}]}

Output is a `Submission`: the accepted reports, the number of refused reports by reason, and the
response to the device. A body that is not an upload raises ReportError. A refused report does not
affect the other reports. The reasons of a refused report:

| reason         | the report                                                                  |
|----------------|-----------------------------------------------------------------------------|
| malformed      | is not an object of the four keys, or has values of wrong types             |
| unknown-metric | names a metric that the registry does not have                              |
| unknown-params | names a fingerprint under which its metric is not accepted                  |
| cohort         | has a cohort that its parameters do not have                                |
| length         | has another number of bytes than its parameters determine                   |
| padding        | has ones in the unused bits of its last byte                                |
| expired        | came after the last day of its metric                                       |
| stopped        | came during a stop of its metric (`ingest/stops.py`)                        |
| popcount       | has a number of ones that an honest device sends with negligible probability |

The cost of an upload is bounded in three steps, from cheap to expensive:

1. `count_values` counts commas and brackets. An upload with more JSON values than its reports can
   need is refused. Before this step existed, a body of four kilobytes stopped the collector for
   minutes, because each of its entries became an exception.
2. `read_canonical` parses the canonical form: JSON without spaces, with the keys in the order that
   devices write. It is fast.
3. The strict parser of the protocol (`rappor.protocol.wire`) parses every other upload, and every
   report that the fast path does not accept. It determines the reason of a refusal.
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
from rappor.protocol.wire import decode_base64url, parse_report, parse_upload_entries
from rappor_server.ingest.accepted_params import AcceptedParams, AcceptedParamSet
from rappor_server.ingest.canonical import Entry, read_canonical, unpack
from rappor_server.ingest.retry_keys import key_of_upload

_MAX_VALUES_PER_REPORT: Final = 8
"""Largest number of JSON values for each report that an upload may have. A correct report has 5: an
object and four values. The limit leaves room for malformed reports, which are refused one by one. A
larger value lets a hostile body cost more memory and time."""
_MAX_OTHER_VALUES: Final = 64
"""Largest number of JSON values that an upload may have in addition to its reports. A correct
upload has 4: an object, `v`, `id` and the list of reports. The rest is room for keys of later
versions, which the strict parser decides about."""
_N_REPORT_KEYS: Final = 4
"""Number of keys of a report: metric, params, cohort, bits. The protocol determines the value."""


class Suspicious(enum.Enum):
    """Treatment of a report whose popcount no honest device sends (setting `suspicious`).

    Popcount: the number of ones in a report.
    """

    REFUSE = "refuse"
    ACCEPT = "accept"


class ReportStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Status of one report in the response to an upload.

    Attributes
    ----------
    status : "accepted" or "refused"
    reason : reason of a refusal; an empty reason is left out of the JSON
    """

    status: str
    reason: str = ""


class UploadResponse(msgspec.Struct, frozen=True):
    """Response to an upload.

    Attributes
    ----------
    reports : status of each report, in the order of the upload
    stop : metrics that devices must stop reporting, with the last day (UTC) of the stop. The module
        `stops` adds the key when the response is sent, because the stops may have changed since.
    """

    reports: list[ReportStatus]
    stop: dict[str, datetime.date] | msgspec.UnsetType = msgspec.UNSET


_ACCEPTED: Final = ReportStatus("accepted")
"""Status of every accepted report. One object serves all of them."""


class AcceptedReport(msgspec.Struct, frozen=True, gc=False):
    """One report to count.

    Attributes
    ----------
    metric : name of the metric
    params : parameters of the report
    fingerprint : fingerprint of the parameters
    cohort : cohort of the device, from 0
    bits : the noisy bits, the first bit in the lowest bit of the first byte
    position : index of the report in its upload, from 1
    """

    metric: str
    params: Params
    fingerprint: str
    cohort: int
    bits: bytes
    position: int

    def __repr__(self) -> str:
        """Return metric and fingerprint, without bits: a traceback must not contain a report."""
        return f"AcceptedReport(metric={self.metric!r}, fingerprint={self.fingerprint!r})"


class Submission(msgspec.Struct, frozen=True):
    """A parsed upload, ready to be stored.

    Attributes
    ----------
    key : identifies the id and body of the upload (`retry_keys`), which are not stored
    response : body of the HTTP response, sent after the upload is stored
    accepted : the accepted reports
    refusals : number of refused reports by (metric, reason). The metric is empty if the report
        names no metric of the registry.
    """

    key: bytes
    response: bytes
    accepted: tuple[AcceptedReport, ...]
    refusals: Mapping[tuple[str, str], int]

    def __repr__(self) -> str:
        """Return numbers of reports, without their content."""
        return f"Submission(accepted={len(self.accepted)}, refusals={dict(self.refusals)})"


def read_upload(
    body: bytes,
    accepted_params: AcceptedParams,
    *,
    today: datetime.date,
    max_reports: int,
    suspicious: Suspicious,
) -> Submission:
    """Parse an upload, and check every report by itself: a bad report does not affect the others.

    Parameters
    ----------
    body : body of the HTTP request
    accepted_params : parameters under which reports are accepted
    today : day (UTC) that decides whether a metric is expired or stopped
    max_reports : largest number of reports of an upload
    suspicious : treatment of reports with an impossible popcount

    Raises
    ------
    ReportError
        The bytes are not an upload. The `code` is "too-many" if there are more reports than
        `max_reports`, or so many JSON values.
    """
    # Each value needs a byte at least. A body that is shorter than the limit, as most uploads are,
    # needs no count.
    max_values = _MAX_OTHER_VALUES + _MAX_VALUES_PER_REPORT * max_reports
    if len(body) > max_values and count_values(body) > max_values:
        raise _make_too_many_error(max_reports)
    upload_id, entries = read_canonical(body) or _read_strictly(body)
    if len(entries) > max_reports:
        raise _make_too_many_error(max_reports)
    decision = _ReportDecisions(accepted_params, today, suspicious)
    decision.decide_all(entries)
    return Submission(
        key=key_of_upload(upload_id, body),
        response=decision.encode_response(),
        accepted=tuple(decision.accepted),
        refusals=decision.refusals,
    )


def count_values(body: bytes) -> int:
    """Return an upper bound on the number and on the nesting of the JSON values of a text.

    Every value but the first one follows a comma or an opening bracket. Commas and brackets inside
    of strings make the bound larger, never smaller. The text is not parsed: the JSON parser would
    need memory for millions of empty values before it could refuse them.
    """
    return body.count(b",") + body.count(b"[") + body.count(b"{") + 1


def _read_strictly(body: bytes) -> tuple[bytes, list[Any]]:
    """Return the id of an upload (16 bytes) and its entries by the strict parser."""
    upload_id, entries = parse_upload_entries(body)
    return decode_base64url("id", upload_id), entries


def _make_too_many_error(max_reports: int) -> ReportError:
    return ReportError(f"reports must be at most {max_reports:,}", code="too-many")


class _ReportDecisions:
    """Decision on each report of one upload: accepted, or refused with a reason.

    Attributes
    ----------
    accepted : accepted reports, in the order of the upload
    refusals : number of refused reports by (metric, reason); the metric is empty if unknown
    """

    def __init__(
        self, accepted_params: AcceptedParams, today: datetime.date, suspicious: Suspicious
    ) -> None:
        self.accepted: list[AcceptedReport] = []
        self.refusals: dict[tuple[str, str], int] = {}
        self._statuses: list[ReportStatus] = []
        self._accepted_params = accepted_params
        self._today = today
        self._refuse_suspicious = suspicious is Suspicious.REFUSE

    def encode_response(self) -> bytes:
        """Return the JSON of the response."""
        if not self.refusals:
            return _encode_all_accepted(len(self.accepted))
        return msgspec.json.encode(UploadResponse(self._statuses))

    def decide_all(self, entries: Sequence[Any]) -> None:
        """Accept or refuse each entry.

        Entries in canonical form take a fast path. Every other entry goes through the strict parser
        of the protocol, which determines the reason of a refusal.
        """
        find = self._accepted_params.find
        for entry in entries:
            if type(entry) is Entry:
                # Fast path: the checks of the strict parser on values whose types are right. Every
                # check that fails leads to the strict parser below, which names the reason.
                accepted = find((entry.metric, entry.params))
                if accepted is not None and 0 <= entry.cohort < accepted.m:
                    bits = unpack(entry.bits)
                    if bits is not None and len(bits) == accepted.n_bytes:
                        # Bits beyond k in the last byte are padding and must be 0. So the report,
                        # read as an integer, must be below `end` = 2^k.
                        number = int.from_bytes(bits, "little")
                        if number < accepted.bits_end:
                            self._decide(accepted, entry.cohort, bits, number.bit_count())
                            continue
                self._parse_strictly(msgspec.structs.asdict(entry))
            else:
                self._parse_strictly(entry)

    def _parse_strictly(self, entry: Any) -> None:
        """Accept or refuse an entry, which may be any JSON value, by the strict parser."""
        if type(entry) is not dict or len(entry) != _N_REPORT_KEYS:
            # The exceptions of the strict parser are slow. A hostile upload may have thousands of
            # malformed reports.
            self._refuse("", "malformed")
            return
        try:
            report = parse_report(entry, self._accepted_params.lookup)
        except ReportError as error:
            self._refuse("", self._name_unknown(entry) if error.code == "unknown" else error.code)
            return
        accepted = self._accepted_params.find((report.metric, report.params))
        assert accepted is not None  # `parse_report` raises ReportError for unknown parameters
        n_ones = int.from_bytes(report.bits, "little").bit_count()
        self._decide(accepted, report.cohort, report.bits, n_ones)

    def _name_unknown(self, entry: Mapping[str, str]) -> str:
        """Return the reason for a report with an unknown metric or fingerprint."""
        # An operator distinguishes two cases by the reason: devices have an older registry that
        # `older` should name, or devices have the registry of another collector.
        is_listed = entry["metric"] in self._accepted_params.registry
        return "unknown-params" if is_listed else "unknown-metric"

    def _decide(self, accepted: AcceptedParamSet, cohort: int, bits: bytes, n_ones: int) -> None:
        """Accept a well-formed report unless its metric has ended or its popcount is impossible."""
        if self._today > accepted.last_day:
            self._refuse(accepted.name, "expired")
            return
        if accepted.stopped_until is not None and self._today <= accepted.stopped_until:
            self._refuse(accepted.name, "stopped")
            return
        # Random bits of a forger, or bits of a device whose randomness is broken, have a number of
        # ones that honest devices send with a negligible probability.
        min_ones, max_ones = accepted.ones
        # A report that names one bucket is no report without exactly one 1, whatever the setting.
        must_refuse = self._refuse_suspicious or accepted.has_one_bit
        if must_refuse and not min_ones <= n_ones <= max_ones:
            self._refuse(accepted.name, "popcount")
            return
        # The position counts refused reports, too. A retry has the same positions, whichever of its
        # reports are refused then, and the key of a report depends on the position.
        self._statuses.append(_ACCEPTED)
        self.accepted.append(
            AcceptedReport(
                metric=accepted.name,
                params=accepted.params,
                fingerprint=accepted.fingerprint,
                cohort=cohort,
                bits=bits,
                position=len(self._statuses),
            )
        )

    def _refuse(self, metric: str, reason: str) -> None:
        """Count a refused report; the metric is empty if the report names none of the registry."""
        key = metric, reason
        self.refusals[key] = self.refusals.get(key, 0) + 1
        self._statuses.append(_make_refused_status(reason))


@functools.lru_cache(maxsize=64)
def _encode_all_accepted(n: int) -> bytes:
    """Return the response to an upload of n accepted reports.

    Most uploads have few reports, so the cache contains the response to nearly every upload.
    """
    return msgspec.json.encode(UploadResponse([_ACCEPTED] * n))


@functools.cache
def _make_refused_status(reason: str) -> ReportStatus:
    """Return the status of a refused report. The cache stays small, because reasons are few."""
    return ReportStatus("refused", reason)
