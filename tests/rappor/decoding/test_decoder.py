"""The decoder: refused arguments, properties of every result, and collections with few reports."""

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
    compute_error_bound,
    compute_standardised_errors,
    map_by_candidate,
    simulate_population_counts,
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

FEW = simulate_population_counts(n=1000)
"""The counts have few reports, because refused arguments need no good estimates."""
FOLDED = Params(k=64, h=1, m=32, f=0.25, p=0.1, q=0.6, normalize="casefold")
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
FIRST_LIST, SECOND_LIST = (
    Counts(Params(k=2, encoding="onehot", categories=names, f=0.5, p=0.25, q=0.75), [[5, 5]], [10])
    for names in (("a", "b"), ("a", "c"))
)
"""These counts have the same number of categories, with different names."""
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
    # A candidate with two normalizers would be two different strings.
    (
        "counts must share one normalizer",
        [FEW, simulate_population_counts(FOLDED, n=1000)],
        CANDIDATES,
    ),
    (
        "candidates must be normalised by 'none'",
        FEW,
        Candidates.from_list(CANDIDATES, normalize="casefold"),
    ),
    # A text is an iterable of its letters, which would be the candidates.
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
        for collections in ([FIRST_LIST, SECOND_LIST], [FIRST_LIST, FEW])
    ),
]
"""Each row has the reason of a refusal, and the counts and candidates that are refused."""


@pytest.mark.parametrize(("reason", "counts", "candidates"), REFUSED)
def test_counts_and_candidates_that_do_not_fit_are_refused(
    reason: str, counts: Any, candidates: Any
) -> None:
    """Counts and candidates that do not fit each other are refused with a remedy.

    Without a refusal, each mistake would give a table of estimates near 0 that looks like a result.
    """
    with pytest.raises(ParamsError if "got a (" in reason else DecodeError, match=reason):
        decode(counts, candidates)


