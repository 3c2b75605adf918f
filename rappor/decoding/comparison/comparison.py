"""`Comparison`: what changed, one row for each candidate and sample, with errors."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from rappor.decoding.detection import Detection
from rappor.decoding.estimates import number_or_none
from rappor.decoding.spreadsheet import csv_text
from rappor.ground.display import Displayed, draw
from rappor.ground.files import saved

COLUMNS: Final = (
    "sample",
    "candidate",
    "baseline_proportion",
    "proportion",
    "difference",
    "std_error",
    "ci_low",
    "ci_high",
    "p_value",
    "changed",
    "kind",
    "ci_low_adjusted",
    "ci_high_adjusted",
    "group",
)

KINDS: Final = ("newcomer", "leaver", "rise", "fall", "")
"""The kind of a change; empty if it is not significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One sample: its name, its reports, its effective number of devices, and why.

    `assumed` is `Estimates.assumed` of the sample alone.
    """

    name: str
    reports: int
    devices: float
    assumed: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Against:
    """One sample against its baseline, c rows in the order of `Comparison.candidates`.

    Attributes
    ----------
    baseline : the name of the sample that it is compared with.
    sample : the sample.
    overlap : rho, what part of the devices' noise both have in common.
    how : "rows" where unchanged strings cancel, "answers" where bits are answers, "apart" where
        the samples have no shape in common and are decoded apart.
    baseline_proportion, proportion : (c,) float64, of the baseline and of the sample, as each
        decodes alone.
    difference, std_error : (c,) float64. Estimated from the differences of the bits, so it is
        more precise than that of the two proportions.
    ci_low, ci_high : (c,) float64, of each candidate on its own.
    p_value : (c,) float64, two-sided.
    changed : (c,) bool, at the level over all candidates of all samples.
    ci_low_adjusted, ci_high_adjusted : (c,) float64, which hold for the changed ones together; NaN
        for the others.
    kind : c of `KINDS`.
    unchanged_p_value : of the test that nothing changed at all.
    rows_p_value : its part that asks all bits, candidates or not; None without rows.
    """

    baseline: str
    sample: Compared
    overlap: float
    how: str
    baseline_proportion: NDArray[np.float64]
    proportion: NDArray[np.float64]
    difference: NDArray[np.float64]
    std_error: NDArray[np.float64]
    ci_low: NDArray[np.float64]
    ci_high: NDArray[np.float64]
    p_value: NDArray[np.float64]
    changed: NDArray[np.bool_]
    ci_low_adjusted: NDArray[np.float64]
    ci_high_adjusted: NDArray[np.float64]
    kind: tuple[str, ...]
    unchanged_p_value: float
    rows_p_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Comparison(Displayed):
    """What changed from a baseline to one or more other samples.

    Attributes
    ----------
    baseline : the first sample.
    against : every other sample against it, or against the one before.
    candidates : c texts: strings by their largest change, answers in their own order.
    group : (c,) int64. Candidates of the same number from 1 on are indistinguishable.
    unchanged_p_value : of the test that nothing changed in any sample.
    assumed : one line on the devices, on which all errors depend.
    warnings : sentences about where the answer is unsure.
    detection : how sure to be: the argument of `compare`.
    """

    _drawn_as: ClassVar[str] = "comparison"

    baseline: Compared
    against: tuple[Against, ...]
    candidates: tuple[str, ...]
    group: NDArray[np.int64]
    unchanged_p_value: float
    assumed: str
    warnings: tuple[str, ...]
    detection: Detection

    def __repr__(self) -> str:
        return (
            f"Comparison({self.n_changed} changes of {len(self.candidates)} candidates from "
            f"{self.before!r} to {[each.sample.name for each in self.against]})"
        )

    @property
    def before(self) -> str:
        """What samples are compared with: the name of the first one, or "the sample before"."""
        names = {each.baseline for each in self.against}
        return names.pop() if len(names) == 1 else "the sample before"

    @property
    def n_changed(self) -> int:
        """Rows that changed."""
        return sum(int(each.changed.sum()) for each in self.against)

    @property
    def n_tests(self) -> int:
        """Candidates times samples: what the correction counts."""
        return len(self.candidates) * len(self.against)

    def rows(self, *, changed_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, sample by sample.

        Proportions and differences are shares of all reports. A number that does not exist is None.
        Changed rows have the adjusted interval, rows of a group have `group`.
        """
        for each in self.against:
            for i in range(len(self.candidates)):
                if each.changed[i] or not changed_only:
                    yield self._row(each, i)

    def row(self, each: Against, candidate: str) -> dict[str, Any]:
        """Return the row of one candidate in one sample, as `rows` yields it."""
        return self._row(each, self.candidates.index(candidate))

    def _row(self, each: Against, i: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "sample": each.sample.name,
            "candidate": self.candidates[i],
            **{name: number_or_none(getattr(each, name)[i]) for name in COLUMNS[2:9]},
            "changed": bool(each.changed[i]),
            "kind": each.kind[i],
        }
        if each.changed[i]:
            row["ci_low_adjusted"] = number_or_none(each.ci_low_adjusted[i])
            row["ci_high_adjusted"] = number_or_none(each.ci_high_adjusted[i])
        if self.group[i]:
            row["group"] = int(self.group[i])
        return row

    def to_dict(self, *, changed_only: bool = False) -> dict[str, Any]:
        """Return everything as the object that `rappor compare --json` prints."""
        return {
            "baseline": dataclasses.asdict(self.baseline),
            "samples": [
                {
                    **dataclasses.asdict(each.sample),
                    "baseline": each.baseline,
                    "overlap": each.overlap,
                    "how": each.how,
                    "unchanged_p_value": each.unchanged_p_value,
                    "rows_p_value": each.rows_p_value,
                }
                for each in self.against
            ],
            "unchanged_p_value": self.unchanged_p_value,
            "changes": list(self.rows(changed_only=changed_only)),
            "candidates": len(self.candidates),
            "assumed": self.assumed,
            "warnings": list(self.warnings),
        }

    def to_json(self, *, changed_only: bool = False) -> str:
        """Write `to_dict` as JSON, one object."""
        document = self.to_dict(changed_only=changed_only)
        return json.dumps(document, ensure_ascii=False, allow_nan=False)

    def to_csv(
        self, path: str | os.PathLike[str] | None = None, *, changed_only: bool = False
    ) -> str:
        """Return the rows as CSV with a header, and write them to `path` if there is one.

        Texts that a spreadsheet would compute as a formula have an apostrophe before them.
        """
        return saved(csv_text(COLUMNS, self.rows(changed_only=changed_only)), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the comparison as one HTML page, and write it to `path` if there is one.

        It needs no other file, no network and no script.
        """
        return saved(str(draw("comparison_page", "comparison_page", self)), path)

    def _table(self) -> dict[str, Any]:
        rows = list(self.rows())
        return {name: [row.get(name) for row in rows] for name in COLUMNS}
