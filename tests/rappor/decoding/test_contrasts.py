"""Contrasts of one decode: weighted sums of rows, such as a total or a difference.

The first tests sum detected rows. Detection selects rows whose errors are positive, so a plain sum
is too large, and the sums must correct this bias. The other tests check standard errors of
contrasts by enumeration, refused contrasts, numbers in buckets (mean and quantiles), and weighted
segments.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import import_benchmark
from decodings import FALSE_ALARM
from scipy import stats

from rappor.base.errors import DecodeError, ParamsError
from rappor.counts.counts import Counts
from rappor.decoding.bucket_quantiles import compute_band_critical_value, describe_numbers
from rappor.decoding.contrasts import DetectedEntries
from rappor.decoding.decoder import decode
from rappor.decoding.post_stratification import weigh
from rappor.estimator.p_values import PValues
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

if TYPE_CHECKING:
    from benchmarks import sums
    from benchmarks.populations import POPULATIONS
else:
    sums = import_benchmark("sums")
    POPULATIONS = import_benchmark("populations").POPULATIONS

MANY = 200
"""The acceptance test simulates this number of collections of each case. More collections take
longer, and show smaller errors."""

FEW = 16
"""The slow test simulates this number of collections of each case, and allows larger deviations."""


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sums.CELLS)
def test_sums_of_detected_rows_cover_the_truth(name: str) -> None:
    """Intervals of sums of detected rows contain the true sum in 90 to 99 % of 200 collections.

    The nominal coverage is 95 %. `unallocated` is 1 minus the sum of all detected rows. `remaining`
    has the sums of the detected rows after the first 10, 20, 50, ... rows. Before sums were
    corrected for the detection, they were wrong by several standard errors.
    """
    runs = [sums.measure(seed, name) for seed in range(MANY)]
    assert 0.90 <= sums.compute_coverage([run.unallocated for run in runs]) <= 0.99
    if remaining := [error for run in runs for error in run.remaining]:
        assert 0.90 <= sums.compute_coverage(remaining) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name", ["30 equal + 30", "12 equal + 12"])
def test_sums_of_equal_shares_cover_the_truth(name: str) -> None:
    """Intervals of the sum of equally frequent strings have a coverage of 95 % and no bias.

    With equal shares all detected rows have the same bias, which does not average out. A prior of
    decreasing densities left an error of two standard errors here, which 16 collections find with
    probability .97. Collections with a coverage of 95 % fall below the bound with probability
    1e-9.
    """
    runs = [sums.measure(seed, name) for seed in range(FEW)]
    least = stats.binom.ppf(FALSE_ALARM, FEW, 0.95) / FEW
    assert sums.compute_coverage([run.unallocated for run in runs]) >= least
    # The mean error of all collections, in standard errors, shows a common bias. Without bias it is
    # normal with the standard deviation 1 / sqrt(16).
    errors = [error / std_error for error, std_error in (run.unallocated for run in runs)]
    assert abs(np.mean(errors)) < stats.norm.isf(FALSE_ALARM / 2) / FEW**0.5


@pytest.mark.slow
@pytest.mark.parametrize("n_draws", [60, pytest.param(400, marks=pytest.mark.acceptance)])
def test_a_sum_of_selected_rows_is_unbiased_with_its_standard_error(n_draws: int) -> None:
    """The sum of the rows with an estimate above 3 has no bias, and the error that it states.

    The rows were selected for large estimates, so the plain sum is too large. The correction
    replaces it by its posterior mean under a prior that is estimated from all 300 rows. Of the
    shares, 40 % are exponential with the mean 4 and the others are 0, in standard errors of an
    estimate. Plain sums are too large by 1.8 standard errors. 60 draws find half of this with
    probability .53. They find an error of four times the stated variance with probability .97, and
    400 draws an error of twice the variance.
    """
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(n_draws):
        share = np.where(rng.random(300) < 0.4, rng.exponential(4.0, 300), 0.0)
        estimate = share + rng.normal(size=300)
        p_values = PValues(in_memory=stats.norm.sf(estimate))
        detected = np.flatnonzero(estimate > 3)
        rows = DetectedEntries.of(
            detected, estimate, np.ones(300), p_values, lambda entries: np.eye(len(entries))
        )
        total, std_error = rows.sum_entries(detected)
        errors.append((total - share[detected].sum()) / std_error)
    # Each bound is exceeded with probability 1e-9. The prior is an estimate itself, so a bias of .1
    # standard errors and 10 % of the variance are allowed.
    assert abs(np.mean(errors)) < stats.norm.isf(FALSE_ALARM / 2) / n_draws**0.5 + 0.1
    assert stats.chi2.isf(1 - FALSE_ALARM, n_draws) < np.square(errors).sum() * 1.1
    assert np.square(errors).sum() < stats.chi2.isf(FALSE_ALARM, n_draws) * 1.1


def test_a_contrast_has_the_variance_of_the_mechanism() -> None:
    """Estimate and error of every contrast equal the result of an enumeration of all reports.

    Three categories have eight possible reports. Their probabilities give the exact mean and
    covariance of the bits, and hence of every weighted sum of estimates.
    """
    low, high, n = 0.25, 0.75, 4000
    share = np.array([0.5, 0.25, 0.25])
    first_moment, second_moment = np.zeros(3), np.zeros((3, 3))
    for value, bits in itertools.product(range(3), itertools.product((0, 1), repeat=3)):
        report = np.array(bits)
        sent = np.where(np.arange(3) == value, high, low)
        probability = share[value] * np.prod(np.where(report, sent, 1 - sent))
        first_moment += probability * report
        second_moment += probability * np.outer(report, report)
    # Covariance of the mean of n reports. De-biasing divides by high - low.
    exact = (second_moment - np.outer(first_moment, first_moment)) / n / (high - low) ** 2
    params = Params(k=3, f=0, p=low, q=high, encoding="onehot", categories=("a", "b", "c"))
    estimates = decode(Counts(params, [n * first_moment], [n]))
    for weights in itertools.product((-1.0, 0.0, 0.5), repeat=3):
        if not any(weights):
            continue  # a contrast of no row is refused
        contrast = estimates.contrast(dict(zip("abc", weights, strict=True)), constant=2.0)
        assert contrast.estimate == pytest.approx(2 + share @ weights)
        expected = np.sqrt(np.array(weights) @ exact @ weights)
        assert contrast.std_error == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_unallocated_is_a_contrast_of_detected_rows() -> None:
    """`unallocated` is 1 minus the sum of all detected rows, as the contrast with `detected=True`.

    Both must have the same correction for the detection, hence the same estimate and error.
    """
    collection = POPULATIONS["ten"](1)
    counts = simulate_counts(collection.population, sums.BALANCED, n_reports=100_000, seed=1)
    estimates = decode(counts, collection.candidates)
    contrast = estimates.contrast(
        dict.fromkeys(estimates.detected_candidates, -1.0), constant=1.0, detected=True
    )
    assert contrast.estimate == pytest.approx(estimates.unallocated)
    assert contrast.std_error == pytest.approx(estimates.unallocated_std_error)
    assert estimates.to_dict().get("contrasts") is None
    assert estimates.with_contrasts([contrast]).to_dict()["contrasts"] == [contrast.to_dict()]


def test_contrasts_that_the_counts_do_not_determine_are_refused() -> None:
    """A contrast that has no estimate is refused with the reason.

    An identifiability group has candidates with the same bits, of which the counts determine only
    the sum. With 16 bits and one cohort, some of the 40 strings are in groups. Other cases: a
    string without a row or a detection, no row at all, weights that are no finite numbers, and
    segments or encodings that do not fit.
    """
    params = Params(k=16, h=1, m=1, f=0, p=0.25, q=0.75)
    names = [f"s{i}" for i in range(40)]
    counts = Counts(params, [np.full(16, 300)], [1000])
    strings = decode(counts, names)
    rows = zip(strings.candidates, strings.group, strict=True)
    in_groups = [name for name, group in rows if group]
    themes = decode(
        Counts(
            Params(k=2, f=0, p=0.25, q=0.75, encoding="onehot", categories=("x", "y")),
            [[300, 500]],
            [1000],
        )
    )
    of_items = Params.profile("once", encoding="set", items=2)
    sets = decode(simulate_counts(Population(["a"], [1]), of_items, n_reports=1000, seed=1), ["a"])
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: strings.total(in_groups[:1]), "all members of a group"),
        (lambda: strings.total(["nobody"]), "got 1 without a row, such as 'nobody'"),
        (lambda: strings.contrast({names[0]: 1.0}, detected=True), "must all be detected"),
        (lambda: sets.contrast({"a": 1.0}, detected=True), "detected must be False for boolean"),
        (lambda: strings.total([]), "must be at least 1, got 0"),
        (lambda: strings.difference(names[0], names[0]), "must be two different ones"),
        (lambda: strings.total_like("["), "must be a regular expression"),
        (lambda: strings.total_like("z"), "regular expression 'z' must match a candidate"),
        (lambda: describe_numbers(themes), "must be of buckets"),
        (lambda: weigh({"a": themes}, {"b": 1.0}), "must have the same names"),
        (
            lambda: weigh({"a": themes}, {"a": 0.0}),
            "at least one is 1e-100 or more from 0, got 0",
        ),
        (lambda: weigh({"a": themes}, {"a": -1.0}), "must be numbers of at least 0, got -1.0"),
        (lambda: weigh({"a": themes}, {"a": "1"}), "got '1'"),  # type: ignore[dict-item]
        (lambda: strings.contrast({}), "at least one is 1e-100 or more from 0, got 0"),
        *(
            (
                lambda weight=weight: strings.contrast({names[0]: weight}),
                "weights must be finite numbers",
            )
            for weight in (math.nan, math.inf, -1e308, True, "1", None)
        ),
        *(
            (
                lambda constant=constant: strings.contrast({names[0]: 1.0}, constant=constant),
                "constant must be",
            )
            for constant in (math.nan, math.inf, 1e308)
        ),
        (
            lambda: weigh({"a": themes, "b": themes}, {"a": 1e308, "b": 1e308}),
            "must be finite",
        ),
    ]
    for compute_contrast, reason in refused:
        with pytest.raises(DecodeError, match=re.escape(reason)):
            compute_contrast()


def test_numbers_without_noise_are_exact() -> None:
    """Without noise, mean and quantiles of 1,000 numbers in buckets are exact.

    The buckets are (-inf, 10), [10, 20) and [20, inf), with 500, 250 and 250 numbers. For the mean,
    numbers below 10 count as 10, numbers from 20 on as 20, and others as the middle of their
    bucket.
    """
    params = Params(k=3, f=0, p=0, q=1, encoding="buckets", categories=("10", "20"), insecure=True)
    contrasts = describe_numbers(decode(Counts(params, [[500, 250, 250]], [1000])))
    numbers = {contrast.name: contrast for contrast in contrasts}
    assert numbers["below 10"].estimate == pytest.approx(0.5)
    assert numbers["below 20"].estimate == pytest.approx(0.75)
    assert numbers["mean"].estimate == pytest.approx(0.5 * 10 + 0.25 * 15 + 0.25 * 20)
    # A quantile in an open bucket is infinite. JSON has no infinity, so `beyond` names the side.
    assert numbers["quantile 0.1"].estimate == -np.inf
    document = numbers["quantile 0.1"].to_dict()
    assert document["estimate"] is None
    assert document["beyond"] == {"estimate": "below", "ci_low": "below", "ci_high": "below"}
    assert numbers["quantile 0.75"].estimate == pytest.approx(20)
    assert numbers["quantile 0.9"].ci_high == np.inf
    assert numbers["quantile 0.9"].std_error == np.inf
    assert numbers["quantile 0.9"].to_dict()["beyond"]["ci_high"] == "above"
    assert "beyond" not in numbers["mean"].to_dict()


def test_one_edge_has_no_mean() -> None:
    """With one edge, both buckets are open, so there is no mean and no finite quantile."""
    params = Params(k=2, f=0, p=0, q=1, encoding="buckets", categories=("10",), insecure=True)
    contrasts = describe_numbers(decode(Counts(params, [[600, 400]], [1000])))
    assert [contrast.name for contrast in contrasts][:2] == ["below 10", "quantile 0.1"]


def test_a_band_covers_all_edges_together() -> None:
    """A band contains the true distribution at all edges at once in 95 % of the collections.

    Its critical value replaces 1.96, and depends on the correlation of the estimates at the edges.
    """
    one_edge, four_edges = np.ones((4, 4)), np.eye(4)
    # Four equal estimates are one estimate, so the value is the normal quantile of one interval.
    assert compute_band_critical_value(one_edge, 0.05) == pytest.approx(1.959964, abs=1e-5)
    # Four independent estimates need more, and at most the value of Bonferroni: .05 / 4 each.
    assert 2.4 < compute_band_critical_value(four_edges, 0.05) <= stats.norm.isf(0.05 / 8)
    # Two estimates with correlation 1/2: their normal distribution has 95 % inside the band.
    correlation = np.array([[1.0, 0.5], [0.5, 1.0]])
    critical = compute_band_critical_value(correlation, 0.05)
    distribution = stats.multivariate_normal(cov=correlation)
    inside = distribution.cdf([critical] * 2, lower_limit=[-critical] * 2)
    assert inside == pytest.approx(0.95, abs=1e-4)


def test_a_string_without_a_row_in_the_first_segment_is_refused() -> None:
    """`weigh` refuses a string that a segment detects, and that has no row in the first segment.

    Of a long list, only the best candidates of a segment have rows. A table without the string
    would hide a frequent string.
    """
    params = Params(k=32, h=1, m=32, f=0, p=0.25, q=0.75)
    dog = simulate_counts(Population(["dog"], [1]), params, n_reports=10_000, seed=1)
    decodes = [decode(dog, ["cat", "emu"]), decode(dog, ["dog", "emu"])]
    assert [estimates.detected_candidates for estimates in decodes] == [[], ["dog"]]
    first, second = (dataclasses.replace(estimates, n_candidates=10**6) for estimates in decodes)
    with pytest.raises(DecodeError, match="got 1 without a row, such as 'dog'"):
        weigh({"x": first, "y": second}, {"x": 1.0, "y": 1.0})


def test_segments_with_different_candidates_are_refused() -> None:
    """`weigh` refuses two lists of equal length with different strings, detected or not.

    The total of a string would count it as absent where it was not tested.
    """
    params = Params(k=32, h=1, m=32, f=0, p=0.25, q=0.75)
    dog = simulate_counts(Population(["dog"], [1]), params, n_reports=10_000, seed=1)
    segments = {"x": decode(dog, ["dog", "cat"]), "y": decode(dog, ["dog", "emu"])}
    with pytest.raises(DecodeError, match="decoded with the same candidates"):
        weigh(segments, {"x": 1.0, "y": 1.0})


def test_a_segment_of_weight_0_changes_no_total() -> None:
    """A segment of weight 0 adds nothing, even if its counts contain no information."""
    params = Params(k=2, f=0, p=0.25, q=0.75, encoding="onehot", categories=("a", "b"))
    x = decode(Counts(params, [[500, 300]], [1000]))
    unknown = dataclasses.replace(x, std_error=np.full(2, np.inf))
    weighted = weigh({"x": x, "y": unknown}, {"x": 5, "y": 0})
    assert weighted.contrasts == weigh({"x": x}, {"x": 1}).contrasts


def test_one_text_in_place_of_a_list_is_refused() -> None:
    """`total("ab")` is refused. It would be the sum of the candidates "a" and "b"."""
    params = Params(k=2, f=0, p=0.25, q=0.75, encoding="onehot", categories=("a", "b"))
    estimates = decode(Counts(params, [[500, 300]], [1000]))
    with pytest.raises(ParamsError, match="candidates must be a list of strings, got one str"):
        estimates.total("ab")


def test_post_stratification_weighs_segments() -> None:
    """`weigh` returns the weighted mean of the shares of segments, with its standard error.

    If a segment is overrepresented among the reports, an analyst weighs the segments by their known
    sizes (post-stratification). The sizes 30 and 10 are the weights 3/4 and 1/4.
    """
    params = Params(k=2, f=0, p=0.25, q=0.75, encoding="onehot", categories=("a", "b"))
    segments = {
        "x": decode(Counts(params, [[500, 300]], [1000])),
        "y": decode(Counts(params, [[900, 700]], [2000])),
    }
    weighted = weigh(segments, {"x": 30, "y": 10})
    assert weighted.weights == {"x": 0.75, "y": 0.25}
    first = weighted.contrasts[0]
    x, y = segments["x"], segments["y"]
    assert first.estimate == pytest.approx(0.75 * x.share[0] + 0.25 * y.share[0])
    # The segments are independent, so the weighted errors add in squares.
    expected = np.hypot(0.75 * x.std_error[0], 0.25 * y.std_error[0])
    assert first.std_error == pytest.approx(expected)
    assert weighted.to_dict()["reports"] == 3000