@pytest.mark.parametrize("name", ["alpha", "confidence"])
@pytest.mark.parametrize("value", [math.nan, 0, 1, -0.1, 1.5, math.inf, "0.05"])
def test_impossible_error_rates_are_refused(name: str, value: Any) -> None:
    """An error rate or a confidence level outside (0, 1), and an unknown method, are refused."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ParamsError, match=rf"{name} must be a number in \(0, 1\)"):
        ErrorControl(**options)
    with pytest.raises(ParamsError, match="one of bh, adaptive, bonferroni, got 'none'"):
        ErrorControl(method="none")


def are_equal(a: Estimates, b: Estimates) -> bool:
    """Return whether all rows of two tables are equal to the last bit."""
    return a.to_json() == b.to_json() and all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in ("share", "std_error", "p_value", "ci_low_adjusted", "group")
    )


def repeat_some(texts: list[str]) -> list[str]:
    """Return a list in which the first three candidates appear twice."""
    return texts + texts[:3]


def make_column(texts: list[str]) -> Any:
    """Return candidates as a column of pandas."""
    import pandas as pd  # noqa: PLC0415 - the extra test lacks it

    return pd.Series(texts)


def make_index(texts: list[str]) -> Any:
    """Return candidates as an index of pandas."""
    import pandas as pd  # noqa: PLC0415 - the extra test lacks it

    return pd.Index(texts)


@pytest.mark.parametrize(
    "convert",
    [
        *(iter, repeat_some, Candidates.from_list, np.array),
        *(pytest.param(make, marks=pytest.mark.slow) for make in (make_column, make_index)),
    ],
)
def test_the_type_of_the_candidates_does_not_matter(convert: Any) -> None:
    """Iterators, arrays, columns and repeated candidates give one row for each string."""
    counts = simulate_population_counts(n=10_000)
    estimates, expected = decode(counts, convert(CANDIDATES)), decode(counts, CANDIDATES)
    assert expected.candidates != tuple(CANDIDATES)
    assert estimates.to_json() == expected.to_json()
    assert {type(text) for text in estimates.candidates} == {str}


@pytest.mark.slow
@settings(max_examples=10)
@given(st.permutations(CANDIDATES), st.integers(0, 2**32))
def test_the_order_of_candidates_does_not_matter(order: list[str], seed: int) -> None:
    """The order of the candidates changes no detection, and numbers by rounding errors only.

    Sums of floating-point numbers depend on their order in the last digits.
    """
    counts = simulate_population_counts(n=200_000, seed=seed)
    first, second = decode(counts, CANDIDATES), decode(counts, order)
    assert map_by_candidate(first, first.detected) == map_by_candidate(second, second.detected)
    for name in ("share", "std_error", "p_value"):
        in_order = map_by_candidate(first, getattr(first, name))
        permuted = map_by_candidate(second, getattr(second, name))
        # P-values are at most 1. Shares of absent strings and standard errors are about 1e-3.
        tolerance = 1e-9 * (1e-3 if name != "p_value" else 1.0)
        assert in_order == pytest.approx(permuted, rel=1e-9, abs=tolerance)


def test_progress_is_reported_to_the_end() -> None:
    """The progress reaches the number of candidates, and does not change the result."""
    progress_calls: list[tuple[int, int | None]] = []
    counts = simulate_population_counts(n=10_000)
    watched = decode(
        counts, CANDIDATES, progress=lambda _, n_done, total: progress_calls.append((n_done, total))
    )
    assert (len(CANDIDATES), len(CANDIDATES)) in progress_calls
    assert all(total is not None and 0 <= n_done <= total for n_done, total in progress_calls)
    assert are_equal(watched, decode(counts, CANDIDATES))


def test_one_candidate_is_decoded() -> None:
    """With one candidate, the unallocated share is 1 minus its share, with the same error.

    The strings that are no candidates, 70 % of the reports, must not bias the estimate.
    """
    estimates = decode(simulate_population_counts(), ["true 0"])
    error = abs(compute_standardised_errors(estimates, POPULATION)[0])
    assert estimates.detected.tolist() == [True]
    assert error < compute_error_bound(1)
    remaining_share = 1 - estimates.share[0]
    assert estimates.unallocated == pytest.approx(
        remaining_share, abs=0.02 * estimates.std_error[0]
    )
    assert estimates.unallocated_std_error == pytest.approx(estimates.std_error[0], rel=0.01)


def test_an_empty_cohort_is_tolerated() -> None:
    """An empty cohort causes no division by zero, and the other cohorts are decoded."""
    whole = simulate_population_counts()
    bit_counts, reports = whole.bit_counts.copy(), whole.cohort_reports.copy()
    bit_counts[3], reports[3] = 0, 0
    estimates = decode(Counts(PARAMS, bit_counts, reports), CANDIDATES, distribution=True)
    assert np.isfinite(estimates.share).all()
    assert np.isfinite(estimates.std_error).all()
    assert estimates.diagnostics["cohorts"][0]["empty"] == 1
    assert np.abs(compute_standardised_errors(estimates, POPULATION)).max() < compute_error_bound(
        len(CANDIDATES)
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_reports", [1, 2, 40])
def test_hardly_any_reports_detect_no_absent_candidate(n_reports: int) -> None:
    """With 1, 2 or 40 reports, absent candidates are not detected more often than the error rate.

    The error rate of a decode is .001. Among 20 decodes, four or more false alarms have a
    probability of 5e-9. A normal approximation would fail for so few reports.
    """
    results = [
        decode(
            simulate_population_counts(n=n_reports, seed=seed),
            ABSENT,
            error_control=ErrorControl(alpha=0.001, method="bonferroni"),
        )
        for seed in range(20)
    ]
    assert sum(bool(estimates.detected.any()) for estimates in results) <= 3


def test_a_candidate_without_usable_rows_has_no_estimate() -> None:
    """A candidate whose rows all have weight 0 in the fit has an infinite error and the p-value 1.

    The fit gives weight 0 to rows that unlisted strings seem to have lifted. With one cohort and
    one hash function, a candidate has one row, so it can lose all of its rows.
    """
    params = Params(k=64, h=1, m=1, f=0.238406, p=0.059601, q=0.559601)
    names = [f"1-{i}" for i in range(20)]
    population = Population(names, 1 / np.arange(1.0, 21.0))
    counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    estimates = decode(counts, names, distribution=True)
    unknown = np.isinf(estimates.std_error)
    assert (estimates.std_error[~unknown] < 1).all()
    assert (estimates.p_value[unknown] == 1).all()


def test_the_share_of_unlisted_strings_is_unallocated() -> None:
    """If the present candidates have half of the reports, the other half is unallocated."""
    estimates = decode(simulate_population_counts(), [*POPULATION.values[:2], *ABSENT])
    error = float(np.sqrt((estimates.std_error[estimates.detected] ** 2).sum()))
    assert estimates.detected.sum() >= 2
    assert abs(estimates.unallocated - 0.5) < 2 * compute_error_bound(1) * error
