"""Predictions of plans, compared with simulated collections."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.estimator.error_control import ErrorControl
from rappor.planning.frequencies import Frequencies
from rappor.planning.noise import compute_optimal_variance
from rappor.planning.planner import plan
from rappor.planning.plans import Plan
from rappor.planning.power import DetectionTarget, predict
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

BINS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Predicted probabilities that bound the bins in which prediction and observation are compared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A plan and its strings.

    The first `n_present` shares are candidates. `limited` is whether a limit keeps the plan from
    the least variance.
    """

    plan: Plan
    shares: NDArray[np.float64]
    n_present: int
    limited: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """One simulated collection, in which one absent candidate has the plan's share.

    Attributes
    ----------
    hit : whether this candidate, the probe, was detected.
    width : width of the probe's confidence interval, as a share.
    adjusted_width : width of its adjusted interval, as a share; NaN if it was not detected.
    rare : mean square of the estimates of the absent candidates, as shares.
    detected : (n_present,) bool, whether each present candidate was detected.
    """

    hit: bool
    width: float
    adjusted_width: float
    rare: float
    detected: NDArray[np.bool_]


def _exponential(n: int) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(-0.05 * np.arange(n))
    return weights


def _zipf(n: int) -> NDArray[np.float64]:
    return np.asarray(1 / np.arange(1.0, n + 1))


_CASES: dict[str, Callable[[], Case]] = {
    "strict": lambda: _plan_case(
        _exponential(100), 200, epsilon_1=1, epsilon_inf=2, reports=1_000_000
    ),
    "strict, 20,000 reports": lambda: _plan_case(
        _exponential(40), 100, epsilon_1=1, epsilon_inf=3, reports=20_000
    ),
    "balanced, Bonferroni": lambda: _plan_case(
        _zipf(150), 300, correction="bonferroni", epsilon_1=2, epsilon_inf=4, reports=300_000
    ),
    "low-noise": lambda: _plan_case(_zipf(150), 300, epsilon_1=4, epsilon_inf=6, reports=100_000),
    "privacy of [EPK14]": lambda: _plan_case(
        _exponential(100), 200, epsilon_1=1.0743, epsilon_inf=4.394449, reports=1_000_000
    ),
    "most strings no candidates": lambda: _plan_case(
        _zipf(1000), 200, n_present=100, epsilon_1=2, epsilon_inf=4, reports=300_000
    ),
    "two bytes": lambda: _plan_case(
        _zipf(150), 300, limited=True, epsilon_1=2, epsilon_inf=4, reports=300_000, max_bytes=2
    ),
    "small epsilon_inf": lambda: _plan_case(
        _zipf(150), 300, limited=True, epsilon_1=3, epsilon_inf=3.5, reports=100_000
    ),
    "h = 2, symmetric": lambda: _plan_case(
        _zipf(150),
        300,
        limited=True,
        epsilon_1=2,
        epsilon_inf=4,
        reports=1_000_000,
        hashes=2,
        symmetric=True,
    ),
}
CASES = tuple(_CASES)


@functools.cache
def case(name: str) -> Case:
    """Return a named plan."""
    return _CASES[name]()


def _plan_case(
    weights: NDArray[np.float64],
    n_candidates: int,
    *,
    n_present: int | None = None,
    correction: str = "bh",
    limited: bool = False,
    **budget: float,
) -> Case:
    """Plan for these shares. The largest shares are candidates beside absent candidates."""
    shares = weights / weights.sum()
    n_present = len(shares) if n_present is None else n_present
    frequencies = Frequencies.of_shares(shares, n_candidates, n_present=n_present)
    question = DetectionTarget(
        frequencies=frequencies, error_control=ErrorControl(method=correction)
    )
    planned = plan(question, **budget)  # type: ignore[arg-type]  # reports and bytes are whole
    return Case(plan=planned, shares=shares, n_present=n_present, limited=limited)


