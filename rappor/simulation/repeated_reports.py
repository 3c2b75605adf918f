"""Collections in which devices report again: the same value, the same permanent response.

Theory of operation
-------------------
In a cohort of N_j devices, T_ij of which have a true bit i, the permanent response gives

    P_ij = Binomial(T_ij, 1 - f0) + Binomial(N_j - T_ij, f1)

of them a 1 there, once; the bits are independent given the values. If each of these devices then
sends n reports, the ones that arrive are Binomial(n P_ij, q) + Binomial(n (N_j - P_ij), p). So
devices that report on the same occasions are drawn together, exactly, in a time and a memory that
do not depend on their number. Devices that come and go are divided into such groups, by their
first and their last day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.simulation.collection import MOST_DEVICES, DeviceSampler, Simulation, draw_ones
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
    """Draw the counts of devices that report several times each, and the truth.

    `devices` says how many send how many reports each: {30: 1e6} for a million devices with thirty
    reports, {1: 500, 2: 300} for uneven ones.

    Raises ParamsError and ReportError as `rappor.simulation.simulate_counts`, or if there are more
    reports than 2^62.

    Examples
    --------
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> drawn = simulate_repeated(Population(["yes"], [1]), params, devices={30: 1e6}, seed=1)
    >>> drawn.counts.n_reports, drawn.counts.reports_per_device
    (30000000, 30.0)
    """
    people = DeviceSampler(population, params)
    numbers = {each: read_count("devices", n, 0, MOST_DEVICES) for each, n in devices.items()}
    for each in numbers:
        check_integer("reports of a device", each, 1)
    if sum(each * n for each, n in numbers.items()) > MOST_DEVICES:
        raise ParamsError(f"reports must number at most {MOST_DEVICES}")
    rng = Keystream(seed).generator()
    held = np.zeros(len(population.values), dtype=np.int64)
    reports = np.zeros(params.m, dtype=np.int64)
    ones = np.zeros((params.m, params.k), dtype=np.int64)
    for each, n in sorted(numbers.items()):
        values, cohorts, true_ones = people.draw(rng, n)
        held += values
        reports += each * cohorts
        kept = draw_ones(rng, cohorts, true_ones, of_one=1 - params.f0, of_zero=params.f1)
        ones += draw_ones(rng, each * cohorts, each * kept, of_one=params.q, of_zero=params.p)
    squares = sum(each * each * n for each, n in numbers.items())
    return Simulation(counts=Counts(params, ones, reports, metric, squares), devices=held)


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
    """Draw the counts of each of several days, on each of which every device reports once.

    `churn` is the probability that a device has left by the next day; as many new ones come.
    `once_in` is the days of an epoch, the first of which is the first day, if a device reports once
    in each, as under `interval = "epoch"`: on its first day from a drawn day of the epoch on. Who
    leaves before the drawn day does not report. Its value is drawn anew with each epoch.

    Raises ParamsError and ReportError as `rappor.simulation.simulate_counts`, or if churn is not a
    probability.
    """
    people = DeviceSampler(population, params)
    n = read_count("n_devices", n_devices, 0, MOST_DEVICES)
    check_integer("n_days", n_days, 1)
    if once_in is not None:
        check_integer("once_in", once_in, 1)
    check_number("churn", churn, "[0, 1]")
    rng = Keystream(seed).generator()
    reports = np.zeros((n_days, params.m), dtype=np.int64)
    kept = np.zeros((n_days, params.m, params.k), dtype=np.int64)
    stays = _stays(rng, n, n_days, churn)
    for first, last, n_group in stays if once_in is None else _answers(rng, stays, n_days, once_in):
        _, cohorts, true_ones = people.draw(rng, n_group)
        reports[first:last] += cohorts
        kept[first:last] += draw_ones(
            rng, cohorts, true_ones, of_one=1 - params.f0, of_zero=params.f1
        )
    return [
        Counts(
            params,
            draw_ones(rng, each, ones, of_one=params.q, of_zero=params.p),
            each,
            metric,
            sum_squared_reports=int(each.sum()),
        )
        for each, ones in zip(reports, kept, strict=True)
    ]


def _stays(
    rng: np.random.Generator, n_devices: int, n_days: int, churn: float
) -> Iterator[tuple[int, int, int]]:
    """Yield first day, day after the last one, and number of devices of every group."""
    coming = n_devices
    left = np.zeros(n_days + 1, dtype=np.int64)
    for first in range(n_days):
        staying = coming
        for end in range(first + 1, n_days + 1):
            gone = staying if end == n_days else int(rng.binomial(staying, churn))
            if gone:
                yield first, end, gone
            left[end] += gone
            staying -= gone
        if first + 1 < n_days:
            coming = int(left[first + 1])


def _answers(
    rng: np.random.Generator, stays: Iterable[tuple[int, int, int]], n_days: int, once_in: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the days on which devices report once in an epoch, and how many do."""
    on_day = np.zeros(n_days, dtype=np.int64)
    for first, last, n_group in stays:
        for epoch in range(first - first % once_in, last, once_in):
            begin, end = max(first, epoch), min(last, epoch + once_in)
            drawn = rng.multinomial(n_group, np.full(once_in, 1 / once_in))
            on_day[begin] += drawn[: begin - epoch].sum()  # their day is over: they report at once
            on_day[begin:end] += drawn[begin - epoch : end - epoch]
    yield from ((day, day + 1, int(n)) for day, n in enumerate(on_day) if n)
