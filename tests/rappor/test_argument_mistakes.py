"""Mistakes in calls of the public API get one sentence that names the argument and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

import rappor
from rappor import Counts, DecodeError, Params, ParamsError, Population, simulate_counts


@pytest.fixture(scope="module")
def counts() -> Counts:
    """Simulate one small collection."""
    params = Params.profile("balanced")
    return simulate_counts(Population(["cat", "dog"], [3, 1]), params, n_reports=1e4, seed=1)


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        ("compare_samples", ("[counts]", ["cat"]), "samples must be a Mapping, got list; give"),
        ("compare_segments", ("counts", ["cat"]), "counts must be an Iterable, got Counts; pass"),
        ("epsilon_1", (2,), "params must be a Params, got int; call Params.profile"),
        ("epsilon_inf", (2,), "params must be a Params, got int; call Params.profile"),
        ("Population", ("ab", [1, 2]), "values must be a list of texts, got one text"),
        ("discover", (3,), "counts_by_part must be an Iterable, got int; pass"),
        ("suggest_candidates", ("counts", ["cat"], ["dog"]), "listed must be a Candidates, got"),
        ("trend", ("counts",), "released must be a ReleasedCounts, got Counts; compare_samples"),
    ],
)
def test_argument_of_another_type_is_named(
    counts: Counts, function: str, arguments: tuple[Any, ...], sentence: str
) -> None:
    """The sentence names the argument, the type that it must have, and what to write instead."""
    values = {"counts": counts, "[counts]": [counts, counts]}
    passed = [values.get(value, value) if isinstance(value, str) else value for value in arguments]
    with pytest.raises(ParamsError, match=sentence):
        getattr(rappor, function)(*passed)


@pytest.mark.parametrize(
    "function",
    ["compare_samples", "compare_segments", "decode", "discover", "suggest_candidates", "trend"],
)
@pytest.mark.parametrize(
    ("keyword", "field"),
    [("alpha", "alpha"), ("level", "alpha"), ("method", "method"), ("confidence", "confidence")],
)
def test_keyword_of_error_control_is_explained(function: str, keyword: str, field: str) -> None:
    """A field of `ErrorControl` as a keyword is refused, and the sentence states the right call.

    Many callers first write `decode(counts, candidates, alpha=0.01)`.
    """
    sentence = rf"{function} has no argument {keyword}; pass .*ErrorControl\({field}="
    with pytest.raises(ParamsError, match=sentence):
        getattr(rappor, function)([], **{keyword: 0.01})


@pytest.mark.parametrize("mistake", [3, "counts", [3]])
def test_counts_of_another_type_are_refused(mistake: Any) -> None:
    """`decode` refuses other types than Counts, and names the type."""
    with pytest.raises(DecodeError, match="counts must be Counts or a list of them, got"):
        rappor.decode(mistake, ["cat"])
