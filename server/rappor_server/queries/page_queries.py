"""Queries of the pages. Each result is a rendered page with charts, and files to download.

| query           | question of the reader                             | computed by `rappor` |
|-----------------|----------------------------------------------------|----------------------|
| `OverviewQuery` | How do the last weeks look?                        | `compute_overview`   |
| `RankingQuery`  | What are the shares in these days?                 | `decode`             |
| `TrendQuery`    | How do the shares change by day, week or month?    | `trend`              |
| `CompareQuery`  | What changed between two ranges of days?           | `compare_samples`    |
| `SegmentsQuery` | How do segments differ?                            | `compare_segments`   |
| `AssociationQuery` | How do two fields of a tuple depend on each other? | `associate`       |

A metric may have parts: some devices report a prefix of their string, and others the whole string.
The pages show whole strings, so all queries leave out the counts of prefixes.

A query has two steps, both in a worker process:

    _read_counts   read the released counts from the database
    _compute       decode the counts by the library, and render the page

The process of the collector only sends the finished page. Decoding takes seconds and hundreds of
megabytes, and uploads must not wait for it. The modules that decode and draw are imported inside of
the methods, so that the process of the collector never loads them.
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
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor_server.queries.query import Query, QueryResult, Range, Subject
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.installations import read_installations
from rappor_server.releases.release_json import write_release
from rappor_server.releases.releases import (
    Release,
    ReleaseQuery,
    read_release,
    read_release_by_day,
    read_releases_by_period,
)
from rappor_server.storage.forgetting import find_first_whole_day

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.comparison.comparison import Comparison
    from rappor.reporting.charts import Picture
    from rappor.reporting.document import Content

MAX_FILE_BYTES: Final = 10_000_000
"""Largest size of a file of a result, in bytes. A larger file is not stored, because the process
that sends the file also receives uploads. A larger value delays them."""

TREND_WEEKS: Final = 8
"""Largest number of whole weeks in the trend of an overview. Each week is decoded by itself, so the
time of an overview grows with the number of weeks."""

OVERVIEW_DAYS: Final = 7 * (TREND_WEEKS + 1)
"""Largest number of days that an overview reads, up to its last day: the whole weeks of its trend,
and the days of an unfinished week."""

RANKED_WEEKS: Final = 4
"""Number of the latest whole weeks that the ranking of an overview adds up. More weeks make the
errors smaller, and the ranking shows a new string later."""

_FIRST_DAYS: Final = 14
"""Number of days in the overview of a metric that does not have two whole weeks yet. Two whole
weeks exist after 14 to 20 days. Each day is decoded by itself, so more days take longer."""

_PROGRESS_SECONDS: Final = 0.5
"""Shortest time between two reports of progress, in seconds. Each report is a message between
processes and wakes the event loop. A larger value lets the page of progress lag behind."""

_DAY: Final = datetime.timedelta(days=1)

_Counts = TypeVar("_Counts")
"""The released counts that a kind of query reads."""


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """The rendered page of a result. `rappor.reporting.markup` has escaped every text in it.

    Attributes
    ----------
    title : title of the page
    html : sections of the page
    card : section for the list of metrics; empty if the query is not an overview
    files : names of the files to download
    too_large : names of the files that were not stored, because they exceed `MAX_FILE_BYTES`
    """

    title: str
    html: str
    card: str
    files: list[str]
    too_large: list[str]


class PageQuery(Query, Generic[_Counts]):
    """A query whose result is a page."""

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Compute the result, and return a `QueryResult` as MessagePack."""
        report_step("reading")
        counts = self._read_counts(engine)
        report_step("hashing candidates")
        candidates = self.subject.read_candidates()
        report_step("decoding")
        return msgspec.msgpack.encode(self._compute(counts, candidates, _StepReporter(report_step)))

    @abstractmethod
    def _read_counts(self, engine: Engine) -> _Counts:
        """Return the released counts; ParamsError if the range has no reports."""

    @abstractmethod
    def _compute(
        self, counts: _Counts, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        """Decode the counts and render the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery(PageQuery[tuple[ReleasedCounts, Release]]):
    """Query for the page of a metric: ranking of the latest weeks, and trend of eight weeks.

    The page of a new metric shows days instead of weeks.

    Attributes
    ----------
    subject : metric, candidates and error rates
    through : last day to read. The days of the page are the whole weeks that end by this day.
    """

    subject: Subject
    through: datetime.date

    def _read_counts(self, engine: Engine) -> tuple[ReleasedCounts, Release]:
        """Return the counts of each period of the trend, and the counts of the ranking by day."""
        released = read_whole_weeks(engine, self.subject, self.through)
        if len(released.periods) > 1:
            first = max(released.last - _DAY * (7 * RANKED_WEEKS - 1), released.periods[0].first)
        else:
            # The metric is new. One week would be a trend of one point, so days are shown.
            first = self.through - _DAY * (_FIRST_DAYS - 1)
            released = _read_released(
                engine, self.subject, first, self.through, "day", skip_empty_start=True
            )
        self.subject.require_whole_strings(released.collections)
        released = add_installations(engine, self.subject, released, self.through)
        return released, read_whole_strings_by_day(engine, self.subject, first, released.last)

    def _compute(
        self,
        counts: tuple[ReleasedCounts, Release],
        candidates: Candidates | None,
        progress: Progress,
    ) -> QueryResult:
        """Decode the ranked periods together, and each period of the trend by itself."""
        from rappor.comparison.overview import compute_overview  # noqa: PLC0415 - loads scipy
        from rappor.reporting.overview import overview_card, overview_content  # noqa: PLC0415

        released, latest = counts
        periods = released.periods
        overview = compute_overview(
            released,
            latest.daily_counts,
            candidates,
            by="day" if periods[0].first == periods[0].last else "week",
            # Number of periods whose counts the ranking adds up.
            n_latest=sum(period.last >= latest.first for period in periods),
            listed=self.metric.listed,
            complete=self.metric.complete,
            error_control=self.subject.decode_control,
            progress=progress,
        )
        progress("drawing", 0, None)
        return _render_page(
            overview_content(overview),
            card=overview_card(overview),
            charts={"ranking": overview.estimates.plot(), "trend": overview.comparison.plot()},
            files={
                "ranking.csv": overview.estimates.to_csv(detected_only=False),
                "ranking.json": overview.estimates.to_json(detected_only=False),
                "trend.csv": overview.comparison.to_csv(),
                "trend.json": overview.comparison.to_json(),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuery(PageQuery[Release]):
    """Query for the shares of candidates in a range of days.

    Attributes
    ----------
    subject : metric, candidates and error rates
    range : days of the counts
    include_all : whether the files contain all candidates, and not only the detected candidates
    forged : whether the page shows the largest change of the shares by forged reports
    """

    subject: Subject
    range: Range
    include_all: bool
    forged: bool = False

    def _read_counts(self, engine: Engine) -> Release:
        return read_whole_strings_by_day(engine, self.subject, *self.range.parse())

    def _compute(
        self, counts: Release, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - loads scipy
        from rappor.decoding.estimates_report import InputFile, Origin, report  # noqa: PLC0415
        from rappor.reporting.page import estimates_content  # noqa: PLC0415

        estimates = decode(
            list(counts.daily_counts),
            candidates,
            listed=self.metric.listed,
            error_control=self.subject.decode_control,
            complete=self.metric.complete,
            progress=progress,
        )
        progress("drawing", 0, None)
        # The page names the counts by the address and the SHA-256 of their download. A reader can
        # download the counts, and check that the page was computed from them.
        origin = InputFile(
            name=f"/v1/metrics/{self.metric.name}/counts",
            sha256=hashlib.sha256(write_release(counts)).hexdigest(),
            days=_format_days(self.range, counts),
        )
        detected_only = not self.include_all
        return _render_page(
            estimates_content(report(estimates, Origin(files=(origin,))), forged=self.forged),
            charts={"chart": estimates.plot()},
            files={
                "estimates.csv": estimates.to_csv(detected_only=detected_only),
                "estimates.json": estimates.to_json(detected_only=detected_only),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendQuery(PageQuery[ReleasedCounts]):
    """Query for the shares of candidates in each day, week or month of a range.

    Attributes
    ----------
    subject : metric, candidates and error rates
    range : days of the trend
    by : "day", "week" or "month", the length of a period
    smooth : number of periods that each point of the trend adds up; 1 smooths nothing
    """

    subject: Subject
    range: Range
    by: str
    smooth: int

    def _read_counts(self, engine: Engine) -> ReleasedCounts:
        first, last = self.range.parse()
        released = _read_released(engine, self.subject, first, last, self.by)
        self.subject.require_whole_strings(released.collections)
        return add_installations(engine, self.subject, released, last)

    def _compute(
        self, counts: ReleasedCounts, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.comparison.trend import trend  # noqa: PLC0415 - loads scipy

        comparison = trend(
            counts,
            candidates,
            by=self.by,
            smooth=self.smooth,
            complete=self.metric.complete,
            error_control=self.subject.error_control,
            progress=progress,
        )
        return _render_comparison(comparison, "trend")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery(PageQuery[dict[str, list[Counts]]]):
    """Query for the changes of shares between two ranges of days that do not overlap.

    Attributes
    ----------
    subject : metric, candidates and error rates
    before, after : the two ranges
    include_all : whether the files contain all candidates, instead of the detected candidates only
    """

    subject: Subject
    before: Range
    after: Range
    include_all: bool

    def _read_counts(self, engine: Engine) -> dict[str, list[Counts]]:
        """Return the counts of both ranges, by their days; ParamsError if the ranges overlap."""
        (first, last), (first_after, last_after) = self.before.parse(), self.after.parse()
        # Reports in both ranges would be compared with themselves.
        if first <= last_after and first_after <= last:
            raise ParamsError("the days before and after must not overlap")
        samples = {}
        for days in (self.before, self.after):
            released = read_release(engine, self.metric, *days.parse())
            counts = self.subject.require_whole_strings(released.collections)
            # The days name the sample. An empty release has no days, and the check has raised
            # ParamsError for it already.
            samples[_format_days(days, released)] = counts
        return samples

    def _compute(
        self,
        counts: dict[str, list[Counts]],
        candidates: Candidates | None,
        progress: Progress,
    ) -> QueryResult:
        from rappor.comparison.compare_samples import compare_samples  # noqa: PLC0415 - loads scipy

        comparison = compare_samples(
            counts,
            candidates,
            complete=self.metric.complete,
            error_control=self.subject.error_control,
            progress=progress,
        )
        return _render_comparison(comparison, "comparison", include_all=self.include_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsQuery(PageQuery[list[Counts]]):
    """Query for the differences of shares between segments.

    A segment is a group of devices with the same public properties, such as version and country.
    Each property is a dimension.

    Attributes
    ----------
    subject : metric, candidates and error rates
    range : days of the counts
    dimension : name of the only dimension to compare; None compares all segments
    """

    subject: Subject
    range: Range
    dimension: str | None

    def _read_counts(self, engine: Engine) -> list[Counts]:
        released = read_release(engine, self.metric, *self.range.parse(), separate_segments=True)
        return self.subject.require_whole_strings(released.collections)

    def _compute(
        self, counts: list[Counts], candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.comparison.compare_segments import compare_segments  # noqa: PLC0415 - loads scipy

        comparison = compare_segments(
            counts,
            candidates,
            dimension=self.dimension,
            complete=self.metric.complete,
            error_control=self.subject.error_control,
            progress=progress,
        )
        return _render_comparison(comparison, "segments")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationQuery(PageQuery[Release]):
    """Query for the association of two fields of a tuple in a range of days.

    Attributes
    ----------
    subject : metric with fields, candidates and error rates
    range : days of the counts
    fields : names of the two fields, rows first
    """

    subject: Subject
    range: Range
    fields: tuple[str, str]

    def _read_counts(self, engine: Engine) -> Release:
        return read_whole_strings_by_day(engine, self.subject, *self.range.parse())

    def _compute(
        self, counts: Release, candidates: Candidates | None, progress: Progress
    ) -> QueryResult:
        from rappor.association.associate import associate  # noqa: PLC0415 - loads scipy
        from rappor.association.field_cells import load_combinations  # noqa: PLC0415 - loads scipy
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - loads scipy
        from rappor.reporting.association_page import association_content  # noqa: PLC0415 - slow

        if candidates is not None:
            candidates = load_combinations(candidates)
        # Unlike a ranking, an association uses the estimates of all combinations, detected or not.
        # So the listed values of the entry and the ranks of the list, which decide about rows and
        # detections, are not passed.
        estimates = decode(
            list(counts.daily_counts),
            candidates,
            error_control=self.subject.error_control,
            complete=self.metric.complete,
            progress=progress,
        )
        association = associate(estimates, self.fields)
        progress("drawing", 0, None)
        return _render_page(
            association_content(association),
            charts={
                "chart": association.plot(),
                "rows": association.plot(within="rows"),
                "columns": association.plot(within="columns"),
            },
            files={
                "association.csv": association.to_csv(),
                "association.json": association.to_json(),
            },
        )


def add_installations(
    engine: Engine, subject: Subject, released: ReleasedCounts, through: datetime.date
) -> ReleasedCounts:
    """Return counts with the numbers of active installations up to a day.

    An active installation is a device that reported in a day, a week or an epoch. The registry
    names the metric whose reports are counted so. The counts of all other metrics are returned as
    they are.

    The numbers up to a day never change, because a release window never changes. So a stored page
    stays right.
    """
    if not subject.counts_installations:
        return released
    return replace(released, installations=read_installations(engine, subject.metric, through))


def read_whole_weeks(engine: Engine, subject: Subject, through: datetime.date) -> ReleasedCounts:
    """Return the released counts of the last whole weeks up to a day, at most `TREND_WEEKS`.

    A week begins on Monday. The week of `through` is left out unless `through` is a Sunday, because
    an unfinished week would look like a decline. A week of which a part was deleted is left out,
    too.
    """
    last = through - _DAY * ((through.weekday() + 1) % 7)
    first = last - _DAY * (7 * TREND_WEEKS - 1)
    first_whole_day = find_first_whole_day(engine, subject.metric.name)
    if first < first_whole_day:
        first = first_whole_day + _DAY * (-first_whole_day.weekday() % 7)
    return _read_released(engine, subject, first, last, "week", skip_empty_start=True)


def _read_released(
    engine: Engine,
    subject: Subject,
    first: datetime.date,
    last: datetime.date,
    by: str,
    *,
    skip_empty_start: bool = False,
) -> ReleasedCounts:
    """Return the released counts of each period of a range that has released reports.

    With `skip_empty_start` the range begins with the first such period. Otherwise an open end of
    the range is replaced by the end of the first or last period that has reports.
    """
    releases = read_releases_by_period(engine, ReleaseQuery(subject.metric, first, last), by)
    # Reports are released in release windows, sums of enough reports (`releases.releases`). A
    # period in which no window was released has no counts. If reports came in it, their days are in
    # the list of withheld days below.
    nonempty = [period for period in releases if period.collections]
    if skip_empty_start:
        first = nonempty[0].first if nonempty else first
    elif releases:
        first = releases[0].first if first == datetime.date.min else first
        last = releases[-1].last if last == datetime.date.max else last
    return ReleasedCounts(
        metric=subject.metric.name,
        first=first,
        last=last,
        periods=tuple(
            Period(
                first=period.first,
                last=period.last,
                collections=tuple(subject.select_whole_strings(period.collections)),
            )
            for period in nonempty
        ),
        withheld=tuple(day for period in releases for day in period.withheld),
    )


def read_whole_strings_by_day(
    engine: Engine, subject: Subject, first: datetime.date, last: datetime.date
) -> Release:
    """Return the released counts of a range. `Release.daily_counts` has them divided by day.

    Counts of prefixes are left out of `Release.daily_counts`. Raises ParamsError if the range has
    no reports of whole strings.
    """
    released = read_release_by_day(engine, subject.metric, first, last)
    whole_strings = subject.require_whole_strings(released.daily_counts)
    return replace(released, daily_counts=tuple(whole_strings))


def _render_comparison(
    comparison: Comparison, name: str, *, include_all: bool = False
) -> QueryResult:
    """Return the page of a comparison.

    Parameters
    ----------
    comparison : the comparison
    name : name of the files, without their extension
    include_all : whether the files contain all candidates, instead of the detected candidates only
    """
    from rappor.reporting.comparison_page import comparison_content  # noqa: PLC0415 - slow to load

    return _render_page(
        comparison_content(comparison),
        charts={"chart": comparison.plot()},
        files={
            f"{name}.csv": comparison.to_csv(include_all=include_all),
            f"{name}.json": comparison.to_json(include_all=include_all),
        },
    )


def _render_page(
    content: Content, *, charts: Mapping[str, Picture], files: Mapping[str, str], card: str = ""
) -> QueryResult:
    """Return a result: the page, and files with the whole page, its charts and its tables.

    Parameters
    ----------
    content : title and sections of the page
    charts : charts by name, which become NAME.svg
    files : texts of further files, by name
    card : section for the list of metrics; empty if the list shows none
    """
    from rappor.reporting.document import document  # noqa: PLC0415 - slow to load

    contents = {"report.html": document(content.title, *content.parts).encode()}
    contents |= {name: text.encode() for name, text in files.items()}
    for name, chart in charts.items():
        contents[f"{name}.svg"] = chart.svg().encode()
    stored = {name: data for name, data in contents.items() if len(data) <= MAX_FILE_BYTES}
    # `join` makes plain strings: msgspec does not encode `Markup`, a subclass of str.
    page = ResultPage(
        title=content.title,
        html="".join(content.parts),
        card="".join([card]),
        files=list(stored),
        too_large=[name for name in contents if name not in stored],
    )
    return QueryResult(page=msgspec.msgpack.encode(page), files=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class PngTask:
    """Task that renders a chart of a result as a PNG image.

    A worker process renders it: an image of many points takes seconds and much memory.
    """

    svg: bytes

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:  # noqa: ARG002 - no counts
        """Return the image; MissingExtraError without the extra `png`."""
        from rappor.reporting.charts import render_png  # noqa: PLC0415 - an extra

        report_step("drawing")
        return render_png(self.svg.decode(), "chart.png")


def _format_days(days: Range, release: Release) -> str:
    """Return the first and the last day as FIRST/LAST (ISO 8601).

    An end that the request leaves open is replaced by the first or last day with reports.
    """
    first, last = days.first or release.days[0].day, days.last or release.days[-1].day
    return f"{first}/{last}"


class _StepReporter:
    """Reports the progress of a computation, at most once in `_PROGRESS_SECONDS`."""

    def __init__(self, report_step: ReportStep) -> None:
        self._report_step = report_step
        self._next = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report a stage, with its number of finished steps if the total number is not None."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            self._report_step(f"{stage}, {done:,} of {total:,}" if total else stage)
