"""Variance of a weighted sum of samples from devices that the samples have in common.

Theory of operation
-------------------
The estimand of every contrast is the change in the population. Devices are a sample of the
population in each period, even if the same devices report in all periods.

The error of a sample has two parts: fresh coins, which are independent, and device noise, from the
values and the permanent responses of the devices. Let d_t be the weighted standard error of the
device noise of sample t, negative if the weight is negative, and rho the correlation of the device
noise of any two samples. If no share changed, the device noise of the sum has the variance

    sum of d_t^2 + rho (sum over s != t of d_s d_t)  =  (1 - rho) sum of d_t^2 + rho (sum of d_t)^2

Correlations are at least 0. If rho is unknown, the largest variance is assumed: samples with
weights of one sign have the same devices, and samples of the other sign have other devices:

    at most  (sum of the d_t > 0)^2 + (sum of the d_t < 0)^2

Devices that changed their value. Devices in two samples cancel if their value is the same. If a
share changed by delta, at least a share |delta| of the devices changed. Each of these devices has a
new permanent response in the row, so it counts as a new device. Let v_0 and v_1 be the variances of
the permanent response to a 0 and to a 1, and g the difference of the means. The difference of two
samples of the same D devices has the variance

    (|delta| (1 + (v_0 + v_1) / g^2) - delta^2 + (phi - |delta|) 2 v_0 / g^2) / D

phi is the share of devices that changed their value at all. Devices that changed between two other
values draw new permanent noise for the 0 of this row. Rows of strings include that noise in their
own variance (`rappor.comparison.change_regression`). Categories have no further rows, so the noise
is added explicitly. Without this variance, intervals of changed strings covered only 65 % of the
true changes at rho = 1.

Several samples: with u_t = w_t / sqrt(D_t) and levels theta_t, the covariance of two samples loses
half of the variance that their difference gains. So the variance of the sum gains

    -1/2 sum over s, t of u_s u_t |theta_s - theta_t|        in place of |delta| / D
    (sum of u_t theta_t)^2 - (sum of u_t) (sum of u_t theta_t^2)     of delta^2 / D

The first term is a sum over the gaps between sorted levels: gap_i U_i (U_i - U), where U_i is the
sum of the u_t below gap i and U the sum of all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

_SIGNIFICANT: Final = 0.05
"""Error probability at which a change counts in `estimate_other_changes`, over all values."""


def compute_device_variance(devices: Floats, device_correlation: float | None) -> Floats:
    """Return the variance, (n,), of the sum's device noise; the largest one if rho is unknown.

    Parameters
    ----------
    devices : (t, n) float64. Signed standard errors of the samples' device noise.
    device_correlation : rho: 0 if samples share no device, 1 if they share all devices.
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
    """Return the variance of changed devices: per |delta|, and per -delta^2, (n,) each.

    Parameters
    ----------
    weights : (t, n) float64. Weights of the samples; they sum to 0.
    inverse_devices : (t, n) float64. 1 / D_t.
    slope : (t, n) float64. Levels of the samples if the contrast is 1, up to a constant.
    """
    u = weights * np.sqrt(inverse_devices)
    total = u.sum(axis=0)
    order = np.argsort(slope, axis=0)
    below = np.cumsum(np.take_along_axis(u, order, axis=0), axis=0)[:-1]
    gaps = np.diff(np.take_along_axis(slope, order, axis=0), axis=0)
    linear = (gaps * below * (below - total)).sum(axis=0)
    square = (u * slope).sum(axis=0) ** 2 - total * (u * slope**2).sum(axis=0)
    return np.maximum(linear, 0.0), np.maximum(square, 0.0)


def estimate_other_changes(estimate: Floats, p_value: Floats) -> Floats:
    """Return a lower bound on the share of devices that changed between other values, (n,).

    A device that leaves a value takes another value, listed or not. So the share of all devices
    that changed is at least the sum of all rises, and at least the sum of all falls. Only
    significant changes count, because noise alone has rises and falls, too.

    Parameters
    ----------
    estimate, p_value : (n,) float64. Changes of n different values, and their p-values.
    """
    significant = np.where(p_value * len(p_value) <= _SIGNIFICANT, estimate, 0.0)
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
        """Return the variance, (n,), at changes delta, (n,)."""
        return np.maximum(np.abs(delta) * self.linear - delta**2 * self.square, 0.0)

    def interval(
        self, estimate: Floats, below: Floats, above: Floats, error: float | Floats
    ) -> tuple[Floats, Floats]:
        """Return the ends of intervals, (n,) each, with the error probability `error`.

        An end x satisfies (estimate - x)^2 = distance^2 + z^2 variance_at(x). The variance is 0 at
        x = 0, so an interval includes 0 exactly if the interval without changed devices includes 0.
        Tests of no change stay as they are.

        Parameters
        ----------
        below, above : (n,) float64. Distances between the estimate and the ends if nothing changed.
        """
        z2 = special.ndtri(np.maximum(np.asarray(error) / 2, 1e-300)) ** 2
        scaled = ChangeVariance(z2 * self.linear, z2 * self.square)
        return scaled._solve_low_end(estimate, below), -scaled._solve_low_end(-estimate, above)

    def _solve_low_end(self, estimate: Floats, reach: Floats) -> Floats:
        """Solve (estimate - x)^2 = reach^2 + |x| linear - x^2 square for the lower x."""
        is_finite = np.isfinite(reach) & np.isfinite(estimate)
        center, width = np.where(is_finite, estimate, 0.0), np.where(is_finite, reach, 0.0)
        # |x| is x above 0 and -x below 0. The end is above 0 exactly if `center` exceeds `width`.
        signed = np.where(center > width, self.linear, -self.linear)
        middle = 2 * center + signed
        factor = 4 * (1 + self.square)
        root = np.sqrt(np.maximum(middle**2 - factor * (center - width) * (center + width), 0.0))
        return np.where(is_finite, 2 * (middle - root) / factor, -np.inf)
