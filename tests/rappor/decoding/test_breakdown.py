"""Breakdown numbers: how many forged reports change a result.

`forged_to_make` is the number of reports that gives an absent value the count of the row.
`forged_to_hide` is the number that makes the row undetected. Both assume a forger who sends the
report with the largest effect on the row. For categories the numbers are exact. For strings, a
simulated forger confirms them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from decodings import ABSENT, POPULATION, largest_error
from numpy.typing import NDArray

from rappor.auditing.pairs import unpack
from rappor.counts.counts import Counts
from rappor.counts.popcounts import compute_popcount_range
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

CATEGORIES = Params(k=3, encoding="onehot", categories=("a", "b", "c"), f=0.5, p=0.25, q=0.75)
BALANCED = Params.profile("balanced")
STRICT = Params.profile("strict")
TWO_HASHES = Params(k=64, h=2, m=32, f=0.25, p=0.1, q=0.6)
CANDIDATES = [*POPULATION.values, *ABSENT]
N = 400_000


def best_report(params: Params, value: str, *, lifts: bool) -> NDArray[np.bool_]:
    """Return the bits, (m, k), of the admissible report that changes a string's estimate most."""
    texts = POPULATION.values
    true_reports = [
        b"".join(get_encoder(params).encode(text, j) for j in range(params.m)) for text in texts
    ]
    bits = np.stack([unpack(report, params) for report in true_reports]).reshape(len(texts), -1)
    shares = np.asarray(POPULATION.weights, dtype=np.float64)
    shares = shares / shares.sum()
    mean = params.p_star + (params.q_star - params.p_star) * shares @ bits
    # The estimate of a string is linear in the bits. `estimate` has its coefficient of each bit,
    # from weighted least squares with a constant column for the background.
    columns = np.vstack([np.ones(bits.shape[1]), bits])
    weighted = columns / (mean * (1 - mean))
    estimate = np.linalg.solve(weighted @ columns.T, weighted)[1 + texts.index(value)]
    wanted = (estimate if lifts else -estimate).reshape(params.m, params.k)
    # A collector refuses numbers of ones that honest reports hardly ever have. The forger sets the
    # bits with the largest coefficients within these limits.
    least, most = compute_popcount_range(params)
    n_ones = np.clip((wanted > 0).sum(axis=1), least, most)
    rank = (-wanted).argsort(axis=1).argsort(axis=1)
    return np.asarray(rank < n_ones[:, None])


def forged(counts: Counts, value: str, n: int, *, lifts: bool, seed: int = 1) -> Counts:
    """Add n reports of the best forger, spread over the cohorts like honest reports."""
    rng = np.random.default_rng(seed)
    reports = rng.multinomial(n, counts.cohort_reports / counts.n_reports)
    bits = best_report(counts.params, value, lifts=lifts)
    return counts + Counts(counts.params, bits * reports[:, None], reports)


def row_of(estimates: Estimates, value: str) -> int:
    """Return the row of a candidate."""
    return estimates.candidates.index(value)


def decode_all(counts: Counts) -> Estimates:
    """Decode with all strings of `POPULATION` and 24 absent strings as candidates."""
    return decode(counts, CANDIDATES)


def is_detected(counts: Counts, value: str) -> bool:
    """Return whether a decode of all candidates detects a value."""
    estimates = decode_all(counts)
    return bool(estimates.detected[row_of(estimates, value)])


