"""From the bytes of an upload to what is stored of it: a pure function, no clock, no database."""

from __future__ import annotations

import datetime
import enum
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rappor.counts.popcounts import is_suspicious
from rappor.errors import ReportError
from rappor.protocol.params import Params
from rappor.protocol.wire import Report, decode_base64url, parse_upload
from rappor_server.ingest.accepted_params import Known

_ACCEPTED: Final = {"status": "accepted"}


class Suspicion(enum.Enum):
    """What to do with a report whose popcount no honest device shows."""

    REFUSE = "refuse"
    APART = "apart"
    """Counted beside the others, and left out of every answer."""
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One report that is counted; `keep` stores it raw too."""

    metric: str
    params: Params
    fingerprint: str
    cohort: int
    bits: bytes = field(repr=False)
    keep: bool
    apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One upload that is fit to be stored, with the answer to send once it is.

    `refusals` counts by (metric, reason); the metric is empty where it is not known.
    """

    id: bytes
    digest: bytes
    answer: bytes
    accepted: tuple[Accepted, ...]
    refusals: Mapping[tuple[str, str], int]


def read_upload(
    body: bytes,
    known: Known,
    *,
    today: datetime.date,
    max_reports: int,
    suspicion: Suspicion,
) -> Submission:
    """Read an upload strictly; one bad report does not sink the others.

    Raises ReportError for what is no upload; its `code` is "too-many" above `max_reports`.
    """
    unknown: list[str] = []

    def lookup(name: str, fingerprint: str) -> Params | None:
        metric = known.metric(name, fingerprint)
        if metric is None:
            unknown.append("unknown-params" if name in known.registry else "unknown-metric")
            return None
        return metric.params

    upload_id, entries = parse_upload(body, lookup)
    if len(entries) > max_reports:
        raise ReportError(f"reports must be at most {max_reports:,}", code="too-many")
    reasons = iter(unknown)
    accepted: list[Accepted] = []
    refusals: Counter[tuple[str, str]] = Counter()
    statuses: list[Mapping[str, str]] = []
    for entry in entries:
        verdict = _judge(entry, known, today, suspicion)
        if isinstance(verdict, Accepted):
            accepted.append(verdict)
            statuses.append(_ACCEPTED)
            continue
        name, reason = verdict
        reason = next(reasons) if reason == "unknown" else reason
        refusals[name, reason] += 1
        statuses.append({"status": "refused", "reason": reason})
    return Submission(
        id=decode_base64url("id", upload_id),
        digest=hashlib.sha256(body).digest(),
        answer=msgspec.json.encode({"reports": statuses}),
        accepted=tuple(accepted),
        refusals=refusals,
    )


def _judge(
    entry: Report | ReportError, known: Known, today: datetime.date, suspicion: Suspicion
) -> Accepted | tuple[str, str]:
    """Return the report to count, or (metric, reason) of its refusal."""
    if isinstance(entry, ReportError):
        return "", entry.code
    metric = known.metric(entry.metric, entry.params)
    assert metric is not None  # or it would be an error
    if today > min(metric.expires, known.registry[metric.name].expires):
        return metric.name, "expired"
    odd = suspicion is not Suspicion.ACCEPT and is_suspicious(entry.bits, metric.params)
    if odd and suspicion is Suspicion.REFUSE:
        return metric.name, "popcount"
    return Accepted(
        metric=metric.name,
        params=metric.params,
        fingerprint=entry.params,
        cohort=entry.cohort,
        bits=entry.bits,
        keep=metric.keep_reports and not odd,
        apart=odd,
    )
