"""Query of POST /v1/metrics/NAME/estimates: its body, and its result in one media type.

The body is a JSON object of `EstimateBody`, or a list of candidates as plain text with the other
fields in the address. The result is a file of the estimated share of each candidate, the same that
`rappor decode --json` or `--csv` writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import Engine

from rappor.base.errors import ParamsError, ReportError
from rappor.estimator.error_control import Correction, ErrorControl
from rappor_server.queries.candidate_lists import split_lines
from rappor_server.queries.candidate_sources import InlineCandidates
from rappor_server.queries.counts import CSV, JSON, write_arrow
from rappor_server.queries.page_queries import read_whole_strings_by_day
from rappor_server.queries.query import Query, QueryResult, Range, Subject, hash_parts
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.warning_signs import count_released

_Share = Annotated[float, Meta(gt=0, lt=1)]
"""Number between 0 and 1, both excluded. msgspec refuses any other number in a body."""


class EstimateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of POST /v1/metrics/NAME/estimates.

    Attributes
    ----------
    candidates : candidates in place of the candidates of the registry; None uses the registry
    first, last : texts of the first and the last day (UTC); None for an open end. Their JSON keys
        are `from` and `to`.
    level : error rate of the detections
    correction : method that controls the error rate over all candidates
    confidence : level of the confidence intervals
    distribution : whether to compute the distribution of all shares, too
    include_all : whether to return all candidates, instead of the detected candidates only. Its
        JSON key is `all`.
    """

    candidates: list[str] | None = None
    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    level: _Share = 0.05
    correction: Correction = "bh"
    confidence: _Share = 0.95
    distribution: bool = False
    include_all: bool = msgspec.field(default=False, name="all")

    @property
    def error_control(self) -> ErrorControl:
        """Error rate, method and confidence level of the body."""
        return ErrorControl(alpha=self.level, method=self.correction, confidence=self.confidence)


@dataclass(frozen=True, kw_only=True)
class EstimatesQuery(Query):
    """Query for the shares of candidates.

    The worker process parses the body, because a long body would delay uploads in the process of
    the collector. The body replaces the error rates of the subject, and may replace its candidates.

    Attributes
    ----------
    body : a JSON object; or candidates as text, one a line, if `fields` is not None
    fields : the other fields of a body of text, from the query of the address
    media_type : `JSON`, `CSV` or `ARROW`
    max_candidates : largest number of candidates in the body
    """

    subject: Subject
    body: bytes = field(repr=False)
    fields: EstimateBody | None
    media_type: str
    max_candidates: int

    def counts_key(self, engine: Engine) -> bytes:
        """Return a digest of the numbers of release windows and reports, and of the body.

        The range of a request may have an open end, or days that have not ended. Windows that form
        later change its result.
        """
        released = b"%d %d" % count_released(engine, self.metric.name)
        return hash_parts([super().counts_key(engine), released, self.body])

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Return a `QueryResult` as MessagePack, with one file named by its media type."""
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - loads scipy

        report_step("reading")
        body = self._parse_body()
        days = Range(first=body.first, last=body.last).parse()
        subject = self._apply_body(body)
        release = read_whole_strings_by_day(engine, subject, *days)
        report_step("hashing candidates")
        candidates = subject.read_candidates()
        report_step("decoding")
        # The days of the range are passed separately. Their differences show how often the same
        # devices report again, on which the standard errors depend.
        estimates = decode(
            list(release.daily_counts),
            candidates,
            listed=self.metric.listed,
            error_control=subject.decode_control,
            distribution=body.distribution,
            complete=self.metric.complete,
        )
        report_step("writing")
        detected_only = not body.include_all
        if self.media_type == CSV:
            content = estimates.to_csv(detected_only=detected_only).encode()
        elif self.media_type == JSON:
            content = estimates.to_json(detected_only=detected_only).encode()
        else:
            rows = estimates.order(detected_only=detected_only)
            content = write_arrow(estimates.to_arrow().take(rows))
        result = QueryResult(page=b"", files={self.media_type: content})
        return msgspec.msgpack.encode(result)

    def _parse_body(self) -> EstimateBody:
        """Return the body as a record.

        Raises ReportError if the body is not JSON (400), and ParamsError if a field is wrong (422).
        """
        if self.fields is None:
            return _parse_json(self.body)
        return msgspec.structs.replace(self.fields, candidates=split_lines(self.body))

    def _apply_body(self, body: EstimateBody) -> Subject:
        """Return the subject with the error rates and the candidates of the body."""
        subject = replace(self.subject, error_control=body.error_control)
        if body.candidates is None:
            return subject
        # The limit of the body's size is not enough: a body of 64 MB has room for 16 million
        # candidates of one letter.
        if len(body.candidates) > self.max_candidates:
            raise ParamsError(f"candidates must be at most {self.max_candidates:,}")
        return replace(subject, source=InlineCandidates(strings=tuple(body.candidates)))


def _parse_json(body: bytes) -> EstimateBody:
    """Return a JSON body; ReportError if it is not JSON, ParamsError if a field is wrong."""
    try:
        return msgspec.json.decode(body, type=EstimateBody)
    except msgspec.ValidationError as error:
        raise ParamsError(f"the body must fit its description: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Deeply nested lists raise RecursionError.
        raise ReportError("the body must be JSON") from None