def observe(seed: int, name: str) -> Observed:
    """Simulate and decode one collection as planned, with its own strings."""
    it = case(name)
    planned, share = it.plan, it.plan.share
    assert share is not None
    n_absent = planned.question.frequencies.absent - 1
    present = [f"{seed}/held/{i}" for i in range(len(it.shares))]
    absent = [f"{seed}/absent/{i}" for i in range(n_absent)]
    population = Population(["probe", *present], [share, *(it.shares * (1 - share))])
    counts = simulate_counts(population, planned.params, n_reports=planned.reports, seed=seed)
    estimates = decode(
        counts,
        ["probe", *present[: it.n_present], *absent],
        error_control=planned.question.error_control,
    )
    row = {candidate: i for i, candidate in enumerate(estimates.candidates)}
    probe = row["probe"]
    return Observed(
        hit=bool(estimates.detected[probe]),
        width=float(estimates.ci_high[probe] - estimates.ci_low[probe]),
        adjusted_width=float(estimates.ci_high_adjusted[probe] - estimates.ci_low_adjusted[probe]),
        rare=float(np.mean(estimates.share[[row[text] for text in absent]] ** 2)),
        detected=estimates.detected[[row[text] for text in present[: it.n_present]]],
    )


@functools.cache
def predict_with_probe(name: str) -> tuple[float, NDArray[np.float64]]:
    """Return the expected number of detections with the probe.

    The second result is the probability of each present string.
    """
    it = case(name)
    planned, share = it.plan, it.plan.share
    assert share is not None
    shares = it.shares * (1 - share)
    frequencies = Frequencies.of_shares(
        [share, *shares], planned.question.frequencies.n_candidates, n_present=it.n_present + 1
    )
    question = DetectionTarget(
        frequencies=frequencies,
        error_control=planned.question.error_control,
    )
    prediction = predict(planned.params, planned.reports, question)
    order = np.argsort(frequencies.shares)
    by_share = frequencies.shares[order], prediction.probabilities[order]
    probabilities = np.interp(shares[: it.n_present], *by_share)
    return prediction.found, probabilities


def bin_predictions(name: str, runs: list[Observed]) -> list[tuple[int, float, float]]:
    """Return strings, predicted and observed probability of each bin that is not empty."""
    expected = predict_with_probe(name)[1]
    seen = np.mean([run.detected for run in runs], axis=0)
    bins = np.digitize(expected, BINS)
    return [
        (int((bins == b).sum()), float(expected[bins == b].mean()), float(seen[bins == b].mean()))
        for b in range(1, len(BINS))
        if (bins == b).any()
    ]


def plans(*, quick: bool) -> list[Table]:
    """Compare the predictions of the plans with simulated collections."""
    n_runs = 8 if quick else 150
    table = Table(
        title=f"plan: predicted and observed, {n_runs} collections a row",
        columns=(
            "plan",
            "k",
            "m",
            "share %",
            "power",
            "power seen",
            "worst bin",
            "found",
            "found seen",
            "width ratio",
            "adjusted ratio",
            "rare / best",
            "rare seen",
        ),
        note="Power: a string of that share, detected with .8 as planned. Worst bin: largest gap "
        "between predicted and\nobserved probability in bins of the present strings. Ratios: "
        "observed to predicted. Rare: variance of\nan absent string's count over "
        "4 e^eps/(e^eps-1)^2 N.",
    )
    with start_pool() as pool:
        for name in CASES:
            runs = run_many(partial(observe, name=name), n_runs, pool)
            table.rows.append(_row(name, runs))
    return [table]


def _row(name: str, runs: list[Observed]) -> list[str | int | float]:
    planned = case(name).plan
    prediction = planned.prediction
    gaps = [seen - expected for _, expected, seen in bin_predictions(name, runs)]
    best = compute_optimal_variance(planned.budget.epsilon_1) / planned.reports
    return [
        name,
        planned.params.k,
        planned.params.m,
        100 * (planned.share or float("nan")),
        planned.question.power,
        float(np.mean([run.hit for run in runs])),
        max(gaps, key=abs),
        predict_with_probe(name)[0],
        float(np.mean([run.detected.sum() + run.hit for run in runs])),
        float(np.mean([run.width for run in runs])) / prediction.width,
        float(np.nanmean([run.adjusted_width for run in runs])) / prediction.adjusted_width,
        planned.excess,
        float(np.mean([run.rare for run in runs])) / best,
    ]
