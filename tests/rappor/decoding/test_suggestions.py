"""Suggestions: present strings of a larger list that the known candidates do not contain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rappor import Candidates, Counts, Params, Population, simulate_counts
from rappor.base.errors import DecodeError, ParamsError
from rappor.decoding.suggestions import suggest_candidates
from rappor.estimator.error_control import ErrorControl

KNOWN = ["vscode", "vim", "emacs"]
"""The known candidates. `helix` and `zed` are present strings that only the larger list has."""
BALANCED = Params.profile("balanced")
PARAMS = dataclasses.replace(BALANCED, k=64, m=16)
"""Parameters with k m = 1,024 bits in all cohorts. A decode of a long list keeps only the best
candidates: one for each of these bits, and 10,000 more. So not all of 30,000 strings have an
estimate."""

LIST = ["helix", "zed", *KNOWN, *(f"editor {i}" for i in range(30_000))]
"""The larger list, which contains the known and the present strings, and 30,000 absent ones."""


def collect(names: list[str], weights: list[float]) -> Counts:
    """Return the counts of a million reports of weighted strings."""
    population = Population(names, weights)
    return simulate_counts(population, PARAMS, n_reports=1e6, seed=1)


@pytest.mark.parametrize("n_listed", [300, len(LIST)])
def test_present_strings_that_are_not_known_are_suggested(n_listed: int) -> None:
    """Present strings of the larger list are suggested with their shares, and no known string is.

    All strings of the short list have an estimate. Of the long list, only the best candidates have
    one.
    """
    counts = collect([*KNOWN, "helix", "zed"], [50, 20, 10, 12, 8])
    suggestions = suggest_candidates(counts, KNOWN, Candidates.from_list(LIST[:n_listed]))
    assert suggestions.strings[:2] == ("helix", "zed")
    assert not set(suggestions.strings) & set(KNOWN)
    # The three known strings of the list may be left out.
    assert n_listed - 3 <= suggestions.n_candidates <= n_listed
    # Six standard errors: missed with probability 2e-9 under the estimate's normal distribution.
    estimates, first = suggestions.estimates, suggestions.chosen[0]
    assert abs(estimates.share[first] - 0.12) < 6 * estimates.std_error[first]
    assert np.all(estimates.p_value[suggestions.chosen] <= 0.05)
    assert len(suggestions.unexplained_bits) > 0


@pytest.mark.slow
def test_known_strings_do_not_raise_the_threshold_of_others() -> None:
    """The tiny p-values of known strings do not raise the threshold of the other strings.

    Benjamini-Hochberg allows 5 % of all detections to be false. With 40 certain detections among
    the tested strings, two absent strings would be suggested.
    """
    names = [f"known {i}" for i in range(40)]
    counts = collect(names, [1.0] * 40)
    suggestions = suggest_candidates(counts, names, Candidates.from_list([*LIST, *names]))
    detected = suggestions.estimates.detected
    listed = ~np.isin(suggestions.estimates.candidates, names)
    assert detected[~listed].sum() == 40
    # Benjamini-Hochberg by hand, over the p-values of the listed strings alone.
    ordered = np.sort(suggestions.estimates.p_value[listed])
    passing = np.flatnonzero(ordered <= 0.05 * np.arange(1, len(ordered) + 1) / len(LIST))
    assert len(suggestions.strings) == (passing[-1] + 1 if len(passing) else 0)


def test_a_smaller_error_rate_suggests_fewer_strings() -> None:
    """With a smaller error rate `alpha`, fewer of the same strings are suggested."""
    population = Population([*KNOWN, "helix", "zed"], [50, 20, 10, 12, 8])
    counts = simulate_counts(population, PARAMS, n_reports=1e4, seed=1)
    listed = Candidates.from_list(LIST[:300])
    by_default = suggest_candidates(counts, KNOWN, listed)
    p_value, n = max(by_default.estimates.p_value[by_default.chosen]), len(by_default.strings)
    # By Benjamini-Hochberg, the string with the largest of n detected p-values is detected if the
    # error rate is at least p_value * (number of candidates) / n.
    alpha = 0.9 * float(p_value) * by_default.n_candidates / n
    strict = suggest_candidates(counts, KNOWN, listed, error_control=ErrorControl(alpha=alpha))
    assert strict.estimates.error_control.alpha == alpha < 0.05
    assert len(strict.strings) < n
    assert set(strict.strings) < set(by_default.strings)


def test_known_strings_are_normalized_before_the_comparison() -> None:
    """Another spelling of a known string is not suggested, because devices normalize it."""
    params = dataclasses.replace(PARAMS, normalize="host")
    counts = simulate_counts(Population(["a.example"], [1]), params, n_reports=1e4, seed=1)
    listed = Candidates.from_list(["a.example", "b.example"], normalize="host")
    suggestions = suggest_candidates(counts, ["https://A.example/path"], listed)
    assert suggestions.estimates.detected.sum() == 1
    assert suggestions.strings == ()


def test_suggestions_need_known_candidates() -> None:
    """An empty list of known candidates is refused: without known strings, `decode` is the way."""
    with pytest.raises(DecodeError, match="at least 1"):
        suggest_candidates(collect(KNOWN, [1.0] * 3), [], Candidates.from_list(LIST))


def test_one_known_text_in_place_of_a_list_is_refused() -> None:
    """A text in place of the list of known strings is refused, not read as its characters."""
    with pytest.raises(ParamsError, match="known must be a list of strings, got one str"):
        suggest_candidates(collect(KNOWN, [1.0] * 3), "vim", Candidates.from_list(LIST))


def test_a_string_with_the_bits_of_a_known_string_is_not_suggested() -> None:
    """A string with the same bits as a known string is detected with it, and not suggested.

    The counts do not show which of the two devices have, and the known one is the likely one.
    """
    params = Params(k=16, h=1, m=3, f=0.0, p=0.1, q=0.9)
    many = Candidates.from_list(["vim", *LIST[5:]])
    # A cell is one bit of one cohort. Row i has the cells of candidate i, so row 0 is that of vim.
    cells = many.compute_cells(params, start=0, stop=len(many))
    with_same_bits = np.flatnonzero((cells == cells[0]).all(axis=1))
    counts = simulate_counts(Population(["vim"], [1]), params, n_reports=1e5, seed=1)
    listed = [many.strings[with_same_bits[1]], *LIST[5:10]]
    suggestions = suggest_candidates(counts, ["vim"], Candidates.from_list(listed))
    assert suggestions.estimates.detected.sum() == 2
    assert suggestions.strings == ()
