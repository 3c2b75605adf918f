"""Accuracy: true and false detections of a decode, and the coverage of its intervals.

Two benchmarks:

- `paper`: the data of [EPK14] section 5.2 (100 strings with shares in proportion to exp(-.05 i),
  100 absent candidates, 1e6 reports). `decode` is compared with plain weighted least squares over
  all candidates, under the paper's parameters and under parameters of equal privacy.
- `coverage`: the share of 95 % intervals that contain the truth, and the false discovery rate, over
  six populations, several noise levels and two sizes.

Every run is one collection with its own strings, coins and seed. The truth is the share of the
population, of which the devices are a random sample. So a 95 % interval must also contain the error
of the sample: it is compared with the share of the population, not with the share of the devices.

Other benchmarks use the functions of this module (`run_many`, `start_pool`, `detect`).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.populations import POPULATIONS, Collection
from benchmarks.tables import Table
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts

_Run = TypeVar("_Run")

LEVEL = 0.05
"""Error rate of the detections. Benjamini-Hochberg limits the false discovery rate to it, and
Bonferroni limits the probability of any false detection to it."""
TOP = 20
"""Number of the most frequent candidates. Their coverage is reported separately, because users read
these rows."""

DESIGNS = {
    "paper": Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75),
    "asymmetric": Params(k=128, h=1, m=32, f=0.2, p=0.223909, q=0.530677),
}
"""Two designs of equal privacy, eps_inf 4.394 and eps_1 1.0743.

The first is the design of [EPK14] section 5.2. The second has one hash function, and noise that was
chosen for one hash function.
"""

NOISE_LEVELS = {
    "paper m=64": Params(k=128, h=2, m=64, f=0.5, p=0.5, q=0.75),
    "balanced": Params.profile("balanced"),
}
"""Parameter sets for the populations of COVERAGE_KINDS. The two sets have different noise."""
LOW_NOISE = {f"low noise h={h}": Params(k=128, h=h, m=16, f=0, p=0.225, q=0.775) for h in (1, 2)}
"""Designs with so little noise that errors come from strings outside the candidates.

Such a string shares bits with candidates, and its reports are counted for them.
"""

COVERAGE_KINDS = ("exp", "zipf_half", "uniform", "one_heavy")
"""Populations in which all strings are candidates, or, for "zipf_half", a random half of the
strings."""
MISSING_KINDS = ("zipf_missing", "exp_missing")
"""Populations in which some frequent strings are not among the candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionCounts:
    """Numbers of true and false detections of one run under one correction."""

    true: int
    false: int

    @property
    def false_share(self) -> float:
        """Share of the detections that are false, 0 without detections."""
        return self.false / max(self.true + self.false, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Detections of one run under two corrections, and the errors of its distribution.

    `total_variation` is half the sum of absolute errors over the candidates. `with_other` adds the
    error of the share of all other strings.
    """

    bh: DetectionCounts
    bonferroni: DetectionCounts
    total_variation: float
    with_other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of the 95 % intervals of one run, and its detections.

    `everywhere` is over all candidates, `top` over the 20 most frequent. `adjusted` is the coverage
    of the adjusted intervals over the detected candidates, NaN without detections. An adjusted
    interval is wider than the usual one, because the detected candidates are selected by their
    estimates.
    """

    everywhere: float
    top: float
    adjusted: float
    detections: DetectionCounts


def run_many(measure: Callable[[int], _Run], n_runs: int, pool: Executor | None) -> list[_Run]:
    """Measure seeds 0 to n_runs - 1 in this order, in a pool if one is passed."""
    if pool is None:
        return [measure(seed) for seed in range(n_runs)]
    # Each process gets two seeds at a time. With more, one process could still work on its last
    # seeds while the others have no work.
    return list(pool.map(measure, range(n_runs), chunksize=2))


def start_pool() -> Executor:
    """Start one process for each core.

    The processes are spawned, since a fork would share compiled threads.
    """
    return ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))


