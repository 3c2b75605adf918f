"""A trend with a known change: a share falls from 5 % to 4 % over twelve weeks.

Question: how often does `trend` detect the fall, and how often does it report a change of a string
whose share stays? Each week has 100,000 new devices under `balanced`. 40 other strings keep their
shares, and 100 candidates are absent. `trend` decides by the slope over the weeks, for all 141
strings at a false discovery rate of 5 %. For comparison the benchmark counts the detections by
steps from week to week.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Cell, Table
from rappor.comparison.comparison import Comparison
from rappor.comparison.trend import trend
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

BALANCED: Final = Params.profile("balanced")
MONDAY: Final = datetime.date(2026, 8, 3)
"""First day of the first week. A trend by weeks needs whole weeks, which begin on a Monday."""
N_WEEKS: Final = 12
"""Number of weeks over which the share falls from 5 % to 4 %. With more weeks the trend has more
reports. The number must not exceed 100, so that every week of every collection has its own seed."""
FALLING: Final = "falling"
"""Name of the string that loses devices."""
STEADY: Final = tuple(f"s{i}" for i in range(40))
"""Strings whose shares stay."""
NON_CANDIDATES: Final = tuple(f"u{i}" for i in range(500))
"""Strings outside the candidates. Together they gain the share that the falling string loses."""

ABSENT: Final = tuple(f"x{i}" for i in range(100))
"""Candidates that no device has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one collection.

    Attributes
    ----------
    is_found_by_slope : whether the slope of the falling string is detected as a change.
    false : number of detected changes of other strings.
    n_changed : number of all detected changes.
    absent_z : slopes of the absent strings, in their standard errors. The true slopes are 0.
    fall_error : error of the slope of the falling string, in its standard error.
    is_found_by_step : whether a step from a week to the next detects a change of the falling
        string.
    """

    is_found_by_slope: bool
    false: int
    n_changed: int
    absent_z: NDArray[np.float64]
    fall_error: float
    is_found_by_step: bool


def draw_weeks(seed: int, *, params: Params = BALANCED, n_devices: float = 1e5) -> ReleasedCounts:
    """Draw the counts of the weeks. Each week has other devices."""
    # The steady strings share 90 % of the devices, with falling shares.
    steady_weights = np.exp(-np.arange(len(STEADY)) / 10)
    periods = []
    for week, share in enumerate(np.linspace(0.05, 0.04, N_WEEKS)):
        weights = [
            share,
            *(0.9 * steady_weights / steady_weights.sum()),
            *((0.1 - share) / len(NON_CANDIDATES) for _ in NON_CANDIDATES),
        ]
        population = Population([FALLING, *STEADY, *NON_CANDIDATES], weights)
        first = MONDAY + datetime.timedelta(7 * week)
        # A collection has 12 weeks, fewer than 100, so every week of every collection has its own
        # seed.
        counts = simulate_counts(population, params, n_reports=n_devices, seed=100 * seed + week)
        periods.append(
            Period(first=first, last=first + datetime.timedelta(6), collections=(counts,))
        )
    return ReleasedCounts(
        metric="", first=MONDAY, last=periods[-1].last, periods=tuple(periods), withheld=()
    )


def read_trend(comparison: Comparison) -> Run:
    """Compare the result of a trend with the fall from 5 % to 4 %, a slope of -.01 in all."""
    slope = comparison.contrasts[0]
    names = np.array(comparison.candidates)
    falling, absent = names == FALLING, np.isin(names, ABSENT)
    return Run(
        is_found_by_slope=bool(slope.changed[falling][0]),
        false=int(slope.changed[~falling].sum()),
        n_changed=slope.n_changed,
        absent_z=(slope.estimate / slope.std_error)[absent],
        # The true slope is -.01, so the error is the estimate plus .01.
        fall_error=float(((slope.estimate + 0.01) / slope.std_error)[falling][0]),
        is_found_by_step=any(
            contrast.changed[falling][0]
            for contrast in comparison.contrasts
            if contrast.kind == "step"
        ),
    )


def measure(seed: int) -> Run:
    """Decide by one collection whether shares changed over the range."""
    return read_trend(trend(draw_weeks(seed), [FALLING, *STEADY, *ABSENT]))


def trends(*, quick: bool) -> list[Table]:
    """Count the detections of the fall, and the false changes."""
    n_runs = 8 if quick else 200
    with start_pool() as pool:
        runs = run_many(measure, n_runs, pool)
    numbers: dict[str, Cell] = {
        "the slope finds the fall": float(np.mean([run.is_found_by_slope for run in runs])),
        "a step finds it": float(np.mean([run.is_found_by_step for run in runs])),
        "false share of changes": float(
            np.mean([run.false / max(run.n_changed, 1) for run in runs])
        ),
        "sd of z of absent strings": float(np.concatenate([run.absent_z for run in runs]).std()),
        "fall within 1.96 errors": float(np.mean([abs(run.fall_error) <= 1.96 for run in runs])),
    }
    return [
        Table(
            title=f"trends: 5 % to 4 % over {N_WEEKS} weeks, {n_runs} collections from seed 0",
            columns=("what", "measured"),
            rows=[[name, number] for name, number in numbers.items()],
            note="141 strings. Target: a false discovery rate of 5 %, and a power of .55 by slope.",
        )
    ]
