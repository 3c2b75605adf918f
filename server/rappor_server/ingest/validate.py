"""From the bytes of an upload to what is stored of it: a pure function, no clock, no database."""

from __future__ import annotations

import datetime
import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rappor.counts.popcounts import is_suspicious
from rappor.errors import ReportError
from rappor.protocol.params import Params
from rappor.protocol.wire import Report, decode_base64url, parse_upload
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.upload_ids import hash_id, mac_body


class Suspicious(enum.Enum):
    """What becomes of a report whose popcount no honest device shows."""

    REFUSE = "refuse"
    QUARANTINE = "quarantine"
    """The report is counted in rows of its own, which no answer includes."""
    ACCEPT = "accept"


class ReportStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the answer to an upload says of one report; only a refused one has a reason."""

    status: str
    reason: str = ""


class UploadAnswer(msgspec.Struct, frozen=True):
    """The answer to an upload: a status for each report, in order."""

    reports: list[ReportStatus]


_ACCEPTED: Final = ReportStatus("accepted")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedReport:
    """One report that is counted; `keep` stores the noisy report itself too."""

    metric: str
    params: Params
    fingerprint: str
    cohort: int
    bits: bytes = field(repr=False)
    keep: bool
    quarantine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One upload that is fit to be stored, with the answer to send once it is.

    `id` and `mac` are hashes of the id and the body (`upload_ids`), which are not kept. `refusals`
    counts refused reports by (metric, reason); the metric is empty where the report names none of
    the registry.
    """

    id: bytes
    mac: bytes
    answer: bytes
    accepted: tuple[AcceptedReport, ...]
    refusals: Mapping[tuple[str, str], int]


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
    unknown: list[str] = []

    def lookup(name: str, fingerprint: str) -> Params | None:
        found = accepted_params.find(name, fingerprint)
        if found is None:
            is_listed = name in accepted_params.registry
            unknown.append("unknown-params" if is_listed else "unknown-metric")
            return None
        _, params = found
        return params

    upload_id, entries = parse_upload(body, lookup)
    if len(entries) > max_reports:
        raise ReportError(f"reports must be at most {max_reports:,}", code="too-many")
    reasons = iter(unknown)
    accepted: list[AcceptedReport] = []
    refusals: Counter[tuple[str, str]] = Counter()
    statuses: list[ReportStatus] = []
    for entry in entries:
        verdict = _judge(entry, accepted_params, today, suspicious)
        if isinstance(verdict, AcceptedReport):
            accepted.append(verdict)
            statuses.append(_ACCEPTED)
            continue
        name, reason = verdict
        reason = next(reasons) if reason == "unknown" else reason
        refusals[name, reason] += 1
        statuses.append(ReportStatus("refused", reason))
    own_id = decode_base64url("id", upload_id)
    return Submission(
        id=hash_id(own_id),
        mac=mac_body(own_id, body),
        answer=msgspec.json.encode(UploadAnswer(statuses)),
        accepted=tuple(accepted),
        refusals=refusals,
    )


def _judge(
    entry: Report | ReportError,
    accepted_params: AcceptedParams,
    today: datetime.date,
    suspicious: Suspicious,
) -> AcceptedReport | tuple[str, str]:
    """Return the report to count, or (metric, reason) of its refusal."""
    if isinstance(entry, ReportError):
        return "", entry.code
    found = accepted_params.find(entry.metric, entry.params)
    assert found is not None  # or the entry would be an error
    metric, params = found
    if today > min(metric.expires, accepted_params.registry[metric.name].expires):
        return metric.name, "expired"
    odd = suspicious is not Suspicious.ACCEPT and is_suspicious(entry.bits, params)
    if odd and suspicious is Suspicious.REFUSE:
        return metric.name, "popcount"
    return AcceptedReport(
        metric=metric.name,
        params=params,
        fingerprint=entry.params,
        cohort=entry.cohort,
        bits=entry.bits,
        keep=metric.keep_reports and not odd,
        quarantine=odd,
    )
