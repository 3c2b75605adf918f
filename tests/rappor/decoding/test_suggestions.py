"""Suggestions: present strings of a larger list that the known candidates do not contain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rappor import Candidates, Counts, Params, Population, simulate_counts
from rappor.base.errors import DecodeError
from rappor.decoding.suggestions import suggest_candidates
from rappor.estimator.error_control import ErrorControl

KNOWN = ["vscode", "vim", "emacs"]
BALANCED = Params.profile("balanced")
PARAMS = dataclasses.replace(BALANCED, k=64, m=16)
"""So few rows that a stream of 30,000 strings is not held."""

LIST = ["helix", "zed", *KNOWN, *(f"editor {i}" for i in range(30_000))]


def collect(names: list[str], weights: list[float]) -> Counts:
    population = Population(names, weights)
    return simulate_counts(population, PARAMS, n_reports=1e6, seed=1)


@pytest.mark.parametrize("n_listed", [300, len(LIST)])
def test_what_is_not_known_is_suggested(n_listed: int) -> None:
    """Present strings of a list or a stream are suggested, but never a known string."""
    counts = collect([*KNOWN, "helix", "zed"], [50, 20, 10, 12, 8])
    suggestions = suggest_candidates(counts, KNOWN, Candidates.from_list(LIST[:n_listed]))
    assert suggestions.strings[:2] == ("helix", "zed")
    assert not set(suggestions.strings) & set(KNOWN)
    assert n_listed - 3 <= suggestions.n_candidates <= n_listed
    # Six standard errors: missed with probability 2e-9 under the estimate's normal distribution.
    estimates, first = suggestions.estimates, suggestions.chosen[0]
    assert abs(estimates.share[first] - 0.12) < 6 * estimates.std_error[first]
    assert np.all(estimates.p_value[suggestions.chosen] <= 0.05)
    assert len(suggestions.unexplained_bits) > 0


@pytest.mark.slow
def test_the_known_ones_do_not_loosen_the_test() -> None:
    """Tiny p-values of known strings do not raise the threshold of the listed strings."""
    names = [f"known {i}" for i in range(40)]
    counts = collect(names, [1.0] * 40)
    suggestions = suggest_candidates(counts, names, Candidates.from_list([*LIST, *names]))
    detected = suggestions.estimates.detected
    listed = ~np.isin(suggestions.estimates.candidates, names)
    assert detected[~listed].sum() == 40
    ordered = np.sort(suggestions.estimates.p_value[listed])
    passing = np.flatnonzero(ordered <= 0.05 * np.arange(1, len(ordered) + 1) / len(LIST))
    assert len(suggestions.strings) == (passing[-1] + 1 if len(passing) else 0)


def test_the_level_decides_what_is_suggested() -> None:
    """A string whose p-value exceeds a smaller level is not suggested at that level."""
    population = Population([*KNOWN, "helix", "zed"], [50, 20, 10, 12, 8])
    counts = simulate_counts(population, PARAMS, n_reports=1e4, seed=1)
    listed = Candidates.from_list(LIST[:300])
    usual = suggest_candidates(counts, KNOWN, listed)
    p_value, n = max(usual.estimates.p_value[usual.chosen]), len(usual.strings)
    level = 0.9 * float(p_value) * usual.n_candidates / n
    strict = suggest_candidates(counts, KNOWN, listed, error_control=ErrorControl(alpha=level))
    assert strict.estimates.error_control.alpha == level < 0.05
    assert len(strict.strings) < n
    assert set(strict.strings) < set(usual.strings)


def test_known_strings_are_known_in_every_spelling() -> None:
    """A listed string that normalises to a known string is not suggested."""
    params = dataclasses.replace(PARAMS, normalize="host")
    counts = simulate_counts(Population(["a.example"], [1]), params, n_reports=1e4, seed=1)
    listed = Candidates.from_list(["a.example", "b.example"], normalize="host")
    suggestions = suggest_candidates(counts, ["https://A.example/path"], listed)
    assert suggestions.estimates.detected.sum() == 1
    assert suggestions.strings == ()


def test_suggestions_need_known_candidates() -> None:
    """An empty list of known candidates is refused."""
    with pytest.raises(DecodeError, match="at least 1"):
        suggest_candidates(collect(KNOWN, [1.0] * 3), [], Candidates.from_list(LIST))


def test_what_cannot_be_told_from_a_known_string_is_not_suggested() -> None:
    """A string with the bits of a known string is not suggested, although it is detected."""
    params = Params(k=16, h=1, m=3, f=0.0, p=0.1, q=0.9)
    many = Candidates.from_list(["vim", *LIST[5:]])
    cells = many.compute_cells(params, 0, len(many))
    same = np.flatnonzero((cells == cells[0]).all(axis=1))
    counts = simulate_counts(Population(["vim"], [1]), params, n_reports=1e5, seed=1)
    listed = [many.strings[same[1]], *LIST[5:10]]
    suggestions = suggest_candidates(counts, ["vim"], Candidates.from_list(listed))
    assert suggestions.estimates.detected.sum() == 2
    assert suggestions.strings == ()
