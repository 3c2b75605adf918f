"""Contrasts: sums of detected rows without selection bias, and the errors of all contrasts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import benchmark
from decodings import FALSE_ALARM
from scipy import stats

from rappor.base.errors import DecodeError
from rappor.counts.counts import Counts
from rappor.decoding.bucket_quantiles import compute_band_critical_value, describe_numbers
from rappor.decoding.contrasts import DetectedEntries
from rappor.decoding.decoder import decode
from rappor.decoding.post_stratification import weigh
from rappor.estimator.p_values import PValues
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts

if TYPE_CHECKING:
    from benchmarks import sums
    from benchmarks.populations import POPULATIONS
else:
    sums = benchmark("sums")
    POPULATIONS = benchmark("populations").POPULATIONS

MANY = 200
FEW = 40


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sums.CELLS)
def test_sums_of_detected_rows_cover_the_truth(name: str) -> None:
    """In 90 to 99 of 100 collections the true sum is within 1.96 standard errors."""
    runs = [sums.measure(seed, name) for seed in range(MANY)]
    assert 0.90 <= sums.compute_coverage([run.unallocated for run in runs]) <= 0.99
    if remaining := [error for run in runs for error in run.remaining]:
        assert 0.90 <= sums.compute_coverage(remaining) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name", ["30 equal + 30", "12 equal + 12", "50 equal + 50"])
def test_sums_of_equal_shares_cover_the_truth(name: str) -> None:
    """Sums of equally frequent strings miss the truth at most at the rate of chance."""
    runs = [sums.measure(seed, name) for seed in range(FEW)]
    least = stats.binom.ppf(FALSE_ALARM, FEW, 0.95) / FEW
    assert sums.compute_coverage([run.unallocated for run in runs]) >= least
    # A mean of normal errors, in standard errors: the bias that all collections have in common.
    errors = [error / std_error for error, std_error in (run.unallocated for run in runs)]
    assert abs(np.mean(errors)) < stats.norm.isf(FALSE_ALARM / 2) / FEW**0.5


@pytest.mark.slow
def test_a_sum_has_the_mean_and_the_error_of_its_posterior() -> None:
    """If shares are drawn from the prior, the sum of all rows above 3 has no bias."""
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(400):
        share = np.where(rng.random(300) < 0.4, rng.exponential(4.0, 300), 0.0)
        estimate = share + rng.normal(size=300)
        p_values = PValues(in_memory=stats.norm.sf(estimate))
        detected = np.flatnonzero(estimate > 3)
        rows = DetectedEntries.of(
            detected, estimate, np.ones(300), p_values, lambda entries: np.eye(len(entries))
        )
        total, std_error = rows.sum_entries(detected)
        errors.append((total - share[detected].sum()) / std_error)
    # Of 400 normal errors, at the rate of false alarms, the mean is within .31.
    assert abs(np.mean(errors)) < 0.31 + 0.1
    assert stats.chi2.isf(1 - FALSE_ALARM, 400) < np.square(errors).sum() * 1.1
    assert np.square(errors).sum() < stats.chi2.isf(FALSE_ALARM, 400) * 1.1


def test_a_contrast_has_the_variance_of_the_mechanism() -> None:
    """Estimates and errors of every contrast equal those of an enumeration of all coins."""
    low, high, n = 0.25, 0.75, 4000
    share = np.array([0.5, 0.25, 0.25])
    one, both = np.zeros(3), np.zeros((3, 3))
    for value, bits in itertools.product(range(3), itertools.product((0, 1), repeat=3)):
        report = np.array(bits)
        sent = np.where(np.arange(3) == value, high, low)
        probability = share[value] * np.prod(np.where(report, sent, 1 - sent))
        one += probability * report
        both += probability * np.outer(report, report)
    exact = (both - np.outer(one, one)) / n / (high - low) ** 2
    params = Params(k=3, f=0, p=low, q=high, encoding="onehot", categories=("a", "b", "c"))
    estimates = decode(Counts(params, [n * one], [n]))
    for weights in itertools.product((-1.0, 0.0, 0.5), repeat=3):
        if not any(weights):
            continue  # a contrast of no row is refused
        contrast = estimates.contrast(dict(zip("abc", weights, strict=True)), constant=2.0)
        assert contrast.estimate == pytest.approx(2 + share @ weights)
        expected = np.sqrt(np.array(weights) @ exact @ weights)
        assert contrast.std_error == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_unallocated_is_a_contrast_of_detected_rows() -> None:
    """`unallocated` equals 1 minus the contrast of all detected rows."""
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
    """Parts of groups, missing rows, undetected rows and unusable weights are refused."""
    params = Params(k=16, h=1, m=1, f=0, p=0.25, q=0.75)
    names = [f"s{i}" for i in range(40)]
    counts = Counts(params, [np.full(16, 300)], [1000])
    strings = decode(counts, names)
    tied = [name for name, group in zip(strings.candidates, strings.group, strict=True) if group]
    themes = decode(
        Counts(
            Params(k=2, f=0, p=0.25, q=0.75, encoding="onehot", categories=("x", "y")),
            [[300, 500]],
            [1000],
        )
    )
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: strings.total(tied[:1]), "all members of a group"),
        (lambda: strings.total(["nobody"]), "got 1 without a row, such as 'nobody'"),
        (lambda: strings.contrast({names[0]: 1.0}, detected=True), "must all be detected"),
        (lambda: strings.total([]), "must be at least 1, got 0"),
        (lambda: strings.difference(names[0], names[0]), "must be two different ones"),
        (lambda: strings.total_like("["), "must be a regular expression"),
        (lambda: strings.total_like("z"), "is in none"),
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
            (lambda x=x: strings.contrast({names[0]: x}), "weights must be finite numbers")
            for x in (math.nan, math.inf, -1e308, True, "1", None)
        ),
        *(
            (lambda x=x: strings.contrast({names[0]: 1.0}, constant=x), "constant must be")
            for x in (math.nan, math.inf, 1e308)
        ),
        (
            lambda: weigh({"a": themes, "b": themes}, {"a": 1e308, "b": 1e308}),
            "must be finite",
        ),
    ]
    for ask, reason in refused:
        with pytest.raises(DecodeError, match=re.escape(reason)):
            ask()


def test_numbers_without_noise_are_exact() -> None:
    """Without noise, mean and quantiles of 1,000 numbers in buckets are exact."""
    params = Params(k=3, f=0, p=0, q=1, encoding="buckets", categories=("10", "20"), insecure=True)
    contrasts = describe_numbers(decode(Counts(params, [[500, 250, 250]], [1000])))
    numbers = {contrast.name: contrast for contrast in contrasts}
    assert numbers["below 10"].estimate == pytest.approx(0.5)
    assert numbers["below 20"].estimate == pytest.approx(0.75)
    assert numbers["mean"].estimate == pytest.approx(0.5 * 10 + 0.25 * 15 + 0.25 * 20)
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
    """With one edge there is a share below it, but no mean and no finite quantile."""
    params = Params(k=2, f=0, p=0, q=1, encoding="buckets", categories=("10",), insecure=True)
    contrasts = describe_numbers(decode(Counts(params, [[600, 400]], [1000])))
    assert [contrast.name for contrast in contrasts][:2] == ["below 10", "quantile 0.1"]


def test_a_band_reaches_as_far_as_all_edges_need() -> None:
    """The half width of a band is that of one interval for equal edges, else up to Bonferroni's."""
    one, four = np.ones((4, 4)), np.eye(4)
    assert compute_band_critical_value(one, 0.05) == pytest.approx(1.959964, abs=1e-5)
    assert 2.4 < compute_band_critical_value(four, 0.05) <= stats.norm.isf(0.05 / 8)
    half = np.array([[1.0, 0.5], [0.5, 1.0]])
    c = compute_band_critical_value(half, 0.05)
    inside = stats.multivariate_normal(cov=half).cdf([c, c], lower_limit=[-c, -c])
    assert inside == pytest.approx(0.95, abs=1e-4)


def test_weights_add_up_segments() -> None:
    """Weighted totals of two segments have the mean and the variance computed by hand."""
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
    expected = np.hypot(0.75 * x.std_error[0], 0.25 * y.std_error[0])
    assert first.std_error == pytest.approx(expected)
    assert weighted.to_dict()["reports"] == 3000
