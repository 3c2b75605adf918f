"""Queries: requests of analysts for results about one metric.

| query                                                  | result                             |
|--------------------------------------------------------|------------------------------------|
| `EstimatesQuery` (API)                                 | one file in JSON, CSV or Arrow     |
| `OverviewQuery`, `RankingQuery`, `TrendQuery`,         | a page, and files to download with |
| `CompareQuery`, `SegmentsQuery` (pages)                | its tables and charts              |

All of them derive from `Query` and contain a `Subject`. So all queries check days and candidates in
the same way, and show the same sentence for a range without results. A query is a frozen dataclass.
It is pickled and runs in a worker process.

Key of a query
--------------
A result is computed once and stored under the key of its query (`results`, `result_files`). The key
is a digest of everything on which the result depends:

    program       another version of `rappor` or `rappor_server` may compute other numbers
    repr(query)   metric, days, error rates and options
    candidates    an operator may edit the file of candidates
    counts        more reports may be released, or released reports may be deleted

Analysts read counts in release windows (`storage/release_windows.py`). A release window is a sum of
many reports, has a date, and never changes. Windows with the date D are formed in the night after
day D, and never later. The query of a page contains only days whose windows were formed. So the
days in the repr identify the counts, unless windows were deleted (`counts_key`). The query of an
API request (`EstimatesQuery`) may also contain today or later days. It overrides `counts_key`.

Example: two analysts open the ranking of the same weeks. Both queries have the same key, and the
result is computed once. An operator edits the file of candidates: the key changes, and the next
request computes another result.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Engine

import rappor
import rappor_server
from rappor.base.errors import ParamsError
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import get_encoding
from rappor.registry.metric import Metric
from rappor_server.queries.candidate_sources import CandidateSource
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.releases import ReleaseQuery
from rappor_server.storage.database import read_snapshot
from rappor_server.storage.forgetting import find_first_whole_day, find_oldest_window

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of days (UTC) as the texts of a request, such as 2026-11-30. Both days are included.

    Attributes
    ----------
    first, last : text of the first and the last day; None for an open end
    """

    first: str | None
    last: str | None

    def parse(self, names: tuple[str, str] = ("from", "to")) -> tuple[datetime.date, datetime.date]:
        """Return the first and the last day. An open end is the first or last day of the calendar.

        `names` are the names of the two parameters in the message of an error. Raises ParamsError
        if a text is not a day, or the first day is after the last day.
        """
        first_name, last_name = names
        first = parse_day(first_name, self.first, datetime.date.min)
        last = parse_day(last_name, self.last, datetime.date.max)
        if first > last:
            raise ParamsError(f"{first_name} must be a day no later than {last_name}")
        return first, last


def parse_day(name: str, text: str | None, default: datetime.date) -> datetime.date:
    """Return the day of a text such as 2026-11-30, or the default if the text is None.

    `name` is the name of the parameter in the message of a ParamsError.
    """
    if text is None:
        return default
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        day = None
    # `fromisoformat` also accepts 20261130 and 2026-W48-1. An address must have one form, because
    # a result is stored under the text of its days.
    if day is None or day.isoformat() != text:
        raise ParamsError(f"{name} must be a day as 2026-11-30")
    return day


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The metric of a query, the source of its candidates, and its error rates.

    Attributes
    ----------
    metric : entry of the registry
    source : source of the candidates; None if there are none. It is left out of the repr, because
        the key of a query contains the candidates themselves.
    error_control : error rate of the detections, the method that controls it, and the level of the
        intervals. Comparisons use it as it is, because they ignore the order of a ranked list. A
        decode uses `decode_control`.
    counts_installations : whether the registry counts the reports of the metric as active
        installations
    """

    metric: Metric
    source: CandidateSource | None = field(repr=False)
    error_control: ErrorControl
    counts_installations: bool = False

    @property
    def has_candidates(self) -> bool:
        """Whether the metric has candidates, or needs none because its bits are its categories."""
        return self.source is not None or not get_encoding(self.metric.params).is_hashed

    @property
    def decode_control(self) -> ErrorControl:
        """Error control of a decode, which uses the ranks of the registry's list.

        Raises ParamsError if the method does not support ranks.
        """
        is_ranked = self.source is not None and self.source.is_ranked
        return replace(self.error_control, ranked=is_ranked)

    def read_candidates(self) -> Candidates | None:
        """Return the candidates; None for an encoding whose bits are categories or buckets.

        Raises
        ------
        ParamsError
            The encoding needs candidates and has none, or it needs no candidates and has some.
        DecodeError, NotFoundError
            The source cannot be read.
        """
        name, params = self.metric.name, self.metric.params
        if not get_encoding(params).is_hashed:
            if self.source is not None:
                raise ParamsError(f"candidates must be absent for encoding {params.encoding}")
            return None
        if self.source is None:
            raise ParamsError(f"candidates must be given: the registry has none for {name}")
        return self.source.read(params)

    def select_whole_strings(self, collections: Iterable[Counts]) -> list[Counts]:
        """Return the counts of whole strings, without the counts of prefixes.

        A metric may have parts: a device then reports a prefix of its string, for example the first
        three letters, or the whole string. Candidates are whole strings, and no candidate would
        explain the counts of a prefix.
        """
        # The whole string is the last part of a metric with parts. The counts of a metric without
        # parts have an empty text as the name of the part.
        whole_string_parts = {"", *(part.name for part in self.metric.parts[-1:])}
        return [counts for counts in collections if counts.params.part in whole_string_parts]

    def require_whole_strings(self, collections: Iterable[Counts]) -> list[Counts]:
        """Return the counts of whole strings; ParamsError if the range has no reports."""
        if not (counts := self.select_whole_strings(collections)):
            raise ParamsError(describe_no_results(self.metric))
        return counts


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a query.

    Attributes
    ----------
    page : a `ResultPage` as MessagePack; empty for a query of the API
    files : content of each file, by file name for a page, by media type for a query of the API
    """

    page: bytes
    files: dict[str, bytes]


