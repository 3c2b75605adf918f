"""Breakdown numbers: how many forged reports would create or hide a detected row.

The decoder stores the numbers in the columns `forged_to_make` and `forged_to_hide` of its table, so
that an analyst sees how few forgers could explain a result. A row of the table is a candidate. A
row of the regression is one bit of one cohort.

The decoder calls `compute_string_effects` or `compute_category_effects`, and passes the result, a
`ForgeryEffects`, to `count_forged_reports`.

*Example.* 1,000,000 reports have a string with the estimated share beta = .02. If all reports were
forged in the best way for this string, its estimate would be L = 4. So 1,000,000 (.02) / 4 = 5,000
forged reports could have created the string.

Theory of operation
-------------------
The forger knows the candidates and the table. The collector refuses reports with too few or too
many ones (its check of popcounts), so a forged report has a number of ones that passes. Forged
reports are spread over the cohorts like honest reports.

| symbol | meaning | unit |
|---|---|---|
| beta | estimated share of the detected string | share |
| y_i | de-biased proportion of row i | share |
| e_i | influence: derivative of beta by y_i | number |
| g | q* - p* | probability |
| w | share of ones that a report has on average | probability |
| N | number of reports | reports |
| N_i | number of reports of the cohort of row i | reports |
| x | number of forged reports among the N reports | reports |
| y | number of forged reports that are added to the N reports | reports |
| r | N / (N + y), the share of honest reports | number |
| L, D | beta, and -beta, if all reports were forged to raise (L), or to lower (D), beta | share |

beta is linear in the proportions of all rows of the fit, beta = sum_i e_i y_i
(`Fit.compute_row_influence`). If all reports of a cohort are equal, y_i is (1 - p*) / g in a row
whose bit they set, and -p* / g in all other rows. beta is largest if they set all bits with a
positive e_i, the largest first, within the smallest and the largest number of ones that the check
admits. L is the sum over all cohorts of this largest value. The same computation with the signs of
all e_i changed gives D. (With e = .5, .1 and -.2 in a cohort of three bits, and at most two ones,
the best report for L sets the first two bits: (.5 + .1 - .4 p*) / g.)

L and D have simple lower limits. Let a forger set or clear all bits of the string, and set each
other bit in a share w of the forged reports. The proportion of every other bit is then (w - p*) / g
on average. The regression subtracts this level as its background, which is the contribution of
strings outside the fit and equal for all bits. The estimate is the difference between the bits of
the string and the background:

| bits of the string in the forged reports | proportion of these bits | beta |
|---|---|---|
| all set | (1 - p*) / g | (1 - p*) / g - (w - p*) / g = (1 - w) / g, so L is at least this number |
| all clear | -p* / g | -p* / g - (w - p*) / g = -w / g, so D is at least w / g |

The best report is better for the forger. The string collides with other strings of the fit, so bits
outside the string have an influence e_i, too, and the best report sets them according to its sign.

*Make.* x of the N reports are forged, and no other report contains the string. They raise the
estimate by x L / N, so they explain the whole estimate if

    x = N beta / L

*Hide.* y forged reports are added to the N reports. The share r of all reports is then honest, and
the estimate becomes

    beta(r) = r beta - (1 - r) D

The forged reports also change the variance of a row of the regression, as the decoder estimates it.
With mu the share of ones in row i, and a the largest share of ones that passes the check:

| cause | variance before | variance at r |
|---|---|---|
| coins | mu (1 - mu) / (N_i g^2) | r^2 mu (1 - r mu) / (N_i g^2) |
| collisions | tau^2 | r^2 tau^2 |
| forged reports, which are equal in a cohort | 0 | (1 - r)^2 a (1 - a) / g^2 |

In n reports with the share v of ones, the coins have the variance v (1 - v) / (n g^2). At r there
are n = N_i / r reports, and the honest reports alone give v = r mu. The forged reports set a share
a of the bits of a cohort, and look like collisions. All terms are averaged over the rows of the
string, weighted as in the fit. They are then multiplied by a factor that makes their sum at r = 1
the squared standard error of beta. The string is hidden if beta(r) is less than the z score of the
detection threshold, times the standard error at r. Bisection finds the largest such r, between 1
and the r at which beta(r) is 0.

If each bit is a category, only the bit of the category matters. A forger who creates the category
sets this bit in every forged report. With mu the share of ones at the bit, beta would rise by
(1 - mu) / g if all bits were ones. So L = (1 - mu) / g + beta and

    x = N beta / ((1 - mu) / g + beta)

The row is hidden if its own test (`rappor.estimator.proportion_tests`), of the remaining ones among
N / r reports, no longer detects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.counts.popcounts import compute_popcount_range
from rappor.decoding.closed_form import average_by_precision
from rappor.estimator.bucket_tests import BucketCounts
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.fit import Fit
from rappor.estimator.proportion_tests import Proportions
from rappor.estimator.score_tests import NullTail
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit

_HALVINGS: Final = 60
"""Largest number of bisections. So many find a number between 0 and 1 to its last bit."""

_DECIMALS: Final = 6
"""Number of decimals to which a number of reports is rounded before it is rounded up. Smaller
differences are rounding errors."""

_CHUNK: Final = 64
"""Number of detected strings whose influences are computed at a time. The array has one float64 for
each string of the chunk and each row of the regression: 8 MB for the 16,384 rows of a profile with
128 cohorts of 128 bits. A larger number takes more memory."""

_LEAST_LOWERING: Final = 1e-9
"""Value of D up to which forged reports cannot hide a row. Case: a category with p* = 0. A forged 0
subtracts nothing from its estimate, so D is 0 except for rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForgeryEffects:
    """The effect of forged reports on d detected rows of the table.

    Attributes
    ----------
    share : (d,) float64. beta, the tested estimate.
    full_fall : (d,) float64. beta + D: the fall from the estimate of honest reports to the estimate
        if all reports are forged to hide the row.
    full_rise : (d,) float64. L - beta: the rise from the estimate of honest reports to the estimate
        if all reports are forged to create the row.
    is_hidden : function from r of each row, (d,) float64, to (d,) bool. True if the row is no
        longer detected when the share r of all reports is honest.
    """

    share: Floats
    full_fall: Floats
    full_rise: Floats
    is_hidden: Callable[[Floats], Booleans]


