"""Predictions of plans, compared with simulated collections.

Question: are the probability of detection, the number of detections and the widths of intervals
that `rappor plan` predicts the ones that collections show? Each case is a plan for a budget and a
population. For each case, collections are simulated and decoded with the planned parameters. One
further string, the *probe*, has the smallest share that the plan promises to detect.
"""

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
"""Edges of the bins of predicted probabilities. Within each bin, the mean prediction is compared
with the mean observation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A plan and its population.

    Attributes
    ----------
    plan : the plan.
    shares : (n,) float64. Shares of the strings of the population, largest first.
    n_present : number of strings that are candidates: the first of `shares`.
    limited : whether a limit (bytes, epsilon_inf, hash functions) excludes the parameters with the
        least variance.
    """

    plan: Plan
    shares: NDArray[np.float64]
    n_present: int
    limited: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Result of one simulated collection with a probe.

    Attributes
    ----------
    hit : whether the probe was detected.
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
    """Return the weights exp(-.05 i) of n strings."""
    weights: NDArray[np.float64] = np.exp(-0.05 * np.arange(n))
    return weights


def _zipf(n: int) -> NDArray[np.float64]:
    """Return the weights 1 / rank of n strings."""
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
"""Function that makes the plan of each row, by the name of the row."""

CASES = tuple(_CASES)
"""Names of the rows."""


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
    """Plan for strings with these weights, in falling order.

    The candidates are the first `n_present` strings (by default all), and absent strings up to
    `n_candidates` in all. `budget` has the arguments of `plan`.
    """
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
    chosen = case(name)
    planned, share = chosen.plan, chosen.plan.share
    assert share is not None
    # The probe takes the place of one absent candidate.
    n_absent = planned.question.frequencies.absent - 1
    present = [f"{seed}/held/{i}" for i in range(len(chosen.shares))]
    absent = [f"{seed}/absent/{i}" for i in range(n_absent)]
    population = Population(["probe", *present], [share, *(chosen.shares * (1 - share))])
    counts = simulate_counts(population, planned.params, n_reports=planned.reports, seed=seed)
    estimates = decode(
        counts,
        ["probe", *present[: chosen.n_present], *absent],
        error_control=planned.question.error_control,
    )
    row = {candidate: i for i, candidate in enumerate(estimates.candidates)}
    probe = row["probe"]
    return Observed(
        hit=bool(estimates.detected[probe]),
        width=float(estimates.ci_high[probe] - estimates.ci_low[probe]),
        adjusted_width=float(estimates.ci_high_adjusted[probe] - estimates.ci_low_adjusted[probe]),
        rare=float(np.mean(estimates.share[[row[text] for text in absent]] ** 2)),
        detected=estimates.detected[[row[text] for text in present[: chosen.n_present]]],
    )


@functools.cache
def predict_with_probe(name: str) -> tuple[float, NDArray[np.float64]]:
    """Return the prediction of a collection with the probe.

    Returns
    -------
    The predicted number of detections, and (n_present,) the predicted probability of detection of
    each present string.
    """
    chosen = case(name)
    planned, share = chosen.plan, chosen.plan.share
    assert share is not None
    shares = chosen.shares * (1 - share)
    frequencies = Frequencies.of_shares(
        [share, *shares], planned.question.frequencies.n_candidates, n_present=chosen.n_present + 1
    )
    question = DetectionTarget(
        frequencies=frequencies,
        error_control=planned.question.error_control,
    )
    prediction = predict(planned.params, planned.reports, question)
    # The prediction lists the shares in its own order: look up each share by interpolation.
    order = np.argsort(frequencies.shares)
    by_share = frequencies.shares[order], prediction.probabilities[order]
    probabilities = np.interp(shares[: chosen.n_present], *by_share)
    return prediction.found, probabilities


def bin_predictions(name: str, runs: list[Observed]) -> list[tuple[int, float, float]]:
    """Return the number of strings, and their mean predicted and observed probability, by bin.

    Strings are in a bin by their predicted probability. Empty bins are left out.
    """
    expected = predict_with_probe(name)[1]
    observed = np.mean([run.detected for run in runs], axis=0)
    bins = np.digitize(expected, BINS)
    return [
        (
            int((bins == number).sum()),
            float(expected[bins == number].mean()),
            float(observed[bins == number].mean()),
        )
        for number in range(1, len(BINS))
        if (bins == number).any()
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
            table.rows.append(_build_row(name, runs))
    return [table]


def _build_row(name: str, runs: list[Observed]) -> list[str | int | float]:
    """Return the cells of a row, as the columns of the table name them."""
    planned = case(name).plan
    prediction = planned.prediction
    gaps = [observed - expected for _, expected, observed in bin_predictions(name, runs)]
    best_variance = compute_optimal_variance(planned.budget.epsilon_1) / planned.reports
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
        float(np.mean([run.rare for run in runs])) / best_variance,
    ]
