"""Scenarios: what is found, and whether intervals hold, where more happens than one report each.

The same scenarios are used by the tests. A collection has seven days at most, which are decoded as
days of which nobody knows how many devices came again, each with what the metric's interval says of
one day.
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
RUNS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One collection: detections, and shares of adjusted intervals that hold what is true.

    `answered` is of what devices answer for, `held` of what they hold on the last day. Both are
    NaN where nothing is detected.
    """

    reports: int
    true: int
    false: int
    answered: float
    held: float


def scenarios(*, quick: bool) -> list[Table]:
    """Decode collections of every named scenario."""
    table = Table(
        title=f"scenarios: low-noise, {N_DEVICES:,} devices, exp(-.05 i), mean over the seeds",
        columns=("scenario", "reports", "found", "false share", "error", "answered", "held"),
        note="Answered, held: share of the adjusted intervals that hold the share of the devices "
        "that answer for a string, and of those that hold it on the last day. Error: standard "
        "error of the false share.",
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
        float(np.nanmean([run.answered for run in runs])),
        float(np.nanmean([run.held for run in runs])),
    ]


def measure(scenario: Scenario, seed: int) -> Run:
    """Simulate one collection and decode it."""
    collection, params = POPULATIONS["exp"](seed), Params.profile("low-noise")
    days = list(
        simulate_scenario(scenario, collection.population, params, n_devices=N_DEVICES, seed=seed)
    )
    each = scenario.reports_a_day
    counts = [day.counts.with_devices(reports_per_device=each) for day in days]
    found = decode(counts, collection.candidates, error_control=ErrorControl(alpha=LEVEL))
    answered = np.mean([_shares(day.reported_values, collection) for day in days], axis=0)
    present = answered > 0
    places = {text: i for i, text in enumerate(collection.candidates)}
    rows = np.array([places[text] for text in found.candidates])
    detected = found.detected
    return Run(
        reports=found.reports,
        true=int((detected & present[rows]).sum()),
        false=int((detected & ~present[rows]).sum()),
        answered=_held(found, answered[rows]),
        held=_held(found, _shares(days[-1].values, collection)[rows]),
    )


def _shares(values: NDArray[np.int64], collection: Collection) -> NDArray[np.float64]:
    """Return the share of the devices that hold each candidate; all true ones are candidates."""
    held = np.bincount(values, minlength=len(collection.candidates))
    shares = held[: len(collection.population)] / len(values)
    absent = np.zeros(len(collection.candidates) - len(shares))
    return np.concatenate([shares, absent])


def _held(found: Estimates, truth: NDArray[np.float64]) -> float:
    """Return the share of detected rows whose adjusted interval holds the truth."""
    if not found.detected.any():
        return math.nan
    inside = (found.ci_low_adjusted <= truth) & (truth <= found.ci_high_adjusted)
    return float(inside[found.detected].mean())
