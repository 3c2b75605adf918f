"""`Segments`: shares in each segment, with errors, and differences from the largest one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rappor.decoding.comparison.comparison import Comparison
from rappor.decoding.detection import Detection
from rappor.decoding.estimates import number_or_none
from rappor.decoding.side_by_side import Levels
from rappor.decoding.spreadsheet import csv_text
from rappor.ground.display import Displayed, draw
from rappor.ground.files import saved

COLUMNS: Final = (
    "segment",
    "candidate",
    "reports",
    "proportion",
    "std_error",
    "ci_low",
    "ci_high",
    "detected",
    "difference",
    "difference_ci_low",
    "difference_ci_high",
    "difference_p_value",
    "differs",
)

_LEVEL: Final = ("proportion", "std_error", "ci_low", "ci_high")
_DIFFERENCE: Final = {
    "difference": "difference",
    "difference_ci_low": "ci_low",
    "difference_ci_high": "ci_high",
    "difference_p_value": "p_value",
    "differs": "changed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSample:
    """One segment: its name and values, its reports, and its effective number of devices."""

    name: str
    values: Mapping[str, str]
    reports: int
    devices: float

    @property
    def label(self) -> str:
        """Its values alone, for a picture that names the dimensions once."""
        return ", ".join(self.values.values()) or self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Segments(Displayed):
    """Shares in segments, one row for each string and segment.

    Attributes
    ----------
    segments : t of them, the one with most reports first.
    candidates : s strings that are shown, by their share of all reports; answers in their order.
    levels : each segment on its own.
    differences : every other segment against the first; None where there are no two.
    n_candidates : candidates that were asked about.
    assumed : one line on the devices, on which all errors depend.
    warnings : sentences about where the answer is unsure.
    detection : how sure to be: the argument of `by_segment`.
    """

    _drawn_as: ClassVar[str] = "segments"

    metric: str
    segments: tuple[SegmentSample, ...]
    candidates: tuple[str, ...]
    levels: Levels
    differences: Comparison | None
    n_candidates: int
    assumed: str
    warnings: tuple[str, ...]
    detection: Detection

    def __repr__(self) -> str:
        return (
            f"Segments({len(self.candidates)} of {self.n_candidates} candidates in "
            f"{len(self.segments)} segments, {self.reports} reports)"
        )

    @property
    def reports(self) -> int:
        """Reports of all segments."""
        return sum(segment.reports for segment in self.segments)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The properties that segments are split by, in the order of their values."""
        return tuple(dict.fromkeys(name for each in self.segments for name in each.values))

    @property
    def n_differing(self) -> int:
        """Significant differences from the first segment."""
        return 0 if self.differences is None else self.differences.n_changed

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, string by string.

        A number that does not exist is None. The first segment has no difference.
        """
        found = () if self.differences is None else self.differences.rows()
        differences = {(row["sample"], row["candidate"]): row for row in found}
        for column, candidate in enumerate(self.candidates):
            for number, segment in enumerate(self.segments):
                yield {
                    "segment": segment.name,
                    "candidate": candidate,
                    "reports": segment.reports,
                    **{
                        name: number_or_none(getattr(self.levels, name)[number, column])
                        for name in _LEVEL
                    },
                    "detected": bool(self.levels.detected[number, column]),
                    **_difference(differences.get((segment.name, candidate))),
                }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as the object that `rappor compare --by --json` prints."""
        return {
            "metric": self.metric,
            "segments": [dataclasses.asdict(each) for each in self.segments],
            "rows": list(self.rows()),
            "candidates": self.n_candidates,
            "differing": self.n_differing,
            "assumed": self.assumed,
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """Write `to_dict` as JSON, one object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV with a header, and write them to `path` if there is one.

        Texts that a spreadsheet would compute as a formula have an apostrophe before them.
        """
        return saved(csv_text(COLUMNS, self.rows()), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the segments as one HTML page, and write it to `path` if there is one."""
        return saved(str(draw("segments_page", "segments_page", self)), path)

    def _table(self) -> dict[str, Any]:
        rows = list(self.rows())
        return {name: [row.get(name) for row in rows] for name in COLUMNS}


def _difference(row: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if row is None else {name: row[theirs] for name, theirs in _DIFFERENCE.items()}
