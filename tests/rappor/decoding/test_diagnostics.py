"""Diagnostics: silent about honest collections, outspoken about the others."""

from __future__ import annotations

import pytest
from decodings import (
    ABSENT,
    CANDIDATES,
    FALSE_ALARM,
    PARAMS,
    POPULATION,
    N,
    cells_of,
    counted,
)

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import FIT_FALSE_ALARM, warnings
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts


def test_an_honest_collection_raises_no_alarm() -> None:
    """Each of the checks calls an honest collection odd once in 1e9 or less."""
    found = decode(counted(), CANDIDATES).diagnostics
    assert found["odd_popcounts"] == []
    assert found["cohorts"][0]["p_value"] > FALSE_ALARM
    assert found["goodness_of_fit"]["p_value"] > FALSE_ALARM


def test_a_forged_cohort_has_odd_popcounts() -> None:
    """Reports of nothing but ones are no honest device's; the cohort is named."""
    ones = counted().ones.copy()
    ones[5] = counted().reports[5]
    estimates = decode(Counts(PARAMS, ones, counted().reports), CANDIDATES)
    odd = estimates.diagnostics["odd_popcounts"]
    assert [(entry["collection"], entry["cohort"]) for entry in odd] == [(0, 5)]
    assert odd[0]["true_bits"] > PARAMS.k


def test_a_heavy_non_candidate_shows_in_unexplained_bits() -> None:
    """The listed bits are that string's, with about its share."""
    params = Params(k=64, h=1, m=32, f=0.0, p=0.1, q=0.9)
    counts = simulate_counts(POPULATION, params, n_reports=N, seed=1)
    estimates = decode(counts, [*POPULATION.values[1:], *ABSENT])
    unexplained = estimates.diagnostics["unexplained_bits"]
    cells = set(cells_of(["true 0"], params)[0].tolist())
    assert len(unexplained) == 10
    assert {bit["cohort"] * params.k + bit["bit"] for bit in unexplained} <= cells
    assert all(bit["share"] == pytest.approx(0.3, rel=0.25) for bit in unexplained)


def test_unbalanced_cohorts_show() -> None:
    """A tenth more reports in one cohort do not come about at random."""
    counts = counted()
    ones, reports = counts.ones.copy(), counts.reports.copy()
    reports[0] += reports[0] // 10
    ones[0] += ones[0] // 10
    balance = decode(Counts(PARAMS, ones, reports), CANDIDATES).diagnostics["cohorts"][0]
    assert balance["p_value"] < FALSE_ALARM
    assert balance["largest"] == reports[0]


def test_a_bad_fit_warns_with_the_table() -> None:
    """Where the heaviest strings are no candidates, the table ends with a warning."""
    estimates = decode(counted(), ABSENT)
    (sentence,) = estimates.warnings
    assert estimates.diagnostics["goodness_of_fit"]["p_value"] < FIT_FALSE_ALARM
    assert str(estimates).endswith(sentence)
    assert sentence.startswith("The bits scatter ")
    assert "the counts cannot tell which" in sentence


@pytest.mark.parametrize("p_value", [FIT_FALSE_ALARM, 1.0])
def test_a_likely_fit_warns_of_nothing(p_value: float) -> None:
    """The sentence comes below the threshold only; a closed form has no fit to warn about."""
    assert warnings({"goodness_of_fit": {"chi2_per_degree": 1.0, "p_value": p_value}}) == ()
    assert warnings({}) == ()
