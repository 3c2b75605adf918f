"""Decoding near capacity: the present strings set a large part of the rows of the design matrix.

A row is one bit of one cohort. A string sets h bits in each cohort, so hundreds of present strings
share rows. The diagnostic `capacity` of the estimates has two entries for this case:

    fitted     candidates with a column in the regression: "all", "selected" or "shrunken"
    overfull   warning: collisions in shared rows make the results unreliable

`rappor.estimator.near_capacity` explains the theory and lists the cases.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decodings import compute_text_cells, compute_true_shares, is_covered

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

SMALL = Params(k=64, m=8, f=0.035972, p=0.008993, q=0.508993)
"""Parameters with 8 * 64 = 512 rows for 300 strings.

The noise is that of a loss of 4 nats for one report: q* = 1/2 and p* = 1 / (e^4 + 1) = .018, which
have the smallest variance for a rare string. The permanent response has f/2 = p*, and p and q
follow from p*, q* and f. Its loss is 8 nats.
"""

WEIGHTS = 0.98 ** np.arange(300)
"""Relative frequencies of the 300 strings. They decrease slowly, so many strings are frequent."""


def make_names(seed: int) -> list[str]:
    """Return 300 strings. Another seed gives other strings, and therefore other bits."""
    return [f"{seed}/{i}" for i in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize("n_reports", [10**6, 10**7])
def test_intervals_cover_if_strings_fill_the_rows(n_reports: int) -> None:
    """95 % intervals have their coverage if 300 present strings share 512 rows.

    The decoder fits all candidates at once. Bad case: a selection of candidates leaves out present
    strings that share rows with selected strings. The intervals of the selection contained 91.6 %
    of the true shares.
    """
    coverages = []
    for seed in range(4):
        population = Population(make_names(seed), WEIGHTS)
        counts = simulate_counts(population, SMALL, n_reports=n_reports, seed=seed)
        estimates = decode(counts, make_names(seed))
        coverages.append(is_covered(estimates, compute_true_shares(estimates, population)).mean())
        assert estimates.diagnostics["capacity"]["fitted"] == "all"
    # The coverage is a mean over 4 * 300 = 1,200 intervals. If they were independent, its standard
    # deviation would be .006. The lower bound is 2.4 standard deviations below 95 %, and the upper
    # bound is 3.2 above. The seeds are fixed, so the result is the same in every run.
    assert 0.935 <= np.mean(coverages) <= 0.97


def test_few_present_strings_are_selected() -> None:
    """If 20 of 300 candidates are present, and set few of the rows, the decoder fits a selection.

    A fit of all 300 candidates would estimate the share 0 of 280 absent candidates, too. The noise
    of these estimates would enlarge the errors of the 20 present candidates.
    """
    # 128 cohorts of 128 bits have 16,384 rows.
    params = Params.profile("balanced")
    population = Population(make_names(1)[:20], WEIGHTS[:20])
    counts = simulate_counts(population, params, n_reports=10**6, seed=1)
    assert decode(counts, make_names(1)).diagnostics["capacity"]["fitted"] == "selected"


def test_all_candidates_are_fitted_from_an_eighth_of_the_rows_if_each_sets_two_rows() -> None:
    """If a candidate sets two rows, n / 8 selected candidates of n rows lead to a fit of all.

    With h = 1 and two cohorts, each candidate sets two rows. The limit is then n / 8 selected
    candidates, and n / 6 if a candidate sets at least three rows. Here n is 2 * 64 = 128 rows, so
    the limits are 16 and 21.3. All 18 candidates are selected, which is between the limits. The
    least-squares fit of all candidates is valid, so there is no warning.
    """
    params = Params(k=64, h=1, m=2, f=0.0, p=0.225, q=0.775)
    names = make_names(1)[:18]
    # The largest weight is less than four times the smallest, so all 18 strings are selected.
    weights = np.linspace(23, 6, 18)
    counts = simulate_counts(Population(names, weights), params, n_reports=10**6, seed=1)
    capacity = decode(counts, names).diagnostics["capacity"]
    assert (capacity["fitted"], capacity["overfull"]) == ("all", False)


def test_a_frequent_unlisted_string_prevents_a_fit_of_all_candidates() -> None:
    """If a frequent string is no candidate, the decoder fits a selection, and warns (`overfull`).

    Bad case: a fit of all candidates with shrinkage explained the rows of the unlisted string by
    candidates that set some of these rows. 18 % of the detected strings were absent, and there was
    no warning.
    """
    population = Population(make_names(1), 1 / np.arange(1.0, 301.0))
    counts = simulate_counts(population, SMALL, n_reports=10**8, seed=1)
    absent = [f"absent/{i}" for i in range(200)]
    estimates = decode(counts, [*make_names(1)[1:], *absent])  # without the most frequent string
    assert estimates.diagnostics["capacity"]["fitted"] == "selected"
    assert estimates.diagnostics["capacity"]["overfull"]
    detected = set(estimates.detected_candidates)
    # 2 of 117 detected strings are absent. The bound lies between this share and 18 %.
    assert len(detected.intersection(absent)) <= 0.1 * len(detected)


CROWDED = dataclasses.replace(Params.profile("strict"), k=32, m=16)
"""Parameters with 16 * 32 = 512 rows. A string sets one bit in each cohort, which is 16 rows."""


def sort_by_shared_rows(texts: list[str], string: str, params: Params) -> list[str]:
    """Sort texts by the number of rows that they share with a string, largest number first."""
    # Row of the design matrix by text and cohort, (n, 16), and by cohort, (1, 16).
    rows_of_texts, rows_of_string = (
        compute_text_cells(texts, params),
        compute_text_cells([string], params),
    )
    n_shared = (rows_of_texts == rows_of_string).sum(axis=1)
    return [texts[i] for i in np.argsort(-n_shared, kind="stable")]


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen for its bits", "random"])
@pytest.mark.slow
def test_candidates_chosen_for_the_bits_of_an_unlisted_string_are_overfull(
    *, is_chosen: bool
) -> None:
    """Candidates that share many bits with a frequent unlisted string cause the warning `overfull`.

    60 % of the reports have the unlisted string. 100 candidates are present, and 100 are absent. If
    the absent candidates are those of 30,000 texts that share most rows with the unlisted string,
    they explain its rows together and look present. An analyst without the warning would publish
    them. Random absent candidates cause no warning.

    Absent strings among the detected strings, by seed:

        chosen   47 of 53 (warning), 4 of 46, 36 of 43 (warning)
        random   1 of 53, 2 of 59, 1 of 53
    """
    n_overfull = 0
    for seed in range(3):
        present = make_names(seed)[:100]
        # 40 % of the reports have one of the present candidates, by Zipf's law.
        weights = 1 / np.arange(1.0, 101.0)
        shares = 0.4 * weights / weights.sum()
        population = Population(["unlisted", *present], [0.6, *shares])
        counts = simulate_counts(population, CROWDED, n_reports=10**7, seed=seed)
        absent = [f"absent/{seed}/{i}" for i in range(30_000)]
        if is_chosen:
            absent = sort_by_shared_rows(absent, "unlisted", CROWDED)
        result = decode(counts, [*present, *absent[:100]])
        n_detected = len(result.detected_candidates)
        n_false = len(set(result.detected_candidates).intersection(absent))
        is_overfull = result.diagnostics["capacity"]["overfull"]
        # A fifth lies between the shares with a warning, 84 % or more, and without, 9 % or less.
        assert is_overfull == (n_false > 0.2 * n_detected)
        n_overfull += is_overfull
    assert (n_overfull > 0) == is_chosen
