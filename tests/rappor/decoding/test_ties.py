"""Identifiability groups: candidates that no counts can distinguish.

The members of a group have the same bits in every cohort. Each member has the estimate of the whole
group.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from decodings import (
    CANDIDATES,
    N_REPORTS,
    compute_error_bound,
    compute_text_cells,
    simulate_population_counts,
)

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def find_colliding(params: Params) -> tuple[str, str, str]:
    """Return two strings with the same bits in every cohort, and a third one with other bits.

    With k = 16 and m = 2, one hash function has 256 patterns of bits, so two strings soon collide.
    """
    text_of_bits: dict[bytes, str] = {}
    for i in range(10_000):
        text = f"text {i}"
        key = np.sort(compute_text_cells([text], params)[0]).tobytes()
        if key in text_of_bits:
            return (
                text_of_bits[key],
                text,
                next(third for third in text_of_bits.values() if third != text_of_bits[key]),
            )
        text_of_bits[key] = text
    raise AssertionError("no two strings collide")


@pytest.mark.parametrize("h", [1, 2])
def test_candidates_of_the_same_bits_are_a_group(h: int) -> None:
    """Both members of a group have the share of the group, which counts once in the sum.

    Two strings with 30 % and 20 % of the reports both have the share 50 %. If the sum counted both,
    the unallocated share would be -50 %.
    """
    params = Params(k=16, h=h, m=2, f=0.0, p=0.1, q=0.9)
    first, second, third = find_colliding(params)
    population = Population([first, second, third], [0.3, 0.2, 0.5])
    counts = simulate_counts(population, params, n_reports=N_REPORTS, seed=1)
    estimates = decode(counts, [third, second, first], distribution=True)
    rows = {row["candidate"]: row for row in estimates.rows()}
    first_row, second_row = dict(rows[first]), dict(rows[second])
    assert first_row.pop("candidate") != second_row.pop("candidate")
    assert first_row == second_row
    assert first_row["group"] == 1
    assert "group" not in rows[third]
    assert estimates.diagnostics["groups"] == [[second, first]]
    errors = [rows[text]["std_error"] / N_REPORTS for text in (first, third)]
    # The group has .3 + .2 of the reports, and the third string has .5.
    for text, error in zip((first, third), errors, strict=True):
        assert abs(rows[text]["share"] - 0.5) < compute_error_bound(2) * error
    total = rows[first]["share"] + rows[third]["share"]
    assert abs(estimates.unallocated - (1 - total)) < 0.1 * estimates.unallocated_std_error


@pytest.mark.parametrize("k", [2, 3, 8])
def test_a_share_that_the_counts_do_not_determine_has_no_error(k: int) -> None:
    """A candidate whose column is a combination of other columns has no standard error.

    32 candidates have at most k different columns, so most candidates are in groups. With k = 2,
    the two columns add up to the background. Such a candidate has a row without error and interval,
    and is not detected.
    """
    params = Params(k=k, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(simulate_population_counts(params), CANDIDATES)
    is_unknown = ~np.isfinite(estimates.std_error)
    assert is_unknown.any() or k > 2
    assert not estimates.detected[is_unknown].any()
    unknown_rows = [row for row, flag in zip(estimates.rows(), is_unknown, strict=True) if flag]
    for row in unknown_rows:
        assert row["std_error"] is row["ci_low"] is row["ci_high"] is None
    document = json.loads(estimates.to_json(), parse_constant=pytest.fail)
    assert len(document["estimates"]) == len(CANDIDATES)
    assert sum(len(group) for group in document["diagnostics"]["groups"]) >= len(CANDIDATES) - k
