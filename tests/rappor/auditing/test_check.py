"""Checks of bit counts: exact p-values, and a sentence about the largest deviation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor.auditing.check import Case, check_binomial, compute_binomial_p_values
from rappor.auditing.patterns import Patterns


@pytest.mark.parametrize(("n", "probability"), [(1, 0.3), (20, 0.5), (50, 0.01)])
def test_p_values_are_exact(n: int, probability: float) -> None:
    """The probability of a p-value of at most any level is at most the level, over all counts."""
    counts = np.arange(n + 1)
    distribution, p_values = (
        stats.binom.pmf(counts, n, probability),
        compute_binomial_p_values(counts, np.full(n + 1, n), np.full(n + 1, probability)),
    )
    for level in p_values:
        assert distribution[p_values <= level].sum() <= level * (1 + 1e-12)


def test_the_detail_of_a_check_is_the_largest_deviation() -> None:
    """The detail describes the count with the smallest p-value.

    A count without trials is no test. The p-value is two-sided, and Bonferroni's method multiplies
    it by the number of counts.
    """
    cases = [Case("bit 7 given true 0", 252, 500, 0.5), Case("bit 8 given true 0", 0, 0, 0.5)]
    check = check_binomial("share of ones", [*cases, Case("bit 119 given true 1", 488, 880, 0.5)])
    assert check.detail == (
        "largest deviation of 2 counts: bit 119 given true 1: observed 0.555, expected 0.500, "
        "n = 880"
    )
    assert check.verdict == "pass"
    both_sides, counts = 2, 2
    p_value = both_sides * counts * stats.binom.sf(487, 880, 0.5)
    assert check.p_value == pytest.approx(p_value, rel=1e-12)


@pytest.mark.parametrize(
    ("n_ones", "n", "words"),
    [
        (1, 1, "observed 1.000, expected 0.500"),
        (500_300, 10**6, "observed 0.5003, expected 0.5000"),
    ],
)
def test_a_share_has_a_digit_more_than_its_standard_error(n_ones: int, n: int, words: str) -> None:
    """A share is written with one digit more than its standard error, and at least three.

    The standard error of 1e6 trials is .0005, so the share has four digits.
    """
    assert (
        check_binomial("share", [Case("both", n_ones, n, 0.5)]).detail
        == f"both: {words}, n = {n:,}"
    )


def test_a_check_without_trials_is_not_seen() -> None:
    """A check without trials has the verdict "not seen"."""
    check = check_binomial("share", [Case("ones", 0, 0, 0.5)])
    assert (check.verdict, check.p_value) == ("not seen", None)


def test_pattern_lists_its_digits_in_the_order_of_the_named_bits() -> None:
    """A response whose bit 0 alone is 1 is printed as "bits 0, 1, 2 show 100".

    The check expects fair coins, so a constant response is a fault, and its detail names the
    pattern.
    """
    patterns = Patterns(3, np.random.default_rng(1))
    bits = np.tile(np.array([True, False, False]), (1000, 1))
    patterns.add(bits, bits)
    check = patterns.check("pairs and triples of bits", (0.5, 0.5))
    assert check.verdict == "fault"
    assert "bits 0, 1, 2 show 100 given true 100: observed 1.000, expected 0.125" in check.detail
