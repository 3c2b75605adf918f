"""Coverage of the intervals of changes, if the same devices report in all samples.

Question: do the 95 % intervals of `compare_samples` and `trend` contain the true change in 95 of
100 collections? Two samples of the same devices share the permanent noise of these devices, so the
variance of a difference is smaller than for different devices. A wrong variance shows in the
intervals of changed strings only, so these intervals are counted separately.

Devices keep their values and their permanent responses, except the devices that make the change.
These take another value, and draw a new permanent response for it. The truth is the change of the
population, of which the devices are a sample.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Cell as Number
from benchmarks.tables import Table
from rappor.comparison.compare_samples import compare_samples
from rappor.comparison.comparison import Comparison
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.comparison.trend import trend
from rappor.counts.counts import Counts
from rappor.counts.released_counts import Period, ReleasedCounts
from rappor.protocol.params import Params
from rappor.simulation.collection import draw_ones
from rappor.simulation.population import Population
from rappor.simulation.true_bits import compute_true_bits

Shares = NDArray[np.float64]
"""Shares of values. The array has one row for each sample."""

MONDAY: Final = datetime.date(2026, 8, 3)
"""First day of the first week. A trend by weeks needs whole weeks, which begin on a Monday."""
ZIPF: Final = (1 / np.arange(1, 61)) / (1 / np.arange(1, 61)).sum()
"""Shares of the 60 strings by Zipf's law: string r has a share in proportion to 1 / r."""
STRINGS: Final = tuple(f"s{i}" for i in range(60))
"""Strings that devices have."""
ABSENT: Final = tuple(f"x{i}" for i in range(60))
"""Candidates that no device has."""
LOW_NOISE: Final = dataclasses.replace(Params.profile("low-noise"), k=32, m=32)
"""Parameters with little instantaneous noise.

The error then comes mostly from the permanent noise of the devices, which both samples share. That
is what these cells test.
"""
YES: Final = Params.profile("balanced", encoding="boolean")
"""The yes-or-no cells have these parameters."""


def change_six_shares() -> Shares:
    """Return the Zipf shares before and after a change of six shares, (2, 60).

    Three shares fall by 10, 20 and 30 %, and three other shares rise by as much together.
    """
    after = ZIPF.copy()
    after[[0, 3, 8]] *= [0.9, 0.8, 0.7]
    lost = ZIPF.sum() - after.sum()
    after[[1, 5, 10]] += lost * ZIPF[[1, 5, 10]] / ZIPF[[1, 5, 10]].sum()
    return np.array([ZIPF, after])


def lower_one_share(n_weeks: int = 12) -> Shares:
    """Return weekly shares of 60 strings, (n_weeks, 60).

    The third share falls from 5 % to 3 %, and the last share rises by as much.
    """
    shares = np.tile(0.94 * ZIPF / (1 - ZIPF[2]), (n_weeks, 1))
    shares[:, 2] = np.linspace(0.05, 0.03, n_weeks)
    shares[:, -1] += 1 - shares.sum(axis=1)
    return shares


def move_yes_share(before: float, after: float, n: int = 2) -> Shares:
    """Return the shares of yes and no in n samples, (n, 2).

    The share of yes is on a line from `before` to `after`.
    """
    yes = np.linspace(before, after, n)
    return np.array([yes, 1 - yes]).T


