"""Simulated reports of generalized randomized response, compared with the exact distribution."""

from __future__ import annotations

import numpy as np
import pytest
from enumeration import enumerate_buckets
from scipy import stats

from rappor import Params, ParamsError
from rappor.protocol.encodings import get_encoder
from rappor.simulation import Population, simulate_counts, simulate_repeated, simulate_reports

FALSE_ALARM = 1e-9
"""Probability that one check fails although the simulation is correct. With a larger value the
checks are stricter, and a correct simulation would fail more often."""

N = 200_000
"""Number of simulated devices."""


def check_multinomial(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Check that no count is in a tail of its binomial distribution.

    Bonferroni's method divides FALSE_ALARM by both tails of all counts.
    """
    n = counts.sum()
    for count, p in zip(counts, probabilities, strict=True):
        tail = min(stats.binom.cdf(count, n, p), stats.binom.sf(count - 1, n, p))
        assert tail > FALSE_ALARM / (2 * len(counts)), (count, n * p)


@pytest.mark.parametrize("value", ["", "a", "a\tb", "a\tb\tc\td", "a\tb\tc\td\te\tf\tg\th\ti"])
def test_reports_of_a_set_have_the_distribution_of_a_device(value: str) -> None:
    """The reported bucket of a set has the distribution that an enumeration of all coins gives.

    Sets are empty, smaller than three items (padded), or larger (cut), in two cohorts.
    """
    params = Params(k=8, m=2, items=3, keep=0.6, encoding="set")
    counts = simulate_counts(Population([value], [1]), params, n_reports=N, seed=7)
    encoder = get_encoder(params)
    for cohort in range(2):
        exact = enumerate_buckets(encoder.encode(encoder.parse_value(value), cohort), params)
        probabilities = [float(exact.get(bytes([1 << i]), 0)) for i in range(8)]
        check_multinomial(counts.bit_counts[cohort], np.array(probabilities))


def test_reports_of_categories_have_the_distribution_of_a_device() -> None:
    """Counts and sums of single reports have the probabilities p* + (q* - p*) share.

    A fifth of the devices has a value outside the categories, which is reported as "other".
    """
    params = Params(k=4, keep=0.8, encoding="onehot", categories=("a", "b", "c"))
    population = Population(["a", "b", "other"], [5, 3, 2])
    probabilities = params.p_star + (params.q_star - params.p_star) * np.array([0.5, 0.3, 0, 0.2])
    drawn = simulate_counts(population, params, n_reports=N, seed=3)
    check_multinomial(drawn.bit_counts[0], probabilities)
    repeated = simulate_repeated(population, params, devices={3: N}, seed=4).counts
    # All reports of a device are equal.
    assert not (repeated.bit_counts % 3).any()
    check_multinomial(repeated.bit_counts[0] // 3, probabilities)
    total = np.zeros(4, dtype=np.int64)
    for block in simulate_reports(population, params, n_reports=N, seed=5):
        bits = np.unpackbits(block.packed, axis=1, count=4, bitorder="little")
        assert (bits.sum(axis=1) == 1).all()
        total += bits.sum(axis=0, dtype=np.int64)
    check_multinomial(total, probabilities)


def test_independent_items_have_their_shares() -> None:
    """In a population of independent items, each item is in about its share of the sets.

    Repeated reports of sets cannot be simulated, so they are refused.
    """
    shares = {"a": 0.9, "b": 0.1, "c": 0.0}
    population = Population.of_independent_items(shares, n_sets=10_000, seed=1)
    for item, share in shares.items():
        weight = sum(
            weight
            for value, weight in zip(population.values, population.weights, strict=True)
            if item in value.split("\t")
        )
        tail = stats.binom.cdf(-abs(round(1e4 * (weight - share))) + 1e4 * share, 10_000, share)
        assert share == weight or tail > FALSE_ALARM
    params = Params.profile("once", encoding="set", items=2)
    with pytest.raises(ParamsError, match="encoding must not be set here"):
        simulate_repeated(population, params, devices={2: 10})
