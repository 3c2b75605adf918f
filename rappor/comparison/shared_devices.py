"""Variance of a weighted sum of samples, if the samples have devices in common.

A comparison has several samples, such as weeks. A *contrast* is a weighted sum of the samples whose
weights sum to 0, such as the second week minus the first. `contrast_rows.py` uses this module for
strings (a row is one bit of one cohort), `category_changes.py` for categories (a row is one
category).

*Example.* The share of a value is .20 in one week and .24 in the next. Each week has 10,000
devices, and the standard error of their device noise is .004 in each week. If the devices are
different, the device noise of the change .04 has the variance 2 (.004)^2. If the devices are the
same and none of them changed its value, the variance is 0, because the noise cancels. But at least
4 % of the devices took a new value, and their noise does not cancel. This module computes the
variance between these extremes.

Theory of operation
-------------------
| symbol | meaning | shape and unit |
|---|---|---|
| t, s | samples | |
| w_t | weight of sample t in the contrast. The weights sum to 0 | number |
| d_t | w_t, with its sign, times the standard error of the device noise of sample t | (n,), share |
| D_t | effective number of devices of sample t | (n,) |
| rho | correlation of the device noise of two samples: 0 without common devices | number |
| theta_t | level of a row in sample t: its true proportion | (n,), share |
| delta | change of a share: the contrast | share |
| v_0, v_1 | variance of the permanent response to a 0 and to a 1 | |
| g | difference of the means of the permanent response to a 1 and to a 0 | |
| phi | share of the devices that changed their value at all | share |

The estimand of every contrast is the change in the population. Devices are a sample of the
population in each period, even if the same devices report in all periods.

*If no share changed.* The error of a sample has two parts: fresh coins, which are independent, and
device noise, from the values and the permanent responses of the devices. The device noise of the
contrast has the variance

    sum of d_t^2 + rho (sum over s != t of d_s d_t)  =  (1 - rho) sum of d_t^2 + rho (sum of d_t)^2

If rho is unknown, the largest possible variance is assumed. Correlations are at least 0, so the
variance is largest if samples with weights of one sign have the same devices, and samples with
weights of the other sign have other devices:

    (sum of the d_t > 0)^2 + (sum of the d_t < 0)^2

*Devices that changed their value.* A device with the same value in two samples has the same noise
in both, which cancels in their difference. If a share changed by delta, at least a share |delta| of
the devices changed to or from this value. Each of these devices has a new permanent response in the
row, so its noise does not cancel. The difference of two samples of the same D devices has the
variance

    (|delta| (1 + (v_0 + v_1) / g^2) - delta^2 + (phi - |delta|) 2 v_0 / g^2) / D

- `|delta| - delta^2` is the sampling variance: each device changed with probability |delta|.
- `|delta| (v_0 + v_1) / g^2` comes from the two permanent responses of a device that changed to or
  from the value: one to a 0, and one to a 1.
- `(phi - |delta|) 2 v_0 / g^2` comes from devices that changed between two other values: they have
  a 0 in this row in both samples, and draw a new permanent response to the 0.

For strings, the fit estimates the noise of the last term from the many rows without a change
(`rappor.comparison.change_regression`). Categories have no such rows, so the term is computed by
`estimate_other_changes`. Without the variance of changed devices, intervals of changed strings
covered only 65 % of the true changes at rho = 1.

*Several samples.* Let u_t = w_t / sqrt(D_t). If c_st is the variance of the difference of two
samples s and t of one device each, their covariance is smaller by c_st / 2 than without changes.
The variance of a weighted sum is therefore larger by -1/2 sum over s, t of u_s u_t c_st. c_st
contains |theta_s - theta_t| and its square, so the two terms of the formula above become:

    in place of |delta| / D    -1/2 sum over s, t of u_s u_t |theta_s - theta_t|
    in place of delta^2 / D    (sum of u_t theta_t)^2 - (sum of u_t) (sum of u_t theta_t^2)

For two samples with u_t = -1 / sqrt(D) and 1 / sqrt(D), they are |delta| / D and delta^2 / D.

To compute the first expression, sort the samples by their levels theta_t. With gap_i the difference
of two neighbouring levels, U_i the sum of the u_t below the gap, and U the sum of all u_t, the
expression is the sum of gap_i U_i (U_i - U) over all gaps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

_ENORMOUS: Final = 1e100
"""Half width from which an interval counts as infinite. A share is at most 1, so such an interval
contains all changes, and the square of a larger number could exceed the largest float."""

_CHANGE_ERROR: Final = 0.05
"""Error probability at which a change counts in `estimate_other_changes`, over all values
(Bonferroni). With a larger probability, noise would count as devices that changed."""


def compute_device_variance(devices: Floats, device_correlation: float | None) -> Floats:
    """Compute the variance, (n,), of the contrast's device noise.

    If rho is unknown, the result is the largest variance of all rho.

    Parameters
    ----------
    devices : (t, n) float64. d_t: weights times standard errors of the device noise.
    device_correlation : rho in [0, 1], or None if it is unknown.
    """
    if device_correlation is None:
        sides = [sign * np.maximum(sign * devices, 0.0).sum(axis=0) for sign in (1, -1)]
        return np.asarray(sides[0] ** 2 + sides[1] ** 2)
    independent = (devices**2).sum(axis=0)
    return np.asarray(
        (1 - device_correlation) * independent + device_correlation * devices.sum(axis=0) ** 2
    )


def compute_changed_sampling(
    weights: Floats, inverse_devices: Floats, slope: Floats
) -> tuple[Floats, Floats]:
    """Compute the coefficients of the sampling variance of changed devices.

    At rho = 1, a contrast delta has the sampling variance |delta| `linear` - delta^2 `square`. The
    levels are proportional to delta, so both coefficients are computed at delta = 1.

    Parameters
    ----------
    weights : (t, n) float64. Weights of the samples; they sum to 0.
    inverse_devices : (t, n) float64. 1 / D_t.
    slope : (t, n) float64. Levels theta_t of the samples if the contrast is 1. A constant that is
        added to all levels changes nothing.

    Returns
    -------
    linear, square : (n,) float64 each, at least 0.
    """
    u = weights * np.sqrt(inverse_devices)
    u_sum = u.sum(axis=0)
    order = np.argsort(slope, axis=0)
    u_below_gap = np.cumsum(np.take_along_axis(u, order, axis=0), axis=0)[:-1]
    gaps = np.diff(np.take_along_axis(slope, order, axis=0), axis=0)
    linear = (gaps * u_below_gap * (u_below_gap - u_sum)).sum(axis=0)
    square = (u * slope).sum(axis=0) ** 2 - u_sum * (u * slope**2).sum(axis=0)
    return np.maximum(linear, 0.0), np.maximum(square, 0.0)


def estimate_other_changes(estimate: Floats, p_value: Floats) -> Floats:
    """Compute a lower bound on phi - |delta|, (n,): devices that changed between other values.

    A device that leaves a value takes another value, listed or not. So the share of all devices
    that changed is at least the sum of all rises, and at least the sum of all falls. Only
    significant changes count, because noise alone has rises and falls, too.

    Parameters
    ----------
    estimate, p_value : (n,) float64. Changes of n different values, and their p-values.
    """
    significant = np.where(p_value * len(p_value) <= _CHANGE_ERROR, estimate, 0.0)
    changed = min(
        max(float(np.maximum(significant, 0.0).sum()), float(-np.minimum(significant, 0.0).sum())),
        1.0,
    )
    return np.maximum(changed - np.abs(significant), 0.0)


class ChangeVariance(NamedTuple):
    """Variance of the estimate of a change delta, beyond the variance at delta = 0.

    The variance is |delta| `linear` - delta^2 `square`, (n,) each. `linear` is at least `square`.
    """

    linear: Floats
    square: Floats

    def variance_at(self, delta: Floats) -> Floats:
        """Compute the variance, (n,), at changes delta, (n,)."""
        return np.maximum(np.abs(delta) * self.linear - delta**2 * self.square, 0.0)

    def interval(
        self, estimate: Floats, below: Floats, above: Floats, error: float | Floats
    ) -> tuple[Floats, Floats]:
        """Compute the ends of intervals, (n,) each, with the error probability `error`.

        With z the normal quantile and distance the half width if nothing changed, an end x
        satisfies (estimate - x)^2 = distance^2 + z^2 variance_at(x). The variance is 0 at x = 0. So
        an interval includes 0 exactly if the interval without changed devices includes 0, and
        agrees with the test of no change.

        Parameters
        ----------
        estimate : (n,) float64. Estimates of the changes.
        below, above : (n,) float64. Distances between the estimate and the ends if nothing changed.
        error : probability that the interval misses the true change, a number or (n,) float64.
        """
        # The quantile of 0 would be infinite.
        z2 = special.ndtri(np.maximum(np.asarray(error) / 2, 1e-300)) ** 2
        scaled = ChangeVariance(z2 * self.linear, z2 * self.square)
        return scaled._solve_low_end(estimate, below), -scaled._solve_low_end(-estimate, above)

    def _solve_low_end(self, estimate: Floats, distance: Floats) -> Floats:
        """Solve (estimate - x)^2 = distance^2 + |x| linear - x^2 square for the lower x, (n,).

        Parameters
        ----------
        estimate, distance : (n,) float64. `linear` and `square` are already multiplied by z^2.
        """
        # The counts contain no information about a candidate with an infinite error, and almost
        # none about a candidate with an enormous one, whose square would overflow. Case of the
        # second: candidates that set all bits in all cohorts.
        is_finite = (distance < _ENORMOUS) & (np.abs(estimate) < _ENORMOUS)
        center, width = np.where(is_finite, estimate, 0.0), np.where(is_finite, distance, 0.0)
        # |x| is x above 0 and -x below 0. The end is above 0 exactly if `center` exceeds `width`.
        # With s = linear or -linear, both cases are the quadratic equation
        #     (1 + square) x^2 - (2 center + s) x + center^2 - width^2 = 0
        # and the lower end is its smaller root.
        signed = np.where(center > width, self.linear, -self.linear)
        middle = 2 * center + signed
        factor = 4 * (1 + self.square)
        root = np.sqrt(np.maximum(middle**2 - factor * (center - width) * (center + width), 0.0))
        return np.where(is_finite, 2 * (middle - root) / factor, -np.inf)
