"""Breakdown numbers: how many forged reports would make a detected row, and how many would hide it.

Theory of operation
-------------------
The forger leaves the rest of the table as it is: the forged reports have all bits of the string
set, or none, have each other bit as often as all other reports do, and fall into the cohorts as
these do. Only the string's own rows then change their proportions. In what follows mu is the share
of reports with a 1 at a bit of the string, g = q* - p*, (mu - p*) / g the row, and beta the
string's share; everything linear is averaged over the string's rows, by their weight.

*Make.* Of the N reports behind the table, x are forged and no other holds the string. They lift
its rows from t, what all other strings set there, by x/N ((1 - p*) / g - t) = beta, to
t + beta = (mu - p*) / g. So

    x = N beta / ((1 - mu) / g + beta)

*Hide.* y forged reports come to the N, and r = N / (N + y). The ones of the string's bits stay, so
mu becomes r mu, and its share

    beta(r) = beta - (1 - r) mu / g

while the coins' variance of a row, mu (1 - mu) / (N g^2), becomes r^2 mu (1 - r mu) / (N g^2).
Collisions keep theirs, tau^2. The row is hidden when beta(r) is less than its threshold, a z
score times the standard error at r. That r is found by bisection, between 1 and the r at which
nothing is left of beta.

Where each bit is an answer, the same holds with the bit as the only row. It is hidden when its own
test (`rappor.decoding.proportions`), of the ones that stay among N / r reports, passes it no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.decoding.closed_form import pool
from rappor.decoding.debias import Target
from rappor.decoding.fit import Fit
from rappor.decoding.proportions import Proportions

PValues = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Hidden = Callable[[NDArray[np.float64]], NDArray[np.bool_]]
"""Tells for the r of each row whether it is hidden."""

_HALVINGS: Final = 60
"""Steps of a bisection: to the last bit of a number between 0 and 1."""

_DECIMALS: Final = 6
"""A millionth of a report is rounding."""

_NOTHING: Final = 1e-9
"""Share that one report takes, in reports, below which reports without the bit hide nothing: p* is
0, and rounding leaves less."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What a forger finds at c detected rows of the table.

    Attributes
    ----------
    share : (c,) float64. Beta, the estimate that is tested.
    ones, zeros : (c,) float64. Means of mu / g and of (1 - mu) / g over the row's bits.
    """

    share: NDArray[np.float64]
    ones: NDArray[np.float64]
    zeros: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Breakdown:
    """The breakdown numbers of c candidates.

    Attributes
    ----------
    make, hide : (c,) float64. Whole numbers of forged reports, infinite where no number of
        them suffices, NaN where nothing is detected.
    """

    make: NDArray[np.float64]
    hide: NDArray[np.float64]


def string_rows(
    target: Target,
    fit: Fit,
    columns: sparse.csc_array,
    *,
    share: NDArray[np.float64],
    std_error: NDArray[np.float64],
    p_values: PValues,
    threshold: float,
) -> tuple[Rows, Hidden]:
    """Describe c detected strings, and say at which r each of them is hidden.

    Parameters
    ----------
    columns : (n, c) sparse. The rows that each of them sets.
    share, std_error : (c,) float64. Their estimates and the standard errors of their scores.
    p_values : returns the p-values of z scores, falling.
    threshold : the p-value above which one of them is no longer detected.
    """
    gap = target.q_star - target.p_star
    mean = target.p_star + gap * target.proportions
    coins = mean / (np.maximum(target.reports, 1) * gap**2)
    table = np.column_stack([mean / gap, (1 - mean) / gap, coins, -coins * mean])
    sums = columns.T @ (fit.weight[:, None] * table)
    total = np.maximum(columns.T @ fit.weight, np.finfo(float).tiny)
    ones, zeros, second, third = sums.T / total
    variance = np.vstack([np.full(len(share), fit.tau2), np.zeros(len(share)), second, third])
    whole = variance.sum(axis=0)  # 0 where every report has all bits of the string
    variance = np.where(whole > 0, variance / np.where(whole > 0, whole, 1.0), 0.0) * std_error**2
    # Now these are the coefficients of r^0 to r^3 of the estimate's variance.
    z = _z_score(p_values, threshold, float(np.min(share / std_error, initial=np.inf)))

    def hidden(r: NDArray[np.float64]) -> NDArray[np.bool_]:
        noise = sum(part * r**power for power, part in enumerate(variance))
        return np.asarray(share - (1 - r) * ones < z * np.sqrt(np.maximum(noise, 0.0)))

    return Rows(share=share, ones=ones, zeros=zeros), hidden


def answer_rows(
    target: Target, proportions: Proportions, detected: NDArray[np.int64], *, threshold: float
) -> tuple[Rows, Hidden]:
    """Describe detected answers, each of which is one bit; see `string_rows`."""
    n_bits = proportions.ones.shape[1]
    shape = (len(target.counts), n_bits)
    noise = target.noise(np.zeros(len(target))).reshape(shape)
    gap = (target.q_star - target.p_star).reshape(shape)
    shares = target.proportions.reshape(shape)
    mean = target.p_star.reshape(shape) + gap * shares
    rows = Rows(
        share=pool(shares, noise)[0][detected],
        ones=pool(mean / gap, noise)[0][detected],
        zeros=pool((1 - mean) / gap, noise)[0][detected],
    )

    def hidden(r: NDArray[np.float64]) -> NDArray[np.bool_]:
        return proportions.among(detected, 1 / r).p_values() > threshold

    return rows, hidden


def break_down(
    rows: Rows,
    hidden: Hidden,
    detected: NDArray[np.int64],
    *,
    n_candidates: int,
    n_reports: int,
) -> Breakdown:
    """Return how many forged reports make and hide each detected row.

    Parameters
    ----------
    rows : the c detected ones, which are `detected` of all `n_candidates`.
    hidden : tells which of them are hidden at each r, (c,).
    n_reports : N, the reports behind the table.
    """
    make, hide = np.full((2, n_candidates), np.nan)
    if len(detected):
        make[detected] = _whole(n_reports * rows.share / (rows.zeros + rows.share))
        hide[detected] = _whole(n_reports * _forged_for_each(rows, hidden))
    return Breakdown(make=make, hide=hide)


def _whole(reports: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round up to whole reports, but not what only rounding lifts above one."""
    return np.ceil(np.round(reports, _DECIMALS))


def _z_score(p_values: PValues, p_value: float, high: float) -> float:
    """Return the z score that has this p-value, in [0, high]."""
    low = 0.0
    for _ in range(_HALVINGS if math.isfinite(high) else 0):
        middle = (low + high) / 2
        if p_values(np.array([middle]))[0] > p_value:
            low = middle
        else:
            high = middle
    return high


def _forged_for_each(rows: Rows, hidden: Hidden) -> NDArray[np.float64]:
    """Return y / N, the reports that hide each row for each report that there is, (c,)."""
    taken = rows.ones - rows.share
    low = np.where(
        taken > _NOTHING, np.maximum(1 - rows.share / np.maximum(rows.ones, _NOTHING), 0.0), 0.0
    )
    high = np.ones_like(low)
    for _ in range(_HALVINGS):
        r = (low + high) / 2
        gone = hidden(r)
        low, high = np.where(gone, r, low), np.where(gone, high, r)
    with np.errstate(divide="ignore"):
        return np.where(taken > _NOTHING, 1 / low - 1, np.inf)
