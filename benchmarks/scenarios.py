"""Scenarios: detections and coverage in collections with events such as lost or forged uploads.

The scenarios are `rappor.simulation.upload_scenarios.SCENARIOS`, which tests use too. A collection
has one or seven days. Each day is a separate collection in which every device reports equally
often, and the days are decoded together. Devices may be in several days.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import LEVEL
from benchmarks.populations import POPULATIONS, Collection
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params
from rappor.simulation.upload_scenarios import SCENARIOS, Scenario, simulate_scenario

N_DEVICES: Final = 100_000
"""Each day has this number of devices."""
RUNS: Final = 40
"""Number of collections of each scenario. Each collection has its own seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Detections of one collection, and the coverage of its adjusted intervals.

    `reported` is the coverage of the shares of the values that devices report: their first values.
    `current` is the coverage of the shares of the values that devices have on the last day. Both
    are NaN without detections.
    """

    reports: int
    true: int
    false: int
    reported: float
    current: float


def scenarios(*, quick: bool) -> list[Table]:
    """Decode collections of every named scenario."""
    table = Table(
        title=f"scenarios: low-noise, {N_DEVICES:,} devices, exp(-.05 i), mean over the seeds",
        columns=(
            "scenario",
            "reports",
            "found",
            "false share",
            "error",
            "reported covered",
            "current covered",
        ),
        note="Reported, current: coverage of the adjusted intervals, of the share of the devices "
        "that report a string, and of those that have it on the last day. Error: standard error of "
        "the false share.",
    )
    for name, scenario in SCENARIOS.items():
        runs = [measure(scenario, seed) for seed in range(1 if quick else RUNS)]
        table.rows.append([name, *summarise(runs)])
    return [table]


def summarise(runs: list[Run]) -> list[int | float]:
    """Return the cells of a row."""
    false = np.array([run.false / max(run.true + run.false, 1) for run in runs])
    return [
        int(np.mean([run.reports for run in runs])),
        float(np.mean([run.true for run in runs])),
        float(false.mean()),
        float(false.std(ddof=1) / len(runs) ** 0.5) if len(runs) > 1 else math.nan,
        float(np.nanmean([run.reported for run in runs])),
        float(np.nanmean([run.current for run in runs])),
    ]


def measure(scenario: Scenario, seed: int) -> Run:
    """Simulate one collection and decode it."""
    collection, params = POPULATIONS["exp"](seed), Params.profile("low-noise")
    days = list(
        simulate_scenario(scenario, collection.population, params, n_devices=N_DEVICES, seed=seed)
    )
    counts = [day.counts.with_devices(reports_per_device=scenario.reports_a_day) for day in days]
    estimates = decode(counts, collection.candidates, error_control=ErrorControl(alpha=LEVEL))
    # The truth for a decode of several days is the mean of the shares of the days.
    reported = np.mean([_compute_shares(day.reported_values, collection) for day in days], axis=0)
    present = reported > 0
    indices = {text: i for i, text in enumerate(collection.candidates)}
    rows = np.array([indices[text] for text in estimates.candidates])
    detected = estimates.detected
    return Run(
        reports=estimates.reports,
        true=int((detected & present[rows]).sum()),
        false=int((detected & ~present[rows]).sum()),
        reported=_compute_coverage(estimates, reported[rows]),
        current=_compute_coverage(estimates, _compute_shares(days[-1].values, collection)[rows]),
    )


def _compute_shares(values: NDArray[np.int64], collection: Collection) -> NDArray[np.float64]:
    """Return the share of the devices that have each candidate. All true strings are candidates."""
    devices = np.bincount(values, minlength=len(collection.candidates))
    shares = devices[: len(collection.population)] / len(values)
    absent = np.zeros(len(collection.candidates) - len(shares))
    return np.concatenate([shares, absent])


def _compute_coverage(estimates: Estimates, truth: NDArray[np.float64]) -> float:
    """Return the share of detected rows whose adjusted interval contains the truth."""
    if not estimates.detected.any():
        return math.nan
    inside = (estimates.ci_low_adjusted <= truth) & (truth <= estimates.ci_high_adjusted)
    return float(inside[estimates.detected].mean())