def detect(seed: int, params: Params, n_reports: int = 1_000_000) -> Run:
    """Decode the data of [EPK14] section 5.2 once."""
    collection = POPULATIONS["exp"](seed)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    # The posterior shares (`distribution=True`) do not depend on the correction for multiple tests,
    # so only one of the two decodes computes them.
    bh = decode(
        counts,
        collection.candidates,
        error_control=ErrorControl(alpha=LEVEL, method="bh"),
        distribution=True,
    )
    bonferroni = decode(
        counts, collection.candidates, error_control=ErrorControl(alpha=LEVEL, method="bonferroni")
    )
    assert bh.posterior_share is not None
    shares = dict(zip(bh.candidates, bh.posterior_share, strict=True))
    return Run(
        bh=count_detections(bh, collection),
        bonferroni=count_detections(bonferroni, collection),
        **_compute_variation(
            np.array([shares[text] for text in collection.candidates]), collection
        ),
    )


def detect_by_least_squares(seed: int, params: Params, n_reports: int = 1_000_000) -> Run:
    """Estimate the data of `detect` by weighted least squares over all candidates at once."""
    collection = POPULATIONS["exp"](seed)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    estimate, std_error = estimate_by_least_squares(counts, collection.candidates)
    p_values = stats.norm.sf(estimate / std_error)
    is_true = collection.shares > 0
    adjusted = stats.false_discovery_control(p_values)
    return Run(
        bh=_count(adjusted <= LEVEL, is_true),
        bonferroni=_count(p_values <= LEVEL / len(p_values), is_true),
        **_compute_variation(estimate, collection),
    )


