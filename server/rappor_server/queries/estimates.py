"""Query of the API for estimates: its body, and its result in one media type."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import Engine

from rappor.base.errors import ParamsError, ReportError
from rappor.estimator.error_control import Correction, ErrorControl
from rappor_server.queries.candidate_lists import lines_of
from rappor_server.queries.candidate_sources import StatedCandidates
from rappor_server.queries.counts import CSV, JSON, write_arrow
from rappor_server.queries.page_queries import read_days
from rappor_server.queries.query import Query, QueryResult, Range, Subject, key_of
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.warning_signs import n_released

_Share = Annotated[float, Meta(gt=0, lt=1)]


class EstimateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of POST /v1/metrics/NAME/estimates."""

    candidates: list[str] | None = None
    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    level: _Share = 0.05
    correction: Correction = "bh"
    confidence: _Share = 0.95
    distribution: bool = False
    everything: bool = msgspec.field(default=False, name="all")

    @property
    def detection(self) -> ErrorControl:
        """How sure to be."""
        return ErrorControl(alpha=self.level, method=self.correction, confidence=self.confidence)


@dataclass(frozen=True, kw_only=True)
class EstimatesQuery(Query):
    """How many devices have each candidate.

    `body` is a JSON object, or candidates as text with the other fields in `beside`. The worker
    process reads the body, because it may be long. The body may replace the candidates and the
    error rates of the subject.
    """

    subject: Subject
    body: bytes = field(repr=False)
    beside: EstimateBody | None
    media_type: str
    max_candidates: int

    def counts_key(self, engine: Engine) -> bytes:
        """Return a text that changes with the counts, and a digest of the body.

        Days of a request may be open, so that blocks which close later add to its result.
        """
        released = b"%d %d" % n_released(engine, self.metric.name)
        return key_of([super().counts_key(engine), released, self.body])

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Return a `QueryResult` as MessagePack, with one file named by its media type."""
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - only where it is decoded

        report_step("reading")
        body = self._read_body()
        days = Range(first=body.first, last=body.last).days()
        subject = self._subject(body)
        release = read_days(engine, subject, *days)
        report_step("hashing candidates")
        candidates = subject.candidates()
        report_step("decoding")
        estimates = decode(
            list(release.parts),
            candidates,
            listed=self.metric.listed,
            error_control=subject.detection,
            distribution=body.distribution,
            complete=self.metric.complete,
        )
        report_step("writing")
        is_detected = not body.everything
        if self.media_type == CSV:
            content = estimates.to_csv(detected_only=is_detected).encode()
        elif self.media_type == JSON:
            content = estimates.to_json(detected_only=is_detected).encode()
        else:
            rows = estimates.order(detected_only=is_detected)
            content = write_arrow(estimates.to_arrow().take(rows))
        result = QueryResult(page=b"", files={self.media_type: content})
        return msgspec.msgpack.encode(result)

    def _read_body(self) -> EstimateBody:
        if self.beside is None:
            return _decode_body(self.body)
        return msgspec.structs.replace(self.beside, candidates=lines_of(self.body))

    def _subject(self, body: EstimateBody) -> Subject:
        subject = replace(self.subject, detection=body.detection)
        if body.candidates is None:
            return subject
        if len(body.candidates) > self.max_candidates:
            raise ParamsError(f"candidates must be at most {self.max_candidates:,}")
        return replace(subject, source=StatedCandidates(strings=tuple(body.candidates)))


def _decode_body(body: bytes) -> EstimateBody:
    """Read a JSON body; ReportError if it is no JSON, ParamsError if it is no question."""
    try:
        return msgspec.json.decode(body, type=EstimateBody)
    except msgspec.ValidationError as error:
        raise ParamsError(f"the body must fit its description: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ReportError("the body must be JSON") from None