def draw_samples(  # noqa: PLR0913 - devices, and how they change
    values: Sequence[str],
    shares: Shares,
    params: Params,
    *,
    n_devices: int,
    n_reports: int,
    churn: float = 0.0,
    seed: int,
) -> list[Counts]:
    """Draw the counts of samples in which the same devices report.

    From sample to sample, the smallest possible number of devices change their value, so that the
    shares change as `shares` says. Each of these devices draws a new permanent response.

    No single device is drawn, because the bits of a device are independent given its value and its
    cohort. The function has two tables of numbers: the devices by value and cohort, and the ones of
    their permanent responses by value, cohort and bit. Suppose that g of the n devices of a value
    and cohort leave, and that x of the n permanent responses have a 1 at a bit. Then the number of
    these ones that leave is hypergeometric: a random sample of g from n of which x are ones.

    Parameters
    ----------
    values : the v values.
    shares : (t, v) float64. Shares of the values in each of t samples.
    params : parameters of the reports.
    n_devices : number of devices in each sample.
    n_reports : number of reports of a device in each sample.
    churn : share of the devices that other devices replace before the next sample.
    seed : seed of the collection.

    Returns
    -------
    The counts of each sample.
    """
    rng = np.random.default_rng(seed)
    table = compute_true_bits(Population(list(values), [1.0] * len(values)), params)
    # (v, m, k): the true bits of each value in each cohort.
    bits = np.zeros((len(values), params.m, params.k), dtype=np.int64)
    for i in range(len(values)):
        table.add_ones(bits[i], slice(i, i + 1), np.ones((1, params.m), dtype=np.int64))

    def draw_permanent_ones(devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw the ones of permanent responses, (v, m, k), of (v, m) devices."""
        devices_by_bit = np.broadcast_to(devices[:, :, None], bits.shape)
        p_one = np.where(bits > 0, 1 - params.f0, params.f1)
        return np.asarray(rng.binomial(devices_by_bit, p_one))

    def draw_devices(n: int, shares_of_values: Shares) -> NDArray[np.int64]:
        """Draw the values and cohorts of n new devices, as numbers (v, m)."""
        devices_by_value = rng.multinomial(n, shares_of_values)
        return np.asarray(rng.multinomial(devices_by_value, np.full(params.m, 1 / params.m)))

    devices = draw_devices(n_devices, shares[0])
    ones = draw_permanent_ones(devices)
    counts = []
    for now, after in zip(shares, [*shares[1:], shares[-1]], strict=True):
        reports = n_reports * devices.sum(axis=0)
        counts.append(
            Counts(
                params,
                draw_ones(
                    rng, reports, n_reports * ones.sum(axis=0), of_one=params.q, of_zero=params.p
                ),
                reports,
                sum_squared_reports=n_reports**2 * n_devices,
            )
        )
        # If the share of a value falls from `now` to `after`, a device with this value changes its
        # value with probability 1 - after / now.
        p_change = np.maximum(1 - after / np.maximum(now, 1e-300), 0.0)
        n_changing = rng.binomial(devices, p_change[:, None])
        n_replaced = rng.binomial(devices - n_changing, churn)
        n_leaving = n_changing + n_replaced
        devices_by_bit = np.broadcast_to(devices[:, :, None], bits.shape)
        leaving_by_bit = np.broadcast_to(n_leaving[:, :, None], bits.shape)
        ones = ones - rng.hypergeometric(ones, devices_by_bit - ones, leaving_by_bit)
        rising = np.maximum(after - now, 0.0)
        n_coming = draw_devices(int(n_replaced.sum()), after)
        if rising.any():
            # Changing devices keep their cohort, and take a value whose share rises.
            p_new_value = rising / rising.sum()
            n_coming = n_coming + rng.multinomial(n_changing.sum(axis=0), p_new_value).T
        devices = devices - n_leaving + n_coming
        ones = ones + draw_permanent_ones(n_coming)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A comparison of samples with the same devices.

    Attributes
    ----------
    values : the values of the devices
    shares : (t, v), shares of the v values in each of t samples
    params : parameters of the reports
    device_correlation : argument of `compare_samples`: 1 if the caller knows that the devices are
        the same, None if it is unknown
    is_trend : whether the slope of `trend` is measured, and not the difference of two samples
    n_devices, n_reports, churn : arguments of `draw_samples`
    """

    values: tuple[str, ...]
    shares: Shares
    params: Params
    device_correlation: float | None = None
    is_trend: bool = False
    n_devices: int = 20_000
    n_reports: int = 30
    churn: float = 0.0


CELLS: Final = {
    "strings, device correlation 1": Cell(
        values=STRINGS, shares=change_six_shares(), params=LOW_NOISE, device_correlation=1.0
    ),
    "strings, device correlation unknown": Cell(
        values=STRINGS, shares=change_six_shares(), params=LOW_NOISE, device_correlation=None
    ),
    "strings, slope of 12 weeks": Cell(
        values=STRINGS,
        shares=lower_one_share(),
        params=LOW_NOISE,
        is_trend=True,
        n_reports=7,
        churn=0.02,
    ),
    "yes 20 % to 25 %, device correlation 1": Cell(
        values=("true", "false"),
        shares=move_yes_share(0.2, 0.25),
        params=YES,
        device_correlation=1.0,
    ),
    "yes 5 % to 10 %, device correlation 1": Cell(
        values=("true", "false"),
        shares=move_yes_share(0.05, 0.1),
        params=YES,
        device_correlation=1.0,
    ),
    "yes 20 %, unchanged, device correlation 1": Cell(
        values=("true", "false"),
        shares=move_yes_share(0.2, 0.2),
        params=YES,
        device_correlation=1.0,
    ),
    "yes 5 % to 3 %, slope of 12 weeks": Cell(
        values=("true", "false"), shares=move_yes_share(0.05, 0.03, 12), params=YES, is_trend=True
    ),
}
"""Cell of each row of the table, by the name of the row. A full run simulates 400 collections of a
cell with two values, and 60 collections of any other cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one comparison.

    Attributes
    ----------
    changed : for each changed value, whether its interval contains the true change
    others : the same for each unchanged value
    squares : squared errors of the changed values, divided by their variances
    false : share of unchanged values among the detected changes
    """

    changed: list[bool]
    others: list[bool]
    squares: NDArray[np.float64]
    false: float


def compare(cell: Cell, counts: Sequence[Counts]) -> tuple[Comparison, SampleContrast]:
    """Return the comparison of the samples, and its first contrast.

    The first contrast is the difference of two samples, or the slope of a trend.
    """
    candidates = [*cell.values, *ABSENT] if cell.params.encoding == "bloom" else None
    if not cell.is_trend:
        names = map(str, range(len(counts)))
        samples = dict(zip(names, counts, strict=True))
        comparison = compare_samples(
            samples, candidates, device_correlation=cell.device_correlation
        )
        return comparison, comparison.contrasts[0]
    weeks = [MONDAY + datetime.timedelta(7 * week) for week in range(len(counts))]
    periods = tuple(
        Period(first=first, last=first + datetime.timedelta(6), collections=(sample,))
        for first, sample in zip(weeks, counts, strict=True)
    )
    comparison = trend(
        ReleasedCounts(
            metric="", first=weeks[0], last=periods[-1].last, periods=periods, withheld=()
        ),
        candidates,
    )
    return comparison, comparison.contrasts[0]


def measure(cell: Cell, seed: int) -> Run:
    """Draw a comparison, and check which intervals contain the change of the population."""
    counts = draw_samples(
        cell.values,
        cell.shares,
        cell.params,
        n_devices=cell.n_devices,
        n_reports=cell.n_reports,
        churn=cell.churn,
        seed=seed,
    )
    comparison, contrast = compare(cell, counts)
    change = dict(zip(cell.values, contrast.weights @ cell.shares, strict=True))
    true = np.array([change.get(name, 0.0) for name in comparison.candidates])
    is_covered = (contrast.ci_low <= true) & (true <= contrast.ci_high)
    # Rounding makes the true change of an unchanged value slightly different from 0.
    is_changed = np.abs(true) > 1e-9
    false = contrast.changed & ~is_changed
    return Run(
        changed=is_covered[is_changed].tolist(),
        others=is_covered[~is_changed].tolist(),
        squares=((contrast.estimate - true) / contrast.std_error)[is_changed] ** 2,
        false=float(false.sum() / max(contrast.n_changed, 1)),
    )


def measure_many(name: str, n_runs: int, pool: Executor | None = None) -> list[Run]:
    """Measure n comparisons of a cell."""
    work = partial(measure, CELLS[name])
    return run_many(work, n_runs, pool) if pool else [work(seed) for seed in range(n_runs)]


def changes(*, quick: bool) -> list[Table]:
    """Measure the coverage of the intervals of changes when all samples have the same devices."""
    rows: list[list[Number]] = []
    with start_pool() as pool:
        for name, cell in CELLS.items():
            n_runs = 400 if len(cell.values) == 2 else 60
            n_runs = n_runs // 20 if quick else n_runs
            runs = measure_many(name, n_runs, pool)
            changed = [is_covered for run in runs for is_covered in run.changed]
            unchanged = [is_covered for run in runs for is_covered in run.others]
            rows.append(
                [
                    name,
                    n_runs,
                    float(np.mean(changed)) if changed else "",
                    float(np.mean(unchanged)) if unchanged else "",
                    float(np.mean([run.false for run in runs])),
                ]
            )
    return [
        Table(
            title="changes: intervals at 95 % of devices that report in all samples",
            columns=(
                "comparison",
                "collections",
                "changed covered",
                "others covered",
                "false share",
            ),
            rows=rows,
            note="Covered: share of intervals that contain the change of the population. Target: "
            ".93 to .97 of the changed values.",
        )
    ]
