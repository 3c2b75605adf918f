"""Tasks of the API that read released counts, and summaries of metrics. They run in `readers`.

| task          | endpoint                     | result                                        |
|---------------|------------------------------|-----------------------------------------------|
| `CountsTask`  | GET /v1/metrics/NAME/counts  | counts as bytes of JSON, CSV or Arrow         |
| `MetricsTask` | GET /v1/metrics              | `MetricsResponse`, which the endpoint encodes |

Neither result is stored: reading takes milliseconds to seconds, and no decoding is needed.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Engine

from rappor.base.errors import DecodeError, ParamsError
from rappor.counts.installations import Installations
from rappor.registry.metric import Metric
from rappor_server.base.errors import NotFoundError
from rappor_server.queries.query import Range
from rappor_server.queries.worker import ReportStep
from rappor_server.releases import releases, warning_signs
from rappor_server.releases.installations import read_installations
from rappor_server.releases.overviews import MAX_DAYS, Overview, read_overviews
from rappor_server.releases.release_json import write_release, write_releases
from rappor_server.releases.releases import DayReports, Release, ReleaseQuery
from rappor_server.releases.warning_signs import OverfullCohort, Refusals, RefusalTotal

# Media types of requests and responses of analysts.
JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"

_REFUSAL_DAYS: Final = 31
"""Number of days, today included, whose refusals GET /v1/metrics lists. A larger value makes the
response longer: with 50 metrics and 5 reasons each, a year of days had 91,250 rows."""
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
"""Pattern that the fingerprint of a parameter set matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTask:
    """Task of GET /v1/metrics/NAME/counts: the released counts of a range of days.

    Attributes
    ----------
    metric : the metric
    range : days to read
    params : fingerprint of the only parameter set to read; None for all sets
    media_type : `JSON`, or `CSV` or `ARROW` for the counts of one parameter set
    by : "day", "week" or "month" for counts of each of these periods; None for one sum
    segments : whether each segment has counts of its own
    counts_installations : whether JSON also contains the active installations
    """

    metric: Metric
    range: Range
    params: str | None
    media_type: str
    by: str | None = None
    segments: bool = False
    counts_installations: bool = False

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Return the counts in the media type.

        Raises
        ------
        NotFoundError
            `params` is not a fingerprint with released reports (404).
        ParamsError
            A day is malformed, or `by` is combined with another media type than JSON (422).
        DecodeError
            A table was requested, and the range has several parameter sets (422).
        """
        report_step("reading")
        # A fingerprint whose reports wait has the same response as a fingerprint without reports.
        # Otherwise a reader would learn when the first report of a rare segment arrives.
        unknown = NotFoundError("params must be a fingerprint with reports")
        if self.params is not None and not _FINGERPRINT.fullmatch(self.params):
            raise unknown
        days = self.range.parse()
        if self.by is not None:
            if self.media_type != JSON:
                raise ParamsError(f"by must be absent unless Accept is {JSON}")
            query = ReleaseQuery(self.metric, *days, self.params)
            periods = releases.read_releases_by_period(
                engine, query, self.by, separate_segments=self.segments
            )
            if self.params is not None and not any(period.collections for period in periods):
                raise unknown
            installations = self._read_installations(engine, days[1])
            return write_releases(self.metric.name, periods, *days, installations=installations)
        release = releases.read_release(
            engine, self.metric, *days, params=self.params, separate_segments=self.segments
        )
        if self.params is not None and not release.collections:
            raise unknown
        report_step("writing")
        if self.media_type != JSON:
            return self._write_table(release)
        return write_release(release, self._read_installations(engine, days[1]))

    def _read_installations(self, engine: Engine, through: datetime.date) -> Installations | None:
        """Return the active installations up to a day; None if the metric is not counted."""
        if not self.counts_installations:
            return None
        return read_installations(engine, self.metric, through)

    def _write_table(self, release: Release) -> bytes:
        """Return the counts of one parameter set in a format that `Counts` reads."""
        collections = release.collections
        if len(collections) != 1:
            raise DecodeError(
                f"counts in this format must be of one parameter set, got {len(collections)}: "
                "name it with params=FINGERPRINT"
            )
        if self.media_type == ARROW:
            return write_arrow(collections[0].to_arrow())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counts.csv"
            collections[0].to_csv(path)
            return path.read_bytes()


class MetricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A metric in GET /v1/metrics: parts of its registry entry, released days, warning signs.

    Attributes
    ----------
    name, description, owner, expires, min_reports, min_cohort : the entry of the registry
    fingerprints : fingerprints under which reports are accepted by the current registry
    reports : number of released reports of all days
    n_days : number of all days on which windows are dated
    days : reports of the last of these days, at most 31
    withheld : last days with reports that are in no window yet, at most 31
    n_withheld : number of all such days
    small_blocks : released reports of blocks that were closed under a smaller `min_cohort`
    overfull_cohorts : cohorts with more reports than honest devices send
    """

    name: str
    description: str
    owner: str
    expires: datetime.date
    fingerprints: tuple[str, ...]
    min_reports: int
    min_cohort: int
    reports: int
    n_days: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    n_withheld: int
    small_blocks: int
    overfull_cohorts: tuple[OverfullCohort, ...]


class MetricsResponse(msgspec.Struct, frozen=True):
    """The response of GET /v1/metrics.

    Attributes
    ----------
    metrics : summary of each readable metric, in the order of the registry
    refusals : numbers of refused reports by day, metric and reason, of the last 31 days
    refusal_totals : numbers of refused reports of all days, by metric and reason
    """

    metrics: list[MetricSummary]
    refusals: list[Refusals]
    refusal_totals: list[RefusalTotal]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTask:
    """Task of GET /v1/metrics on a day (UTC): a summary of each metric, and all refusals."""

    metrics: Sequence[Metric]
    today: datetime.date

    def run(self, engine: Engine, report_step: ReportStep) -> MetricsResponse:
        """Return the response."""
        report_step("reading")
        small_blocks = warning_signs.count_in_small_blocks(engine, self.metrics)
        summaries = [
            _summarize(metric, overview, small_blocks[metric.name])
            for metric, overview in zip(
                self.metrics, read_overviews(engine, self.metrics), strict=True
            )
        ]
        since = self.today - datetime.timedelta(days=_REFUSAL_DAYS - 1)
        refusals = warning_signs.read_refusals(engine, since=since)
        return MetricsResponse(summaries, refusals, warning_signs.sum_refusals(engine))


def _summarize(metric: Metric, overview: Overview, small_blocks: int) -> MetricSummary:
    """Return the summary of one metric."""
    return MetricSummary(
        name=metric.name,
        description=metric.description,
        owner=metric.owner,
        expires=metric.expires,
        fingerprints=tuple(metric.accepted),
        min_reports=metric.min_reports,
        min_cohort=metric.min_cohort,
        reports=overview.reports,
        n_days=overview.n_days,
        days=overview.days,
        withheld=overview.withheld[-MAX_DAYS:],
        n_withheld=len(overview.withheld),
        small_blocks=small_blocks,
        overfull_cohorts=warning_signs.find_overfull_cohorts(overview.cohorts),
    )


def write_arrow(table: Any) -> bytes:
    """Return a pyarrow.Table as an Arrow stream."""
    from rappor.base.arrow import load_pyarrow  # noqa: PLC0415 - an extra, and slow to load

    pa = load_pyarrow()
    sink = pa.BufferOutputStream()
    with load_pyarrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
