"""Intervals and rows of a decode: from the estimates of entries to the table `Estimates`.

`rappor.decoding.decoder` calls `build_estimates` as its last step, for strings and for categories.
The input is an `EntryEstimates`: estimates, standard errors and thresholds of e entries. An entry
is a candidate, or a group of candidates with the same bits, which have one estimate. The output has
one row for each candidate.

Each detected entry has two intervals:

- An ordinary interval at confidence 1 - alpha, for an entry that was named in advance.
- An adjusted interval at confidence 1 - R alpha / c, with R detected of c candidates. The expected
  share of adjusted intervals that miss the truth is at most alpha (false coverage rate, Benjamini
  and Yekutieli 2005). In a ranked list, alpha / c is multiplied by the weight of the candidate.
"""

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
from rappor.estimator.rank_weights import RankWeights
from rappor.estimator.score_tests import NullTail
from rappor.protocol.encodings import get_encoding

Interval = Callable[[float | Floats], tuple[Floats, Floats]]
"""Function from the probability that an interval misses the true share, a number or (e,) float64,
to the lower and the upper ends of the two-sided intervals of e entries, (e,) float64 each, as
shares."""

_TOPS: Final = (10, 20, 50, 100, 1000)
"""Numbers of first rows that a chart or a page may show. The detected rows after each number have a
sum with its own standard error, because the sum of their estimates would be too large."""

_UNKNOWN: Final = RemainingShare(after=0, rows=0, share=math.nan, std_error=math.nan)
"""Sum of the encoding `boolean`, which has one share, so that no share is unallocated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryEstimates:
    """Estimates of e entries before intervals, and the x candidates in memory that refer to them.

    Attributes
    ----------
    names : (x,) the candidates.
    entry : (x,) int64. Entry of each candidate.
    group : (x,) int64. Identifiability group of each candidate, from 1. It is 0 outside any group.
    estimate, std_error : (e,) float64, as shares of all reports.
    thresholds : p-values of all candidates, and the largest p-value that is detected.
    interval : function that computes the intervals of the entries.
    covariance : function that computes the covariance of some estimates.
    shares : (2, e) float64. Posterior shares and their errors, or None unless they were requested.
    residual : (n,) float64. Residual of each row of the regression, in standard deviations. None if
        nothing was fitted.
    breakdown : (2, e) float64. Numbers of forged reports that make, and that hide, each detected
        entry. NaN for other entries.
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


def build_estimates(
    entries: EntryEstimates, target: Target, diagnostics: dict[str, Any]
) -> Estimates:
    """Compute the intervals, and create the row of every candidate.

    Strings are sorted by their estimates, categories keep their order.

    Parameters
    ----------
    entries : the estimates.
    target : the rows of the regression, whose collections the table describes.
    diagnostics : findings about the counts, which the table contains.
    """
    encoding = get_encoding(target.counts[0].params)
    error_control, p_values = entries.thresholds.detection, entries.thresholds.p_values
    detected = entries.thresholds.detected
    weights = entries.thresholds.weights
    n_candidates = len(entries.names) + p_values.n - len(p_values.in_memory)
    alpha = 1 - error_control.confidence
    low, high = entries.interval(alpha)
    # Ordinary intervals of rows that were chosen because they are high miss too often: 95 %
    # intervals covered 58 to 77 %.
    low_adjusted, high_adjusted = entries.interval(entries.thresholds.scale_error(alpha))
    sort_key = np.zeros(len(entries.entry))
    if encoding.is_hashed:
        sort_key = -entries.estimate[entries.entry]
    order = np.argsort(sort_key, kind="stable")
    entry = entries.entry[order]
    detected_entries, sums_after = None, [_UNKNOWN]
    # Shares of values that do not exclude each other (`boolean`) have no meaningful sum.
    if encoding.is_exclusive:
        detected_entries = _compute_detected_entries(entries)
        sums_after = list(_compute_remaining(detected_entries, entry[detected[entry]]))
    all_detected, *remaining = sums_after
    return Estimates(
        candidates=tuple(entries.names[i] for i in order),
        share=entries.estimate[entry],
        std_error=entries.std_error[entry],
        ci_low=low[entry],
        ci_high=high[entry],
        p_value=p_values.in_memory[entry],
        detected=detected[entry],
        ci_low_adjusted=np.where(detected, low_adjusted, np.nan)[entry],
        ci_high_adjusted=np.where(detected, high_adjusted, np.nan)[entry],
        forged_to_make=entries.breakdown[0, entry],
        forged_to_hide=entries.breakdown[1, entry],
        posterior_share=None if entries.shares is None else entries.shares[0, entry],
        posterior_share_std_error=None if entries.shares is None else entries.shares[1, entry],
        group=entries.group[order],
        weight=None if weights is None else _scale_weights(weights, n_candidates)[entry],
        n_candidates=n_candidates,
        p_value_counts=p_values.counts,
        reports=target.n_reports,
        unallocated=1 - all_detected.share,
        unallocated_std_error=all_detected.std_error,
        remaining=tuple(remaining),
        assumptions=describe_assumption(target.counts, target.repetitions),
        diagnostics=diagnostics,
        collections=describe_collected(target, entries.residual),
        error_control=error_control,
        covariance=RowCovariance(
            entry=entry,
            estimate=entries.estimate,
            std_error=entries.std_error,
            covariance=entries.covariance,
            detected=detected_entries,
        ),
    )