def estimate_by_least_squares(
    counts: Counts, candidates: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimate all candidates by one dense weighted regression, without selection.

    p* and q* are the probabilities that a report shows a 1 at a bit of true value 0 and 1. The
    regression has one equation for each bit i and cohort j:

        (s - p*) / (q* - p*) = sum of the shares of the candidates that set the bit

    where s is the observed share of ones. The weight of an equation is the inverse of the variance
    of its left side.

    Returns `estimate` and `std_error`, (c,) float64, as shares of the c candidates.
    """
    params = counts.params
    gap = params.q_star - params.p_star
    # One equation for each bit of each cohort, in the order of the cells.
    n = np.repeat(counts.cohort_reports, params.k)
    observed = counts.bit_counts.ravel() / n
    # Variance of the de-biased share: the binomial variance, divided by gap^2.
    noise = observed * (1 - observed) / n / gap**2
    cells = Candidates.from_list(candidates).compute_cells(params, 0, len(candidates))
    # (m k, c): 1 if the candidate (column) sets the bit of a cohort (row).
    design = np.zeros((params.m * params.k, len(candidates)))
    for column, rows in enumerate(cells):
        design[rows[rows >= 0], column] = 1
    weighted = design / noise[:, None]
    inverse = np.linalg.inv(design.T @ weighted)
    estimate = inverse @ (weighted.T @ ((observed - params.p_star) / gap))
    return estimate, np.sqrt(inverse.diagonal())


def measure_coverage(seed: int, kind: str, params: Params, n_reports: int) -> Coverage:
    """Decode one collection, and compute the coverage of its intervals."""
    collection = POPULATIONS[kind](seed)
    counts = simulate_counts(collection.population, params, n_reports=n_reports, seed=seed)
    estimates = decode(
        counts, collection.candidates, error_control=ErrorControl(alpha=LEVEL, method="bh")
    )
    truth = get_true_shares(estimates, collection)
    inside = (estimates.ci_low <= truth) & (truth <= estimates.ci_high)
    adjusted = (estimates.ci_low_adjusted <= truth) & (truth <= estimates.ci_high_adjusted)
    # The 20 candidates are chosen by their true shares: the list of candidates is sorted by them.
    # If they were chosen by their estimates, candidates with a large positive error would be
    # chosen more often, and the coverage would be too low.
    top = np.isin(estimates.candidates, collection.candidates[:TOP])
    return Coverage(
        everywhere=float(inside.mean()),
        top=float(inside[top].mean()),
        adjusted=_mean(adjusted[estimates.detected]),
        detections=count_detections(estimates, collection),
    )


def get_true_shares(estimates: Estimates, collection: Collection) -> NDArray[np.float64]:
    """Return the true share of each row of the estimates."""
    shares = dict(zip(collection.candidates, collection.shares, strict=True))
    return np.array([shares[text] for text in estimates.candidates])


def count_detections(estimates: Estimates, collection: Collection) -> DetectionCounts:
    """Count the detections of present candidates and of absent candidates."""
    return _count(estimates.detected, get_true_shares(estimates, collection) > 0)


def _compute_variation(shares: NDArray[np.float64], collection: Collection) -> dict[str, float]:
    """Compute both total variations of `Run`. `shares` are in the order of the candidates."""
    errors = float(np.abs(shares - collection.shares).sum())
    non_candidate_error = abs(float(1 - shares.sum()) - collection.non_candidate_share)
    return {"total_variation": errors / 2, "with_other": (errors + non_candidate_error) / 2}


def _count(detected: NDArray[np.bool_], is_true: NDArray[np.bool_]) -> DetectionCounts:
    """Count true and false detections."""
    return DetectionCounts(
        true=int((detected & is_true).sum()), false=int((detected & ~is_true).sum())
    )


def _mean(values: NDArray[np.bool_]) -> float:
    """Return the share of True, NaN without values."""
    return float(values.mean()) if len(values) else float("nan")


def paper(*, quick: bool) -> list[Table]:
    """Measure detections in the data of [EPK14] section 5.2 at equal privacy."""
    n_runs = 8 if quick else 200
    table = Table(
        title=f"paper: [EPK14] 5.2, exp(-.05 i), N = 1e6, mean of {n_runs} runs",
        columns=(
            "design and decoder",
            "found BH",
            "false BH",
            "false share",
            "found Bonf.",
            "false Bonf.",
            "any false",
            "total variation",
            "with other",
        ),
        note="[EPK14] prints: 45 found, 2 false. Least squares is over all candidates, unclipped.\n"
        "BH and Bonferroni at 5 %. Any false: share of runs with a false string, Bonferroni.",
    )
    with start_pool() as pool:
        for name, params in DESIGNS.items():
            for decoder, measure in (
                ("least squares", detect_by_least_squares),
                ("decode", detect),
            ):
                runs = run_many(partial(measure, params=params), n_runs, pool)
                table.rows.append([f"{name}, {decoder}", *_summarise(runs)])
    return [table]


def _summarise(runs: list[Run]) -> list[float]:
    """Return the means over runs, in the order of the columns of `paper`."""
    return [
        float(np.mean([run.bh.true for run in runs])),
        float(np.mean([run.bh.false for run in runs])),
        float(np.mean([run.bh.false_share for run in runs])),
        float(np.mean([run.bonferroni.true for run in runs])),
        float(np.mean([run.bonferroni.false for run in runs])),
        float(np.mean([run.bonferroni.false > 0 for run in runs])),
        float(np.mean([run.total_variation for run in runs])),
        float(np.mean([run.with_other for run in runs])),
    ]


def coverage(*, quick: bool) -> list[Table]:
    """Measure coverage and false discoveries over populations, noise levels and sizes."""
    n_runs = 3 if quick else 50
    table = Table(
        title=f"coverage: 95 % intervals and BH 5 %, mean of {n_runs} collections a row",
        columns=("collection", "N", "all", "top 20", "adjusted", "false share", "found"),
        note="Nominal: .95, .95, at least .95, at most .05. Adjusted: intervals of the detected.",
    )
    with start_pool() as pool:
        for kind, name, params, n_reports in yield_coverage_cells():
            measure = partial(measure_coverage, kind=kind, params=params, n_reports=n_reports)
            runs = run_many(measure, n_runs, pool)
            table.rows.append([f"{kind}, {name}", n_reports, *average(runs)])
    return [table]


def yield_coverage_cells() -> Iterator[tuple[str, str, Params, int]]:
    """Yield population, name of the parameters, parameters and number of reports of every cell."""
    kinds = [(kind, NOISE_LEVELS) for kind in COVERAGE_KINDS]
    kinds += [(kind, LOW_NOISE) for kind in MISSING_KINDS]
    for kind, levels in kinds:
        for name, params in levels.items():
            for n_reports in (1_000_000, 10_000_000):
                yield kind, name, params, n_reports


def average(runs: list[Coverage]) -> list[float]:
    """Compute mean coverage of all, top and detected candidates, false share and detections."""
    # Runs without detections have no adjusted interval.
    adjusted = [run.adjusted for run in runs if not np.isnan(run.adjusted)]
    return [
        float(np.mean([run.everywhere for run in runs])),
        float(np.mean([run.top for run in runs])),
        float(np.mean(adjusted)) if adjusted else float("nan"),
        float(np.mean([run.detections.false_share for run in runs])),
        float(np.mean([run.detections.true for run in runs])),
    ]
