"""P-values of candidates, under the hypothesis that the candidate is absent.

The bits of an absent string fall on random rows, one draw for each cohort and hash function. Its
score is the sum of the residuals of these rows. The p-value of a candidate is the probability that
the score of an absent string is at least as large.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM
from scipy import stats

from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator import bucket_tests, presence_tests
from rappor.estimator.debias import debias
from rappor.estimator.design_matrix import Design
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.fit import fit_rows
from rappor.estimator.score_tests import ResidualDraws
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

LOW_NOISE: dict[str, Any] = {"f": 0.0, "p": 0.225, "q": 0.775}
"""With this noise and millions of reports, only the random rows of an absent string matter."""


@pytest.mark.parametrize(("m", "h"), [(1, 1), (1, 2), (2, 1)])
def test_no_p_value_is_below_the_probability_of_equal_bits(m: int, h: int) -> None:
    """No p-value is below the probability that an absent string has the bits of a present one.

    An absent string with the same bits has the same score, however many reports there are. With m h
    random bits of k, the probability is k^(-m h).
    """
    params = Params(k=64, h=h, m=m, **LOW_NOISE)
    names = [f"s{i}" for i in range(4)]
    counts = simulate_counts(Population(names, [8, 4, 2, 1]), params, n_reports=10**7, seed=2)
    estimates = decode(counts, [*names, *(f"absent{i}" for i in range(30))])
    assert estimates.p_value.min() >= (1 / 64) ** (m * h)


@pytest.mark.parametrize("seed", [1, 4, 10, 18])
def test_rows_with_equal_counts_are_equally_likely(seed: int) -> None:
    """A row with as many ones as a row of the candidate counts as equal, in spite of rounding.

    In each of two cohorts, one other row has as many ones as the row of the candidate. An absent
    string sets two such rows with probability (2 / 16)^2, and its score is then equal to the score
    of the candidate. The share of the candidate is added to its own rows only, so rounding may make
    their residuals larger than the residuals of the other rows. It would do so with these seeds.
    """
    params = Params(k=16, h=1, m=2, f=0.0, p=0.25, q=0.75)
    names = [f"s{i}" for i in range(4)]
    rows = Candidates.from_list(names).compute_cells(params, 0, 1)[0]
    rng = np.random.default_rng(seed)
    ones = rng.binomial(60, 0.25, 32)
    for row, n_ones in zip(rows, rng.integers(30, 50, 2), strict=True):
        start = row // 16 * 16
        ones[[row, start + (row + 5) % 16]] = n_ones
    estimates = decode([Counts(params, ones.reshape(2, 16), [60, 60])], names, reports_per_device=1)
    assert estimates.p_value[estimates.candidates.index("s0")] >= (2 / 16) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("m", "h"), [(2, 1), (1, 2)])
def test_false_discovery_rate_holds_with_two_bits_for_each_string(m: int, h: int) -> None:
    """A fit of all candidates keeps the false discovery rate if a string has only two bits.

    Two bits are two cohorts, or two hash functions. The sum of two residuals is far from normal, so
    a normal p-value would be wrong. Each of 12 collections has 50 present and 100 absent strings on
    256 rows. At most 5 % of the detections are false in the mean.
    """
    params = replace(Params.profile("balanced"), k=256 // m, h=h, m=m)
    n_false = n_detected = 0
    for seed in range(12):
        names = [f"{seed}/{i}" for i in range(50)]
        population = Population(names, np.arange(3.0, 53.0) ** -1.1)
        counts = simulate_counts(population, params, n_reports=10**7, seed=seed)
        estimates = decode(counts, [*names, *(f"{seed}/absent/{i}" for i in range(100))])
        assert estimates.diagnostics["capacity"]["fitted"] == "all"
        detected = np.array(estimates.candidates)[estimates.detected]
        n_detected += len(detected)
        n_false += int((~np.isin(detected, names)).sum())
    assert n_detected > 12 * 20  # else a test that detects nothing would pass
    assert n_false <= stats.binom.isf(FALSE_ALARM, n_detected, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("lift", [0.5, 2.0, 20.0, 1000.0])
def test_the_tail_with_lifted_rows_equals_an_enumeration(lift: float) -> None:
    """The p-value by the formula is near the exact one, an enumeration of all absent strings.

    A selected string explains its rows, so the residuals there are small. To test it as if it were
    absent, its share is added again to its rows: they are lifted. An absent string has one of 8
    rows in each of 3 cohorts, hence 512 equally probable scores. The formula is continuous and the
    exact tail has steps, so the two may differ by a factor of e.
    """
    params = Params(k=8, h=1, m=3, **LOW_NOISE)
    population = Population(["a", "b"], [1, 2])
    target = debias(
        *add_collections([simulate_counts(population, params, n_reports=10**4, seed=1)])
    )
    draws = ResidualDraws(target, np.random.default_rng(1).normal(size=24))
    rows, lifts = np.array([1, 10, 20]), np.full(3, lift)
    values = draws.values.copy()
    values[rows] += lifts
    by_cohort = values.reshape(3, 8)
    sums = (by_cohort[0][:, None, None] + by_cohort[1][:, None] + by_cohort[2]).ravel()
    sums -= by_cohort.mean(1).sum()
    scores = np.quantile(sums, [0.9, 0.99])
    with np.errstate(all="raise", under="ignore"):
        p_values = draws.compute_tail_with_lifts(rows, lifts).p_values(scores)
    exact = np.array([np.mean(sums >= score) for score in scores])
    assert (np.abs(np.log(p_values / exact)) < 1.0).all()


@pytest.mark.parametrize("m", [32, 128])
def test_p_values_of_items_are_those_of_their_number_of_reports(
    m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence for items of sets is that of the exact test of their reports, within 6 %.

    The exact test needs no fit (`bucket_tests`), and its p-values are right for every number of
    reports. Here no item is frequent, so the regression has the same evidence. The reports of an
    item increase the noise of its own rows by a fifth. A test with this noise would lose a tenth of
    the logarithm of the p-value, as it did with 50 cohorts or more.
    """
    params = replace(Params.profile("once", encoding="set", items=8), m=m)
    names = [f"item {i}" for i in range(60)]
    # Each device has one of the items, or an item that is no candidate.
    shares = np.append(np.full(60, 0.01), np.full(400, 0.001))
    values = [*names, *(f"other {i}" for i in range(400))]
    counts = simulate_counts(Population(values, shares), params, n_reports=100_000, seed=m)
    absent = [f"absent {i}" for i in range(60)]
    by_fit = decode(counts, [*names, *absent])
    monkeypatch.setattr(bucket_tests, "_FEW_REPORTS", np.inf)
    by_reports = decode(counts, [*names, *absent])
    is_present = np.isin(by_fit.candidates, names)
    assert by_fit.candidates == by_reports.candidates
    assert by_fit.detected[is_present].sum() >= 40
    evidence, exact = (-np.log10(e.p_value[is_present]).mean() for e in (by_fit, by_reports))
    assert evidence == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize(
    ("encoding", "heaviest"), [("bloom", 20), ("set", 20), ("bloom", 1_000_000)]
)
def test_noise_without_a_share(encoding: str, heaviest: int) -> None:
    """The noise of a candidate's rows without its share is that of the smaller proportions.

    With the weight 1,000,000, nearly all devices have the first string, so some fitted proportions
    are above 1.
    """
    params = Params.profile("once", encoding="set", items=8)
    if encoding == "bloom":
        params = Params.profile("balanced")
    names = [f"s{i}" for i in range(20)]
    weights = np.array([heaviest, *range(19, 0, -1)])
    counts = simulate_counts(Population(names, weights), params, n_reports=100_000, seed=1)
    target = debias(*add_collections([counts]))
    columns = Design(Candidates.from_list(names), [params]).columns(np.arange(20))
    fit = fit_rows(target, columns)
    ratios = presence_tests._compute_noise_ratios(target, fit, columns)
    with_share = 1 / (fit.coin_variance + fit.tau2)
    for i, share in enumerate(fit.coefficients[1:]):
        rows = columns.indices[slice(*columns.indptr[i : i + 2])]
        without_share = presence_tests._compute_absent_weight(
            target, fit, rows.astype(np.int64), share
        )
        assert ratios[i] == pytest.approx(without_share.sum() / with_share[rows].sum(), rel=0.01)
    assert ratios.max() > 1.2