def _scale_weights(weights: RankWeights, n_candidates: int) -> Floats:
    """Scale the weights of entries, (e,), so that all tested candidates have the mean 1.

    The weights have this mean already, except for a stream with repeated strings, whose copies are
    not tested.
    """
    return weights.in_memory * (n_candidates / weights.total)


def _compute_detected_entries(entries: EntryEstimates) -> DetectedEntries:
    """Compute the posterior shares of the detected entries."""
    return DetectedEntries.of(
        np.flatnonzero(entries.thresholds.detected),
        entries.estimate,
        entries.std_error,
        entries.thresholds.p_values,
        entries.covariance,
    )


def _compute_remaining(
    detected_entries: DetectedEntries, row_entries: Integers
) -> tuple[RemainingShare, ...]:
    """Compute the sum of all detected rows, and the sums after the first 10, 20, ... rows.

    Rows of one identifiability group share an entry. The entry counts once, at the first of its
    rows.

    Parameters
    ----------
    detected_entries : posterior shares of the detected entries.
    row_entries : (r,) int64. Entry of each detected row, in the order of the table.

    Returns
    -------
    The sum of all rows, then the sums after each number of `_TOPS` below r.
    """
    tops = [top for top in _TOPS if top < len(row_entries)]
    all_entries = detected_entries.entries
    later_entries = [np.setdiff1d(all_entries, row_entries[:top]) for top in tops]
    return tuple(
        RemainingShare(after=top, rows=len(row_entries) - top, share=share, std_error=std_error)
        for top, entries in zip([0, *tops], [all_entries, *later_entries], strict=True)
        for share, std_error in [detected_entries.sum_entries(entries)]
    )


_FARTHEST: Final = 1e6
"""Critical value, in standard errors, above which the lower end of an interval is
min(estimate, 0) - 1, which is below all possible shares. Case: all candidates set all bits, so no
row distinguishes a candidate from other strings, and the critical value is infinite. A finite
critical value far above this limit would overflow when it is squared."""


def build_normal_interval(
    estimate: Floats, variance: Floats, upper_tail: NullTail, *, devices: float, slope: float = 1.0
) -> Interval:
    """Build the function that computes score intervals of estimates.

    The devices of a string raise the variance of its estimate: their number is random, and so is
    the number of reports in which they send the string's bits. The ends of an interval use this
    variance at the end, as Wilson's score interval of a proportion does. With 30 devices, a sample
    may contain no device with a string of 10 %, and an interval around 0 with the variance at 0
    would exclude 10 %. With b the estimate, V its variance if no device has the string, D the
    number of devices, c the slope and z a critical value, an end e solves

        (e - b)^2 = z^2 (V + e (c - e) / D),    c = (1 - 2 mu) / (q* - p*)

    where mu is the probability of a 1 at a bit of the string if no device has the string, and p*
    and q* are the probabilities of a 1 at a bit that is not set, and at a bit that is set. The
    formula of c is that of the binomial variance mu (1 - mu) of a 1. Without noise c is 1. Sets of
    8 items at 4 nats have c = 17: few reports name the bucket of an item that no device has, so the
    item's own reports are most of the variance.

    If the noise has a longer upper tail than the normal distribution, the lower end follows that
    tail. The reason is that frequent strings that are not candidates lift estimates more often than
    they lower estimates.

    Parameters
    ----------
    estimate : (e,) float64, as shares.
    variance : (e,) float64. Variance of each estimate without the variance by its own devices.
    upper_tail : tail of an absent candidate's z score.
    devices : D, effective number of devices.
    slope : c, derivative of the variance by the share at share 0, times D.
    """

    def compute_ends(z: Floats | float) -> Floats:
        """Solve the equation above, (e,). A negative z gives the lower ends."""
        # The equation is quadratic: e^2 - 2 middle e + constant = 0.
        relative_sampling = z**2 / devices
        middle = (estimate + slope * relative_sampling / 2) / (1 + relative_sampling)
        constant = (estimate**2 - z**2 * variance) / (1 + relative_sampling)
        root = middle + np.sign(z) * np.sqrt(np.maximum(middle**2 - constant, 0.0))
        # No share is above 1 or below 0. An end above 1 has the variance of share 1, and an end
        # below 0 the variance of share 0.
        variance_at_1 = np.maximum(variance + (slope - 1) / devices, 0.0)
        end = np.where(root > 1, estimate + z * np.sqrt(variance_at_1), root)
        end_at_0 = estimate + z * np.sqrt(variance)
        return np.where(end_at_0 < 0, end_at_0, end)

    def compute_interval(error: float | Floats) -> tuple[Floats, Floats]:
        upper_z = -special.ndtri(np.asarray(error) / 2)
        lower_z = np.maximum(upper_z, upper_tail.quantile(np.asarray(error) / 2))
        low = compute_ends(-np.minimum(lower_z, _FARTHEST))
        return (
            np.where(lower_z > _FARTHEST, np.minimum(estimate, 0.0) - 1.0, low),
            compute_ends(upper_z),
        )

    return compute_interval
