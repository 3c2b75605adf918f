"""`Trend`: shares over days, weeks or months, with errors, gaps and changes of parameters."""

from __future__ import annotations

import dataclasses
import datetime
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
    "first",
    "last",
    "candidate",
    "reports",
    "proportion",
    "std_error",
    "ci_low",
    "ci_high",
    "detected",
    "smoothed",
    "smoothed_std_error",
    "smoothed_ci_low",
    "smoothed_ci_high",
    "smoothed_over",
    "step",
    "step_ci_low",
    "step_ci_high",
    "step_p_value",
    "changed",
)

_LEVEL: Final = ("proportion", "std_error", "ci_low", "ci_high")
_STEP: Final = {
    "step": "difference",
    "step_ci_low": "ci_low",
    "step_ci_high": "ci_high",
    "step_p_value": "p_value",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPeriod:
    """A day, week or month of the trend, with or without reports.

    `devices` is the effective number of devices. `missing_days` have no reports, as far as the
    counts keep days apart; on `withheld` of its days some reports wait at the collector.
    """

    first: datetime.date
    last: datetime.date
    name: str
    reports: int
    devices: float
    fingerprints: tuple[str, ...]
    missing_days: int
    withheld: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """A parameter set, and its losses in nats."""

    fingerprint: str
    epsilon_1: float
    epsilon_inf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsChange:
    """A period whose reports have other parameters than those of the one before."""

    period: str
    before: tuple[InUse, ...]
    after: tuple[InUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trend(Displayed):
    """Shares over time, one row for each string and period.

    Attributes
    ----------
    by : "day", "week" or "month"; "period" where the counts have stretches of other lengths.
    periods : t of them in order, also those without reports.
    candidates : s strings that are shown, by their share of all days; answers in their own order.
    levels : each period on its own.
    window, smoothed : each period together with the `window` - 1 before it; None if `window` is 1.
    steps : each period with reports against the one before; None where there are no two.
    params_changes : where the parameters are not those of the period before.
    n_candidates : candidates that were asked about.
    assumed : one line on the devices, on which all errors depend.
    warnings : sentences about where the answer is unsure.
    detection : how sure to be: the argument of `trend`.
    """

    _drawn_as: ClassVar[str] = "trend"

    metric: str
    by: str
    periods: tuple[TrendPeriod, ...]
    candidates: tuple[str, ...]
    levels: Levels
    window: int
    smoothed: Levels | None
    steps: Comparison | None
    params_changes: tuple[ParamsChange, ...]
    n_candidates: int
    assumed: str
    warnings: tuple[str, ...]
    detection: Detection

    def __repr__(self) -> str:
        return (
            f"Trend({len(self.candidates)} of {self.n_candidates} candidates over "
            f"{len(self.periods)} {self.by}s, {self.reports} reports)"
        )

    @property
    def reports(self) -> int:
        """Reports of all periods."""
        return sum(period.reports for period in self.periods)

    @property
    def missing(self) -> tuple[TrendPeriod, ...]:
        """Periods without reports."""
        return tuple(period for period in self.periods if not period.reports)

    @property
    def n_changed(self) -> int:
        """Significant steps."""
        return 0 if self.steps is None else self.steps.n_changed

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary, string by string, also those of missing periods.

        Dates are ISO texts. A number that does not exist is None. `step` and what follows compare a
        period with the one before that has reports.
        """
        found = () if self.steps is None else self.steps.rows()
        steps = {(row["sample"], row["candidate"]): row for row in found}
        for column, candidate in enumerate(self.candidates):
            for number, period in enumerate(self.periods):
                yield self._row(number, column, steps.get((period.name, candidate)))

    def step(self, number: int, column: int) -> Mapping[str, Any] | None:
        """Return the row of `steps` of a period and a string, None where there is none."""
        if self.steps is None:
            return None
        name = self.periods[number].name
        against = [each for each in self.steps.against if each.sample.name == name]
        return self.steps.row(against[0], self.candidates[column]) if against else None

    def _row(self, number: int, column: int, step: Mapping[str, Any] | None) -> dict[str, Any]:
        period, levels = self.periods[number], self.levels
        row: dict[str, Any] = {
            "first": str(period.first),
            "last": str(period.last),
            "candidate": self.candidates[column],
            "reports": period.reports,
            **{name: number_or_none(getattr(levels, name)[number, column]) for name in _LEVEL},
            "detected": bool(levels.detected[number, column]),
        }
        if self.smoothed is not None:
            for name in _LEVEL:
                value = number_or_none(getattr(self.smoothed, name)[number, column])
                row["smoothed" if name == "proportion" else f"smoothed_{name}"] = value
            row["smoothed_over"] = self.smoothed.counted[number]
        if step is not None:
            row |= {name: step[theirs] for name, theirs in _STEP.items()}
            row["changed"] = step["changed"]
        return row

    def to_dict(self) -> dict[str, Any]:
        """Return everything as the object that `rappor trend --json` prints."""
        return {
            "metric": self.metric,
            "by": self.by,
            "periods": [self._period(number) for number in range(len(self.periods))],
            "params_changes": [dataclasses.asdict(each) for each in self.params_changes],
            "window": self.window,
            "rows": list(self.rows()),
            "candidates": self.n_candidates,
            "changes": self.n_changed,
            "assumed": self.assumed,
            "warnings": list(self.warnings),
        }

    def _period(self, number: int) -> dict[str, Any]:
        period = self.periods[number]
        return {
            "first": str(period.first),
            "last": str(period.last),
            "reports": period.reports,
            "devices": period.devices,
            "fingerprints": list(period.fingerprints),
            "missing_days": period.missing_days,
            "withheld": period.withheld,
            "unallocated": number_or_none(self.levels.unallocated[number]),
            "unallocated_std_error": number_or_none(self.levels.unallocated_std_error[number]),
        }

    def to_json(self) -> str:
        """Write `to_dict` as JSON, one object."""
        return json.dumps(_plain(self.to_dict()), ensure_ascii=False, allow_nan=False)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV with a header, and write them to `path` if there is one.

        Texts that a spreadsheet would compute as a formula have an apostrophe before them.
        """
        return saved(csv_text(self._columns(), self.rows()), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the trend as one HTML page, and write it to `path` if there is one.

        It needs no other file, no network and no script.
        """
        return saved(str(draw("trend_page", "trend_page", self)), path)

    def _columns(self) -> list[str]:
        smooth = self.smoothed is not None
        return [name for name in COLUMNS if smooth or not name.startswith("smoothed")]

    def _table(self) -> dict[str, Any]:
        rows = list(self.rows())
        return {name: [row.get(name) for row in rows] for name in self._columns()}


def _plain(value: Any) -> Any:
    """Return what JSON knows: an infinite loss is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return number_or_none(value) if isinstance(value, float) else value
