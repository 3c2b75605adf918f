"""What analysts ask, as tasks for a process: counts, estimates, an overview."""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta
from sqlalchemy import Engine

from rappor.counts.counts import Counts
from rappor.decoding.detection import Correction, Detection
from rappor.ground.errors import DecodeError, ParamsError, ReportError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.analysis import releases, warning_signs
from rappor_server.analysis.answer_cache import AnswerCache, key_of
from rappor_server.analysis.candidate_lists import lines_of
from rappor_server.analysis.candidate_sources import CandidateSource
from rappor_server.analysis.release_json import write_release, write_releases
from rappor_server.analysis.releases import BlockQuery, DayReports, Release
from rappor_server.analysis.warning_signs import OverfullCohort, Refusals
from rappor_server.analysis.worker import Tell
from rappor_server.errors import NotFoundError

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates

JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"

_CACHE: Final = AnswerCache(64_000_000)
"""Estimates that this process has made."""

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")

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
    def detection(self) -> Detection:
        """How sure to be."""
        return Detection(level=self.level, correction=self.correction, confidence=self.confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Days as they were asked for."""

    first: str | None
    last: str | None

    def days(self) -> tuple[datetime.date, datetime.date]:
        """Return the first and the last day."""
        first = read_day("from", self.first, datetime.date.min)
        last = read_day("to", self.last, datetime.date.max)
        if first > last:
            raise ParamsError("from must be a day no later than to")
        return first, last


def read_day(name: str, text: str | None, default: datetime.date) -> datetime.date:
    """Read a day as 2026-11-30; the default where there is no text."""
    if text is None:
        return default
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise ParamsError(f"{name} must be a day as 2026-11-30")
    return day


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTask:
    """The counts of a range, of one parameter set if `params` names its fingerprint.

    With `by` each "day", "week" or "month" has sums of its own, with `segments` each segment.
    """

    metric: Metric
    range: Range
    params: str | None
    media_type: str
    by: str | None = None
    segments: bool = False

    def run(self, engine: Engine, tell: Tell) -> bytes:
        """Return the counts in the media type."""
        tell("reading")
        unknown = NotFoundError("params must be a fingerprint with reports")
        if self.params is not None and not _FINGERPRINT.fullmatch(self.params):
            raise unknown
        days = self.range.days()
        if self.by is not None:
            if self.media_type != JSON:
                raise ParamsError(f"by must be absent unless Accept is {JSON}")
            asked = BlockQuery(self.metric, *days, self.params)
            found = releases.releases_by(engine, asked, self.by, segments=self.segments)
            return write_releases(self.metric.name, found, *days)
        release = releases.release(
            engine, self.metric, *days, params=self.params, segments=self.segments
        )
        if self.params is not None and not release.collections:
            raise unknown
        tell("writing")
        return write_release(release) if self.media_type == JSON else self._table(release)

    def _table(self, release: Release) -> bytes:
        """Write the counts of one parameter set as `Counts` reads them."""
        collections = release.collections
        if len(collections) != 1:
            raise DecodeError(
                f"counts in this format must be of one parameter set, got {len(collections)}: "
                "name it with params=FINGERPRINT"
            )
        if self.media_type == ARROW:
            return _stream(collections[0].to_arrow())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counts.csv"
            collections[0].to_csv(path)
            return path.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatesTask:
    """How many devices hold each candidate.

    `body` is what was sent: a JSON object, or candidates as text with the rest in `beside`.
    """

    metric: Metric
    body: bytes
    beside: EstimateBody | None
    media_type: str
    file: CandidateSource | None
    max_candidates: int

    def run(self, engine: Engine, tell: Tell) -> bytes:
        """Return the estimates in the media type; at once if they were made before."""
        tell("reading")
        asked = self._asked()
        days = Range(first=asked.first, last=asked.last).days()
        release = releases.release_by_day(engine, self.metric, *days)
        self._check(asked)
        if not release.collections:
            raise ParamsError(no_results(self.metric))
        key = self._key(asked, release, engine)
        if (known := _CACHE.find(key)) is not None:
            return known
        answer = self._answer(asked, release, engine, tell)
        if key == self._key(asked, release, engine):  # the file of candidates is still the same
            _CACHE.keep(key, answer)
        return answer

    def _key(self, asked: EstimateBody, release: Release, engine: Engine) -> bytes:
        """Return the key of an answer: a digest of all that it follows from."""
        parts = [repr(self.metric).encode(), self.media_type.encode(), msgspec.json.encode(asked)]
        if asked.candidates is None and self.file is not None:
            parts.append(self.file.contents(engine))
        return key_of([*parts, *_bytes_of(release.parts)])

    def _answer(self, asked: EstimateBody, release: Release, engine: Engine, tell: Tell) -> bytes:
        """Decode, and write the estimates in the media type."""
        from rappor.decoding.decoder import decode  # noqa: PLC0415

        tell("hashing candidates")
        candidates = self._candidates(asked, engine)
        tell("decoding")
        estimates = decode(
            list(release.parts),
            candidates,
            listed=self.metric.listed,
            detection=asked.detection,
            distribution=asked.distribution,
            complete=self.metric.complete,
        )
        tell("writing")
        only = not asked.everything
        if self.media_type == CSV:
            return estimates.to_csv(detected_only=only).encode()
        if self.media_type == JSON:
            return estimates.to_json(detected_only=only).encode()
        return _stream(estimates.to_arrow().take(estimates.order(detected_only=only)))

    def _asked(self) -> EstimateBody:
        if self.beside is None:
            return _decode_body(self.body)
        return msgspec.structs.replace(self.beside, candidates=lines_of(self.body))

    def _check(self, asked: EstimateBody) -> None:
        """Raise ParamsError for candidates that the metric cannot have, or too many of them."""
        if len(asked.candidates or ()) > self.max_candidates:
            raise ParamsError(f"candidates must be at most {self.max_candidates:,}")
        if not encoding_of(self.metric.params).hashed:
            if asked.candidates is not None:
                encoding = self.metric.params.encoding
                raise ParamsError(f"candidates must be absent for encoding {encoding}")
        elif asked.candidates is None and self.file is None:
            name = self.metric.name
            raise ParamsError(f"candidates must be given: the registry has none for {name}")

    def _candidates(self, asked: EstimateBody, engine: Engine) -> Candidates | None:
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415

        params = self.metric.params
        if not encoding_of(params).hashed:
            return None
        if asked.candidates is not None:
            return Candidates.from_list(asked.candidates, normalize=params.normalize)
        assert self.file is not None
        return self.file.read(engine, params.normalize)


class MetricAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one metric: its entry in the registry, released days, warning signs.

    `small_blocks` are released reports of blocks that were closed under an earlier, weaker rule.
    """

    name: str
    description: str
    owner: str
    expires: datetime.date
    fingerprints: tuple[str, ...]
    min_reports: int
    min_cohort: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    small_blocks: int
    overfull_cohorts: tuple[OverfullCohort, ...]


class MetricsAnswer(msgspec.Struct, frozen=True):
    """The answer of GET /v1/metrics."""

    metrics: list[MetricAnswer]
    refusals: list[Refusals]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTask:
    """How many reports there are of some metrics, and what was refused of any."""

    metrics: Sequence[Metric]

    def run(self, engine: Engine, tell: Tell) -> MetricsAnswer:
        """Look at each metric."""
        tell("reading")
        found = [_look_at(engine, metric) for metric in self.metrics]
        return MetricsAnswer(found, warning_signs.refusals(engine))


def _look_at(engine: Engine, metric: Metric) -> MetricAnswer:
    seen = releases.overview(engine, metric)
    return MetricAnswer(
        name=metric.name,
        description=metric.description,
        owner=metric.owner,
        expires=metric.expires,
        fingerprints=tuple(metric.accepted),
        min_reports=metric.min_reports,
        min_cohort=metric.min_cohort,
        days=seen.days,
        withheld=seen.withheld,
        small_blocks=warning_signs.n_of_small_blocks(engine, metric),
        overfull_cohorts=warning_signs.overfull_cohorts(seen.cohorts),
    )


def _decode_body(body: bytes) -> EstimateBody:
    """Read a JSON body; ReportError if it is no JSON, ParamsError if it is no question."""
    try:
        return msgspec.json.decode(body, type=EstimateBody)
    except msgspec.ValidationError as error:
        raise ParamsError(f"the body must fit its description: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ReportError("the body must be JSON") from None


def _bytes_of(collections: Iterable[Counts]) -> Iterator[bytes]:
    """Yield all that estimates follow from in counts."""
    for counts in collections:
        yield counts.params.to_json().encode()
        yield repr(counts.squares).encode()
        yield counts.reports.tobytes()
        yield counts.ones.tobytes()


def no_results(metric: Metric) -> str:
    """Say why a range has no results, without the number of its reports."""
    if metric.min_reports:
        reason = (
            f"needs {metric.min_reports:,} reports from days that have ended and cohorts with "
            f"{metric.min_cohort:,} reports, and has fewer"
        )
    else:
        reason = "has no reports"
    return f"No results for these dates: {metric.name} {reason}."


def _stream(table: Any) -> bytes:
    """Write a pyarrow.Table as an Arrow stream."""
    from rappor.ground.arrow import load_pyarrow  # noqa: PLC0415

    pa = load_pyarrow()
    sink = pa.BufferOutputStream()
    with load_pyarrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
