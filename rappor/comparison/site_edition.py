"""`SiteEdition`: a trend that is published permanently, with all files that reproduce it.

The ID of an edition is a hash of its inputs: counts, candidates, options, the privacy notice and
the version of the program. The same inputs have the same ID, and other inputs have another ID, so
an edition is never overwritten.
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
from rappor.base.ranges import format_value
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison
from rappor.comparison.overview import find_leader
from rappor.counts.released_counts import ReleasedCounts

_ID_DIGITS: Final = 16
"""An ID has 16 hexadecimal digits, the first 64 bits of the hash."""
EDITION_ID: Final = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")
"""Pattern of an edition's ID, which is also the name of its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditionSummary:
    """The entry of an edition in the list of editions.

    Attributes
    ----------
    id : ID of the edition, and name of its folder.
    metric : name of the metric.
    by : kind of the periods: "day", "week", "month", or "period" if their lengths differ.
    first, last : first and last day of the periods.
    reports : number of reports of all periods.
    strings : number of detected strings.
    leader : the string with the largest share of the last period with reports; empty if that period
        detects no string.
    leader_share, leader_std_error : its share, and the standard error of the share; 0 without a
        leader.
    share_unit : unit of the share, "reports" or "devices".
    value_noun : noun for a value of the metric, such as "string", "category" or "item".
    """

    id: str
    metric: str
    by: str
    first: datetime.date
    last: datetime.date
    reports: int
    strings: int
    leader: str = ""
    leader_share: float = 0
    leader_std_error: float = 0
    share_unit: str = "reports"
    value_noun: str = "string"

    @classmethod
    def from_json(cls, data: bytes, path: str) -> EditionSummary:
        """Read the file `edition.json` of an edition.

        Raises
        ------
        FileError
            The data is not such a file.
        """
        try:
            fields = json.loads(data)
            return cls(
                id=str(fields["id"]),
                metric=str(fields["metric"]),
                by=str(fields["by"]),
                first=datetime.date.fromisoformat(fields["first"]),
                last=datetime.date.fromisoformat(fields["last"]),
                reports=int(fields["reports"]),
                strings=int(fields["strings"]),
                leader=str(fields["leader"]),
                leader_share=float(fields["leader_share"]),
                leader_std_error=float(fields["leader_std_error"]),
                share_unit=str(fields["share_unit"]),
                value_noun=str(fields["value_noun"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise FileError(path, "it is not the description of an edition") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteEdition:
    """A trend with its counts, its candidates and the privacy notice of the metric.

    Attributes
    ----------
    trend : the published comparison.
    released : the counts from which the comparison was computed.
    candidates : the strings. None if the bits are categories.
    notice : lines of the privacy notice of the metric, as `rappor collects` prints them.
    program : name of the program that the metric is about; empty if the registry has no name.
    complete : whether the trend assumes that every device has one of the listed categories
        (argument `complete` of `trend`).

    Raises
    ------
    DecodeError
        A candidate does not survive a round trip through a file of lines. The command of the
        edition would test another string.
    """

    trend: Comparison
    released: ReleasedCounts
    candidates: Candidates | None
    notice: tuple[str, ...]
    program: str = ""
    complete: bool = False

    def __post_init__(self) -> None:
        """Check that the candidates survive a round trip through a file of lines."""
        if self.candidates is None:
            return
        lines = io.BytesIO(self._encode_lines(self.candidates))
        reread = Candidates.from_lines(
            lines,
            normalize=self.candidates.normalize,
            field_names=self.candidates.field_names,
        )
        for original, restored in itertools.zip_longest(self.candidates.strings, reread.strings):
            if original != restored:
                raise DecodeError(
                    "published candidates must not change when a file of lines is written and "
                    f"read, got {format_value(original)}: remove this candidate"
                )

    @property
    def version(self) -> str:
        """The version of the installed program."""
        return metadata.version("rappor")

    @property
    def id(self) -> str:
        """The ID of the edition: the first digits of a hash of its inputs."""
        text = json.dumps(
            {
                "version": self.version,
                "notice": self.notice,
                "program": self.program,
                "command": self.command,
                "files": self.hashes,
            },
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def command(self) -> str:
        """The command that computes the numbers again in the edition's folder."""
        trend = self.trend
        arguments = ["rappor", "trend", "counts.json"]
        if self.candidates is not None:
            arguments += ["--candidates", "candidates.txt"]
        if trend.by != "period":
            arguments += ["--by", trend.by]
        error_control = trend.error_control
        arguments += ["--smooth", f"{trend.window}", "--level", f"{error_control.alpha!r}"]
        arguments += [
            "--correction",
            error_control.method,
            "--confidence",
            f"{error_control.confidence!r}",
        ]
        if self.complete:
            arguments.append("--complete")
        return shlex.join([*arguments, "--json"])

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file that the command reads, by file name."""
        return {
            name: hashlib.sha256(data).hexdigest() for name, data in self._encode_inputs().items()
        }

    @property
    def entry(self) -> EditionSummary:
        """The entry of the edition in the list of editions."""
        leader = find_leader(self.trend)
        # Periods of a trend have days. The days of the counts are for the types.
        return EditionSummary(
            id=self.id,
            metric=self.trend.metric,
            by=self.trend.by,
            first=self.trend.samples[0].first or self.released.first,
            last=self.trend.samples[-1].last or self.released.last,
            reports=self.trend.reports,
            strings=int(self.trend.detected_overall.sum()),
            leader=leader.name if leader else "",
            leader_share=leader.share if leader else 0,
            # A detected string has a finite error. The alternative 0 is for the types.
            leader_std_error=(leader.std_error or 0) if leader else 0,
            share_unit=self.trend.share_unit,
            value_noun=self.trend.value_noun,
        )

    def files(self) -> dict[str, bytes]:
        """Return the files of the edition except its page, by name."""
        described = asdict(self.entry) | {
            "version": self.version,
            "command": self.command,
            "sha256": self.hashes,
        }
        return self._encode_inputs() | {
            "trend.json": self.trend.to_json().encode() + b"\n",
            "trend.csv": self.trend.to_csv().encode(),
            "edition.json": json.dumps(described, default=str).encode() + b"\n",
        }

    def _encode_inputs(self) -> dict[str, bytes]:
        """Return the files that the command reads, by name."""
        files = {"counts.json": self.released.to_json()}
        if self.candidates is not None:
            files["candidates.txt"] = self._encode_lines(self.candidates)
        return files

    @staticmethod
    def _encode_lines(candidates: Candidates) -> bytes:
        """Return the candidates as lines of a text file in UTF-8."""
        return "".join(f"{string}\n" for string in candidates.strings).encode()


def sort_newest_first(entries: Sequence[EditionSummary]) -> list[EditionSummary]:
    """Return editions sorted by their days, the latest first."""
    return sorted(
        entries, key=lambda summary: (summary.last, summary.first, summary.id), reverse=True
    )
