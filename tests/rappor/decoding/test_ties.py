"""Candidates that the counts cannot distinguish."""

from __future__ import annotations

import json

import numpy as np
import pytest
from decodings import CANDIDATES, N, cells_of, counted, largest_error

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population


def colliding(params: Params) -> tuple[str, str, str]:
    """Find two strings with the same bits in every cohort, and a third with other bits."""
    seen: dict[bytes, str] = {}
    for i in range(10_000):
        text = f"text {i}"
        key = np.sort(cells_of([text], params)[0]).tobytes()
        if key in seen:
            return seen[key], text, next(other for other in seen.values() if other != seen[key])
        seen[key] = text
    raise AssertionError("no two strings collide")


@pytest.mark.parametrize("h", [1, 2])
def test_candidates_of_the_same_bits_are_a_group(h: int) -> None:
    """Both members of a group show its total, and the unallocated share counts it once."""
    params = Params(k=16, h=h, m=2, f=0.0, p=0.1, q=0.9)
    first, second, third = colliding(params)
    population = Population([first, second, third], [0.3, 0.2, 0.5])
    counts = simulate_counts(population, params, n_reports=N, seed=1)
    estimates = decode(counts, [third, second, first], distribution=True)
    rows = {row["candidate"]: row for row in estimates.rows()}
    ours, theirs = dict(rows[first]), dict(rows[second])
    assert ours.pop("candidate") != theirs.pop("candidate")
    assert ours == theirs
    assert ours["group"] == 1
    assert "group" not in rows[third]
    assert estimates.diagnostics["groups"] == [[second, first]]
    errors = [rows[text]["std_error"] / N for text in (first, third)]
    for text, share, error in zip((first, third), (0.5, 0.5), errors, strict=True):
        assert abs(rows[text]["share"] - share) < largest_error(2) * error
    total = rows[first]["share"] + rows[third]["share"]
    assert abs(estimates.unallocated - (1 - total)) < 0.1 * estimates.unallocated_std_error


@pytest.mark.parametrize("k", [2, 3, 8])
def test_what_cannot_be_known_has_no_error(k: int) -> None:
    """A candidate whose column is a combination of others has a row without a finite error."""
    params = Params(k=k, h=1, m=1, f=0.5, p=0.25, q=0.75)
    estimates = decode(counted(params), CANDIDATES)
    unknown = ~np.isfinite(estimates.std_error)
    assert unknown.any() or k > 2
    assert not estimates.detected[unknown].any()
    rows = [row for row, lost in zip(estimates.rows(), unknown, strict=True) if lost]
    for row in rows:
        assert row["std_error"] is row["ci_low"] is row["ci_high"] is None
    document = json.loads(estimates.to_json(), parse_constant=pytest.fail)
    assert len(document["estimates"]) == len(CANDIDATES)
    assert sum(len(group) for group in document["diagnostics"]["groups"]) >= len(CANDIDATES) - k
