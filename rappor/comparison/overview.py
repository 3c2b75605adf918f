"""`Overview`: the shares of the last weeks beside how they moved, what a metric's page answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison
from rappor.comparison.trend import trend
from rappor.counts.counts import Counts
from rappor.counts.released import Released
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.estimator.error_control import ErrorControl

_NEAREST: Final = 5
"""Candidates that are shown where none is detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One string: its share of the last periods, and the panel's rows of each period, t or none.

    `change` is the panel's row of the line through all periods; None where there is none.
    """

    name: str
    share: float
    std_error: float | None
    low: float | None
    high: float | None
    detected: bool
    run: tuple[dict[str, Any], ...]
    change: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overview:
    """What a metric says now: `estimates` of the latest periods of the `panel`, `n_latest` of it.

    `complete` tells that every device has one of the answers.
    """

    estimates: Estimates
    panel: Comparison
    n_latest: int

    @property
    def latest(self) -> str:
        """The name of the latest periods, such as "the last 4 weeks"."""
        by = self.panel.by
        return f"the last {self.n_latest} {by}s" if self.n_latest > 1 else f"the last {by}"

    @property
    def devices(self) -> float:
        """The effective number of devices behind the estimates."""
        return sum(
            each.n_reports / max(each.repetition.reports_per_device, 1.0)
            for each in self.estimates.collections
        )

    def lines(self) -> list[Line]:
        """Return the detected strings, the largest first; without any, those nearest to it.

        The strings that the metric's entry lists come before all others, detected or not.
        """
        found = list(self.estimates.rows(detected_only=True))
        rows = found or sorted(self.estimates.rows(), key=lambda row: float(row["p_value"]))
        place = {name: i for i, name in enumerate(self.panel.candidates)}
        few = rows if found else rows[:_NEAREST]
        few.sort(key=lambda row: (not row.get("listed"), -float(row["share"])))
        return [self._line(row, place.get(row["candidate"])) for row in few]

    def changes(self) -> list[dict[str, Any]]:
        """Return the rows of the strings that moved over all periods, the largest change first."""
        rows = (
            self.panel.contrast_row(each, i)
            for each in self.panel.primary
            for i in each.changed.nonzero()[0].tolist()
        )
        return sorted(rows, key=lambda row: -abs(row["estimate"]))

    def _line(self, row: dict[str, Any], i: int | None) -> Line:
        error = row["std_error"]
        low, high = adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])
        periods = range(len(self.panel.samples)) if i is not None else ()
        main = self.panel.primary
        return Line(
            name=row["candidate"],
            share=row["share"],
            std_error=None if error is None else error / self.estimates.reports,
            low=low,
            high=high,
            detected=row["detected"],
            run=tuple(self.panel.share_row(number, i or 0) for number in periods),
            change=self.panel.contrast_row(main[0], i) if main and i is not None else None,
        )


def overview(  # noqa: PLR0913 - what is decoded, and how
    released: Released,
    latest: Sequence[Counts],
    candidates: Candidates | None = None,
    *,
    n_latest: int,
    by: str,
    listed: Iterable[str] = (),
    complete: bool = False,
    detection: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> Overview:
    """Decode the latest periods together, and each of all periods for how shares moved.

    `latest` are the counts of the last `n_latest` periods, by day where that is known: they tell
    how often devices report. `listed` are the strings that the metric's entry lists.

    Raises DecodeError where there are no reports or no candidates, or the
    counts do not go together.
    """
    estimates = decode(
        list(latest),
        candidates,
        listed=listed,
        error_control=detection,
        complete=complete,
        progress=progress,
    )
    run = trend(
        released, candidates, by=by, error_control=detection, complete=complete, progress=progress
    )
    return Overview(estimates=estimates, panel=run, n_latest=n_latest)
