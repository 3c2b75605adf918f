"""Predictions of plans, compared with simulated collections.

`rappor plan` predicts the probability of detection of a string, the number of detections and the
widths of intervals. This benchmark compares each prediction with the mean of simulated collections.

Each case is a plan for a budget and a population. For each case, collections are simulated and
decoded with the planned parameters. Each population contains one further string, the *probe*. It
has the smallest share that the plan promises to detect.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
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
"""Edges of the bins of predicted probabilities. Within each bin, the mean predicted probability is
compared with the observed share of detections. More bins show smaller regions of a wrong
prediction, with more noise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A plan and its population.

    Attributes
    ----------
    plan : the plan.
    shares : (n,) float64. Shares of the strings of the population, largest first.
    n_present : number of present candidates. They have the first shares of `shares`.
    is_limited : whether a limit of the case (bytes, epsilon_inf or hash functions) excludes the
        parameters with the smallest variance.
    """

    plan: Plan
    shares: NDArray[np.float64]
    n_present: int
    is_limited: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Result of one simulated collection with a probe.

    Attributes
    ----------
    is_probe_detected : whether the probe was detected.
    width : width of the probe's confidence interval, as a share.
    adjusted_width : width of its adjusted interval, as a share; NaN if it was not detected.
    rare : mean square of the estimated shares of the absent candidates. Their true share is 0, so
        it estimates the variance of a rare string.
    detected : (n_present,) bool, whether each present candidate was detected.
    """

    is_probe_detected: bool
    width: float
    adjusted_width: float
    rare: float
    detected: NDArray[np.bool_]


def _compute_exponential_weights(n: int) -> NDArray[np.float64]:
    """Return the weights exp(-.05 i) of n strings."""
    weights: NDArray[np.float64] = np.exp(-0.05 * np.arange(n))
    return weights


def _compute_zipf_weights(n: int) -> NDArray[np.float64]:
    """Return the weights 1 / rank of n strings."""
    return np.asarray(1 / np.arange(1.0, n + 1))


_CASES: dict[str, Callable[[], Case]] = {
    "strict": lambda: _plan_case(
        _compute_exponential_weights(100), 200, epsilon_1=1, epsilon_inf=2, reports=1_000_000
    ),
    "strict, 20,000 reports": lambda: _plan_case(
        _compute_exponential_weights(40), 100, epsilon_1=1, epsilon_inf=3, reports=20_000
    ),
    "balanced, Bonferroni": lambda: _plan_case(
        _compute_zipf_weights(150),
        300,
        correction="bonferroni",
        epsilon_1=2,
        epsilon_inf=4,
        reports=300_000,
    ),
    "low-noise": lambda: _plan_case(
        _compute_zipf_weights(150), 300, epsilon_1=4, epsilon_inf=6, reports=100_000
    ),
    # The losses of the simulations of [EPK14] section 5.2, with k = 128, h = 2, f = 1/2, p = 1/2
    # and q = 3/4. One report loses 1.0743 nats. Any number of reports loses 4 ln 3 = 4.394449 nats.
    "privacy of [EPK14]": lambda: _plan_case(
        _compute_exponential_weights(100),
        200,
        epsilon_1=1.0743,
        epsilon_inf=4.394449,
        reports=1_000_000,
    ),
    # The population has 1,000 strings. Only the 100 most frequent strings are candidates, so 900
    # strings are in the background of the fit.
    "most strings are no candidates": lambda: _plan_case(
        _compute_zipf_weights(1000), 200, n_present=100, epsilon_1=2, epsilon_inf=4, reports=300_000
    ),
    "two bytes": lambda: _plan_case(
        _compute_zipf_weights(150),
        300,
        is_limited=True,
        epsilon_1=2,
        epsilon_inf=4,
        reports=300_000,
        max_bytes=2,
    ),
    "small epsilon_inf": lambda: _plan_case(
        _compute_zipf_weights(150),
        300,
        is_limited=True,
        epsilon_1=3,
        epsilon_inf=3.5,
        reports=100_000,
    ),
    "h = 2, symmetric": lambda: _plan_case(
        _compute_zipf_weights(150),
        300,
        is_limited=True,
        epsilon_1=2,
        epsilon_inf=4,
        reports=1_000_000,
        hashes=2,
        symmetric=True,
    ),
}
"""Maps the name of a row to the function that makes its plan."""

CASES = tuple(_CASES)
"""The rows of the table have these names."""


@functools.cache
def get_case(name: str) -> Case:
    """Return the case with a name. A cache computes each plan once."""
    return _CASES[name]()