def compute_string_effects(
    target: Target,
    design: Columns,
    selection: Selection,
    tail: NullTail,
    thresholds: Thresholds,
    bucket_counts: BucketCounts | None = None,
) -> ForgeryEffects:
    """Compute the effect of forged reports on the detected strings.

    A row is hidden if its z score is below the z score of the detection threshold.

    Parameters
    ----------
    target : n rows of the regression.
    design : columns of all entries.
    selection : the fit and the estimates.
    tail : tail of an absent candidate's z score.
    thresholds : which entries are detected, and the threshold of their p-values.
    bucket_counts : numbers of reports that name a bucket of each item, if the values are sets and
        the p-values were computed from these numbers. None if the p-values were computed from z
        scores.
    """
    fit, detected = selection.fit, np.flatnonzero(thresholds.detected)
    columns, columns_in_fit = design.columns(detected), _find_columns(target, selection, detected)
    share, std_error = selection.estimate[detected], selection.std_error[detected]
    # L and D of each string.
    raised, lowered = np.zeros((2, len(share)))
    # Compute influences in chunks: an array for all strings would take too much memory.
    for start in range(0, len(share), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        influence = fit.compute_row_influence(columns[:, chunk], columns_in_fit[chunk])
        raised[chunk], lowered[chunk] = _find_best_reports(influence, target)
    full_fall = share + lowered
    coefficients = _compute_variance_coefficients(target, fit, columns, std_error)
    largest_p_values = thresholds.detected_thresholds[detected]
    if bucket_counts is None:
        threshold_z = _find_z_scores(tail, largest_p_values, share / std_error)
    else:
        # The p-value of an item is not computed from its z score. It is computed from the number of
        # reports that name a bucket of the item. The excess is this number minus the mean number of
        # an absent item. `ratio` is the smallest excess that is detected, divided by the observed
        # excess. The share is proportional to the excess, so the smallest detected share is the
        # observed share times `ratio`.
        ratio = bucket_counts.compute_threshold_ratio(largest_p_values, detected)
        threshold_z = ratio * share / std_error

    def is_hidden(r: Floats) -> Booleans:
        variance_at_r = sum(factor * r**power for power, factor in enumerate(coefficients))
        error_at_r = np.sqrt(np.maximum(variance_at_r, 0.0))
        return np.asarray(share - (1 - r) * full_fall < threshold_z * error_at_r)

    return ForgeryEffects(
        share=share, full_fall=full_fall, full_rise=raised - share, is_hidden=is_hidden
    )


def _compute_variance_coefficients(
    target: Target, fit: Fit, columns: sparse.csc_array, std_error: Floats
) -> Floats:
    """Compute the variance of each estimate as a polynomial of r, the share of honest reports.

    With F = a (1 - a) / g^2 the variance of forged reports, the variance of a row is

        F (1 - r)^2 + tau^2 r^2 + coins(r) = F - 2 F r + (F + tau^2) r^2 + coins(r)
        coins(r) = r^2 mu / (N_i g^2) - r^3 mu^2 / (N_i g^2)

    Parameters
    ----------
    target : n rows.
    fit : the fit, whose weights average over the rows of each string.
    columns : (n, d) sparse. Rows of each detected string.
    std_error : (d,) float64. Standard errors of the estimates.

    Returns
    -------
    (4, d) float64. Coefficients of r^0 to r^3. Their sum, the variance at r = 1, is `std_error`^2.
    """
    gap = target.q_star - target.p_star
    mean = target.p_star + gap * target.proportions
    coins = mean / (np.maximum(target.reports, 1) * gap**2)
    sums = columns.T @ (fit.weight[:, None] * np.column_stack([coins, -coins * mean]))
    total = np.maximum(columns.T @ fit.weight, np.finfo(float).tiny)
    coins_r2, coins_r3 = sums.T / total
    forged = _compute_forged_variance(target)
    forged_variance = np.full(len(std_error), forged)
    row_variance = np.vstack(
        [forged_variance, -2 * forged_variance, fit.tau2 + forged + coins_r2, coins_r3]
    )
    # The variance at r = 1 is 0 if every report contains all bits of the string.
    honest_variance = row_variance.sum(axis=0)
    is_noisy = honest_variance > 0
    ratio = np.where(is_noisy, row_variance / np.where(is_noisy, honest_variance, 1.0), 0.0)
    return np.asarray(ratio * std_error**2)


def _find_columns(target: Target, selection: Selection, candidates: Integers) -> Integers:
    """Return the argument `basis_index` of `Fit.compute_row_influence` for candidates.

    It is the column of each candidate in the basis of the fit, and -1 outside the fit. A shrunken
    fit takes the indices of the candidates instead.
    """
    # A shrunken fit stores an influence for every candidate, strong or not, in their order.
    if isinstance(selection.fit, ShrunkenFit):
        return candidates
    # The basis of any other fit begins with the backgrounds, one column for each collection. The
    # columns of the selected candidates follow, in the order of `selected`, which is increasing.
    n_backgrounds = len(target.counts)
    position = np.searchsorted(selection.selected, candidates)
    return np.where(np.isin(candidates, selection.selected), n_backgrounds + position, -1)


def _compute_forged_variance(target: Target) -> float:
    """Compute a (1 - a) / g^2, with a the largest share of ones that a forged report may have.

    The average over collections is weighted by reports.
    """
    variances = []
    for counts in target.counts:
        params = counts.params
        ones = compute_popcount_range(params)[1] / params.k
        variances.append(ones * (1 - ones) / (params.q_star - params.p_star) ** 2)
    return float(np.average(variances, weights=[counts.n_reports for counts in target.counts]))


def _find_best_reports(influence: Floats, target: Target) -> Floats:
    """Compute L and D: estimates if all reports are forged to raise, or to lower, them.

    Each cohort of each collection has its own best report among the reports that pass the check.
    Forged reports are spread over the cohorts like honest reports.

    Parameters
    ----------
    influence : (d, n) float64. e: derivatives of the estimates by the rows.
    target : n rows.

    Returns
    -------
    (2, d) float64. L, then D, both as positive numbers.
    """
    best = np.zeros((2, len(influence)))
    for number, counts in enumerate(target.counts):
        params = counts.params
        rows = slice(*np.searchsorted(target.collection_index, [number, number + 1]))
        ranked = np.sort(influence[:, rows].reshape(-1, params.m, params.k), axis=2)
        least, most = compute_popcount_range(params)
        # A row is (bit - p*) / g. `bias` is the part of p*, which does not depend on the bits.
        bias = params.p_star * ranked.sum(axis=(1, 2))
        for side, sign in enumerate((1, -1)):
            # The bits with the largest effect in this direction come first. A report may set `most`
            # of them.
            bits = sign * ranked[..., ::-sign][..., :most]
            # The check refuses reports with fewer ones than `least`, so a forger sets these bits
            # even if they lower the share.
            set_bits = bits[..., :least].sum(axis=(1, 2))
            set_bits += np.maximum(bits[..., least:], 0).sum(axis=(1, 2))
            best[side] += (set_bits - sign * bias) / (params.q_star - params.p_star)
    return best


def compute_category_effects(
    target: Target, proportions: Proportions, thresholds: Thresholds
) -> ForgeryEffects:
    """Compute the effect of forged reports on the detected categories, each of which is one bit.

    Parameters
    ----------
    target : the rows of all collections, with k bits each.
    proportions : numbers of ones and of reports, for the exact tests.
    thresholds : which categories are detected, and the threshold of their p-values.
    """
    detected = np.flatnonzero(thresholds.detected)
    shape = (len(target.counts), proportions.ones.shape[1])
    noise = target.compute_noise_variance(np.zeros(len(target))).reshape(shape)
    gap = (target.q_star - target.p_star).reshape(shape)
    shares = target.proportions.reshape(shape)
    mean = target.p_star.reshape(shape) + gap * shares

    def is_hidden(r: Floats) -> Booleans:
        p_values = proportions.select_bits(detected, 1 / r).p_values()
        return np.asarray(p_values > thresholds.detected_thresholds[detected])

    return ForgeryEffects(
        share=average_by_precision(shares, noise)[0][detected],
        full_fall=average_by_precision(mean / gap, noise)[0][detected],
        full_rise=average_by_precision((1 - mean) / gap, noise)[0][detected],
        is_hidden=is_hidden,
    )


def count_forged_reports(effects: ForgeryEffects, detected: Booleans, n_reports: int) -> Floats:
    """Compute how many forged reports create, and how many hide, each entry of the table.

    Parameters
    ----------
    effects : the effects on the detected entries.
    detected : (e,) bool. Detected entries.
    n_reports : N.

    Returns
    -------
    (2, e) float64. Whole numbers of reports. They are infinite if no number suffices, and NaN for
    entries that are not detected.
    """
    numbers = np.full((2, len(detected)), np.nan)
    if detected.any():
        # N beta / L
        numbers[0, detected] = _round_up_reports(
            n_reports * effects.share / (effects.full_rise + effects.share)
        )
        numbers[1, detected] = _count_hiding_reports(effects, n_reports)
    return numbers


def _round_up_reports(reports: Floats) -> Floats:
    """Round up to whole reports. A rounding error above a whole number does not count."""
    # Without rounding, 100 reports with a rounding error of 1e-12 would become 101.
    return np.ceil(np.round(reports, _DECIMALS))


def _find_z_scores(tail: NullTail, p_values: Floats, z: Floats) -> Floats:
    """Compute the z scores with these p-values, in [0, z], by bisection. The tail never rises.

    Parameters
    ----------
    tail : tail of an absent candidate's z score.
    p_values : (d,) float64. Largest p-value at which each row is detected.
    z : (d,) float64. Z score of each row. It is infinite if the row has no noise.
    """
    low, high = np.zeros_like(z), z
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_too_low = tail.p_values(middle) > p_values
        low, high = np.where(is_too_low, middle, low), np.where(is_too_low, high, middle)
    return high


def _count_hiding_reports(effects: ForgeryEffects, n_reports: int) -> Floats:
    """Compute y, the number of forged reports that hides each row among N honest reports, (d,)."""

    def count_added_reports(r: Floats) -> Floats:
        """Compute y = N / r - N, rounded up, from the share r of honest reports."""
        with np.errstate(divide="ignore"):  # no number of reports makes the share 0
            return _round_up_reports(n_reports * (1 / r - 1))

    lowered = effects.full_fall - effects.share  # D
    can_hide = lowered > _LEAST_LOWERING
    # beta(r) = beta - (1 - r) (beta + D) is 0 at r = 1 - beta / (beta + D), and negative at every
    # smaller r, so the row is hidden there.
    low = np.where(
        can_hide,
        np.maximum(1 - effects.share / np.maximum(effects.full_fall, _LEAST_LOWERING), 0.0),
        0.0,
    )
    high = np.ones_like(low)
    for _ in range(_HALVINGS):
        r = (low + high) / 2
        is_hidden = effects.is_hidden(r)
        low, high = np.where(is_hidden, r, low), np.where(is_hidden, high, r)
        # The number of reports never rises with r. If it is the same whole number at both ends, it
        # is this number at each r between them, and further bisections would not change it.
        is_found = count_added_reports(low) == count_added_reports(high)
        if (is_found | ~can_hide).all():
            break
    # If D is 0, no number of reports hides the row.
    return np.where(can_hide, count_added_reports(low), np.inf)
