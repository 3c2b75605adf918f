"""Checks of counts: exact p-values, and a sentence about the largest deviation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor.auditing.check import Case, check_binomial, compute_binomial_p_values


@pytest.mark.parametrize(("n", "probability"), [(1, 0.3), (20, 0.5), (50, 0.01)])
def test_p_values_are_exact(n: int, probability: float) -> None:
    """The p-value is below a level with at most the level's probability, summed over all counts."""
    counts = np.arange(n + 1)
    distribution, p_values = (
        stats.binom.pmf(counts, n, probability),
        compute_binomial_p_values(counts, np.full(n + 1, n), np.full(n + 1, probability)),
    )
    for level in p_values:
        assert distribution[p_values <= level].sum() <= level * (1 + 1e-12)


def test_a_check_says_what_deviates_most() -> None:
    """The sentence describes the least likely count."""
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
    ("ones", "n", "words"),
    [
        (1, 1, "observed 1.000, expected 0.500"),
        (500_300, 10**6, "observed 0.5003, expected 0.5000"),
    ],
)
def test_a_share_has_a_digit_more_than_its_standard_error(ones: int, n: int, words: str) -> None:
    """Large counts need more digits. The sentence about a single count has no "largest"."""
    assert (
        check_binomial("share", [Case("both", ones, n, 0.5)]).detail == f"both: {words}, n = {n:,}"
    )


def test_nothing_counted_is_not_seen() -> None:
    """A check without trials has the verdict "not seen"."""
    check = check_binomial("share", [Case("ones", 0, 0, 0.5)])
    assert (check.verdict, check.p_value) == ("not seen", None)
