"""`Overview`: shares in the latest periods, and their changes over time, for a metric's page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison
from rappor.comparison.trend import trend
from rappor.counts.counts import Counts
from rappor.counts.released_counts import ReleasedCounts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.estimator.error_control import ErrorControl

_MAX_NEAREST: Final = 5
"""Number of candidates with the smallest p-values that are displayed if no candidate is detected.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """One string: its share in the latest periods, and its shares and change over all periods.

    Attributes
    ----------
    share, std_error : share of all reports in the latest periods; `std_error` is None if infinite.
    low, high : confidence interval; adjusted for selection if the string is detected.
    run : the string's row of the comparison in each period; empty if the comparison lacks the
        string.
    change : the comparison's row of the line through all periods; None without a line.
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
    """The state of a metric: estimates of its latest periods, and a comparison of all periods.

    Attributes
    ----------
    estimates : estimates of the latest `n_latest` periods together.
    comparison : the trend over all periods.
    """

    estimates: Estimates
    comparison: Comparison
    n_latest: int

    @property
    def latest(self) -> str:
        """The name of the latest periods, such as "the last 4 weeks"."""
        by = self.comparison.by
        return f"the last {self.n_latest} {by}s" if self.n_latest > 1 else f"the last {by}"

    @property
    def devices(self) -> float:
        """The effective number of devices behind the estimates."""
        return sum(
            collection.n_reports / max(collection.repetition.reports_per_device, 1.0)
            for collection in self.estimates.collections
        )

    def lines(self) -> list[OverviewRow]:
        """Return a row for each detected string, the largest share first.

        Strings that the metric's entry lists come first, detected or not. If no string is detected,
        the candidates with the smallest p-values are returned.
        """
        detected = list(self.estimates.rows(detected_only=True))
        rows = detected or sorted(self.estimates.rows(), key=lambda row: float(row["p_value"]))
        index_by_name = {name: i for i, name in enumerate(self.comparison.candidates)}
        selected = rows if detected else rows[:_MAX_NEAREST]
        selected.sort(key=lambda row: (not row.get("listed"), -float(row["share"])))
        return [self._line(row, index_by_name.get(row["candidate"])) for row in selected]

    def changes(self) -> list[dict[str, Any]]:
        """Return the rows of significant changes over all periods, the largest change first."""
        rows = (
            self.comparison.contrast_row(contrast, i)
            for contrast in self.comparison.primary
            for i in contrast.changed.nonzero()[0].tolist()
        )
        return sorted(rows, key=lambda row: -abs(row["estimate"]))

    def _line(self, row: dict[str, Any], i: int | None) -> OverviewRow:
        error = row["std_error"]
        low, high = adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])
        periods = range(len(self.comparison.samples)) if i is not None else ()
        primary = self.comparison.primary
        return OverviewRow(
            name=row["candidate"],
            share=row["share"],
            std_error=None if error is None else error / self.estimates.reports,
            low=low,
            high=high,
            detected=row["detected"],
            run=tuple(self.comparison.share_row(number, i or 0) for number in periods),
            change=self.comparison.contrast_row(primary[0], i)
            if primary and i is not None
            else None,
        )


def compute_overview(  # noqa: PLR0913 - what is decoded, and how
    released: ReleasedCounts,
    latest: Sequence[Counts],
    candidates: Candidates | None = None,
    *,
    n_latest: int,
    by: str,
    listed: Iterable[str] = (),
    complete: bool = False,
    error_control: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> Overview:
    """Decode the latest periods together, and compute the trend over all periods.

    Parameters
    ----------
    released : counts of all periods.
    latest : counts of the last `n_latest` periods, by day where days are separate: from several
        days, the number of reports per device is estimated.
    by : "day", "week" or "month".
    listed : the strings that the metric's entry lists.
    complete : True if every value is in one of the categories.

    Raises
    ------
    DecodeError
        There are no reports or no candidates, or the counts do not fit together.
    """
    estimates = decode(
        list(latest),
        candidates,
        listed=listed,
        error_control=error_control,
        complete=complete,
        progress=progress,
    )
    changes_over_time = trend(
        released,
        candidates,
        by=by,
        error_control=error_control,
        complete=complete,
        progress=progress,
    )
    return Overview(estimates=estimates, comparison=changes_over_time, n_latest=n_latest)