def test_forged_to_make_divides_the_count_by_the_worth_of_a_report() -> None:
    """`forged_to_make` of a category is its count divided by (1 - p*) / (q* - p*), rounded up.

    This quotient is the worth of a forged report: the count that one report with the bit adds to an
    absent category. Category c is not detected and has no numbers.
    """
    n, ones = 10_000, 5000
    worth = (1 - CATEGORIES.p_star) / (CATEGORIES.q_star - CATEGORIES.p_star)
    estimates = decode(Counts(CATEGORIES, [[ones, 6000, 3750]], [n]))
    made = int(estimates.forged_to_make[0])
    count = estimates.share[0] * n
    assert (made - 1) * worth < count <= made * worth
    assert list(estimates.detected) == [True, True, False]
    assert np.isnan(estimates.forged_to_make[2])
    assert np.isnan(estimates.forged_to_hide[2])


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
def test_forged_to_hide_is_the_smallest_number_that_hides_a_category(correction: str) -> None:
    """The stated number of reports hides a category, and one report fewer does not."""
    counts = Counts(CATEGORIES, [[5000, 6000, 3750]], [10_000])
    n = int(decode(counts, error_control=ErrorControl(method=correction)).forged_to_hide[0])

    def is_detected_after(extra: int) -> bool:
        """Add reports without bit a. The ones of b and c keep their proportions of the reports."""
        shares = np.array([[0, 0.6, 0.375]])
        more = Counts(CATEGORIES, np.round(shares * extra).astype(np.int64), [extra])
        return bool(
            decode(counts + more, error_control=ErrorControl(method=correction)).detected[0]
        )

    assert n > 1000
    assert is_detected_after(n - 1)
    assert not is_detected_after(n)


@pytest.mark.slow
@pytest.mark.parametrize("params", [BALANCED, STRICT, TWO_HASHES])
def test_forged_reports_make_a_row_from_nothing(params: Params) -> None:
    """The stated number of forged reports gives an absent string its count, and 80 % do not.

    The tolerance is exceeded in one of 1e9 simulations.
    """
    value = POPULATION.values[0]
    before = decode_all(simulate_counts(POPULATION, params, n_reports=N, seed=1))
    count = before.share[row_of(before, value)] * N
    made = int(before.forged_to_make[row_of(before, value)])
    others = Population(POPULATION.values[1:], POPULATION.weights[1:])
    results = []
    for n in (made, round(0.8 * made)):
        honest = simulate_counts(others, params, n_reports=N - made, seed=2)
        estimates = decode_all(forged(honest, value, n, lifts=True))
        at = row_of(estimates, value)
        margin = largest_error(2) * estimates.std_error[at] * estimates.reports
        results.append((estimates.share[at] * estimates.reports, margin))
    (enough, error), (fewer, error_of_fewer) = results
    assert abs(enough - count) < error
    assert fewer < count - error_of_fewer


@pytest.mark.parametrize("params", [BALANCED, STRICT, TWO_HASHES])
@pytest.mark.parametrize("value", ["true 0", "true 5"])
def test_forged_reports_hide_a_row(params: Params, value: str) -> None:
    """With 5 % more forged reports than stated, a row is not detected. With 20 % fewer it is.

    The string's own reports are fixed. Only the cohorts of the forged reports and their other bits
    are random.
    """
    honest = simulate_counts(POPULATION, params, n_reports=N, seed=3)
    estimates = decode_all(honest)
    n = estimates.forged_to_hide[row_of(estimates, value)]
    assert not is_detected(forged(honest, value, round(1.05 * n), lifts=False), value)
    assert is_detected(forged(honest, value, round(0.8 * n), lifts=False), value)


@pytest.mark.slow
def test_a_row_of_two_collections_is_hidden_by_reports_in_both() -> None:
    """If two collections are decoded together, half of the forged reports are in each of them.

    The forged reports also move weight to the noisier collection, so that two thirds of the stated
    number suffice here. Half of it does not.
    """
    params = [BALANCED, STRICT]
    honest = [
        simulate_counts(POPULATION, parameter_set, n_reports=N, seed=4) for parameter_set in params
    ]
    estimates = decode(honest, CANDIDATES)
    n = estimates.forged_to_hide[row_of(estimates, "true 1")]
    for share, is_hidden in ((1.05, True), (0.5, False)):
        both = [forged(counts, "true 1", round(share * n / 2), lifts=False) for counts in honest]
        after = decode(both, CANDIDATES)
        assert bool(after.detected[row_of(after, "true 1")]) is not is_hidden


def test_no_number_of_reports_hides_a_category_with_p_star_0() -> None:
    """With p* = 0 a report without the bit subtracts nothing, so no number hides the row."""
    params = Params(k=1, encoding="boolean", f=0.0, p=0.0, q=0.5, insecure=True)
    estimates = decode(Counts(params, [[100]], [1000]))
    assert math.isinf(estimates.forged_to_hide[0])
    (row,) = estimates.rows()
    assert row["forged_to_hide"] is None
    assert row["forged_to_make"] == 100
