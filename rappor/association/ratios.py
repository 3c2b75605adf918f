"""Ratios of two estimated shares, with Fieller's interval.

A conditional share is a ratio x / y: the share of a cell, divided by the margin of its row or its
column. Both estimates have noise, and the noise is correlated, because the margin contains the
cell.

The interval of Fieller [F54] contains the ratios theta for which x - theta y is within z standard
errors of 0. With V_xx, V_xy and V_yy the variances and the covariance of x and y:

    (x - theta y)^2 <= z^2 (V_xx - 2 theta V_xy + theta^2 V_yy)

An interval of the form ratio +- z standard errors would be wrong where the margin is only a few of
its own errors above 0: it is symmetric, and the noise of a ratio is not.

If y is within z of its standard errors from 0, no finite interval solves the inequality. The counts
then contain no information about the ratio. The ratio is NaN, and its interval is 0 to 1.

[F54] Fieller. Some problems in interval estimation. JRSS-B 16, 1954.
"""

from __future__ import annotations

import numpy as np

from rappor.association.share_table import ShareTable
from rappor.counts.arrays import Floats


def estimate_ratios(
    numerator: Floats,
    denominator: Floats,
    variances: tuple[Floats, Floats, Floats],
    critical_value: float,
) -> ShareTable:
    """Estimate ratios whose true values are between 0 and 1, with Fieller's intervals.

    Parameters
    ----------
    numerator, denominator : float64 arrays of one shape. x and y, as shares.
    variances : V_xx, V_xy and V_yy, float64 arrays of the same shape.
    critical_value : z, half width of a normal interval in standard errors.

    Returns
    -------
    The ratios, unclipped. NaN with the interval from 0 to 1 where the denominator is unknown.
    """
    of_numerator, joint, of_denominator = variances
    # The inequality is a theta^2 - 2 b theta + c <= 0, which has a finite interval if a > 0.
    a = denominator**2 - critical_value**2 * of_denominator
    b = numerator * denominator - critical_value**2 * joint
    c = numerator**2 - critical_value**2 * of_numerator
    # Case: a denominator far below 0. No true share is negative, so it is noise.
    is_known = (a > 0) & (denominator > 0)
    # The divisors are 1 where the ratio is unknown, to avoid a division by zero.
    leading = np.where(is_known, a, 1.0)
    divisor = np.where(is_known, denominator, 1.0)
    ratio = numerator / divisor
    variance = (of_numerator - 2 * ratio * joint + ratio**2 * of_denominator) / divisor**2
    # The ratio itself solves the inequality, so b^2 - a c is negative by rounding errors only.
    half_width = np.sqrt(np.maximum(b**2 - leading * c, 0.0)) / leading
    return ShareTable(
        share=np.where(is_known, ratio, np.nan),
        std_error=np.where(is_known, np.sqrt(np.maximum(variance, 0.0)), np.inf),
        ci_low=np.where(is_known, b / leading - half_width, 0.0),
        ci_high=np.where(is_known, b / leading + half_width, 1.0),
    )
