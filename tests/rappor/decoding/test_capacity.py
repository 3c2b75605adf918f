"""Near capacity: all candidates are fitted, intervals cover, and shares lie on the simplex."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decodings import cells_of, covered, truth_of

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

SMALL = Params(k=64, m=8, f=0.035972, p=0.008993, q=0.508993)
"""512 rows, for 300 strings of shares in proportion to .98^i."""

WEIGHTS = 0.98 ** np.arange(300)


def names(seed: int) -> list[str]:
    return [f"{seed}/{i}" for i in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize("n_reports", [10**6, 10**7])
def test_intervals_cover_where_strings_fill_the_rows(n_reports: int) -> None:
    """1,200 intervals of a fit of all candidates cover. After a selection they covered 91.6 %."""
    inside = []
    for seed in range(4):
        population = Population(names(seed), WEIGHTS)
        counts = simulate_counts(population, SMALL, n_reports=n_reports, seed=seed)
        estimates = decode(counts, names(seed))
        inside.append(covered(estimates, truth_of(estimates, population)).mean())
        assert estimates.diagnostics["capacity"]["fitted"] == "all"
    assert 0.935 <= np.mean(inside) <= 0.97


def test_few_strings_among_many_rows_are_selected() -> None:
    """Few strings among many rows are selected, because a fit of all would be less accurate."""
    params = Params.profile("balanced")
    population = Population(names(1)[:20], WEIGHTS[:20])
    counts = simulate_counts(population, params, n_reports=10**6, seed=1)
    assert decode(counts, names(1)).diagnostics["capacity"]["fitted"] == "selected"


def test_a_heavy_string_that_is_no_candidate_leaves_the_selection() -> None:
    """A heavy string that is no candidate keeps the selection.

    As noise of a shrunken fit of all candidates it made every fifth detection false, without a
    warning.
    """
    population = Population(names(1), 1 / np.arange(1.0, 301.0))
    counts = simulate_counts(population, SMALL, n_reports=10**8, seed=1)
    absent = [f"absent/{i}" for i in range(200)]
    estimates = decode(counts, [*names(1)[1:], *absent])
    assert estimates.diagnostics["capacity"]["fitted"] == "selected"
    assert estimates.diagnostics["capacity"]["overfull"]
    detected = set(estimates.detected_candidates)
    assert len(detected.intersection(absent)) <= 0.1 * len(detected)


CROWDED = dataclasses.replace(Params.profile("strict"), k=32, m=16)
"""512 rows, of which a string has 16."""


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen for its bits", "random"])
@pytest.mark.slow
def test_candidates_chosen_for_the_bits_of_an_unlisted_string_are_overfull(
    *, is_chosen: bool
) -> None:
    """Candidates that were chosen for the bits of an unlisted string cause `overfull`.

    60 % of the reports have that string. Of 100 absent candidates, chosen among 30,000 texts for
    sharing its bits, most were detected without this warning. Random absent candidates cause no
    such warning.
    """
    n_overfull = 0
    for seed in range(3):
        present = names(seed)[:100]
        shares = 0.4 / np.arange(1.0, 101.0) / np.sum(1 / np.arange(1.0, 101.0))
        population = Population(["unlisted", *present], [0.6, *shares])
        counts = simulate_counts(population, CROWDED, n_reports=10**7, seed=seed)
        absent = [f"absent/{seed}/{i}" for i in range(30_000)]
        if is_chosen:
            shared = (cells_of(absent, CROWDED) == cells_of(["unlisted"], CROWDED)).sum(axis=1)
            absent = [absent[i] for i in np.argsort(-shared, kind="stable")]
        result = decode(counts, [*present, *absent[:100]])
        n_false = len(set(result.detected_candidates).intersection(absent))
        is_overfull = result.diagnostics["capacity"]["overfull"]
        assert is_overfull == (n_false > 0.2 * len(result.detected_candidates))
        n_overfull += is_overfull
    assert (n_overfull > 0) == is_chosen
