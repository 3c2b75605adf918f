"""The decoder: what it refuses, properties of every result, and small or odd collections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from decodings import (
    ABSENT,
    CANDIDATES,
    PARAMS,
    POPULATION,
    by_name,
    counted,
    largest_error,
    standardised_errors,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rappor.base.errors import DecodeError, ParamsError
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

FEW = counted(n=1000)
FOLDED = Params(k=64, h=1, m=32, f=0.25, p=0.1, q=0.6, normalize="casefold")
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
ONE, OTHER = (
    Counts(Params(k=2, encoding="onehot", categories=names, f=0.5, p=0.25, q=0.75), [[5, 5]], [10])
    for names in (("a", "b"), ("a", "c"))
)
NO_CANDIDATES: list[Any] = [None, [], Candidates.from_list([])]
NO_REPORTS: list[Any] = [[], Counts.zero(PARAMS), [Counts.zero(PARAMS)] * 2]
REFUSED: list[tuple[str, Any, Any]] = [
    *(
        ("counts must have at least 1 report, got 0", empty_counts, CANDIDATES)
        for empty_counts in NO_REPORTS
    ),
    *(
        ("got 0; give candidates: a list of strings", FEW, candidates)
        for candidates in NO_CANDIDATES
    ),
    # one candidate would stand for two different strings
    ("counts must share one normalizer", [FEW, counted(FOLDED, n=1000)], CANDIDATES),
    (
        "candidates must be normalised by 'none'",
        FEW,
        Candidates.from_list(CANDIDATES, normalize="casefold"),
    ),
    # its letters would be the candidates
    *(
        (r"a list of strings, got a (str|bytes); .*from_file", FEW, text)
        for text in ("engines.txt", "google", b"google")
    ),
    *(
        (r"got str; call decode\(counts, candidates\)", candidates, FEW)
        for candidates in (["google"], "google")
    ),
    ("candidates must be omitted", Counts(BOOLEAN, [[5]], [10]), ["true"]),
    *(
        ("counts must share one encoding", collections, None)
        for collections in ([ONE, OTHER], [ONE, FEW])
    ),
]


@pytest.mark.parametrize(("reason", "counts", "candidates"), REFUSED)
def test_counts_and_candidates_that_do_not_fit_are_refused(
    reason: str, counts: Any, candidates: Any
) -> None:
    """Counts and candidates that do not belong together are refused with a remedy."""
    with pytest.raises(ParamsError if "got a (" in reason else DecodeError, match=reason):
        decode(counts, candidates)


@pytest.mark.parametrize("name", ["alpha", "confidence"])
@pytest.mark.parametrize("value", [math.nan, 0, 1, -0.1, 1.5, math.inf, "0.05"])
def test_impossible_error_rates_are_refused(name: str, value: Any) -> None:
    """Values of alpha and confidence outside (0, 1) and unknown methods are refused."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ParamsError, match=rf"{name} must be a number in \(0, 1\)"):
        ErrorControl(**options)
    with pytest.raises(ParamsError, match="one of bh, adaptive, bonferroni, got 'none'"):
        ErrorControl(method="none")


def same(a: Estimates, b: Estimates) -> bool:
    """Compare all rows of two tables, including posterior shares, to the last bit."""
    return a.to_json() == b.to_json() and all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in ("share", "std_error", "p_value", "ci_low_adjusted", "group")
    )


def again(texts: list[str]) -> list[str]:
    """Return candidates of which some are repeated."""
    return texts + texts[:3]


def as_column(texts: list[str]) -> Any:
    """Return candidates as a column of pandas."""
    import pandas as pd  # noqa: PLC0415 - the extra test lacks it

    return pd.Series(texts)


def as_index(texts: list[str]) -> Any:
    """Return candidates as an index of pandas."""
    import pandas as pd  # noqa: PLC0415 - the extra test lacks it

    return pd.Index(texts)


@pytest.mark.parametrize(
    "given_as",
    [
        *(iter, again, Candidates.from_list, np.array),
        *(pytest.param(make, marks=pytest.mark.slow) for make in (as_column, as_index)),
    ],
)
def test_the_form_of_the_candidates_does_not_matter(given_as: Any) -> None:
    """Lists, columns and repeated candidates give the same rows, one for each string."""
    counts = counted(n=10_000)
    estimates, expected = decode(counts, given_as(CANDIDATES)), decode(counts, CANDIDATES)
    assert expected.candidates != tuple(CANDIDATES)
    assert estimates.to_json() == expected.to_json()
    assert {type(text) for text in estimates.candidates} == {str}


