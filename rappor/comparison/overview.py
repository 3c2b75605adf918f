"""`Overview`: shares in the latest periods, and their changes over time, for a metric's page.

The collector calls `compute_overview` for the page of a metric, usually with eight weeks. The
estimates come from two computations on the same counts:

- `decode` adds the reports of the latest periods, such as four weeks, and estimates one share for
  each string (`Overview.estimates`). More reports make these shares precise.
- `trend` estimates the share of each string in every period, and the change over all periods
  (`Overview.comparison`).

`Overview.list_rows` joins both results by the name of the string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.trend import trend
from rappor.counts.counts import Counts
from rappor.counts.released_counts import ReleasedCounts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.estimator.error_control import ErrorControl

_MAX_NEAREST: Final = 5
"""Number of candidates that the overview contains if no candidate is detected: those with the
smallest p-values. They show a reader that the candidates were tested, and how close they came to a
detection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """One string: its share in the latest periods, and its shares and change over all periods.

    Attributes
    ----------
    name : the string.
    share, std_error : estimated proportion of the reports of the latest periods, and its standard
        error. `std_error` is None if it is infinite.
    low, high : confidence interval of the share. If the string is detected, the interval is
        adjusted (wider), because the string was selected for its high estimate. None if the end is
        infinite.
    detected : True if the estimates of the latest periods detect the string.
    course : `Comparison.share_row` of the string for each period, in the order of the periods. It
        is empty if the comparison does not contain the string.
    change : `Comparison.contrast_row` of the slope of the trend line. None if the comparison does
        not contain the string, or if there is only one period.
    """

    name: str
    share: float
    std_error: float | None
    low: float | None
    high: float | None
    detected: bool
    course: tuple[dict[str, Any], ...]
    change: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overview:
    """The state of a metric: estimates of its latest periods, and a comparison of all periods.

    Attributes
    ----------
    estimates : estimates of the latest `n_latest` periods together.
    comparison : the trend over all periods.
    n_latest : number of the latest periods.
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
        """The effective number of devices of the latest periods.

        It is the number of reports divided by the reports per device, which is at least 1. So many
        devices with one report each would give the same standard errors.
        """
        return sum(
            collection.n_reports / max(collection.repetition.reports_per_device, 1.0)
            for collection in self.estimates.collections
        )

    def list_rows(self) -> list[OverviewRow]:
        """Return a row for each detected string, the largest share first.

        Strings that the metric's entry lists come first, detected or not. If there is no row, the
        `_MAX_NEAREST` candidates with the smallest p-values are returned.
        """
        # `detected_only` also yields the listed strings.
        selected = list(self.estimates.rows(detected_only=True))
        if not selected:
            by_p_value = sorted(self.estimates.rows(), key=lambda row: float(row["p_value"]))
            selected = by_p_value[:_MAX_NEAREST]
        selected.sort(key=lambda row: (not row.get("listed"), -float(row["share"])))
        index_by_name = {name: i for i, name in enumerate(self.comparison.candidates)}
        return [self._build_row(row, index_by_name.get(row["candidate"])) for row in selected]

    def changes(self) -> list[dict[str, Any]]:
        """Return `Comparison.contrast_row` of each significant change, the largest change first."""
        rows = (
            self.comparison.contrast_row(contrast, i)
            for contrast in self.comparison.primary
            for i in contrast.changed.nonzero()[0].tolist()
        )
        return sorted(rows, key=lambda row: -abs(row["estimate"]))

    def _build_row(self, row: dict[str, Any], index: int | None) -> OverviewRow:
        """Join the two results of one string.

        Parameters
        ----------
        row : a row of `Estimates.rows`.
        index : index of the string in the comparison. None if the comparison does not contain it.
        """
        # Rows of estimates have their standard error in reports.
        error = row["std_error"]
        low, high = adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])
        course: tuple[dict[str, Any], ...] = ()
        change = None
        if index is not None:
            course = tuple(
                self.comparison.share_row(period, index)
                for period in range(len(self.comparison.samples))
            )
            # The primary contrast of a trend is its slope. One period has no contrast.
            if primary := self.comparison.primary:
                change = self.comparison.contrast_row(primary[0], index)
        return OverviewRow(
            name=row["candidate"],
            share=row["share"],
            std_error=None if error is None else error / self.estimates.reports,
            low=low,
            high=high,
            detected=row["detected"],
            course=course,
            change=change,
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
    latest : counts of the last `n_latest` periods, which are added. Counts of single days are
        better than their sums, because `decode` estimates the number of reports per device from the
        variance of the counts over several days.
    candidates : strings to test. None if the bits are categories.
    n_latest : number of periods of `latest`.
    by : "day", "week" or "month": the length of a period.
    listed : the strings that the metric's entry lists.
    complete : True if every value is in one of the categories.
    error_control : the error rate and confidence level of both computations.
    progress : function that reports the progress.

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
        # A comparison tests changes. The order of the candidates says which strings are frequent,
        # and not which strings have changed, so it gives the tests no weights.
        error_control=replace(error_control, ranked=False),
        complete=complete,
        progress=progress,
    )
    return Overview(estimates=estimates, comparison=changes_over_time, n_latest=n_latest)


def rank_last_period(comparison: Comparison) -> tuple[Sample, list[OverviewRow]] | None:
    """Return the last period with reports, and its strings, the largest share first.

    Only strings that are shown and that the period's reports contain information about are ranked.
    Returns None if the comparison has no such string.
    """
    numbers = [i for i, sample in enumerate(comparison.samples) if sample.reports]
    if not numbers:
        return None
    rows = []
    for i in comparison.shown_rows.tolist():
        row = comparison.share_row(numbers[-1], i)
        if row["estimate"] is None:
            continue
        rows.append(
            OverviewRow(
                name=row["candidate"],
                share=row["estimate"],
                std_error=row["std_error"],
                low=row["ci_low"],
                high=row["ci_high"],
                detected=row["detected"],
                course=(),
                change=None,
            )
        )
    rows.sort(key=lambda row: -row.share)
    return (comparison.samples[numbers[-1]], rows) if rows else None


def find_leader(comparison: Comparison) -> OverviewRow | None:
    """Return the string with the largest share of the last period with reports.

    Returns None if that period detects no string.
    """
    ranking = rank_last_period(comparison)
    rows = ranking[1] if ranking else []
    return next((row for row in rows if row.detected), None)
