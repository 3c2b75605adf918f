"""Fieller's interval of a ratio of two estimates, such as the share of a cell in its row."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor.association.ratios import estimate_ratios

Z = stats.norm.isf(0.025)
"""Critical value. An interval of Z standard errors has a confidence of 95 %."""


def test_ends_solve_the_equation_of_fieller() -> None:
    """At both ends theta of the interval of x / y, x - theta y is z standard errors from 0."""
    x, y = np.array([0.02, 0.3, -0.01]), np.array([0.1, 0.4, 0.2])
    variances = (np.full(3, 1e-4), np.array([4e-5, 0.0, -2e-5]), np.full(3, 2e-4))
    ratios = estimate_ratios(x, y, variances, Z)
    np.testing.assert_allclose(ratios.share, x / y)
    for end in (ratios.ci_low, ratios.ci_high):
        variance = variances[0] - 2 * end * variances[1] + end**2 * variances[2]
        np.testing.assert_allclose((x - end * y) ** 2, Z**2 * variance)
    assert (ratios.ci_low < ratios.share).all()
    assert (ratios.share < ratios.ci_high).all()


@pytest.mark.parametrize("denominator", [0.0, 0.019, -0.019, -0.5])
def test_unknown_denominator_leaves_the_ratio_unknown(denominator: float) -> None:
    """A ratio is NaN, with the interval 0 to 1, if its denominator is not significantly positive.

    The standard error is 0.01, so 0.019 is within z = 1.96 standard errors of 0.
    """
    variances = (np.array([1e-4]), np.array([0.0]), np.array([1e-4]))
    ratios = estimate_ratios(np.array([0.01]), np.array([denominator]), variances, Z)
    assert np.isnan(ratios.share[0])
    assert np.isinf(ratios.std_error[0])
    assert (ratios.ci_low[0], ratios.ci_high[0]) == (0.0, 1.0)
    assert ratios.row(0) == {"share": None, "std_error": None, "ci_low": 0.0, "ci_high": 1.0}


def test_part_and_remainder_have_mirrored_intervals() -> None:
    """The interval of x / y, mirrored at 1/2, is the interval of (y - x) / y.

    x and y - x are independent, so the variances satisfy var y = var x + var (y - x).
    """
    x, y = np.array([0.05]), np.array([0.2])
    var_x, var_rest = np.array([1e-4]), np.array([3e-4])
    var_y = var_x + var_rest
    part = estimate_ratios(x, y, (var_x, var_x, var_y), Z)
    rest = estimate_ratios(y - x, y, (var_rest, var_rest, var_y), Z)
    np.testing.assert_allclose(part.ci_low, 1 - rest.ci_high)
    np.testing.assert_allclose(part.std_error, rest.std_error)
