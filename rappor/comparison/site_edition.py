"""`Edition`: a trend that is published for good, with all that makes it again.

An edition is named by a hash of what it was computed from: counts, candidates, options, the notice
to people and the version of the program. The same question has the same name, and another one
another name, so an edition is never written over.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import itertools
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Final

from rappor.base.errors import DecodeError, FileError
from rappor.base.ranges import shown
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison
from rappor.counts.released import Released

_ID_DIGITS: Final = 16
EDITION_ID: Final = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")
"""The names of editions, which are those of their folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditionEntry:
    """What a list of editions says of one."""

    id: str
    metric: str
    by: str
    first: datetime.date
    last: datetime.date
    reports: int
    strings: int

    @classmethod
    def from_json(cls, data: bytes, path: str) -> EditionEntry:
        """Read what `Edition.files` wrote; FileError if it is something else."""
        try:
            found = json.loads(data)
            return cls(
                id=str(found["id"]),
                metric=str(found["metric"]),
                by=str(found["by"]),
                first=datetime.date.fromisoformat(found["first"]),
                last=datetime.date.fromisoformat(found["last"]),
                reports=int(found["reports"]),
                strings=int(found["strings"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise FileError(path, "it is not the description of an edition") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edition:
    """A trend with its counts, its candidates and what people were told of the metric.

    `candidates` are None where bits are answers. `notice` are the lines of `rappor collects`.

    Raises DecodeError for a candidate that no line of a file reads back as: the command of the
    edition would answer another question.
    """

    trend: Comparison
    released: Released
    candidates: Candidates | None
    notice: tuple[str, ...]

    def __post_init__(self) -> None:
        """Read the candidates as the command will."""
        if self.candidates is None:
            return
        lines = io.BytesIO(self._lines(self.candidates))
        found = Candidates.from_lines(lines, normalize=self.candidates.normalize)
        for ours, read in itertools.zip_longest(self.candidates.strings, found.strings):
            if ours != read:
                raise DecodeError(
                    "published candidates must be lines that read back as they are, got "
                    f"{shown(ours)}: leave out what gave it"
                )

    @property
    def version(self) -> str:
        """The version of the program that computed it."""
        return metadata.version("rappor")

    @property
    def id(self) -> str:
        """The name of the edition: the first digits of a hash of what it was computed from."""
        text = json.dumps(
            {
                "version": self.version,
                "notice": self.notice,
                "command": self.command,
                "files": self.hashes,
            },
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def command(self) -> str:
        """The command that computes the numbers again, beside the edition's files."""
        trend = self.trend
        words = ["rappor", "trend", "counts.json"]
        if self.candidates is not None:
            words += ["--candidates", "candidates.txt"]
        if trend.by != "period":
            words += ["--by", trend.by]
        sure = trend.error_control
        words += ["--smooth", f"{trend.window}", "--level", f"{sure.alpha!r}"]
        words += ["--correction", sure.method, "--confidence", f"{sure.confidence!r}"]
        return shlex.join([*words, "--json"])

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file that the command reads, by its name."""
        return {name: hashlib.sha256(data).hexdigest() for name, data in self._inputs().items()}

    @property
    def entry(self) -> EditionEntry:
        """What a list of editions says of it."""
        return EditionEntry(
            id=self.id,
            metric=self.trend.metric,
            by=self.trend.by,
            first=self.trend.samples[0].first or self.released.first,
            last=self.trend.samples[-1].last or self.released.last,
            reports=self.trend.reports,
            strings=int(self.trend.detected_overall.sum()),
        )

    def files(self) -> dict[str, bytes]:
        """Return the edition's files but for its page, by name."""
        described = asdict(self.entry) | {
            "version": self.version,
            "command": self.command,
            "sha256": self.hashes,
        }
        return self._inputs() | {
            "trend.json": self.trend.to_json().encode() + b"\n",
            "trend.csv": self.trend.to_csv().encode(),
            "edition.json": json.dumps(described, default=str).encode() + b"\n",
        }

    def _inputs(self) -> dict[str, bytes]:
        files = {"counts.json": self.released.to_json()}
        if self.candidates is not None:
            files["candidates.txt"] = self._lines(self.candidates)
        return files

    @staticmethod
    def _lines(candidates: Candidates) -> bytes:
        return "".join(f"{each}\n" for each in candidates.strings).encode()


def newest_first(entries: Sequence[EditionEntry]) -> list[EditionEntry]:
    """Return editions in the order of their days, the last ones first."""
    return sorted(entries, key=lambda each: (each.last, each.first, each.id), reverse=True)
