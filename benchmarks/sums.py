"""Accuracy of sums of several rows: unallocated share, contrasts, and complete categories.

`decode` estimates the share of each candidate, and sums of such shares with an error of their own.
This benchmark simulates many collections, decodes them, and counts how often the interval of a sum
contains the true sum (coverage). Three tables:

1. *Sums of detected rows*. A row is an estimate of one candidate, and rows are sorted by estimate.
   The table has the unallocated share (1 minus the share of all detected rows), and the remaining
   shares: the share of the detected rows after the first 10, 20, 50, ... rows. The true sum is the
   sum of the population's shares of the same rows. For comparison the table has the plain sum of
   the estimates, with the root of the sum of their squared standard errors. Rows are detected
   because their estimates are high, so the plain sum is too large.
2. *Contrasts* of rows that are named before the collection, such as a group, a difference or a
   quantile, with the coverage of their intervals.
3. *Complete categories*: every value is in one of the categories, and `decode` knows it
   (`complete=True`). The table has the gain in accuracy, and the estimator IBU of multi-freq-ldpy
   on the same bit counts for comparison.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.accuracy import DESIGNS, get_true_shares, run_many, start_pool
from benchmarks.populations import POPULATIONS
from benchmarks.tables import Table
from rappor.counts.counts import Counts
from rappor.decoding.bucket_quantiles import LEVELS, describe_numbers
from rappor.decoding.contrasts import Contrast
from rappor.decoding.decoder import decode
from rappor.decoding.post_stratification import weigh
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

WITHIN: Final = 1.96
"""Number of standard errors around the estimate. A normal error is within this distance in 95 % of
the collections."""

BALANCED: Final = Params.profile("balanced")
STRICT: Final = Params.profile("strict")
LOW_NOISE: Final = Params.profile("low-noise")

CELLS: Final = {
    "150 falling, 150 absent": ("falling", BALANCED, 500_000),
    "[EPK14] 5.2": ("exp", DESIGNS["paper"], 1_000_000),
    "Zipf 1,000, half asked, 1e5": ("zipf_half", BALANCED, 100_000),
    "Zipf 1,000, half asked, 1e6": ("zipf_half", BALANCED, 1_000_000),
    "ten equal, ten absent": ("ten", BALANCED, 100_000),
    "the words of the demo": ("words", BALANCED, 1_000_000),
    "365 nearly equal": ("365 nearly equal", LOW_NOISE, 200_000),
    "100 equal + 300": ("100 equal + 300", BALANCED, 100_000),
    "30 equal + 30": ("30 equal + 30", BALANCED, 10_000),
    "100 equal + 400": ("100 equal + 400", BALANCED, 300_000),
    "lognormal .5, 200 + 200": ("lognormal .5, 200 + 200", BALANCED, 300_000),
    "two levels + 200": ("two levels + 200", BALANCED, 300_000),
    "50 equal + 50": ("50 equal + 50", STRICT, 300_000),
    "12 equal + 12": ("12 equal + 12", STRICT, 10_000),
    "lognormal .5, 500 + 500": ("lognormal .5, 500 + 500", LOW_NOISE, 200_000),
    "two levels": ("two levels", LOW_NOISE, 30_000),
    "300 equal + 300, a third detected": ("300 equal + 300", BALANCED, 300_000),
    "100 equal + 300, half detected": ("100 equal + 300", BALANCED, 50_000),
    "a falling line, 100 + 100": ("a falling line, 100 + 100", BALANCED, 300_000),
    "lognormal 1, 200 + 200": ("lognormal 1, 200 + 200", BALANCED, 300_000),
    "Zipf .5, 300 + 300": ("Zipf .5, 300 + 300", BALANCED, 300_000),
    "Zipf .8, 50 + 50": ("Zipf .8, 50 + 50", BALANCED, 100_000),
    "2,000 equal + 500": ("2,000 equal + 500", LOW_NOISE, 1_000_000),
}
"""Population (`benchmarks.populations`), parameters and number of reports of each cell. A cell is a
setting, and has one row in the table of detected sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of one collection.

    Each error is a pair: the estimate minus the truth, and the standard error of the estimate. Both
    are shares.

    Attributes
    ----------
    unallocated : error of the unallocated share.
    plain : error of 1 minus the plain sum of the detected estimates.
    remaining : errors of the sums of the detected rows after the first 10, 20, 50, ...
    """

    unallocated: tuple[float, float]
    plain: tuple[float, float]
    remaining: list[tuple[float, float]]


def measure(seed: int, name: str) -> Errors:
    """Draw and decode one collection of the cell `name`, and return the errors of its sums."""
    kind, params, n_reports = CELLS[name]
    collection = POPULATIONS[kind](seed)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    estimates = decode(counts, collection.candidates)
    # Only detected rows are summed. Both arrays are in the order of the rows, which are sorted by
    # estimate, so truth[10:] are the true shares of the rows after the first 10.
    truth = get_true_shares(estimates, collection)[estimates.detected]
    estimate, error = estimates.share[estimates.detected], estimates.std_error[estimates.detected]
    return Errors(
        unallocated=(estimates.unallocated - (1 - truth.sum()), estimates.unallocated_std_error),
        plain=(truth.sum() - estimate.sum(), float(np.sqrt((error**2).sum()))),
        remaining=[
            (part.share - truth[part.after :].sum(), part.std_error) for part in estimates.remaining
        ],
    )


def compute_coverage(errors: list[tuple[float, float]]) -> float:
    """Return the share of the pairs whose error is at most 1.96 standard errors."""
    return float(np.mean([abs(error) <= WITHIN * std_error for error, std_error in errors]))


def sums(*, quick: bool) -> list[Table]:
    """Compare the sums of several rows with the truth."""
    n_runs = 40 if quick else 1000
    with start_pool() as pool:
        return [
            _measure_detected_sums(n_runs, pool),
            _measure_contrasts(n_runs, pool),
            _measure_complete_categories(n_runs, pool),
        ]


def _measure_detected_sums(n_runs: int, pool: Executor) -> Table:
    """Measure the coverage of sums of detected rows, for each cell."""
    table = Table(
        title=f"sums: what is unallocated, {n_runs} collections a row, seeds 0 to {n_runs - 1}",
        columns=(
            "collection",
            "unallocated covered",
            "mean error %",
            "standard error %",
            "remaining covered",
            "plain sum covered",
            "its mean error %",
        ),
        note="Covered: share of collections with the truth within 1.96 standard errors. Mean error "
        "and standard error: of the estimate, in percent of the reports. Remaining: sums of the "
        "detected rows after the first 10, 20, 50, ...",
    )
    for name in CELLS:
        table.rows.append(_build_row(name, run_many(partial(measure, name=name), n_runs, pool)))
    return table


def _build_row(name: str, runs: list[Errors]) -> list[Any]:
    """Return the row of a cell, with the columns of `_measure_detected_sums`."""
    remaining = [error for run in runs for error in run.remaining]
    return [
        name,
        compute_coverage([run.unallocated for run in runs]),
        100 * float(np.mean([run.unallocated[0] for run in runs])),
        100 * float(np.mean([run.unallocated[1] for run in runs])),
        compute_coverage(remaining) if remaining else float("nan"),
        compute_coverage([run.plain for run in runs]),
        100 * float(np.mean([run.plain[0] for run in runs])),
    ]


def _measure_contrasts(n_runs: int, pool: Executor) -> Table:
    """Measure how often the interval of each contrast contains the truth."""
    table = Table(
        title=f"contrasts: {n_runs} collections a row, seeds 0 to {n_runs - 1}",
        columns=("collection", "contrast", "covered"),
        note="A band is covered if it contains the distribution function at all edges. The true "
        "quantile assumes numbers that are spread evenly between the edges.",
    )
    for name, draw_contrasts in CONTRASTS.items():
        runs = run_many(draw_contrasts, n_runs, pool)
        table.rows += [
            [name, contrast, float(np.mean([run[contrast] for run in runs]))]
            for contrast in runs[0]
        ]
    return table


def _measure_complete_categories(n_runs: int, pool: Executor) -> Table:
    """Measure the gain of `complete=True`, for several privacy losses and numbers of categories."""
    table = Table(
        title=f"complete: 5,000 reports of OUE, {n_runs} collections a row, seeds 0 to "
        f"{n_runs - 1}",
        columns=(
            *("epsilon", "categories", "standard error", "covered"),
            *("TV open", "TV complete", "TV of IBU", "complete / IBU"),
        ),
        note="Standard error: divided by the standard error without `complete`. TV: total "
        "variation with the rest as a cell. IBU: UE_Aggregator_IBU of multi-freq-ldpy 0.2.5 (`pip "
        "install multi-freq-ldpy`), nan where it is not installed.",
    )
    for epsilon, k in ((2.0, 5), (2.0, 12), (4.0, 12), (1.0, 12), (2.0, 50)):
        runs = np.array(
            run_many(partial(measure_complete, epsilon=epsilon, k=k), n_runs, pool)
        ).mean(axis=0)
        table.rows.append([epsilon, k, *map(float, runs), float(runs[3] / runs[4])])
    return table


def measure_complete(seed: int, epsilon: float, k: int) -> list[float]:
    """Decode one collection of categories with and without `complete`, and by IBU.

    IBU (iterative Bayesian update) is the estimator of another library. The mechanism is optimized
    unary encoding (OUE): one bit for each of k categories, q = 1/2 and p = 1 / (e^epsilon + 1). A
    quarter of the categories is empty. The total variation is half the sum of the absolute errors
    of the shares.

    Returns
    -------
    The mean ratio of the standard errors with and without `complete`, the share of the intervals
    that contain the truth, and the total variations without `complete`, with `complete`, and of IBU
    (NaN if multi-freq-ldpy is not installed).
    """
    # Each category has three quarters of the share of the category before.
    shares = np.power(0.75, np.arange(k)) * (np.arange(k) < k - k // 4)
    shares = shares / shares.sum()
    names = tuple(f"c{i:02}" for i in range(k))
    p = 1 / (np.exp(epsilon) + 1)
    params = Params(k=k, f=0, p=p, q=0.5, encoding="onehot", categories=names)
    present = [name for name, share in zip(names, shares, strict=True) if share]
    population = Population(present, shares[shares > 0])
    counts = simulate_counts(population, params, n_reports=5_000, seed=seed)
    incomplete = decode(counts, distribution=True)
    complete = decode(counts, distribution=True, complete=True)
    inside = (complete.ci_low <= shares) & (shares <= complete.ci_high)
    ibu_shares: NDArray[np.float64] = np.full(k, np.nan)
    if importlib.util.find_spec("multi_freq_ldpy"):
        oracle = importlib.import_module("multi_freq_ldpy.pure_frequency_oracles.UE")
        ibu_shares = oracle.UE_Aggregator_IBU([counts.bit_counts[0].astype(float)], k, epsilon)
    return [
        float((complete.std_error / incomplete.std_error).mean()),
        float(inside.mean()),
        *(
            _compute_total_variation(posterior, shares)
            for posterior in (incomplete.posterior_share, complete.posterior_share, ibu_shares)
        ),
    ]


def _compute_total_variation(
    estimated: NDArray[np.float64] | None, shares: NDArray[np.float64]
) -> float:
    """Return the total variation of all categories, and of the share of no category."""
    assert estimated is not None
    return float(np.abs(estimated - shares).sum() + abs(1 - estimated.sum())) / 2


def measure_strings(seed: int) -> dict[str, bool]:
    """Estimate a group and a difference of strings of [EPK14] section 5.2.

    Returns for each contrast whether its interval contains the truth, as the next functions do.
    """
    collection = POPULATIONS["exp"](seed)
    counts = simulate_counts(
        collection.population, DESIGNS["paper"], n_reports=1_000_000, seed=seed
    )
    estimates, names = decode(counts, collection.candidates), collection.candidates
    shares = collection.shares
    return {
        "sum of every eighth": contains_truth(estimates.total(names[::8]), shares[::8].sum()),
        "sum of every second": contains_truth(estimates.total(names[::2]), shares[::2].sum()),
        "difference": contains_truth(
            estimates.difference(names[3], names[7]), shares[3] - shares[7]
        ),
    }


def measure_categories(seed: int) -> dict[str, bool]:
    """Estimate a group and a difference of twelve categories.

    A tenth of the devices fits no category.
    """
    estimates = decode(_collect_one_hot(_FALLING, 20_000, seed))
    names = estimates.candidates
    return {
        "sum of four": contains_truth(estimates.total(names[2:6]), _FALLING[2:6].sum()),
        "difference": contains_truth(
            estimates.difference(names[0], names[1]), _FALLING[0] - _FALLING[1]
        ),
        "none of them": contains_truth(
            estimates.contrast(dict.fromkeys(names, -1.0), constant=1.0), 1 - _FALLING.sum()
        ),
    }


def measure_segments(seed: int) -> dict[str, bool]:
    """Estimate shares of a target population from three segments (post-stratification).

    The segments have other sizes in the collection than in the target, and different shares. The
    weights are their sizes in the target.
    """
    shares = {"x": _FALLING, "y": _FALLING[::-1], "z": np.full(12, 1 / 12)}
    reports = {"x": 20_000, "y": 5_000, "z": 2_000}
    weights = {"x": 0.2, "y": 0.5, "z": 0.3}
    by_segment = {
        name: decode(_collect_one_hot(shares[name], reports[name], 3 * seed + index))
        for index, name in enumerate(shares)
    }
    truth = sum(weights[name] * shares[name] for name in shares)
    weighted = weigh(by_segment, weights)
    return {
        "largest": contains_truth(weighted.contrasts[0], truth[0]),
        "smallest": contains_truth(weighted.contrasts[6], truth[6]),
    }


def measure_buckets(seed: int, n_reports: int = 20_000) -> dict[str, bool]:
    """Estimate mean and quantiles of standard normal numbers from twelve buckets.

    "band" is True if the confidence band contains the distribution function at all edges.
    """
    edges = np.linspace(-2, 2, 11)
    # One number inside each bucket: the middle of each inner bucket, and below a number beyond each
    # of the outer edges.
    inner = (edges[:-1] + edges[1:]) / 2
    # Standard normal distribution function at the edges, and the share of each bucket.
    below = special.ndtr(edges)
    shares = np.diff(below, prepend=0.0, append=1.0)
    values = [repr(float(number)) for number in (edges[0] - 1, *inner, edges[-1] + 1)]
    params = dataclasses.replace(
        CLOSED, k=12, encoding="buckets", categories=tuple(map(format_edge, edges))
    )
    counts = simulate_counts(Population(values, shares), params, n_reports=n_reports, seed=seed)
    *band, mean = (contrasts := describe_numbers(decode(counts)))[: len(edges) + 1]
    return {
        "band": all(map(contains_truth, band, below)),
        "mean": contains_truth(mean, float(shares @ np.array([edges[0], *inner, edges[-1]]))),
        **{
            quantile.name: contains_truth(quantile, float(np.interp(level, below, edges)))
            for level, quantile in zip(LEVELS, contrasts[len(edges) + 1 :], strict=True)
        },
    }


def contains_truth(contrast: Contrast, truth: float) -> bool:
    """Return whether an interval contains the truth."""
    return bool(contrast.ci_low <= truth <= contrast.ci_high)


def _collect_one_hot(shares: NDArray[np.float64], n_reports: int, seed: int) -> Counts:
    """Collect categories with these shares. The other devices fit no category."""
    names = tuple(f"c{i:02}" for i in range(len(shares)))
    params = dataclasses.replace(CLOSED, k=len(names), encoding="onehot", categories=names)
    unlisted = 1 - shares.sum()
    population = Population(names, shares)
    if unlisted > _ROUNDING:
        population = Population([*names, "nowhere"], [*shares, unlisted])
    return simulate_counts(population, params, n_reports=n_reports, seed=seed)


CLOSED: Final = dataclasses.replace(BALANCED, h=1, m=1, k=2)
"""Noise of the parameters of the metrics of listed values (categories and buckets). Each metric
replaces the encoding and k."""

_FALLING: Final = 0.9 * 0.75 ** np.arange(12) / (0.75 ** np.arange(12)).sum()
"""Shares of twelve categories. Each is three quarters of the one before. A tenth of the devices
fits no category."""

_ROUNDING: Final = 1e-9
"""Largest difference from 0 that rounding can cause in 1 minus a sum of shares. A larger difference
is the share of devices that fit no category."""

CONTRASTS: Final[dict[str, Callable[[int], dict[str, bool]]]] = {
    "[EPK14] 5.2": measure_strings,
    "12 categories, a tenth in none": measure_categories,
    "three segments": measure_segments,
    "12 buckets, 20,000 reports": measure_buckets,
    "12 buckets, 2,000 reports": partial(measure_buckets, n_reports=2_000),
}
"""Function of each row of the table of contrasts.

It draws and decodes a collection from a seed, and returns for each contrast whether its interval
contains the truth.
"""
