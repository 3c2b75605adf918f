"""Queries: what an analyst asks of a metric, with one key by which a result is kept.

API, pages and programs use the same records: one check of the days, one check of the candidates,
one sentence for a range without results. A query is pickled and runs in a worker process.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Engine

import rappor
from rappor.base.errors import ParamsError
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.queries.candidate_sources import CandidateSource
from rappor_server.queries.worker import ReportStep
from rappor_server.releases.warning_signs import n_arrived

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Days as texts of a request."""

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
class Subject:
    """The metric of a query, the source of its candidates, and its error rates."""

    metric: Metric
    source: CandidateSource | None = field(repr=False)
    detection: ErrorControl

    @property
    def has_candidates(self) -> bool:
        """Whether the metric has candidates, or needs none because its reports name them."""
        return self.source is not None or not encoding_of(self.metric.params).hashed

    def candidates(self) -> Candidates | None:
        """Read the candidates; None where the reports name them."""
        name, params = self.metric.name, self.metric.params
        if not encoding_of(params).hashed:
            if self.source is not None:
                raise ParamsError(f"candidates must be absent for encoding {params.encoding}")
            return None
        if self.source is None:
            raise ParamsError(f"candidates must be given: the registry has none for {name}")
        return self.source.read(params.normalize)

    def select_whole(self, collections: Iterable[Counts]) -> list[Counts]:
        """Return the counts of whole strings, without those of prefixes."""
        parts = {"", *(part.name for part in self.metric.parts[-1:])}
        return [counts for counts in collections if counts.params.part in parts]

    def require_whole(self, collections: Iterable[Counts]) -> list[Counts]:
        """Return the counts of whole strings; ParamsError if there are none."""
        if not (counts := self.select_whole(collections)):
            raise ParamsError(describe_no_results(self.metric))
        return counts


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a query: a page as MessagePack, empty without one, and files by name."""

    page: bytes
    files: dict[str, bytes]


class Query(ABC):
    """A query of one metric; its repr has all of its fields but the candidates."""

    subject: Subject

    @property
    def metric(self) -> Metric:
        """The metric that the query is about."""
        return self.subject.metric

    @abstractmethod
    def run(self, engine: Engine, report_step: ReportStep) -> bytes:
        """Compute the result, and return it as MessagePack."""

    def key(self, engine: Engine) -> bytes:
        """Return a digest of everything on which the result depends."""
        source = self.subject.source
        contents = b"" if source is None else source.contents()
        return key_of([_digest_program(), repr(self).encode(), contents, self.counts_key(engine)])

    def counts_key(self, engine: Engine) -> bytes:
        """Return a text that changes with the counts of the query's days.

        Closed blocks never change, so the days of a page, which have ended, stand for the counts.
        A metric without a minimum has no blocks: its number of reports stands for them.
        """
        if self.metric.min_reports:
            return b""
        return f"{n_arrived(engine, self.metric.name)}".encode()

    def has_key(self, engine: Engine, key: bytes) -> bool:
        """Return whether nothing on which the result depends has changed since a key was made.

        Without a minimum reports arrive all the time, so that their number is not compared.
        """
        return not self.metric.min_reports or self.key(engine) == key


def key_of(parts: Iterable[bytes]) -> bytes:
    """Return a digest of some parts, each with its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


@functools.cache
def _digest_program() -> bytes:
    return digest_program(Path(rappor.__file__).parent)


def digest_program(folder: Path) -> bytes:
    """Return a digest of a program: another version of the library computes other results."""
    files = sorted(path for kind in ("*.py", "*.css", "*.js") for path in folder.rglob(kind))
    return key_of([version("rappor").encode(), *(path.read_bytes() for path in files)])


def describe_no_results(metric: Metric) -> str:
    """Return why a range has no results, without the number of its reports."""
    if metric.min_reports:
        reason = (
            f"needs {metric.min_reports:,} reports from days that have ended and cohorts with "
            f"{metric.min_cohort:,} reports, and has fewer"
        )
    else:
        reason = "has no reports"
    return f"No results for these dates: {metric.name} {reason}."
