"""What samples have in common: the variance of a weighted sum of them.

Theory of operation
-------------------
A sample's error has two parts: what fresh coins add, which is independent, and what its devices
bring, their values and their permanent noise. Devices in several samples bring the same again. With
d_t the weighted standard error that sample t has of its devices (negative where its weight is), and
rho the overlap of any two samples, the devices' part of the sum has the variance

    sum of d_t^2 + rho (sum over s != t of d_s d_t)  =  (1 - rho) sum of d_t^2 + rho (sum of d_t)^2

Overlaps are at least 0. So if nothing is known of them, samples whose weights have one sign may be
the same devices, and those of other signs other devices:

    at most  (sum of the d_t > 0)^2 + (sum of the d_t < 0)^2
"""

from __future__ import annotations

import numpy as np

from rappor.counts.arrays import Floats


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
