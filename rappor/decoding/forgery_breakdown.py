"""Breakdown numbers: how many forged reports would create or hide a detected row.

Theory of operation
-------------------
The forger is the best one that passes the collector's check of popcounts, and has the candidates
and the table. Forged reports are spread over the cohorts like honest ones. The share beta of a
string is linear in the proportions of all rows of the fit, beta = sum_i e_i y_i (`Fit.influence`).
A report adds (1 - p*) / g to row i of its cohort if its bit is 1, and -p* / g if it is 0, with g =
q* - p*. The report that lifts the string most therefore sets the bits with the largest e_i: all
positive ones, within the smallest and the largest number that the check admits. The mean over
cohorts is the lift L. With the signs of all e_i changed it is the loss D. Both are larger than (1 -
w) / g and w / g, the effect of a forger who spreads a share w of ones over all other bits, because
strings collide.

*Make.* If x of the N reports are forged and no other report contains the string,

    x = N beta / L

*Hide.* y forged reports are added to the N reports. With r = N / (N + y), the share of the string
becomes

    beta(r) = r beta - (1 - r) D

The variance of the coins of a row, mu (1 - mu) / (N g^2) with mu its share of ones, becomes r^2 mu
(1 - r mu) / (N g^2), and the variance of collisions r^2 tau^2. The forged reports of a cohort are
equal. With a share a of ones, the largest that passes, they add (1 - r)^2 a (1 - a) / g^2. All
terms are averaged over the string's rows by weight. The row is hidden if beta(r) is less than its
threshold, a z score times the standard error at r. Bisection finds this r, between 1 and the r at
which beta(r) is 0.

If each bit is a category, the bit is the only row, and the other bits do not matter. With (mu - p*)
/ g the row,

    x = N beta / ((1 - mu) / g + beta)

The row is hidden if its own test (`rappor.estimator.proportion_tests`), of the remaining ones among
N / r reports, no longer detects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.counts.popcounts import compute_popcount_range
from rappor.decoding.closed_form import average_by_precision
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.proportion_tests import Proportions
from rappor.estimator.score_tests import NullTail
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit

_HALVINGS: Final = 60
"""Number of bisections: down to the last bit of a number between 0 and 1."""

_DECIMALS: Final = 6
"""Decimals of a number of reports. Smaller differences are rounding errors."""

_CHUNK: Final = 64
"""Number of rows whose influences are computed at a time: 8 MB under a profile."""

_NOTHING: Final = 1e-9
"""Loss per report below which reports without the bit hide nothing. With p* = 0 the loss is 0,
except for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The effect of forged reports on c detected rows.

    Attributes
    ----------
    share : (c,) float64. beta, the tested estimate.
    ones : (c,) float64. Loss of the row if all reports are forged to hide it.
    zeros : (c,) float64. Gain of the row if all reports are forged to create it.
    hidden : function from the r of each row, (c,), to whether the row is hidden.
    """

    share: Floats
    ones: Floats
    zeros: Floats
    hidden: Callable[[Floats], Booleans]


def compute_string_effects(
    target: Target, design: Columns, selection: Selection, tail: NullTail, thresholds: Thresholds
) -> Rows:
    """Compute the effect of forged reports on the detected strings.

    A row is hidden if its p-value exceeds its threshold.
    """
    fit, detected = selection.fit, np.flatnonzero(thresholds.detected)
    columns, columns_in_fit = design.columns(detected), _find_columns(target, selection, detected)
    share, std_error = selection.estimate[detected], selection.std_error[detected]
    gap = target.q_star - target.p_star
    mean = target.p_star + gap * target.proportions
    coins = mean / (np.maximum(target.reports, 1) * gap**2)
    sums = columns.T @ (fit.weight[:, None] * np.column_stack([coins, -coins * mean]))
    total = np.maximum(columns.T @ fit.weight, np.finfo(float).tiny)
    second, third = sums.T / total
    lift, loss = np.zeros((2, len(share)))
    # Compute influences in chunks: an array for all rows would take too much memory.
    for start in range(0, len(share), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        influence = fit.compute_row_influence(columns[:, chunk], columns_in_fit[chunk])
        lift[chunk], loss[chunk] = _find_best_reports(influence, target)
    spread = _compute_forged_variance(target)
    forged_variance = np.full(len(share), spread)
    variance = np.vstack([forged_variance, -2 * forged_variance, fit.tau2 + spread + second, third])
    ones = share + loss
    # The total is 0 if every report contains all bits of the string.
    total_variance = variance.sum(axis=0)  # 0 where every report has all bits of the string
    variance = (
        np.where(
            total_variance > 0, variance / np.where(total_variance > 0, total_variance, 1.0), 0.0
        )
        * std_error**2
    )
    # Now these are the coefficients of r^0 to r^3 of the estimate's variance.
    z = _find_z_score(
        tail, thresholds.detected_threshold, float(np.min(share / std_error, initial=np.inf))
    )

    def is_hidden(r: Floats) -> Booleans:
        noise = sum(part * r**power for power, part in enumerate(variance))
        return np.asarray(share - (1 - r) * ones < z * np.sqrt(np.maximum(noise, 0.0)))

    return Rows(share=share, ones=ones, zeros=lift - share, hidden=is_hidden)


def _find_columns(target: Target, selection: Selection, candidates: Integers) -> Integers:
    """Return the column of each candidate in the basis of the fit, -1 outside the fit.

    A shrunken fit contains all candidates, by their own indices.
    """
    # A shrunken fit has no selection.
    if isinstance(selection.fit, ShrunkenFit):
        return candidates
    position = np.searchsorted(selection.selected, candidates)
    return np.where(np.isin(candidates, selection.selected), len(target.counts) + position, -1)


def _compute_forged_variance(target: Target) -> float:
    """Compute the variance over rows of a forged report with the largest number of ones."""
    variances = []
    for counts in target.counts:
        params = counts.params
        ones = compute_popcount_range(params)[1] / params.k
        variances.append(ones * (1 - ones) / (params.q_star - params.p_star) ** 2)
    return float(np.average(variances, weights=[counts.n_reports for counts in target.counts]))


def _find_best_reports(influence: Floats, target: Target) -> Floats:
    """Compute the largest lift and the largest loss of the estimates by one forged report, (2, c).

    Each cohort of each collection has its own best report among the reports that pass the check.
    Forged reports are spread over the cohorts like honest ones. `influence` is (c, n).
    """
    best = np.zeros((2, len(influence)))
    for number, counts in enumerate(target.counts):
        params = counts.params
        rows = slice(*np.searchsorted(target.collection_index, [number, number + 1]))
        ranked = np.sort(influence[:, rows].reshape(-1, params.m, params.k), axis=2)
        least, most = compute_popcount_range(params)
        noise = params.p_star * ranked.sum(axis=(1, 2))
        for side, sign in enumerate((1, -1)):
            bits = sign * ranked[..., ::-sign][..., :most]
            # The check refuses reports with fewer ones than `least`, so a forger sets these bits
            # even if they lower the share.
            set_bits = bits[..., :least].sum(axis=(1, 2))
            set_bits += np.maximum(bits[..., least:], 0).sum(axis=(1, 2))
            best[side] += (set_bits - sign * noise) / (params.q_star - params.p_star)
    return best


def compute_category_effects(
    target: Target, proportions: Proportions, thresholds: Thresholds
) -> Rows:
    """Compute the effect of forged reports on the detected categories, each of which is one bit."""
    detected = np.flatnonzero(thresholds.detected)
    shape = (len(target.counts), proportions.ones.shape[1])
    noise = target.compute_noise_variance(np.zeros(len(target))).reshape(shape)
    gap = (target.q_star - target.p_star).reshape(shape)
    shares = target.proportions.reshape(shape)
    mean = target.p_star.reshape(shape) + gap * shares

    def is_hidden(r: Floats) -> Booleans:
        return proportions.among(detected, 1 / r).p_values() > thresholds.detected_threshold

    return Rows(
        share=average_by_precision(shares, noise)[0][detected],
        ones=average_by_precision(mean / gap, noise)[0][detected],
        zeros=average_by_precision((1 - mean) / gap, noise)[0][detected],
        hidden=is_hidden,
    )


def count_forged_reports(rows: Rows, detected: Booleans, n_reports: int) -> Floats:
    """Compute how many forged reports create and hide each candidate, (2, c).

    The numbers are whole numbers. They are infinite if no number suffices, and NaN for candidates
    that are not detected.
    """
    numbers = np.full((2, len(detected)), np.nan)
    if detected.any():
        numbers[0, detected] = _round_up_reports(n_reports * rows.share / (rows.zeros + rows.share))
        numbers[1, detected] = _round_up_reports(n_reports * _count_hiding_reports(rows))
    return numbers


def _round_up_reports(reports: Floats) -> Floats:
    """Round up to whole reports. A rounding error above a whole number does not count."""
    # Without rounding, 100 reports with a rounding error of 1e-12 would become 101.
    return np.ceil(np.round(reports, _DECIMALS))


def _find_z_score(tail: NullTail, p_value: float, high: float) -> float:
    """Compute the z score with this p-value, in [0, high], by bisection."""
    low = 0.0
    for _ in range(_HALVINGS if math.isfinite(high) else 0):
        middle = (low + high) / 2
        if tail.p_values(np.array([middle]))[0] > p_value:
            low = middle
        else:
            high = middle
    return high


def _count_hiding_reports(rows: Rows) -> Floats:
    """Compute y / N, the number of forged reports per honest report that hides each row, (c,)."""
    loss = rows.ones - rows.share
    # At this r the share is 0. A smaller r would only search among negative shares.
    low = np.where(
        loss > _NOTHING, np.maximum(1 - rows.share / np.maximum(rows.ones, _NOTHING), 0.0), 0.0
    )
    high = np.ones_like(low)
    for _ in range(_HALVINGS):
        r = (low + high) / 2
        is_hidden = rows.hidden(r)
        low, high = np.where(is_hidden, r, low), np.where(is_hidden, high, r)
    # If the loss per report is 0, no number of reports hides the row.
    with np.errstate(divide="ignore"):
        return np.where(loss > _NOTHING, 1 / low - 1, np.inf)
