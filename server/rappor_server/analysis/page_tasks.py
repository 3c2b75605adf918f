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
from rappor.errors import ParamsError
from rappor.progress import Progress
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.analysis.answers import Answers, key_of
from rappor_server.analysis.candidate_sources import CandidateSource
from rappor_server.analysis.release_json import write_release
from rappor_server.analysis.releases import Release, check_decodable
from rappor_server.analysis.tasks import Range, bytes_of, no_results
from rappor_server.analysis.worker import Tell
from rappor_server.storage.store import Store

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates

PARTS: Final = "application/vnd.rappor.parts"
"""Media type of an `Answered`; no request asks for it by this name."""

MOST_LISTED: Final = 100_000
"""Candidates of an answer that lists undetected ones too."""

_ANSWERS: Final = Answers(64_000_000)
"""What this process has drawn."""

_TELL_SECONDS: Final = 0.5

_Found = TypeVar("_Found")


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as the dashboard shows it: a title, sections as HTML, and files by their names.

    Every text in `html` has been escaped by `rappor.reporting.markup`.
    """

    title: str
    html: str
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every question has: the metric, where its candidates are, and the error rates."""

    metric: Metric
    source: CandidateSource | None
    level: float
    correction: str
    confidence: float

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
        """Return an `Answered` as JSON; at once if it was drawn before."""
        tell("reading")
        found = self.find(store)
        collections = self.collections(found)
        if not collections:
            raise ParamsError(no_results(self.metric))
        key = self._key(store, collections)
        if (known := _ANSWERS.find(key)) is not None:
            return known
        tell("hashing candidates")
        candidates = self.asked.candidates(store)
        tell("decoding")
        answer = msgspec.json.encode(self.answer(found, candidates, _Steps(tell)))
        if key == self._key(store, collections):  # the candidates are still the same
            _ANSWERS.keep(key, answer)
        return answer

    @abstractmethod
    def find(self, store: Store) -> _Found:
        """Read what was released."""

    @abstractmethod
    def collections(self, found: _Found) -> Sequence[Counts]:
        """Return all counts of what was found."""

    @abstractmethod
    def answer(self, found: _Found, candidates: Candidates | None, progress: Progress) -> Answered:
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
        found = self.range.release(store, self.metric)
        check_decodable(found)
        return found

    def collections(self, found: Release) -> Sequence[Counts]:
        """Return the counts of each parameter set."""
        return found.collections

    def answer(self, found: Release, candidates: Candidates | None, progress: Progress) -> Answered:
        """Decode, and draw the report."""
        from rappor.decoding.decoder import decode  # noqa: PLC0415 - only where it is decoded
        from rappor.decoding.report import InputFile, Origin, report  # noqa: PLC0415
        from rappor.reporting.document import document  # noqa: PLC0415
        from rappor.reporting.page import estimates_content  # noqa: PLC0415

        if self.everything and len(candidates or ()) > MOST_LISTED:
            raise ParamsError(
                f"candidates must be at most {MOST_LISTED:,} where undetected ones are listed too"
            )
        estimates = decode(
            list(found.collections),
            candidates,
            level=self.asked.level,
            correction=self.asked.correction,
            confidence=self.asked.confidence,
            progress=progress,
        )
        progress("drawing", 0, None)
        counts = InputFile(
            name=f"/v1/metrics/{self.metric.name}/counts",
            sha256=hashlib.sha256(write_release(found)).hexdigest(),
            days=f"from {self.range.first or 'the first'} to {self.range.last or 'the last'}",
        )
        content = estimates_content(report(estimates, Origin(files=(counts,))))
        only = not self.everything
        return Answered(
            title=content.title,
            html="".join(content.parts),
            files={
                "report.html": document(content.title, *content.parts).encode(),
                "estimates.csv": estimates.to_csv(detected_only=only).encode(),
                "estimates.json": estimates.to_json(detected_only=only).encode(),
            },
        )


class _Steps:
    """Tells how far a computation is, a few times a second at most."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._next = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Tell a stage, and how much of it is done where that is known."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_SECONDS
            self._tell(f"{stage}, {done:,} of {total:,}" if total else stage)
