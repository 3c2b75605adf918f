"""Intervals and detection: from raw estimates to the table of a decode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.decoding.collection_summary import describe_collected
from rappor.decoding.contrasts import Covariance, DetectedEntries, RowCovariance
from rappor.decoding.estimates import Estimates, RemainingShare
from rappor.estimator.debias import Target
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import describe_assumption
from rappor.estimator.score_tests import NullTail
from rappor.protocol.encodings import get_encoding

Interval = Callable[[float], tuple[Floats, Floats]]
"""Function from an error probability to the ends of two-sided intervals."""

_TOPS: Final = (10, 20, 50, 100, 1000)
"""Numbers of rows after which a chart or a page may end. The detected rows after them have a total
with its own standard error."""

_UNKNOWN: Final = RemainingShare(after=0, rows=0, share=math.nan, std_error=math.nan)
"""Total of the encoding `boolean`, which has one share and nothing left to explain."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryEstimates:
    """De-biased estimates before intervals, one entry for each distinguishable candidate.

    Attributes
    ----------
    names : all candidates in memory.
    entry, group : int64, of each name: its entry, and its group as in `Estimates`.
    estimate, std_error : (c,) float64, as shares of all reports.
    thresholds : detection thresholds of the p-values of all candidates.
    interval : function from an error probability to the ends of the two-sided intervals.
    covariance : function from r entries to the covariance of their estimates, fitted together, (r,
        r).
    shares : (2, c) float64, the posterior shares and their errors, or None.
    residual : (n,) float64, of each row in standard deviations. None if nothing was fitted.
    breakdown : (2, c) float64. Number of forged reports that make and hide each detected row.
    """

    names: tuple[str, ...]
    entry: Integers
    group: Integers
    estimate: Floats
    std_error: Floats
    thresholds: Thresholds
    interval: Interval
    covariance: Covariance
    shares: Floats | None
    residual: Floats | None = None
    breakdown: Floats


def build_estimates(raw: EntryEstimates, target: Target, diagnostics: dict[str, Any]) -> Estimates:
    """Compute the intervals, and create the row of every candidate.

    Strings are sorted by their estimates.
    """
    encoding = get_encoding(target.counts[0].params)
    detection, p_values = raw.thresholds.detection, raw.thresholds.p_values
    detected = raw.thresholds.detected
    low, high = raw.interval(1 - detection.confidence)
    # False coverage rate (Benjamini and Yekutieli 2005, definition 1): the R detected of c
    # candidates get intervals at 1 - R alpha / c. Ordinary intervals of rows that were chosen
    # because they are high miss too often.
    chosen_share = max(int(detected.sum()), 1) / p_values.n
    low_adjusted, high_adjusted = raw.interval((1 - detection.confidence) * chosen_share)
    sizes = -raw.estimate[raw.entry] if encoding.is_hashed else np.zeros(len(raw.entry))
    order = np.argsort(sizes, kind="stable")
    entry = raw.entry[order]
    detected_rows, totals = None, [_UNKNOWN]
    if encoding.is_exclusive:
        detected_rows = _compute_detected_rows(raw)
        totals = list(_compute_remaining(detected_rows, entry[detected[entry]]))
    total, *remaining = totals
    return Estimates(
        candidates=tuple(raw.names[i] for i in order),
        share=raw.estimate[entry],
        std_error=raw.std_error[entry],
        ci_low=low[entry],
        ci_high=high[entry],
        p_value=p_values.in_memory[entry],
        detected=detected[entry],
        ci_low_adjusted=np.where(detected, low_adjusted, np.nan)[entry],
        ci_high_adjusted=np.where(detected, high_adjusted, np.nan)[entry],
        forged_to_make=raw.breakdown[0, entry],
        forged_to_hide=raw.breakdown[1, entry],
        posterior_share=None if raw.shares is None else raw.shares[0, entry],
        posterior_share_std_error=None if raw.shares is None else raw.shares[1, entry],
        group=raw.group[order],
        n_candidates=len(raw.names) + p_values.n - len(p_values.in_memory),
        p_value_counts=p_values.counts,
        reports=target.n_reports,
        unallocated=1 - total.share,
        unallocated_std_error=total.std_error,
        remaining=tuple(remaining),
        assumptions=describe_assumption(target.counts, target.repetitions),
        diagnostics=diagnostics,
        collections=describe_collected(target, raw.residual),
        error_control=detection,
        covariance=RowCovariance(
            entry=entry,
            estimate=raw.estimate,
            std_error=raw.std_error,
            covariance=raw.covariance,
            detected=detected_rows,
        ),
    )


def _compute_detected_rows(raw: EntryEstimates) -> DetectedEntries:
    """Compute the posterior of the detected entries."""
    entries = np.flatnonzero(raw.thresholds.detected)
    p_values = raw.thresholds.p_values
    return DetectedEntries.of(entries, raw.estimate, raw.std_error, p_values, raw.covariance)


def _compute_remaining(explained: DetectedEntries, rows: Integers) -> tuple[RemainingShare, ...]:
    """Compute the total of all detected rows, and the totals after the first 10, 20, ... rows.

    Rows of one group share an entry. The entry counts once, at the first of its rows.
    """
    tops = [top for top in _TOPS if top < len(rows)]
    later_entries = [np.setdiff1d(explained.entries, rows[:top]) for top in tops]
    return tuple(
        RemainingShare(after=top, rows=len(rows) - top, share=proportion, std_error=std_error)
        for top, entries in zip([0, *tops], [explained.entries, *later_entries], strict=True)
        for proportion, std_error in [explained.sum_entries(entries)]
    )


_FARTHEST: Final = 1e6
"""Standard errors beyond which the lower end of an interval is not computed. A null tail without an
end occurs if all candidates set all bits, so that no row distinguishes a candidate from other
strings."""


def build_normal_interval(
    estimate: Floats, variance: Floats, upper: NullTail, *, devices: float
) -> Interval:
    """Build the function that computes normal intervals of estimates.

    If the noise has a longer upper tail, the lower end follows that tail: frequent strings that are
    not candidates lift estimates more often than they lower them. The sampling variance of the
    devices is evaluated at the end of the interval, not at the estimate, as in Wilson's interval of
    a proportion. With few devices, a sample may contain no device with a string of 10 %.

    Parameters
    ----------
    estimate : (c,) float64.
    variance : (c,) float64. Variance of each estimate without the sampling of its own devices.
    upper : tail of an absent candidate's score.
    devices : effective number of devices.
    """

    def end(reach: float) -> Floats:
        """Solve (end - estimate)^2 = reach^2 (variance + end (1 - end) / devices)."""
        unsampled = estimate + reach * np.sqrt(variance)
        bent = reach**2 / devices
        middle = (estimate + bent / 2) / (1 + bent)
        rest = (estimate**2 - reach**2 * variance) / (1 + bent)
        root = middle + np.sign(reach) * np.sqrt(np.maximum(middle**2 - rest, 0.0))
        # A share outside [0, 1] has no sampling variance.
        return np.where((unsampled >= 0) & (unsampled <= 1), root, unsampled)

    def interval(error: float) -> tuple[Floats, Floats]:
        reach = float(-special.ndtri(error / 2))
        lower_reach = max(reach, upper.quantile(error / 2))
        if lower_reach > _FARTHEST:  # the square of a longer one would overflow
            return np.minimum(estimate, 0.0) - 1.0, end(reach)
        return end(-lower_reach), end(reach)

    return interval
