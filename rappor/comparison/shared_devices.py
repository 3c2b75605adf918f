"""Devices that samples share: the variance that they add to a weighted sum of the samples.

Theory of operation
-------------------
The estimand of every contrast is that of the population. Devices are a sample of the population in
each period, also where the same devices report in all periods.

A sample's error has two parts: fresh coins, which are independent, and devices, that is their
values and their permanent noise. With d_t the weighted standard error that sample t has of its
devices (negative where its weight is negative), and rho the overlap of any two samples, the
devices' part of the sum has the variance

    sum of d_t^2 + rho (sum over s != t of d_s d_t)  =  (1 - rho) sum of d_t^2 + rho (sum of d_t)^2

if no share changed. Overlaps are at least 0. So if nothing is known of them, samples whose weights
have one sign may be the same devices, and samples of the other sign other devices:

    at most  (sum of the d_t > 0)^2 + (sum of the d_t < 0)^2

Devices that changed their value. The devices in both samples cancel where their value is the same.
A share that changed by delta changed in delta of the devices at least, and each of them is a new
device in that row: it has a new permanent response. With v_0 and v_1 the variances of the permanent
response to a 0 and to a 1, and g the difference of its means, the variance of the difference of two
samples of the same D devices is

    (|delta| (1 + (v_0 + v_1) / g^2) - delta^2 + (phi - |delta|) 2 v_0 / g^2) / D

phi is the part of the devices that changed their value at all: those who changed between other
values draw new permanent noise of this row's 0. Rows of strings show that noise themselves
(`rappor.comparison.change_regression`); answers have no other rows to show it. Before this was
added, intervals of changed strings held .65 of the truths at rho = 1.

Several samples, u_t = w_t / sqrt(D_t), on a path of levels theta_t. The covariance of two samples
loses half of what their difference gains, so that the sum gains

    -1/2 sum over s, t of u_s u_t |theta_s - theta_t|        in place of |delta| / D
    (sum of u_t theta_t)^2 - (sum of u_t) (sum of u_t theta_t^2)     of delta^2 / D

The first is a sum over the gaps between sorted levels: with U_i the sum of the u_t below gap i, of
gap_i U_i (U_i - U).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

_SIGNIFICANT: Final = 0.05
"""Probability that any of the values whose change counts did not change."""


def devices_variance(devices: Floats, overlap: float | None) -> Floats:
    """Return the variance, (n,), of the sum over samples; the most if no overlap is known.

    Parameters
    ----------
    devices : (t, n) float64. Signed standard errors that the samples have of their devices.
    overlap : rho, from 0 for other devices in each sample to 1 for the same ones.
    """
    if overlap is None:
        sides = [sign * np.maximum(sign * devices, 0.0).sum(axis=0) for sign in (1, -1)]
        return np.asarray(sides[0] ** 2 + sides[1] ** 2)
    alone = (devices**2).sum(axis=0)
    return np.asarray((1 - overlap) * alone + overlap * devices.sum(axis=0) ** 2)


def changed_sampling(weights: Floats, per_device: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """Return the variance that changed devices add: for a unit of |delta|, and of -delta^2, (n,).

    Parameters
    ----------
    weights : (t, n) float64. Weights of the samples; their sum is 0.
    per_device : (t, n) float64. 1 / D_t.
    slope : (t, n) float64. Levels of the samples if the contrast is 1, up to a constant.
    """
    u = weights * np.sqrt(per_device)
    total = u.sum(axis=0)
    order = np.argsort(slope, axis=0)
    below = np.cumsum(np.take_along_axis(u, order, axis=0), axis=0)[:-1]
    gaps = np.diff(np.take_along_axis(slope, order, axis=0), axis=0)
    linear = (gaps * below * (below - total)).sum(axis=0)
    square = (u * slope).sum(axis=0) ** 2 - total * (u * slope**2).sum(axis=0)
    return np.maximum(linear, 0.0), np.maximum(square, 0.0)


def least_changed(estimate: Floats, p_value: Floats) -> Floats:
    """Return which part of the devices changed between other values at least, (n,), for each value.

    Devices that leave a value come to another one, listed or not. So the part of all that changed
    is at least the sum of all rises, and that of all falls. Only significant changes count: noise
    alone has rises, too.

    Parameters
    ----------
    estimate, p_value : (n,) float64. Changes of n different values, and their p-values.
    """
    sure = np.where(p_value * len(p_value) <= _SIGNIFICANT, estimate, 0.0)
    changed = min(max(float(np.maximum(sure, 0.0).sum()), float(-np.minimum(sure, 0.0).sum())), 1.0)
    return np.maximum(changed - np.abs(sure), 0.0)


class ChangeVariance(NamedTuple):
    """Variance of the estimate of a change delta, beyond the variance if it is 0.

    It is |delta| `linear` - delta^2 `square`, (n,) each. `linear` is not below `square`.
    """

    linear: Floats
    square: Floats

    def at(self, delta: Floats) -> Floats:
        """Return the variance, (n,), at changes, (n,)."""
        return np.maximum(np.abs(delta) * self.linear - delta**2 * self.square, 0.0)

    def interval(
        self, estimate: Floats, below: Floats, above: Floats, error: float | Floats
    ) -> tuple[Floats, Floats]:
        """Return the ends of intervals, (n,) each, which miss with the probability `error`.

        An end is a change from which the estimate is as far as the noise at that change reaches.
        So an interval includes 0 exactly if it would without the devices that changed, and tests
        of no change stay as they are.

        Parameters
        ----------
        below, above : (n,) float64. Distances of the ends from the estimate if nothing changed.
        """
        z2 = special.ndtri(np.maximum(np.asarray(error) / 2, 1e-300)) ** 2
        scaled = ChangeVariance(z2 * self.linear, z2 * self.square)
        return scaled._low(estimate, below), -scaled._low(-estimate, above)

    def _low(self, estimate: Floats, reach: Floats) -> Floats:
        """Solve (estimate - x)^2 = reach^2 + |x| linear - x^2 square for the x below it."""
        known = np.isfinite(reach) & np.isfinite(estimate)
        center, width = np.where(known, estimate, 0.0), np.where(known, reach, 0.0)
        # Above 0 more noise is at larger x, below 0 at smaller ones.
        signed = np.where(center > width, self.linear, -self.linear)
        middle = 2 * center + signed
        factor = 4 * (1 + self.square)
        root = np.sqrt(np.maximum(middle**2 - factor * (center - width) * (center + width), 0.0))
        return np.where(known, 2 * (middle - root) / factor, -np.inf)