class Query(ABC):
    """A query of one metric.

    Its repr contains all fields except the candidates. The repr is a part of the key, so every
    field that changes the result must be in it.
    """

    subject: Subject

    @property
    def metric(self) -> Metric:
        """The metric of the query."""
        return self.subject.metric

    @abstractmethod
    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Compute the result, and return a `QueryResult` as MessagePack.

        A worker process calls this method. `report_step` is called with the name of each step,
        which the page of progress shows.
        """

    def compute_key(self, engine: Engine) -> bytes:
        """Return the key of the query: a digest of everything on which the result depends."""
        source = self.subject.source
        contents = b"" if source is None else source.read_contents()
        return hash_parts(
            [_digest_installed_program(), repr(self).encode(), contents, self.counts_key(engine)]
        )

    def counts_key(self, engine: Engine) -> bytes:
        """Return bytes that change with the counts of the query's days.

        metric with a minimum        the date of its oldest release window, and the first day from
                                     which no reports were deleted
        metric with min_reports = 0  all of its counters and blocks

        With a minimum, no window is added to the days of a page (see the docstring of the module).
        Windows are deleted by `forget` and `retention`, always the oldest ones. One of the two days
        then changes, and a stored result with deleted reports is not shown again.

        A metric with `min_reports` = 0 (a trial) has no windows, and its reports are read as they
        arrive. Its counters and blocks are hashed, and each new report changes a counter. Bad case
        of a key with the number of reports only: an operator tried the software with 1,000 reports,
        deleted them (`forget`), and sent 1,000 other reports. The page still showed the result of
        the deleted reports.
        """
        if self.metric.min_reports:
            oldest = find_oldest_window(engine, self.metric.name)
            return f"{oldest} {find_first_whole_day(engine, self.metric.name)}".encode()
        every_day = (datetime.date.min, datetime.date.max)
        with read_snapshot(engine) as db:
            rows = sorted(ReleaseQuery(self.metric, *every_day).read_rows(db))
        return hash_parts(repr(row).encode() for row in rows)

    def is_current(self, engine: Engine, key: bytes) -> bool:
        """Return whether a result may be stored under a key that was computed before the result.

        The file of candidates may have been edited during the computation. Then the result belongs
        to the new candidates and must not be stored. For a metric without a minimum the answer is
        always yes: its reports arrive all the time, so the key would nearly always have changed,
        and no result would ever be stored.
        """
        return not self.metric.min_reports or self.compute_key(engine) == key


def hash_parts(parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 of some parts, each preceded by its length.

    Without lengths, (b"ab", b"c") and (b"a", b"bc") would have the same digest.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


@functools.cache
def _digest_installed_program() -> bytes:
    """Return the digest of the packages that compute results, computed once in a process.

    `rappor` decodes counts. `rappor_server` reads the counts and chooses their days.
    """
    folders = [Path(folder) for package in (rappor, rappor_server) for folder in package.__path__]
    return digest_program(*folders)


def digest_program(*folders: Path) -> bytes:
    """Return a digest of the version of `rappor` and of the source files in some folders.

    The version alone would not be enough. A developer edits files without a new version, and the
    pages would show results of the code before the edit.
    """
    patterns = ("*.py", "*.css", "*.js")
    files = sorted(
        path for folder in folders for pattern in patterns for path in folder.rglob(pattern)
    )
    return hash_parts([version("rappor").encode(), *(path.read_bytes() for path in files)])


def describe_no_results(metric: Metric) -> str:
    """Return the sentence for a range without results.

    The sentence does not contain the number of reports of the range. An analyst who watched this
    number would see each report of a small range arrive.
    """
    if metric.min_reports:
        reason = (
            f"needs {metric.min_reports:,} reports from days that have ended and cohorts with "
            f"{metric.min_cohort:,} reports, and has fewer"
        )
    else:
        reason = "has no reports"
    return f"No results for these dates: {metric.name} {reason}."
