"""Simulated collections in which devices report several times under one permanent response.

Researchers and tests use this module. The input is a `Population`, `Params` and the numbers of
devices and reports. The output is counts, in total (`simulate_repeated`) or by day
(`simulate_days`).

Theory of operation
-------------------
f1 is the probability that a permanent bit is 1 although the true bit is 0. f0 is the probability
that a permanent bit is 0 although the true bit is 1. p and q are the probabilities that a report
shows a 1 for a permanent bit 0 and 1.

In a cohort of N_j devices, of which T_ij have a true bit i, the permanent response of

    P_ij = Binomial(T_ij, 1 - f0) + Binomial(N_j - T_ij, f1)

devices has a 1 at the bit. The bits are independent given the values. If each of these devices then
sends n reports, the number of ones in all reports is

    Binomial(n P_ij, q) + Binomial(n (N_j - P_ij), p)

Devices that report equally often are therefore drawn together, exactly, and time and memory do not
depend on their number. In `simulate_days` devices come and go. They are divided into groups by
their first and their last day, so that the devices of a group report on the same days.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.simulation.collection import (
    MOST_DEVICES,
    DeviceSampler,
    Simulation,
    draw_ones,
    draw_permanent_ones,
)
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population


def simulate_repeated(
    population: Population,
    params: Params,
    *,
    devices: Mapping[int, float],
    seed: int | None = None,
    metric: str = "",
) -> Simulation:
    """Draw the counts of devices that report several times, and the number of devices by value.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.
    devices : number of devices by number of reports: {30: 1e6} for a million devices with thirty
        reports each, {1: 500, 2: 300} for uneven devices.
    seed : the same seed gives the same counts; None for different counts in every call.
    metric : name of the metric in the counts.

    Raises
    ------
    ParamsError
        A number is not positive, there are more reports than 2^62, the first argument is no
        Population or the second no Params, or the parameters have the hash layout of other
        software.
    ReportError
        The encoding cannot encode a value of the population.

    Examples
    --------
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> drawn = simulate_repeated(Population(["yes"], [1]), params, devices={30: 1e6}, seed=1)
    >>> drawn.counts.n_reports, drawn.counts.reports_per_device
    (30000000, 30.0)
    """
    sampler = DeviceSampler(population, params)
    numbers = {times: read_count("devices", n, 0, MOST_DEVICES) for times, n in devices.items()}
    for times in numbers:
        check_integer("reports of a device", times, 1)
    # The 64-bit integers of Counts would overflow.
    if sum(times * n for times, n in numbers.items()) > MOST_DEVICES:
        raise ParamsError(f"reports must number at most {MOST_DEVICES}")
    rng = Keystream(seed).generator()
    devices_by_value = np.zeros(len(population.values), dtype=np.int64)
    reports = np.zeros(params.m, dtype=np.int64)
    ones = np.zeros((params.m, params.k), dtype=np.int64)
    # The numbers are sorted, so that the order of a dictionary does not change the counts of a
    # seed.
    for times, n in sorted(numbers.items()):
        values, cohorts, true_ones = sampler.draw(rng, n)
        devices_by_value += values
        reports += times * cohorts
        # One permanent response for each device, and then `times` reports of the response.
        permanent = draw_permanent_ones(rng, cohorts, true_ones, params)
        ones += draw_ones(
            rng, times * cohorts, times * permanent, of_one=params.q, of_zero=params.p
        )
    # Each device has a number of reports. Counts store the sum of the squares of these numbers. The
    # estimator computes standard errors from it.
    squares = sum(times * times * n for times, n in numbers.items())
    counts = Counts(params, ones, reports, metric, squares)
    return Simulation(counts=counts, devices=devices_by_value)


def simulate_days(  # noqa: PLR0913 - devices, days and how they change
    population: Population,
    params: Params,
    *,
    n_devices: float,
    n_days: int,
    churn: float = 0.0,
    once_in: int | None = None,
    seed: int | None = None,
    metric: str = "",
) -> list[Counts]:
    """Draw the counts of several days, on each of which every device reports once.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.
    n_devices : number of devices on each day.
    n_days : number of days.
    churn : probability that a device leaves before the next day. As many new devices come.
    once_in : days of an epoch, if a device reports once in each epoch, as under
        `interval = "epoch"`. The first epoch begins on the first day. A day of the epoch is drawn
        for each device, and the device reports on this day. A device that comes after its drawn day
        reports on the day on which it comes. A device that leaves before its drawn day does not
        report. The value of a device is drawn anew for each epoch.
    seed : the same seed gives the same counts; None for different counts in every call.
    metric : name of the metric in the counts.

    Returns
    -------
    The counts of each day.

    Raises
    ------
    ParamsError
        A number is outside its range, the first argument is no Population or the second no Params,
        or the parameters have the hash layout of other software.
    ReportError
        The encoding cannot encode a value of the population.

    Examples
    --------
    >>> editors = Population(["vim", "emacs"], [3, 1])
    >>> week = simulate_days(
    ...     editors, Params.profile("balanced"), n_devices=1e4, n_days=7, churn=0.1, seed=1
    ... )
    >>> [counts.n_reports for counts in week][:2]
    [10000, 10000]
    """
    sampler = DeviceSampler(population, params)
    n = read_count("n_devices", n_devices, 0, MOST_DEVICES)
    check_integer("n_days", n_days, 1)
    if once_in is not None:
        check_integer("once_in", once_in, 1)
    check_number("churn", churn, "[0, 1]")
    rng = Keystream(seed).generator()
    reports = np.zeros((n_days, params.m), dtype=np.int64)
    permanent = np.zeros((n_days, params.m, params.k), dtype=np.int64)
    groups = _draw_stays(rng, n, n_days, churn)
    if once_in is not None:
        groups = _draw_single_reports(rng, groups, n_days, once_in)
    for first, end, n_group in groups:
        _, cohorts, true_ones = sampler.draw(rng, n_group)
        # The devices of a group report on every day of their stay.
        reports[first:end] += cohorts
        permanent[first:end] += draw_permanent_ones(rng, cohorts, true_ones, params)
    return [
        Counts(
            params,
            draw_ones(rng, day_reports, ones, of_one=params.q, of_zero=params.p),
            day_reports,
            metric,
            sum_squared_reports=int(day_reports.sum()),
        )
        for day_reports, ones in zip(reports, permanent, strict=True)
    ]


def _draw_stays(
    rng: np.random.Generator, n_devices: int, n_days: int, churn: float
) -> Iterator[tuple[int, int, int]]:
    """Draw the days on which devices come and leave, and group the devices by these days.

    Yields
    ------
    First day, day after the last one, and number of devices of each group. Days count from 0.
    """
    coming = n_devices
    # Number of devices of all groups that are gone on a day, by day.
    leaving = np.zeros(n_days + 1, dtype=np.int64)
    for first in range(n_days):
        staying = coming
        for end in range(first + 1, n_days + 1):
            # The collection ends for all devices on the last day.
            gone = staying if end == n_days else int(rng.binomial(staying, churn))
            if gone:
                yield first, end, gone
            leaving[end] += gone
            staying -= gone
        # As many new devices come as devices of all groups leave.
        if first + 1 < n_days:
            coming = int(leaving[first + 1])


def _draw_single_reports(
    rng: np.random.Generator, stays: Iterable[tuple[int, int, int]], n_days: int, once_in: int
) -> Iterator[tuple[int, int, int]]:
    """Draw the days on which devices report, if each reports once in an epoch of `once_in` days.

    `stays` contains the first day, the day after the last one, and the size of each group.

    Yields
    ------
    Day, next day, and number of devices that report on the day.
    """
    n_reporting = np.zeros(n_days, dtype=np.int64)
    for first, after_last, n_group in stays:
        # The first day of each epoch in which the group is present.
        for epoch in range(first - first % once_in, after_last, once_in):
            begin, end = max(first, epoch), min(after_last, epoch + once_in)
            # Number of devices by drawn day of the epoch.
            n_drawn = rng.multinomial(n_group, np.full(once_in, 1 / once_in))
            # Devices whose drawn day was before their first day report on their first day.
            n_reporting[begin] += n_drawn[: begin - epoch].sum()
            # Devices whose drawn day is after their last day do not report.
            n_reporting[begin:end] += n_drawn[begin - epoch : end - epoch]
    yield from ((day, day + 1, int(n)) for day, n in enumerate(n_reporting) if n)
