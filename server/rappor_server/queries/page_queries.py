"""Queries of the dashboard: each result is drawn as a page, with files to download.

The library computes and draws a result in a worker process, which has the time and the memory.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec
from sqlalchemy import Engine

from rappor.base.errors import ParamsError
from rappor.base.progress import Progress
from rappor.counts.counts import Counts
from rappor.counts.released import Period, Released
from rappor_server.queries.query import Query, QueryResult, Range, Subject
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.release_json import write_release
from rappor_server.releases.releases import (
    BlockQuery,
    Release,
    release,
    release_by_day,
    releases_by,
)

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.comparison.comparison import Comparison
    from rappor.reporting.charts import Picture
    from rappor.reporting.document import Content

MOST_BYTES: Final = 10_000_000
"""Of a file of an answer: the process that hands it over has devices to answer too."""

WEEKS: Final = 8
LATEST: Final = 4
"""Whole weeks that an overview is about, and those of them that are ranked together."""

_DAYS: Final = 14
"""Days that an overview is about while there are not two whole weeks."""

_TELL_SECONDS: Final = 0.5
_DAY: Final = datetime.timedelta(days=1)

_Found = TypeVar("_Found")


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """A result as a page shows it: a title, sections as HTML, and the names of its files.

    `card` is what a list of metrics shows of it. Every text in `html` and `card` has been escaped
    by `rappor.reporting.markup`. Files that are too large are only named.
    """

    title: str
    html: str
    card: str
    files: list[str]
    too_large: list[str]


class PageQuery(Query, Generic[_Found]):
    """A query whose result is a page."""

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Return a `QueryResult` as MessagePack."""
        report_step("reading")
        found = self._find(engine)
        report_step("hashing candidates")
        candidates = self.subject.candidates()
        report_step("decoding")
        return msgspec.msgpack.encode(self._answer(found, candidates, _Steps(report_step)))

    @abstractmethod
    def _find(self, engine: Engine) -> _Found:
        """Read the released counts; ParamsError if there are none."""

    @abstractmethod
    def _answer(
        self, found: _Found, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        """Compute the result and draw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery(PageQuery[tuple[Released, Release]]):
    """The latest whole weeks up to a day ranked, beside the run of eight; days of a new metric."""

    subject: Subject
    through: datetime.date

    def _find(self, engine: Engine) -> tuple[Released, Release]:
        """Read the counts of each period, and those of the latest ones by day."""
        found = whole_weeks(engine, self.subject, self.through)
        if len(found.periods) > 1:
            first = max(found.last - _DAY * (7 * LATEST - 1), found.periods[0].first)
        else:
            first = self.through - _DAY * (_DAYS - 1)
            found = _released(engine, self.subject, first, self.through, "day", is_cut=True)
        self.subject.require_whole(found.collections)
        return found, read_days(engine, self.subject, first, found.last)

    def _answer(
        self, found: tuple[Released, Release], candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        """Decode the latest periods together, and each one for the run."""
        from rappor.comparison.overview import compute_overview  # noqa: PLC0415 - only where it is decoded
        from rappor.reporting.overview import overview_card, overview_content  # noqa: PLC0415

        released, latest = found
        periods = released.periods
        seen = compute_overview(
            released,
            latest.parts,
            candidates,
            by="day" if periods[0].first == periods[0].last else "week",
            n_latest=sum(each.last >= latest.first for each in periods),
            listed=self.metric.listed,
            complete=self.metric.complete,
            error_control=self.subject.detection,
            progress=progress,
        )
        progress("drawing", 0, None)
        return _drawn(
            overview_content(seen),
            card=overview_card(seen),
            charts={"ranking": seen.estimates.plot(), "trend": seen.comparison.plot()},
            files={
                "ranking.csv": seen.estimates.to_csv(detected_only=False),
                "ranking.json": seen.estimates.to_json(detected_only=False),
                "trend.csv": seen.comparison.to_csv(),
                "trend.json": seen.comparison.to_json(),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuery(PageQuery[Release]):
    """How many devices hold each candidate, in a range of days."""

    subject: Subject
    range: Range
    everything: bool
    forged: bool = False

    def _find(self, engine: Engine) -> Release:
        return read_days(engine, self.subject, *self.range.days())

    def _answer(
        self, found: Release, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - only where it is decoded
        from rappor.decoding.estimates_report import InputFile, Origin, report  # noqa: PLC0415
        from rappor.reporting.page import estimates_content  # noqa: PLC0415

        estimates = decode(
            list(found.parts),
            candidates,
            listed=self.metric.listed,
            error_control=self.subject.detection,
            complete=self.metric.complete,
            progress=progress,
        )
        progress("drawing", 0, None)
        counts = InputFile(
            name=f"/v1/metrics/{self.metric.name}/counts",
            sha256=hashlib.sha256(write_release(found)).hexdigest(),
            days=_named(self.range, found),
        )
        only = not self.everything
        return _drawn(
            estimates_content(report(estimates, Origin(files=(counts,))), forged=self.forged),
            charts={"chart": estimates.plot()},
            files={
                "estimates.csv": estimates.to_csv(detected_only=only),
                "estimates.json": estimates.to_json(detected_only=only),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendQuery(PageQuery[Released]):
    """How shares run over days, weeks or months."""

    subject: Subject
    range: Range
    by: str
    smooth: int

    def _find(self, engine: Engine) -> Released:
        found = _released(engine, self.subject, *self.range.days(), self.by)
        self.subject.require_whole(found.collections)
        return found

    def _answer(
        self, found: Released, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.comparison.trend import trend  # noqa: PLC0415 - only where it is decoded

        run = trend(
            found,
            candidates,
            by=self.by,
            smooth=self.smooth,
            complete=self.metric.complete,
            error_control=self.subject.detection,
            progress=progress,
        )
        return _drawn_panel(run, "trend")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery(PageQuery[dict[str, list[Counts]]]):
    """What changed from a range of days to another one."""

    subject: Subject
    before: Range
    after: Range
    everything: bool

    def _find(self, engine: Engine) -> dict[str, list[Counts]]:
        """Read what is released of both ranges; ParamsError if they overlap."""
        (first, last), (first_after, last_after) = self.before.days(), self.after.days()
        if first <= last_after and first_after <= last:
            raise ParamsError("the days before and after must not overlap")
        samples = {}
        for each in (self.before, self.after):
            found = release(engine, self.metric, *each.days())
            counts = self.subject.require_whole(found.collections)  # or there are no days to name
            samples[_named(each, found)] = counts
        return samples

    def _answer(
        self,
        found: dict[str, list[Counts]],
        candidates: Candidates | None,
        progress: Progress,
    ) -> QueryResult:
        from rappor.comparison.compare_samples import compare_samples  # noqa: PLC0415 - only where it is decoded

        changes = compare_samples(
            found,
            candidates,
            complete=self.metric.complete,
            error_control=self.subject.detection,
            progress=progress,
        )
        return _drawn_panel(changes, "comparison", every=self.everything)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsQuery(PageQuery[list[Counts]]):
    """How shares differ between segments, of one dimension or of all."""

    subject: Subject
    range: Range
    dimension: str | None

    def _find(self, engine: Engine) -> list[Counts]:
        found = release(engine, self.metric, *self.range.days(), segments=True)
        return self.subject.require_whole(found.collections)

    def _answer(
        self, found: list[Counts], candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.comparison.compare_segments import compare_segments  # noqa: PLC0415 - only where it is decoded

        apart = compare_segments(
            found,
            candidates,
            dimension=self.dimension,
            complete=self.metric.complete,
            error_control=self.subject.detection,
            progress=progress,
        )
        return _drawn_panel(apart, "segments")


def whole_weeks(engine: Engine, subject: Subject, through: datetime.date) -> Released:
    """Return the counts of the last whole weeks up to a day, eight at most."""
    last = through - _DAY * ((through.weekday() + 1) % 7)
    return _released(engine, subject, last - _DAY * (7 * WEEKS - 1), last, "week", is_cut=True)


def _released(
    engine: Engine,
    subject: Subject,
    first: datetime.date,
    last: datetime.date,
    by: str,
    *,
    is_cut: bool = False,
) -> Released:
    """Return what was released of each period that has reports.

    An open range is that of what was found; one that is cut begins with the first period.
    """
    found = releases_by(engine, BlockQuery(subject.metric, first, last), by)
    shown = [each for each in found if each.collections]
    if is_cut:
        first = shown[0].first if shown else first
    elif found:
        first = found[0].first if first == datetime.date.min else first
        last = found[-1].last if last == datetime.date.max else last
    return Released(
        metric=subject.metric.name,
        first=first,
        last=last,
        periods=tuple(
            Period(
                first=each.first,
                last=each.last,
                collections=tuple(subject.select_whole(each.collections)),
            )
            for each in shown
        ),
        withheld=tuple(day for each in found for day in each.withheld),
    )


def read_days(
    engine: Engine, subject: Subject, first: datetime.date, last: datetime.date
) -> Release:
    """Return what was released of a range, and its parts by day, which are some."""
    found = release_by_day(engine, subject.metric, first, last)
    return replace(found, parts=tuple(subject.require_whole(found.parts)))


def _drawn_panel(panel: Comparison, name: str, *, every: bool = False) -> QueryResult:
    """Return the parts of the page about a panel, and its numbers of `every` candidate."""
    from rappor.reporting.comparison_page import panel_content  # noqa: PLC0415 - only where it is drawn

    return _drawn(
        panel_content(panel),
        charts={"chart": panel.plot()},
        files={
            f"{name}.csv": panel.to_csv(include_all=every),
            f"{name}.json": panel.to_json(include_all=every),
        },
    )


def _drawn(
    content: Content, *, charts: Mapping[str, Picture], files: Mapping[str, str], card: str = ""
) -> QueryResult:
    """Return a page's parts, with the page as a file, its charts and its numbers."""
    from rappor.reporting.document import document  # noqa: PLC0415 - only where it is drawn

    every = {"report.html": document(content.title, *content.parts).encode()}
    every |= {name: text.encode() for name, text in files.items()}
    for name, chart in charts.items():
        every[f"{name}.svg"] = chart.svg().encode()
    kept = {name: data for name, data in every.items() if len(data) <= MOST_BYTES}
    page = ResultPage(
        title=content.title,
        html="".join(content.parts),
        card="".join([card]),
        files=list(kept),
        too_large=[name for name in every if name not in kept],
    )
    return QueryResult(page=msgspec.msgpack.encode(page), files=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelsTask:
    """A chart of an answer as a PNG."""

    svg: bytes

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:  # noqa: ARG002 - a chart needs no counts
        """Return the PNG; MissingExtraError without the extra that makes one."""
        from rappor.reporting.charts import pixels  # noqa: PLC0415 - only where one is asked for

        report_step("drawing")
        return pixels(self.svg.decode(), "chart.png")


def _named(days: Range, found: Release) -> str:
    """Write days as both ends (ISO 8601): those that were asked for, else those of the reports."""
    first, last = days.first or found.days[0].day, days.last or found.days[-1].day
    return f"{first}/{last}"


class _Steps:
    """Reports the progress of a computation, a few times a second at most."""

    def __init__(self, report_step: ReportStep) -> None:
        self._report_step = report_step
        self._next = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report a stage, and how much of it is done if that is known."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_SECONDS
            self._report_step(f"{stage}, {done:,} of {total:,}" if total else stage)
