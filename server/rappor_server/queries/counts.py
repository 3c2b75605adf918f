"""Tasks that read released counts, and the state of metrics, for the API."""

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
from rappor.registry.metric import Metric
from rappor_server.base.errors import NotFoundError
from rappor_server.queries.query import Range
from rappor_server.queries.worker import ReportStep
from rappor_server.releases import releases, warning_signs
from rappor_server.releases.release_json import write_release, write_releases
from rappor_server.releases.releases import BlockQuery, DayReports, Release
from rappor_server.releases.warning_signs import OverfullCohort, Refusals

JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")


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

    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Return the counts in the media type."""
        report_step("reading")
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
        report_step("writing")
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
            return write_arrow(collections[0].to_arrow())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counts.csv"
            collections[0].to_csv(path)
            return path.read_bytes()


class MetricAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one metric: its entry in the registry, released days, warning signs.

    `small_blocks` are released reports of blocks that were closed under a smaller `min_cohort`.
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

    def run(self, engine: Engine, report_step: ReportStep) -> MetricsAnswer:
        """Look at each metric."""
        report_step("reading")
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


def write_arrow(table: Any) -> bytes:
    """Write a pyarrow.Table as an Arrow stream."""
    from rappor.base.arrow import load_pyarrow  # noqa: PLC0415

    pa = load_pyarrow()
    sink = pa.BufferOutputStream()
    with load_pyarrow("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
