"""Breakdown numbers: how many forged reports would make a detected row, and how many would hide it.

Theory of operation
-------------------
The forger is the best one that the collector's check of popcounts admits, and knows the candidates
and the table. Forged reports fall into the cohorts as honest ones do. A string's share beta is
linear in the proportions of all rows of the fit, beta = sum_i e_i y_i (`Fit.influence`). A report
adds to row i of its cohort (1 - p*) / g if its bit is 1 and -p* / g if it is 0, g = q* - p*. So
the report that lifts the string most has those bits whose e_i are the largest: as many as are
positive, and at least and at most as many as the check admits. Averaged over cohorts that is the
lift L; the same with the signs of all e_i changed is the loss D. They are above (1 - w) / g and
w / g, what a forger gets who spreads a share w of ones over all other bits, because strings
collide.

*Make.* Of the N reports behind the table, x are forged and no other holds the string, so

    x = N beta / L

*Hide.* y forged reports come to the N, and r = N / (N + y). The string's share becomes

    beta(r) = r beta - (1 - r) D

The coins' variance of a row, mu (1 - mu) / (N g^2) where mu is its share of ones, becomes
r^2 mu (1 - r mu) / (N g^2), and that of collisions r^2 tau^2. The forged reports of a cohort are
alike: with a share a of ones, the most that passes, they add (1 - r)^2 a (1 - a) / g^2. All are
averaged over the string's rows by their weight. The row is hidden when beta(r) is less than its
threshold, a z score times the standard error at r. That r is found by bisection, between 1 and the
r at which nothing is left of beta.

Where each bit is an answer, the bit is the only row, and the other bits do not matter: with
(mu - p*) / g the row,

    x = N beta / ((1 - mu) / g + beta)

It is hidden when its own test (`rappor.estimator.proportion_tests`), of the ones that stay among N
/ r reports, passes it no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.counts.popcounts import popcount_range
from rappor.decoding.closed_form import pool
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Design
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.proportion_tests import Proportions
from rappor.estimator.score_tests import NullTail
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit

_HALVINGS: Final = 60
"""Steps of a bisection: to the last bit of a number between 0 and 1."""

_DECIMALS: Final = 6
"""A millionth of a report is rounding."""

_CHUNK: Final = 64
"""Rows of the table whose influences are computed at a time: 8 MB under a profile."""

_NOTHING: Final = 1e-9
"""Share that one report takes, in reports, below which reports without the bit hide nothing: p* is
0, and rounding leaves less."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What a forger finds at c detected rows of the table.

    Attributes
    ----------
    share : (c,) float64. Beta, the estimate that is tested.
    ones : (c,) float64. What the row loses if all reports are forged to hide it.
    zeros : (c,) float64. What it gains if all are forged to make it.
    hidden : tells for the r of each row, (c,), whether it is hidden.
    """

    share: Floats
    ones: Floats
    zeros: Floats
    hidden: Callable[[Floats], Booleans]


def string_rows(
    target: Target, design: Design, selection: Selection, tail: NullTail, thresholds: Thresholds
) -> Rows:
    """Describe the detected strings; one whose p-value is above its threshold is hidden."""
    fit, detected = selection.fit, np.flatnonzero(thresholds.detected)
    columns, places = design.columns(detected), _places(target, selection, detected)
    share, std_error = selection.estimate[detected], selection.std_error[detected]
    gap = target.q_star - target.p_star
    mean = target.p_star + gap * target.proportions
    coins = mean / (np.maximum(target.reports, 1) * gap**2)
    sums = columns.T @ (fit.weight[:, None] * np.column_stack([coins, -coins * mean]))
    total = np.maximum(columns.T @ fit.weight, np.finfo(float).tiny)
    second, third = sums.T / total
    lifted, taken = np.zeros((2, len(share)))
    for start in range(0, len(share), _CHUNK):
        some = slice(start, start + _CHUNK)
        influence = fit.influence(columns[:, some], places[some])
        lifted[some], taken[some] = _most(influence, target)
    spread = _spread(target)
    even = np.full(len(share), spread)
    variance = np.vstack([even, -2 * even, fit.tau2 + spread + second, third])
    ones = share + taken
    whole = variance.sum(axis=0)  # 0 where every report has all bits of the string
    variance = np.where(whole > 0, variance / np.where(whole > 0, whole, 1.0), 0.0) * std_error**2
    # Now these are the coefficients of r^0 to r^3 of the estimate's variance.
    z = _z_score(tail, thresholds.for_detected, float(np.min(share / std_error, initial=np.inf)))

    def hidden(r: Floats) -> Booleans:
        noise = sum(part * r**power for power, part in enumerate(variance))
        return np.asarray(share - (1 - r) * ones < z * np.sqrt(np.maximum(noise, 0.0)))

    return Rows(share=share, ones=ones, zeros=lifted - share, hidden=hidden)


def _places(target: Target, selection: Selection, candidates: Integers) -> Integers:
    """Return where the fit has candidates: their place in its basis, -1 outside it.

    A shrunken fit has all of them, by their own numbers.
    """
    if isinstance(selection.fit, ShrunkenFit):
        return candidates
    place = np.searchsorted(selection.chosen, candidates)
    return np.where(np.isin(candidates, selection.chosen), len(target.counts) + place, -1)


def _spread(target: Target) -> float:
    """Return the variance over rows of what a report with the most ones adds to its cohort."""
    variances = []
    for counts in target.counts:
        params = counts.params
        ones = popcount_range(params)[1] / params.k
        variances.append(ones * (1 - ones) / (params.q_star - params.p_star) ** 2)
    return float(np.average(variances, weights=[each.n_reports for each in target.counts]))


def _most(influence: Floats, target: Target) -> Floats:
    """Return what a report lifts and lowers estimates by that has the best bits, (2, c).

    Each cohort of each collection has a best report of those that pass; forged ones fall into all
    as honest ones do. `influence` is (c, n).
    """
    best = np.zeros((2, len(influence)))
    for number, counts in enumerate(target.counts):
        params = counts.params
        rows = slice(*np.searchsorted(target.group, [number, number + 1]))
        ranked = np.sort(influence[:, rows].reshape(-1, params.m, params.k), axis=2)
        least, most = popcount_range(params)
        noise = params.p_star * ranked.sum(axis=(1, 2))
        for side, sign in enumerate((1, -1)):
            bits = sign * ranked[..., ::-sign][..., :most]
            set_bits = bits[..., :least].sum(axis=(1, 2))
            set_bits += np.maximum(bits[..., least:], 0).sum(axis=(1, 2))
            best[side] += (set_bits - sign * noise) / (params.q_star - params.p_star)
    return best


def answer_rows(target: Target, proportions: Proportions, thresholds: Thresholds) -> Rows:
    """Describe the detected answers, each of which is one bit."""
    detected = np.flatnonzero(thresholds.detected)
    shape = (len(target.counts), proportions.ones.shape[1])
    noise = target.noise(np.zeros(len(target))).reshape(shape)
    gap = (target.q_star - target.p_star).reshape(shape)
    shares = target.proportions.reshape(shape)
    mean = target.p_star.reshape(shape) + gap * shares

    def hidden(r: Floats) -> Booleans:
        return proportions.among(detected, 1 / r).p_values() > thresholds.for_detected

    return Rows(
        share=pool(shares, noise)[0][detected],
        ones=pool(mean / gap, noise)[0][detected],
        zeros=pool((1 - mean) / gap, noise)[0][detected],
        hidden=hidden,
    )


def break_down(rows: Rows, detected: Booleans, n_reports: int) -> Floats:
    """Return how many forged reports make, and how many hide, each of the candidates, (2, c).

    They are whole numbers, infinite where no number suffices, NaN where nothing is detected.
    """
    found = np.full((2, len(detected)), np.nan)
    if detected.any():
        found[0, detected] = _whole(n_reports * rows.share / (rows.zeros + rows.share))
        found[1, detected] = _whole(n_reports * _forged_for_each(rows))
    return found


def _whole(reports: Floats) -> Floats:
    """Round up to whole reports, but not what only rounding lifts above one."""
    return np.ceil(np.round(reports, _DECIMALS))


def _z_score(tail: NullTail, p_value: float, high: float) -> float:
    """Return the z score that has this p-value, in [0, high]."""
    low = 0.0
    for _ in range(_HALVINGS if math.isfinite(high) else 0):
        middle = (low + high) / 2
        if tail.p_values(np.array([middle]))[0] > p_value:
            low = middle
        else:
            high = middle
    return high


def _forged_for_each(rows: Rows) -> Floats:
    """Return y / N, the reports that hide each row for each report that there is, (c,)."""
    taken = rows.ones - rows.share
    low = np.where(
        taken > _NOTHING, np.maximum(1 - rows.share / np.maximum(rows.ones, _NOTHING), 0.0), 0.0
    )
    high = np.ones_like(low)
    for _ in range(_HALVINGS):
        r = (low + high) / 2
        gone = rows.hidden(r)
        low, high = np.where(gone, r, low), np.where(gone, high, r)
    with np.errstate(divide="ignore"):
        return np.where(taken > _NOTHING, 1 / low - 1, np.inf)