@pytest.mark.slow
@settings(max_examples=10)
@given(st.permutations(CANDIDATES), st.integers(0, 2**32))
def test_the_order_of_candidates_does_not_matter(order: list[str], seed: int) -> None:
    """Estimates, errors and p-values agree to rounding, detections exactly."""
    counts = counted(n=200_000, seed=seed)
    first, second = decode(counts, CANDIDATES), decode(counts, order)
    assert by_name(first, first.detected) == by_name(second, second.detected)
    for name in ("share", "std_error", "p_value"):
        ours = by_name(first, getattr(first, name))
        theirs = by_name(second, getattr(second, name))
        scale = 1e-9 * (1e-3 if name != "p_value" else 1.0)
        assert ours == pytest.approx(theirs, rel=1e-9, abs=scale)


def test_progress_is_reported_to_the_end() -> None:
    """The progress reaches the number of candidates, and does not change the result."""
    seen: list[tuple[int, int | None]] = []
    counts = counted(n=10_000)
    watched = decode(counts, CANDIDATES, progress=lambda _, done, total: seen.append((done, total)))
    assert (len(CANDIDATES), len(CANDIDATES)) in seen
    assert all(total is not None and 0 <= done <= total for done, total in seen)
    assert same(watched, decode(counts, CANDIDATES))


def test_one_candidate_is_answered() -> None:
    """A list of one candidate is decoded, and the remainder is unallocated."""
    estimates = decode(counted(), ["true 0"])
    error = abs(standardised_errors(estimates, POPULATION)[0])
    assert estimates.detected.tolist() == [True]
    assert error < largest_error(1)
    remaining_share = 1 - estimates.share[0]
    assert estimates.unallocated == pytest.approx(
        remaining_share, abs=0.02 * estimates.std_error[0]
    )
    assert estimates.unallocated_std_error == pytest.approx(estimates.std_error[0], rel=0.01)


def test_an_empty_cohort_is_tolerated() -> None:
    """An empty cohort causes no division by zero, and the other cohorts are decoded."""
    whole = counted()
    ones, reports = whole.bit_counts.copy(), whole.cohort_reports.copy()
    ones[3], reports[3] = 0, 0
    estimates = decode(Counts(PARAMS, ones, reports), CANDIDATES, distribution=True)
    assert np.isfinite(estimates.share).all()
    assert np.isfinite(estimates.std_error).all()
    assert estimates.diagnostics["cohorts"][0]["empty"] == 1
    assert np.abs(standardised_errors(estimates, POPULATION)).max() < largest_error(len(CANDIDATES))


@pytest.mark.slow
@pytest.mark.parametrize("n_reports", [1, 2, 40])
def test_hardly_any_reports_detect_no_absent_candidate(n_reports: int) -> None:
    """A handful of reports detects none of the absent candidates."""
    p_values = [
        decode(
            counted(n=n_reports, seed=seed),
            ABSENT,
            error_control=ErrorControl(alpha=0.001, method="bonferroni"),
        )
        for seed in range(20)
    ]
    assert sum(bool(estimates.detected.any()) for estimates in p_values) <= 3


def test_a_candidate_whose_rows_are_set_aside_has_no_estimate() -> None:
    """A candidate whose rows are all set aside has no estimate, and nothing overflows."""
    params = Params(k=64, h=1, m=1, f=0.238406, p=0.059601, q=0.559601)
    names = [f"1-{i}" for i in range(20)]
    population = Population(names, 1 / np.arange(1.0, 21.0))
    counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    estimates = decode(counts, names, distribution=True)
    unknown = np.isinf(estimates.std_error)
    assert (estimates.std_error[~unknown] < 1).all()
    assert (estimates.p_value[unknown] == 1).all()


def test_mass_that_no_candidate_explains_is_unallocated() -> None:
    """If candidates cover half of the mass, the other half is unallocated."""
    estimates = decode(counted(), [*POPULATION.values[:2], *ABSENT])
    error = float(np.sqrt((estimates.std_error[estimates.detected] ** 2).sum()))
    assert estimates.detected.sum() >= 2
    assert abs(estimates.unallocated - 0.5) < 2 * largest_error(1) * error
