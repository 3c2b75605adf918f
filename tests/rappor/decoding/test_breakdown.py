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
from decodings import ABSENT, POPULATION, compute_error_bound
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
"""Parameters under which a string has two bits in each cohort."""
CANDIDATES = [*POPULATION.values, *ABSENT]
N = 400_000
"""Number of honest reports. With more, forged reports are a smaller part of all reports."""


def find_best_report(params: Params, value: str, *, is_raising: bool) -> NDArray[np.bool_]:
    """Return the bits, (m, k), of the admissible report that changes the estimate of a string most.

    `is_raising` is True for the report that raises the estimate, and False for the one that lowers
    it. Row j has the bits of a report of cohort j.
    """
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
    gain = (estimate if is_raising else -estimate).reshape(params.m, params.k)
    # A collector refuses numbers of ones that honest reports hardly ever have. The forger sets the
    # bits with the largest coefficients within these limits.
    least, most = compute_popcount_range(params)
    n_ones = np.clip((gain > 0).sum(axis=1), least, most)
    rank = (-gain).argsort(axis=1).argsort(axis=1)
    return np.asarray(rank < n_ones[:, None])


def add_forged(counts: Counts, value: str, n: int, *, is_raising: bool, seed: int = 1) -> Counts:
    """Return counts with n more reports of the best forger, spread over the cohorts as before."""
    rng = np.random.default_rng(seed)
    reports = rng.multinomial(n, counts.cohort_reports / counts.n_reports)
    bits = find_best_report(counts.params, value, is_raising=is_raising)
    return counts + Counts(counts.params, bits * reports[:, None], reports)


def find_row(estimates: Estimates, value: str) -> int:
    """Return the number of the row of a candidate."""
    return estimates.candidates.index(value)


def decode_all(counts: Counts) -> Estimates:
    """Decode with all strings of `POPULATION` and 24 absent strings as candidates."""
    return decode(counts, CANDIDATES)


def is_detected(counts: Counts, value: str) -> bool:
    """Return whether a decode of all candidates detects a value."""
    estimates = decode_all(counts)
    return bool(estimates.detected[find_row(estimates, value)])


def test_forged_to_make_divides_the_count_by_the_effect_of_a_report() -> None:
    """`forged_to_make` of a category is its count divided by (1 - p*) / (q* - p*), rounded up.

    This quotient is the effect of a forged report: one report with the bit adds as much to the
    estimated count of an absent category. Category c is not detected and has no such numbers.
    """
    n, bit_count = 10_000, 5000
    effect = (1 - CATEGORIES.p_star) / (CATEGORIES.q_star - CATEGORIES.p_star)
    estimates = decode(Counts(CATEGORIES, [[bit_count, 6000, 3750]], [n]))
    n_forged = int(estimates.forged_to_make[0])
    count = estimates.share[0] * n
    assert (n_forged - 1) * effect < count <= n_forged * effect
    assert list(estimates.detected) == [True, True, False]
    assert np.isnan(estimates.forged_to_make[2])
    assert np.isnan(estimates.forged_to_hide[2])


@pytest.mark.parametrize("correction", ["bh", "adaptive", "bonferroni"])
def test_forged_to_hide_is_the_smallest_number_that_hides_a_category(correction: str) -> None:
    """`forged_to_hide` reports without the bit of a category hide it, and one fewer does not."""
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
    """`forged_to_make` forged reports give an absent string the count of the row, and 80 % do not.

    `before` has the row of a string that devices have. Afterwards no device has this string, and
    the forger replaces it. The tolerance is exceeded in one of 1e9 simulations.
    """
    value = POPULATION.values[0]
    before = decode_all(simulate_counts(POPULATION, params, n_reports=N, seed=1))
    count = before.share[find_row(before, value)] * N
    n_forged = int(before.forged_to_make[find_row(before, value)])
    population_without_value = Population(POPULATION.values[1:], POPULATION.weights[1:])
    results = []
    for n in (n_forged, round(0.8 * n_forged)):
        honest = simulate_counts(population_without_value, params, n_reports=N - n_forged, seed=2)
        estimates = decode_all(add_forged(honest, value, n, is_raising=True))
        row = find_row(estimates, value)
        margin = compute_error_bound(2) * estimates.std_error[row] * estimates.reports
        results.append((estimates.share[row] * estimates.reports, margin))
    (count_of_all, margin_of_all), (count_of_fewer, margin_of_fewer) = results
    assert abs(count_of_all - count) < margin_of_all
    assert count_of_fewer < count - margin_of_fewer


@pytest.mark.parametrize("params", [BALANCED, STRICT, TWO_HASHES])
@pytest.mark.parametrize("value", ["true 0", "true 5"])
def test_forged_reports_hide_a_row(params: Params, value: str) -> None:
    """With 5 % more forged reports than `forged_to_hide`, a string is not detected.

    With 20 % fewer it is still detected. The number is exact for categories only. For strings it
    assumes a fixed design matrix and covariance, which the forged reports change a little. The
    honest counts come from one simulation; only the cohorts of the forged reports are random.
    """
    honest = simulate_counts(POPULATION, params, n_reports=N, seed=3)
    estimates = decode_all(honest)
    n = estimates.forged_to_hide[find_row(estimates, value)]
    assert not is_detected(add_forged(honest, value, round(1.05 * n), is_raising=False), value)
    assert is_detected(add_forged(honest, value, round(0.8 * n), is_raising=False), value)


@pytest.mark.slow
def test_a_row_of_two_collections_is_hidden_by_reports_in_both() -> None:
    """`forged_to_hide` of two collections that are decoded together assumes half of them in each.

    The forged reports also change the weights of the two collections in the pooled estimate: the
    noisier one gets more weight. Two thirds of the number suffice here for this reason, but half of
    the number does not.
    """
    params = [BALANCED, STRICT]
    honest = [
        simulate_counts(POPULATION, parameter_set, n_reports=N, seed=4) for parameter_set in params
    ]
    estimates = decode(honest, CANDIDATES)
    n = estimates.forged_to_hide[find_row(estimates, "true 1")]
    for share, is_hidden in ((1.05, True), (0.5, False)):
        n_each = round(share * n / 2)
        both = [add_forged(counts, "true 1", n_each, is_raising=False) for counts in honest]
        after = decode(both, CANDIDATES)
        assert bool(after.detected[find_row(after, "true 1")]) is not is_hidden


def test_no_number_of_reports_hides_a_category_with_p_star_0() -> None:
    """With p* = 0 a report without the bit subtracts nothing, so no number hides the row."""
    params = Params(k=1, encoding="boolean", f=0.0, p=0.0, q=0.5, insecure=True)
    estimates = decode(Counts(params, [[100]], [1000]))
    assert math.isinf(estimates.forged_to_hide[0])
    (row,) = estimates.rows()
    assert row["forged_to_hide"] is None
    assert row["forged_to_make"] == 100
