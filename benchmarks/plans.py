"""Plans held to their word: predict, simulate, decode and compare."""

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
from rappor.planning.frequencies import Crowd
from rappor.planning.noise import optimum
from rappor.planning.planner import plan
from rappor.planning.plans import Plan
from rappor.planning.power import Question, predict
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

BINS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Predicted chances between which strings are compared with what became of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A plan and the strings that it was made for; the first `n_asked` shares are candidates.

    `limited` says that a limit keeps the plan from the least variance.
    """

    plan: Plan
    shares: NDArray[np.float64]
    n_asked: int
    limited: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """One simulated collection, in which one absent candidate is held by the plan's share.

    Attributes
    ----------
    hit : whether that probe was detected.
    width, adjusted_width : of its interval alone, and of the one in the list of the detected
        (NaN where it is not detected), as shares.
    rare : mean square of the estimates of the absent candidates, as shares.
    detected : (n_asked,) bool.
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
    "strict": lambda: _case(_exponential(100), 200, epsilon=1, lifetime=2, reports=1_000_000),
    "strict, 20,000 reports": lambda: _case(
        _exponential(40), 100, epsilon=1, lifetime=3, reports=20_000
    ),
    "balanced, Bonferroni": lambda: _case(
        _zipf(150), 300, correction="bonferroni", epsilon=2, lifetime=4, reports=300_000
    ),
    "accurate": lambda: _case(_zipf(150), 300, epsilon=4, lifetime=8, reports=100_000),
    "privacy of [EPK14]": lambda: _case(
        _exponential(100), 200, epsilon=1.0743, lifetime=4.394449, reports=1_000_000
    ),
    "most strings not asked": lambda: _case(
        _zipf(1000), 200, n_asked=100, epsilon=2, lifetime=4, reports=300_000
    ),
    "two bytes": lambda: _case(
        _zipf(150), 300, limited=True, epsilon=2, lifetime=4, reports=300_000, max_bytes=2
    ),
    "short lifetime": lambda: _case(
        _zipf(150), 300, limited=True, epsilon=3, lifetime=3.5, reports=100_000
    ),
    "h = 2, symmetric": lambda: _case(
        _zipf(150),
        300,
        limited=True,
        epsilon=2,
        lifetime=4,
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


def _case(
    weights: NDArray[np.float64],
    n_candidates: int,
    *,
    n_asked: int | None = None,
    correction: str = "bh",
    limited: bool = False,
    **budget: float,
) -> Case:
    """Plan for these shares, the largest of which are asked about beside absent candidates."""
    shares = weights / weights.sum()
    n_asked = len(shares) if n_asked is None else n_asked
    crowd = Crowd.of_shares(shares, n_candidates, n_held=n_asked)
    question = Question(crowd=crowd, correction=correction)
    made = plan(question, **budget)  # type: ignore[arg-type]  # reports and bytes are whole
    return Case(plan=made, shares=shares, n_asked=n_asked, limited=limited)


def observe(seed: int, name: str) -> Observed:
    """Simulate and decode one collection as planned, with strings of its own."""
    it = case(name)
    made, share = it.plan, it.plan.share
    assert share is not None
    n_absent = made.question.crowd.absent - 1
    held = [f"{seed}/held/{i}" for i in range(len(it.shares))]
    absent = [f"{seed}/absent/{i}" for i in range(n_absent)]
    population = Population(["probe", *held], [share, *(it.shares * (1 - share))])
    counts = simulate_counts(population, made.params, n_reports=made.reports, seed=seed)
    estimates = decode(
        counts,
        ["probe", *held[: it.n_asked], *absent],
        correction=made.question.correction,
        level=made.question.level,
    )
    row = {candidate: i for i, candidate in enumerate(estimates.candidates)}
    probe = row["probe"]
    return Observed(
        hit=bool(estimates.detected[probe]),
        width=float(estimates.ci_high[probe] - estimates.ci_low[probe]),
        adjusted_width=float(estimates.ci_high_adjusted[probe] - estimates.ci_low_adjusted[probe]),
        rare=float(np.mean(estimates.proportion[[row[text] for text in absent]] ** 2)),
        detected=estimates.detected[[row[text] for text in held[: it.n_asked]]],
    )


@functools.cache
def with_probe(name: str) -> tuple[float, NDArray[np.float64]]:
    """Return the expected number found, and each held candidate's chance, with the probe there."""
    it = case(name)
    made, share = it.plan, it.plan.share
    assert share is not None
    shares = it.shares * (1 - share)
    crowd = Crowd.of_shares(
        [share, *shares], made.question.crowd.n_candidates, n_held=it.n_asked + 1
    )
    question = Question(crowd=crowd, correction=made.question.correction)
    prediction = predict(made.params, made.reports, question)
    order = np.argsort(crowd.shares)
    chances = np.interp(shares[: it.n_asked], crowd.shares[order], prediction.chances[order])
    return prediction.found, chances


def binned(name: str, runs: list[Observed]) -> list[tuple[int, float, float]]:
    """Return strings, predicted and observed chance of each bin that holds any."""
    expected = with_probe(name)[1]
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
        "between predicted and\nobserved chance in bins of the held strings. Ratios: observed to "
        "predicted. Rare: variance of an absent string's\ncount over 4 e^eps/(e^eps-1)^2 N.",
    )
    with start_pool() as pool:
        for name in CASES:
            runs = run_many(partial(observe, name=name), n_runs, pool)
            table.rows.append(_row(name, runs))
    return [table]


def _row(name: str, runs: list[Observed]) -> list[str | int | float]:
    made = case(name).plan
    prediction = made.prediction
    gaps = [seen - expected for _, expected, seen in binned(name, runs)]
    best = optimum(made.epsilon) / made.reports
    return [
        name,
        made.params.k,
        made.params.m,
        100 * (made.share or float("nan")),
        made.question.power,
        float(np.mean([run.hit for run in runs])),
        max(gaps, key=abs),
        with_probe(name)[0],
        float(np.mean([run.detected.sum() + run.hit for run in runs])),
        float(np.mean([run.width for run in runs])) / prediction.width,
        float(np.nanmean([run.adjusted_width for run in runs])) / prediction.adjusted_width,
        made.excess,
        float(np.mean([run.rare for run in runs])) / best,
    ]
