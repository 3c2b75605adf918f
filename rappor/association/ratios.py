"""Ratios of two estimated shares, with Fieller's interval.

A conditional share is a ratio x / y: the share of a cell, divided by the margin of its row or its
column. Both estimates have noise, and the noise is correlated, because the margin contains the
cell.

The interval of Fieller [F54] contains the ratios theta for which x - theta y is within z standard
errors of 0. With V_xx, V_xy and V_yy the variances and the covariance of x and y:

    (x - theta y)^2 <= z^2 (V_xx - 2 theta V_xy + theta^2 V_yy)

*Example.* A cell has the share x = .06 and its row the share y = .10, both with the standard error
.02, and the covariance is .0002. The ratio is .6, and with z = 1.96 the interval is .25 to .99.

A simpler interval is the ratio plus or minus z standard errors. It is symmetric, but the noise of a
ratio is not: if noise makes y small, the ratio becomes very large. So the simple interval is wrong
where the margin is only a few of its standard errors above 0.

If y is less than z standard errors from 0, the true y may be 0, and any ratio is possible: no
finite interval solves the inequality. The ratio is then NaN, and its interval is 0 to 1.

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
    # Collected by powers of theta, the inequality is a theta^2 - 2 b theta + c <= 0. If a > 0, its
    # solutions are the interval from (b - sqrt(b^2 - a c)) / a to (b + sqrt(b^2 - a c)) / a.
    a = denominator**2 - critical_value**2 * of_denominator
    b = numerator * denominator - critical_value**2 * joint
    c = numerator**2 - critical_value**2 * of_numerator
    # a > 0 means that the denominator is more than z standard errors from 0. Case: it is as far
    # below 0. No true share is negative, so this denominator is nothing but noise.
    is_known = (a > 0) & (denominator > 0)
    # The divisors are 1 where the ratio is unknown, to avoid a division by zero.
    leading = np.where(is_known, a, 1.0)
    divisor = np.where(is_known, denominator, 1.0)
    ratio = numerator / divisor
    # Variance of x - theta y at the estimated ratio, divided by y^2: to first order in the noise,
    # the ratio changes by (change of x - ratio times change of y) / y.
    variance = (of_numerator - 2 * ratio * joint + ratio**2 * of_denominator) / divisor**2
    # At theta = x / y the left side of Fieller's inequality is 0, so it has a solution. Therefore
    # b^2 - a c is negative by rounding errors only.
    half_width = np.sqrt(np.maximum(b**2 - leading * c, 0.0)) / leading
    return ShareTable(
        share=np.where(is_known, ratio, np.nan),
        std_error=np.where(is_known, np.sqrt(np.maximum(variance, 0.0)), np.inf),
        ci_low=np.where(is_known, b / leading - half_width, 0.0),
        ci_high=np.where(is_known, b / leading + half_width, 1.0),
    )
