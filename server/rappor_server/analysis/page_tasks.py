"""What the dashboard asks, as tasks for a process: answers drawn as parts of a page, with files.

Each is computed and drawn by the library, where a process of its own has the time and the memory.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

import msgspec

from rappor.counts.counts import Counts
from rappor.counts.released import Period, Released
from rappor.decoding.detection import Detection
from rappor.ground.errors import ParamsError
from rappor.ground.progress import Progress
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.analysis.answer_cache import AnswerCache, key_of
from rappor_server.analysis.candidate_sources import CandidateSource
from rappor_server.analysis.release_json import write_release
from rappor_server.analysis.releases import BlockQuery, Release, check_decodable, releases_by
from rappor_server.analysis.tasks import Range, bytes_of, no_results
from rappor_server.analysis.worker import Tell
from rappor_server.storage.store import Store

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.panels.panel import Panel
    from rappor.reporting.document import Content

PARTS: Final = "application/vnd.rappor.parts"
"""Media type of an `PageAnswer`; no request asks for it by this name."""

MOST_BYTES: Final = 10_000_000
"""Of a file of an answer: the process that hands it over has devices to answer too."""

_CACHE: Final = AnswerCache(64_000_000)
"""What this process has drawn."""

_TELL_SECONDS: Final = 0.5

_Found = TypeVar("_Found")


class PageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as the dashboard shows it: a title, sections as HTML, and files by their names.

    Every text in `html` has been escaped by `rappor.reporting.markup`. Files that are too large
    are only named.
    """

    title: str
    html: str
    files: dict[str, bytes]
    too_large: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every question has: the metric, where its candidates are, and how sure to be."""

    metric: Metric
    source: CandidateSource | None
    detection: Detection

    def candidates(self, store: Store) -> Candidates | None:
        """Read the candidates; None where answers are bits."""
        if not encoding_of(self.metric.params).hashed:
            return None
        if self.source is None:
            raise ParamsError(
                f"candidates must be chosen: {self.metric.name} names no file of them"
            )
        return self.source.read(store, self.metric.params.normalize)


class PageTask(ABC, Generic[_Found]):
    """A question whose answer is drawn."""

    asked: Asked
    media_type: ClassVar[str] = PARTS

    @property
    def metric(self) -> Metric:
        """The metric that is asked about."""
        return self.asked.metric

    def run(self, store: Store, tell: Tell) -> bytes:
        """Return an `PageAnswer` as MessagePack; at once if it was drawn before."""
        tell("reading")
        found = self.find(store)
        collections = self.collections(found)
        if not collections:
            raise ParamsError(no_results(self.metric))
        key = self._key(store, collections)
        if (known := _CACHE.find(key)) is not None:
            return known
        tell("hashing candidates")
        candidates = self.asked.candidates(store)
        tell("decoding")
        answer = msgspec.msgpack.encode(self.answer(found, candidates, _Steps(tell)))
        if key == self._key(store, collections):  # the candidates are still the same
            _CACHE.keep(key, answer)
        return answer

    @abstractmethod
    def find(self, store: Store) -> _Found:
        """Read what was released."""

    @abstractmethod
    def collections(self, found: _Found) -> Sequence[Counts]:
        """Return all counts of what was found."""

    @abstractmethod
    def answer(
        self, found: _Found, candidates: Candidates | None, progress: Progress
    ) -> PageAnswer:
        """Compute the answer and draw it."""

    def _key(self, store: Store, collections: Sequence[Counts]) -> bytes:
        source = self.asked.source
        return key_of(
            [
                repr(self).encode(),
                b"" if source is None else source.contents(store),
                *bytes_of(collections),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingTask(PageTask[Release]):
    """How many devices hold each candidate, in a range of days."""

    asked: Asked
    range: Range
    everything: bool

    def find(self, store: Store) -> Release:
        """Read what is released of the range."""
        found = self.range.by_day(store, self.metric)
        check_decodable(found)
        return found

    def collections(self, found: Release) -> Sequence[Counts]:
        """Return the counts of each parameter set."""
        return found.parts

    def answer(
        self, found: Release, candidates: Candidates | None, progress: Progress
    ) -> PageAnswer:
        """Decode, and draw the report."""
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - only where it is decoded
        from rappor.decoding.report import InputFile, Origin, report  # noqa: PLC0415
        from rappor.reporting.page import estimates_content  # noqa: PLC0415

        estimates = decode(
            list(found.parts),
            candidates,
            detection=self.asked.detection,
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
            estimates_content(report(estimates, Origin(files=(counts,)))),
            "estimates",
            as_csv=estimates.to_csv(detected_only=only),
            as_json=estimates.to_json(detected_only=only),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendTask(PageTask[Released]):
    """How shares run over days, weeks or months."""

    asked: Asked
    range: Range
    by: str
    smooth: int

    def find(self, store: Store) -> Released:
        """Read what is released of each stretch of days."""
        first, last = self.range.days()
        found = releases_by(store, BlockQuery(self.metric, first, last), self.by)
        for each in found:
            check_decodable(each)
        return Released(
            metric=self.metric.name,
            first=found[0].first if found and self.range.first is None else first,
            last=found[-1].last if found and self.range.last is None else last,
            periods=tuple(
                Period(first=each.first, last=each.last, collections=each.collections)
                for each in found
                if each.collections
            ),
            withheld=tuple(day for each in found for day in each.withheld),
        )

    def collections(self, found: Released) -> Sequence[Counts]:
        """Return the counts of all stretches."""
        return found.collections

    def answer(
        self, found: Released, candidates: Candidates | None, progress: Progress
    ) -> PageAnswer:
        """Decode each stretch and each step, and draw them."""
        from rappor.panels.over_time import trend  # noqa: PLC0415 - only where it is decoded

        run = trend(
            found,
            candidates,
            by=self.by,
            smooth=self.smooth,
            detection=self.asked.detection,
            progress=progress,
        )
        return _drawn_panel(run, "trend")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask(PageTask[tuple[Release, Release]]):
    """What changed from a range of days to another one."""

    asked: Asked
    before: Range
    after: Range
    everything: bool

    def find(self, store: Store) -> tuple[Release, Release]:
        """Read what is released of both ranges; ParamsError if one has nothing, or they overlap."""
        (first, last), (first_after, last_after) = self.before.days(), self.after.days()
        if first <= last_after and first_after <= last:
            raise ParamsError("the days before and after must not overlap")
        found = tuple(each.release(store, self.metric) for each in (self.before, self.after))
        for each in found:
            check_decodable(each)
            if not each.collections:
                raise ParamsError(no_results(self.metric))
        return found[0], found[1]

    def collections(self, found: tuple[Release, Release]) -> Sequence[Counts]:
        """Return the counts of both ranges."""
        return [counts for each in found for counts in each.collections]

    def answer(
        self,
        found: tuple[Release, Release],
        candidates: Candidates | None,
        progress: Progress,
    ) -> PageAnswer:
        """Compare the ranges, and draw the differences."""
        from rappor.panels.compare import compare  # noqa: PLC0415 - only where it is decoded

        changes = compare(
            {
                _named(days, each): list(each.collections)
                for days, each in zip((self.before, self.after), found, strict=True)
            },
            candidates,
            detection=self.asked.detection,
            progress=progress,
        )
        return _drawn_panel(changes, "comparison", every=self.everything)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsTask(PageTask[Release]):
    """How shares differ between segments, of one dimension or of all."""

    asked: Asked
    range: Range
    dimension: str | None

    def find(self, store: Store) -> Release:
        """Read what is released of each segment."""
        found = self.range.release(store, self.metric, segments=True)
        check_decodable(found)
        return found

    def collections(self, found: Release) -> Sequence[Counts]:
        """Return the counts of each segment."""
        return found.collections

    def answer(
        self, found: Release, candidates: Candidates | None, progress: Progress
    ) -> PageAnswer:
        """Decode each segment, and draw them."""
        from rappor.panels.by_segment import by_segment  # noqa: PLC0415 - only where it is decoded

        apart = by_segment(
            found.collections,
            candidates,
            dimension=self.dimension,
            detection=self.asked.detection,
            progress=progress,
        )
        return _drawn_panel(apart, "segments")


def _drawn_panel(panel: Panel, name: str, *, every: bool = False) -> PageAnswer:
    """Return the parts of the page about a panel, and its numbers of `every` candidate."""
    from rappor.reporting.panel_page import panel_content  # noqa: PLC0415 - only where it is drawn

    return _drawn(
        panel_content(panel),
        name,
        as_csv=panel.to_csv(every=every),
        as_json=panel.to_json(every=every),
    )


def _drawn(content: Content, name: str, *, as_csv: str, as_json: str) -> PageAnswer:
    """Return a page's parts, with the page as a file and its numbers."""
    from rappor.reporting.document import document  # noqa: PLC0415 - only where it is drawn

    files = {
        "report.html": document(content.title, *content.parts).encode(),
        f"{name}.csv": as_csv.encode(),
        f"{name}.json": as_json.encode(),
    }
    kept = {name: data for name, data in files.items() if len(data) <= MOST_BYTES}
    return PageAnswer(
        title=content.title,
        html="".join(content.parts),
        files=kept,
        too_large=[name for name in files if name not in kept],
    )


def _named(days: Range, found: Release) -> str:
    """Write days as both ends (ISO 8601): those that were asked for, else those of the reports."""
    first, last = days.first or found.days[0].day, days.last or found.days[-1].day
    return f"{first}/{last}"


class _Steps:
    """Reports the progress of a computation, a few times a second at most."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._next = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report a stage, and how much of it is done if that is known."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_SECONDS
            self._tell(f"{stage}, {done:,} of {total:,}" if total else stage)