def _plan_case(
    weights: NDArray[np.float64],
    n_candidates: int,
    *,
    n_present: int | None = None,
    correction: str = "bh",
    is_limited: bool = False,
    **budget: float,
) -> Case:
    """Plan for strings with these weights, in falling order.

    The candidates are the first `n_present` strings (by default all strings), and as many absent
    strings as are needed for `n_candidates` candidates. `budget` contains the arguments of `plan`.
    """
    shares = weights / weights.sum()
    n_present = len(shares) if n_present is None else n_present
    frequencies = Frequencies.of_shares(shares, n_candidates, n_present=n_present)
    target = DetectionTarget(frequencies=frequencies, error_control=ErrorControl(method=correction))
    planned = plan(target, **budget)  # type: ignore[arg-type]  # reports and bytes are whole
    return Case(plan=planned, shares=shares, n_present=n_present, is_limited=is_limited)


def simulate_case(seed: int, name: str) -> Observed:
    """Simulate one collection of a case with the planned parameters, and decode it.

    The seed is a part of the names of the strings, so each collection has strings of its own.
    """
    chosen = get_case(name)
    planned, share = chosen.plan, chosen.plan.share
    assert share is not None
    # The probe takes the place of one absent candidate.
    n_absent = planned.target.frequencies.absent - 1
    present = [f"{seed}/held/{i}" for i in range(len(chosen.shares))]
    absent = [f"{seed}/absent/{i}" for i in range(n_absent)]
    population = Population(["probe", *present], [share, *(chosen.shares * (1 - share))])
    counts = simulate_counts(population, planned.params, n_reports=planned.reports, seed=seed)
    estimates = decode(
        counts,
        ["probe", *present[: chosen.n_present], *absent],
        error_control=planned.target.error_control,
    )
    row = {candidate: i for i, candidate in enumerate(estimates.candidates)}
    probe = row["probe"]
    return Observed(
        is_probe_detected=bool(estimates.detected[probe]),
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
    chosen = get_case(name)
    planned, share = chosen.plan, chosen.plan.share
    assert share is not None
    shares = chosen.shares * (1 - share)
    frequencies = Frequencies.of_shares(
        [share, *shares], planned.target.frequencies.n_candidates, n_present=chosen.n_present + 1
    )
    target = DetectionTarget(
        frequencies=frequencies,
        error_control=planned.target.error_control,
    )
    prediction = predict(planned.params, planned.reports, target)
    # `frequencies` may contain other shares than `shares`, in another order, because it merges
    # nearly equal shares. The probability at each share is therefore interpolated.
    order = np.argsort(frequencies.shares)
    by_share = frequencies.shares[order], prediction.probabilities[order]
    probabilities = np.interp(shares[: chosen.n_present], *by_share)
    return prediction.expected_detections, probabilities


def bin_predictions(name: str, runs: list[Observed]) -> list[tuple[int, float, float]]:
    """Return the number of strings, and their mean predicted and observed probability, by bin.

    The predicted probability of a string determines its bin. Empty bins are left out.
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
        # The plan promises to detect the share with probability .8, the default of
        # `DetectionTarget.power`. 4 e^eps / (e^eps - 1)^2 is `compute_optimal_variance`.
        note="The probe has the share of the column 'share %'. Power: planned probability that the "
        "probe is detected.\nPower seen: proportion of the collections that detect it. Worst bin: "
        "largest difference between observed\nand predicted probability, in bins of the present "
        "strings. Ratios: observed width divided by predicted\nwidth. Rare: variance of an absent "
        "string's share, divided by 4 e^eps / (e^eps - 1)^2 / N, the smallest\nknown variance of N "
        "reports with epsilon_1 = eps.",
    )
    with start_pool() as pool:
        for name in CASES:
            runs = run_many(partial(simulate_case, name=name), n_runs, pool)
            table.rows.append(_build_row(name, runs))
    return [table]


def _build_row(name: str, runs: list[Observed]) -> list[str | int | float]:
    """Return the cells of a row, as the columns of the table name them."""
    planned = get_case(name).plan
    prediction = planned.prediction
    gaps = [observed - expected for _, expected, observed in bin_predictions(name, runs)]
    best_variance = compute_optimal_variance(planned.budget.epsilon_1) / planned.reports
    return [
        name,
        planned.params.k,
        planned.params.m,
        100 * (planned.share or float("nan")),
        planned.target.power,
        float(np.mean([run.is_probe_detected for run in runs])),
        max(gaps, key=abs),
        predict_with_probe(name)[0],
        float(np.mean([run.detected.sum() + run.is_probe_detected for run in runs])),
        float(np.mean([run.width for run in runs])) / prediction.width,
        float(np.nanmean([run.adjusted_width for run in runs])) / prediction.adjusted_width,
        # Predicted variance of a rare string as a multiple of the optimum, then the observed one.
        planned.excess,
        float(np.mean([run.rare for run in runs])) / best_variance,
    ]
