"""Intervals and rows of a decode: from the estimates of entries to the table `Estimates`.

`rappor.decoding.decoder` calls `build_estimates` as its last step, for strings and for categories.
The input is an `EntryEstimates`: estimates, standard errors and thresholds of e entries. An entry
is a candidate, or a group of candidates with the same bits, which have one estimate. The output has
one row for each candidate.

The steps of `build_estimates`:

1. Compute the intervals of each entry.
2. Order the rows: strings by falling estimates, categories in their own order.
3. Estimate the sum of all detected shares. The reports outside this sum are unallocated.
4. Copy the numbers of each entry to the rows of its candidates.

Each entry has an ordinary interval. It holds at the confidence 1 - alpha for an entry that was
named in advance. Detected entries were not named in advance: the test selected them because their
estimates are high, and high estimates are often too high. So each detected entry also has a wider,
adjusted interval, at confidence 1 - R alpha / c, with R detected of c candidates. The expected
share of adjusted intervals that miss the truth is at most alpha (false coverage rate, Benjamini and
Yekutieli 2005).

*Example.* 20 of 1,000 candidates are detected, and alpha is .05. The adjusted intervals have the
confidence 1 - 20 (.05) / 1,000 = .999. Their half width is 3.29 standard errors in place of 1.96.

An analyst may declare that the list is ranked, the most likely candidates first. Each candidate
then has a weight that falls with its rank (`rank_weights`), and alpha / c is multiplied by the
weight: the first candidates have narrower adjusted intervals.
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
"""An `Interval` maps the probability that an interval misses the true share, a number or (e,)
float64, to the lower and the upper ends of the two-sided intervals of e entries, (e,) float64 each,
as shares."""

_TOPS: Final = (10, 20, 50, 100, 1000)
"""Numbers of first rows that a chart or a page may show. For each number, the table has the share
of all later detected rows together. A reader could not add the estimates of these rows: they were
detected because their estimates are high, so the sum would be too large (`contrasts`)."""

_UNKNOWN: Final = RemainingShare(after=0, rows=0, share=math.nan, std_error=math.nan)
"""Placeholder for the sum of all detected shares of the encodings `boolean` and `set`. Their shares
do not add up to 1: `boolean` has one share, and a device may have several items of a set. So no
reports are unallocated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryEstimates:
    """Estimates of e entries, without intervals, and the x candidates in memory.

    Each candidate belongs to an entry. A group of candidates with the same bits is one entry, so
    there are at least as many candidates as entries.

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
    search_factor : (e,) float64, or 1 for all entries. The variance of each estimate leaves out the
        noise of the search for the selection, which divides it by this factor.
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
    search_factor: Floats | float = 1.0
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
    # All candidates in memory, and the candidates of a stream that exist in its histogram only.
    # `names` counts each candidate of a group. `p_values.in_memory` has one number for a group.
    n_only_in_histogram = p_values.n - len(p_values.in_memory)
    n_candidates = len(entries.names) + n_only_in_histogram
    alpha = 1 - error_control.confidence
    low, high = entries.interval(alpha)
    # `scale_error` returns the error probability of the adjusted intervals, R alpha / c. Ordinary
    # intervals of rows that were chosen because they are high miss too often: 95 % intervals
    # covered 58 to 77 %.
    low_adjusted, high_adjusted = entries.interval(entries.thresholds.scale_error(alpha))
    sort_key = np.zeros(len(entries.entry))
    if encoding.is_hashed:
        sort_key = -entries.estimate[entries.entry]
    order = np.argsort(sort_key, kind="stable")
    entry = entries.entry[order]
    # A device may have several values of the encodings `boolean` and `set`, so 1 minus the sum of
    # all shares is no share of the reports.
    detected_entries: DetectedEntries | None = None
    sums: tuple[RemainingShare, ...] = (_UNKNOWN,)
    if encoding.is_exclusive:
        detected_entries = _compute_detected_entries(entries)
        sums = _compute_remaining(detected_entries, entry[detected[entry]])
    all_detected, *remaining = sums
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
    """Scale the weights of entries, (e,), so that the weights of all tested candidates have mean 1.

    `weights.total` is the sum of the weights of all tested candidates. The weights of a list have
    the mean 1 already. A stream (a list that does not fit into memory) may contain a string twice.
    The second copy has a weight, but is not tested, so the weights of the tested candidates alone
    have another mean.
    """
    return weights.in_memory * (n_candidates / weights.total)


def _compute_detected_entries(entries: EntryEstimates) -> DetectedEntries:
    """Compute the posterior shares of the detected entries.

    The standard error of a selected entry leaves out the noise of the search: other candidates that
    pass or miss the threshold of the selection by chance, and share rows with the entry. The noise
    multiplies the variance by 1 / rho (`rappor.estimator.fit`). A prior that is fitted to scores
    without this noise takes the largest scores for larger shares, and every sum is too large.
    """
    return DetectedEntries.of(
        np.flatnonzero(entries.thresholds.detected),
        entries.estimate,
        entries.std_error / np.sqrt(entries.search_factor),
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
    sums = []
    for top in [0, *(top for top in _TOPS if top < len(row_entries))]:
        later_entries = np.setdiff1d(detected_entries.entries, row_entries[:top])
        share, std_error = detected_entries.sum_entries(later_entries)
        sums.append(
            RemainingShare(after=top, rows=len(row_entries) - top, share=share, std_error=std_error)
        )
    return tuple(sums)


_LARGEST_CRITICAL_VALUE: Final = 1e6
"""Critical value, in standard errors, above which the lower end of an interval is
min(estimate, 0) - 1, which is below all possible shares. Case: all candidates set all bits, so no
row distinguishes a candidate from other strings, and the critical value is infinite. A finite
critical value far above this limit would overflow when it is squared."""


def build_normal_interval(
    estimate: Floats, variance: Floats, upper_tail: NullTail, *, devices: float, slope: float = 1.0
) -> Interval:
    """Build the function that computes score intervals of estimates.

    The more devices have a string, the larger is the variance of its estimate. The number of these
    devices in a sample is random, and so is the noise of their reports. An interval must therefore
    use the variance at its end, as Wilson's score interval of a proportion does. With 30 devices, a
    sample may contain no device with a string of 10 %, and an interval around 0 with the variance
    at 0 would exclude 10 %.

    Let b be the estimate, V its variance if no device has the string, D the number of devices, and
    z a critical value. If the true share is e, the estimate has the variance V + e (c - e) / D. An
    end of the interval is the share e from which b is z standard errors away:

        (e - b)^2 = z^2 (V + e (c - e) / D)

    The slope c determines how much variance the devices of the string add:

        c = (1 - 2 mu) / (q* - p*)

    mu is the probability of a 1 at a bit of the string if no device has the string. p* and q* are
    the probabilities of a 1 at a bit that a value does not set, and at a bit that it sets.

    Derivation, for one report per device and one bit: if a share e of the devices has the string,
    the bit is 1 with probability x = mu + (q* - p*) e. The estimate then has the variance
    x (1 - x) / (D (q* - p*)^2). Inserting x gives the value at e = 0, plus e (c - e) / D. The
    decoder computes c for all other cases (`_compute_variance_slope` of `decoder`).

    Without noise c is 1. With noise and a small mu, c is about 1 / (q* - p*). This is large for
    sets of items. A report of a set names only one of the device's buckets, so a device with the
    item names its bucket rarely: for sets of 8 items with a privacy loss of 4 nats, q* - p* is
    about 1/17, and c is 17. Few reports name the bucket of an item that no device has, so V is
    small, and most of the variance of an item comes from its own devices.

    *Example.* With D = 30, b = 0, V = 0, c = 1 and z = 1.96, the equation is e^2 = .128 e (1 - e).
    Its solutions 0 and .114 are the ends of the interval, which contains the share of 10 %.

    The lower end answers: how small can the share be, if the estimate is as high as b? An estimate
    is too high if frequent strings that are not candidates set some of the same bits. They only add
    ones, so they lift estimates more often than they lower estimates, and errors upwards have a
    longer tail than the normal distribution. The lower end therefore uses the quantile of this
    upper tail, which lies further from b. The upper end uses the normal quantile.

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
        # Divided by 1 + z^2 / D, the equation is e^2 - 2 middle e + constant = 0, with
        #     middle = (b + c z^2 / (2 D)) / (1 + z^2 / D)
        #     constant = (b^2 - z^2 V) / (1 + z^2 / D)
        relative_sampling = z**2 / devices
        middle = (estimate + slope * relative_sampling / 2) / (1 + relative_sampling)
        constant = (estimate**2 - z**2 * variance) / (1 + relative_sampling)
        root = middle + np.sign(z) * np.sqrt(np.maximum(middle**2 - constant, 0.0))
        # No share is above 1 or below 0, so the variance at such an end is taken at the nearest
        # share, 1 or 0. The end is then the estimate plus z standard errors.
        variance_at_1 = np.maximum(variance + (slope - 1) / devices, 0.0)
        end = np.where(root > 1, estimate + z * np.sqrt(variance_at_1), root)
        end_at_0 = estimate + z * np.sqrt(variance)
        return np.where(end_at_0 < 0, end_at_0, end)

    def compute_interval(error: float | Floats) -> tuple[Floats, Floats]:
        upper_z = -special.ndtri(np.asarray(error) / 2)
        lower_z = np.maximum(upper_z, upper_tail.quantile(np.asarray(error) / 2))
        low = compute_ends(-np.minimum(lower_z, _LARGEST_CRITICAL_VALUE))
        return (
            np.where(lower_z > _LARGEST_CRITICAL_VALUE, np.minimum(estimate, 0.0) - 1.0, low),
            compute_ends(upper_z),
        )

    return compute_interval
