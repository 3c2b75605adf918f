"""Accuracy of the decoder on the named populations of the benchmarks.

The default run repeats the acceptance run with few collections; its bounds are the same,
widened by what so few can deviate.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import benchmark
from scipy import stats

if TYPE_CHECKING:
    from benchmarks import accuracy
else:
    accuracy = benchmark("accuracy")

FALSE_ALARM = 1e-9
"""Chance that a statistical check of the reduced run fails although the code is right."""

FEW = 8
MANY = 200

RUN_SD = {"found": 4.0, "variation": 0.02, "everywhere": 0.03, "top": 0.1, "adjusted": 0.08}
"""Standard deviations of one run's result, rounded up: 25 runs a kind showed at most 2.4,
.009, .017, .065 and .049. A reduced run sees an error of about twice its slack."""


def slack(result: str, n_runs: int) -> float:
    """Return how far the mean of n runs may deviate by chance. It is 0 for the acceptance run."""
    if n_runs >= MANY:
        return 0.0
    return float(stats.norm.isf(FALSE_ALARM)) * RUN_SD[result] / math.sqrt(n_runs)


def most_false(n_detected: int, share: float) -> int:
    """Return the largest number of false detections that chance allows among n, by their share."""
    return int(stats.binom.isf(FALSE_ALARM, n_detected, share)) + 1


both_counts = pytest.mark.parametrize(
    "n_runs",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=[pytest.mark.acceptance, pytest.mark.timeout(3600)]),
    ],
)
"""Runs a test with few collections. The stage acceptance runs the test with many collections too,
for an hour at most."""


@functools.cache
def detections(design: str, n_runs: int) -> list[accuracy.Run]:
    measure = partial(accuracy.detect, params=accuracy.DESIGNS[design])
    return accuracy.run_many(measure, n_runs, None)


@functools.cache
def coverages(kind: str, n_runs: int) -> list[accuracy.Coverage]:
    """Return the coverage of intervals in n collections, over parameters and sizes."""
    cells = [cell for cell in accuracy.coverage_cells() if cell[0] == kind]
    runs: list[accuracy.Coverage] = []
    for _, _, params, n_reports in cells:
        measure = partial(accuracy.cover, kind=kind, params=params, n_reports=n_reports)
        runs += accuracy.run_many(measure, n_runs // len(cells), None)
    return runs


@pytest.mark.slow
@both_counts
@pytest.mark.parametrize(
    ("design", "bh", "bonferroni"), [("paper", 43, 33), ("asymmetric", 52, 42)]
)
def test_as_many_strings_are_found(design: str, bh: int, bonferroni: int, n_runs: int) -> None:
    """The data of [EPK14] section 5.2 give the expected detections in two designs.

    One design is that of the paper, the other has the same privacy and h = 1.
    """
    runs = detections(design, n_runs)
    low = slack("found", n_runs)
    assert np.mean([run.bh.true for run in runs]) >= bh - low
    assert np.mean([run.bonferroni.true for run in runs]) >= bonferroni - low


@pytest.mark.slow
@both_counts
@pytest.mark.parametrize("design", ["paper", "asymmetric"])
def test_false_detections_keep_their_level(design: str, n_runs: int) -> None:
    """Benjamini-Hochberg bounds the false share, Bonferroni the share of runs with a false row."""
    runs = detections(design, n_runs)
    n_bad = sum(run.bonferroni.false > 0 for run in runs)
    if n_runs >= MANY:
        assert np.mean([run.bh.false_share for run in runs]) <= 0.05
        assert n_bad / n_runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_runs)
    else:
        n_detected = sum(run.bh.true + run.bh.false for run in runs)
        assert sum(run.bh.false for run in runs) <= most_false(n_detected, 0.05)
        assert n_bad <= most_false(n_runs, 0.05)


@both_counts
def test_the_distribution_is_near_the_truth(n_runs: int) -> None:
    """The total variation of the distribution is small in the paper's design.

    It is computed with the remainder as a cell, and without. Least squares has .24.
    """
    runs = detections("paper", n_runs)
    for count in ("total_variation", "with_other"):
        mean = float(np.mean([getattr(run, count) for run in runs]))
        assert mean <= 0.140 + slack("variation", n_runs)


@pytest.mark.slow
@both_counts
@pytest.mark.parametrize("kind", accuracy.COVERAGE_KINDS)
def test_intervals_cover_the_truth(kind: str, n_runs: int) -> None:
    """95 % intervals cover the truth, of all candidates and of the 20 most frequent ones."""
    runs = coverages(kind, n_runs)
    everywhere = float(np.mean([run.everywhere for run in runs]))
    top = float(np.mean([run.top for run in runs]))
    assert abs(everywhere - 0.95) <= 0.01 + slack("everywhere", n_runs)
    assert abs(top - 0.95) <= 0.02 + slack("top", n_runs)


@pytest.mark.slow
@both_counts
def test_adjusted_intervals_of_the_detected_cover(n_runs: int) -> None:
    """Adjusted intervals of detected strings cover the truth on average over the populations."""
    means = [
        np.nanmean([run.adjusted for run in coverages(kind, n_runs)])
        for kind in accuracy.COVERAGE_KINDS
    ]
    # There are four times as many collections, but some detect nothing and say nothing.
    assert float(np.mean(means)) >= 0.94 - slack("adjusted", n_runs)


@pytest.mark.slow
@both_counts
@pytest.mark.parametrize("kind", [*accuracy.COVERAGE_KINDS, *accuracy.MISSING_KINDS])
def test_the_false_discovery_rate_holds(kind: str, n_runs: int) -> None:
    """The false discovery rate is at most 5 % if heavy strings are no candidates, at low noise."""
    runs = coverages(kind, n_runs)
    if n_runs >= MANY:
        assert np.mean([run.found.false_share for run in runs]) <= 0.06
    else:
        n_detected = sum(run.found.true + run.found.false for run in runs)
        assert n_detected > 0
        assert sum(run.found.false for run in runs) <= most_false(n_detected, 0.06)
