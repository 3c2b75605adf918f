"""Near capacity: all candidates are fitted, their errors are honest, shares lie on the simplex."""

from __future__ import annotations

import numpy as np
import pytest
from decodings import covered, truth_of

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

SMALL = Params(k=64, m=8, f=0.035972, p=0.008993, q=0.508993)
"""512 rows, for 300 strings of shares in proportion to .98^i."""

WEIGHTS = 0.98 ** np.arange(300)


def names(seed: int) -> list[str]:
    return [f"{seed}/{i}" for i in range(300)]


@pytest.mark.parametrize("n_reports", [10**6, 10**7])
def test_intervals_cover_where_strings_fill_the_rows(n_reports: int) -> None:
    """1,200 intervals; after a selection they covered 91.6 %."""
    inside = []
    for seed in range(4):
        population = Population(names(seed), WEIGHTS)
        counts = simulate_counts(population, SMALL, n_reports=n_reports, seed=seed)
        found = decode(counts, names(seed))
        inside.append(covered(found, truth_of(found, population)).mean())
        assert found.diagnostics["capacity"]["fitted"] == "all"
    assert 0.935 <= np.mean(inside) <= 0.97


def test_few_strings_among_many_rows_are_selected() -> None:
    """A fit of all candidates would cost accuracy there."""
    params = Params.profile("balanced")
    population = Population(names(1)[:20], WEIGHTS[:20])
    counts = simulate_counts(population, params, n_reports=10**6, seed=1)
    assert decode(counts, names(1)).diagnostics["capacity"]["fitted"] == "selected"


def test_a_heavy_string_that_is_no_candidate_leaves_the_selection() -> None:
    """As noise of a fit of all it made every fifth detection false, in an answer that was sure."""
    population = Population(names(1), 1 / np.arange(1.0, 301.0))
    counts = simulate_counts(population, SMALL, n_reports=10**8, seed=1)
    absent = [f"absent/{i}" for i in range(200)]
    found = decode(counts, [*names(1)[1:], *absent])
    assert found.diagnostics["capacity"]["fitted"] == "selected"
    assert found.diagnostics["capacity"]["overfull"]
    detected = set(found.detected_candidates)
    assert len(detected.intersection(absent)) <= 0.1 * len(detected)
