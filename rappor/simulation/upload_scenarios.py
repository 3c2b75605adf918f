"""Scenarios: what devices, networks and forgers do beside reporting once.

Devices have a cohort, a value and a permanent response. On each day some are replaced by new ones,
some change their value, all report, and forgers add reports of their own; then uploads are lost
or come again. A device answers for the value that it had first, as metrics with one pattern do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.simulation.channels import Channel, ChannelNoise
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population
from rappor.simulation.true_bits import compute_true_bits
from rappor.simulation.weighted_sampler import WeightedSampler, draw_cohorts

_UNKNOWN: Final = 1000
"""Strings that no list has, by Zipf's law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens to a collection.

    Attributes
    ----------
    days : how many days are collected.
    reports_a_day : reports of a device on each of them.
    churn : probability that a device is replaced by a new one on the next day.
    changing : probability that a device draws its value anew on the next day.
    unknown : share of the devices, in the mean, that hold one of 1,000 strings that no list has.
    forged : share of the uploads that are forged: each has the bits of the population's last value
        and no other.
    lost : probability that an upload never arrives.
    repeated : probability that an upload that arrives comes again, because its answer was lost.
    """

    days: int = 1
    reports_a_day: int = 1
    churn: float = 0.0
    changing: float = 0.0
    unknown: float = 0.0
    forged: float = 0.0
    lost: float = 0.0
    repeated: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_integer("days", self.days, 1)
        check_integer("reports_a_day", self.reports_a_day, 1)
        for name in ("churn", "changing", "unknown", "repeated"):
            check_number(name, getattr(self, name), "[0, 1]")
        for name in ("forged", "lost"):
            check_number(name, getattr(self, name), "[0, 1)")


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "one report": Scenario(),
    "churn": Scenario(days=7, churn=0.1),
    "several reports a device": Scenario(days=7, reports_a_day=3),
    "changing values": Scenario(days=7, changing=0.1),
    "unknown values": Scenario(unknown=0.3),
    "forged uploads": Scenario(forged=0.01),
    "lost uploads": Scenario(lost=0.2),
    "repeated uploads": Scenario(repeated=0.2),
    "everything": Scenario(
        days=7,
        reports_a_day=2,
        churn=0.1,
        changing=0.1,
        unknown=0.3,
        forged=0.01,
        lost=0.2,
        repeated=0.2,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Day:
    """The uploads of one day, one report each, as they reach a collector, and the truth.

    Attributes
    ----------
    params : the parameters of all reports.
    packed, cohorts : (n, ceil(k/8)) uint8 and (n,) uint16, the reports.
    ids : (n,) int64. Uploads with the same number are one that came again, bit for bit.
    values, answered : (n_devices,) int64, the value that each device holds on this day, and the one
        that it answers for: places in the population's values. Higher ones are of strings that no
        list has.
    """

    params: Params
    packed: NDArray[np.uint8]
    cohorts: NDArray[np.uint16]
    ids: NDArray[np.int64]
    values: NDArray[np.int64]
    answered: NDArray[np.int64]

    @property
    def counts(self) -> Counts:
        """The counts of a collector that counts each upload once."""
        once = np.unique(self.ids, return_index=True)[1]
        return Counts.from_packed(self.packed[once], self.cohorts[once], self.params)


def simulate_scenario(
    scenario: Scenario,
    population: Population,
    params: Params,
    *,
    n_devices: float,
    seed: int | None = None,
) -> Iterator[Day]:
    """Draw the uploads of every day; one day is held at a time.

    Raises ParamsError and ReportError as `rappor.simulation.simulate_reports`.

    Examples
    --------
    >>> pets = Population(["kitten", "puppy"], [3, 1])
    >>> params = Params.profile("balanced")
    >>> (day,) = simulate_scenario(
    ...     SCENARIOS["lost uploads"], pets, params, n_devices=1e4, seed=1
    ... )
    >>> 7_500 < day.counts.n_reports < 8_500
    True
    """
    n = read_count("n_devices", n_devices, 1)
    return _days(scenario, _Devices(scenario, population, params, n, Keystream(seed)))


def _days(scenario: Scenario, devices: _Devices) -> Iterator[Day]:
    first_id = 0
    for number in range(scenario.days):
        if number:
            devices.pass_a_day()
        packed, cohorts = devices.report()
        ids = np.arange(first_id, first_id + len(packed))
        first_id += len(packed)
        came = _arrivals(scenario, devices.rng, len(packed))
        yield Day(
            params=devices.params,
            packed=packed[came],
            cohorts=cohorts[came],
            ids=ids[came],
            values=devices.values.copy(),
            answered=devices.answered.copy(),
        )


def _arrivals(scenario: Scenario, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Return the numbers of the uploads that arrive, in the order in which they do."""
    arrived = np.flatnonzero(rng.random(n) >= scenario.lost)
    again = arrived[rng.random(len(arrived)) < scenario.repeated]
    return rng.permutation(np.concatenate([arrived, again]))


class _Devices:
    """Devices from day to day."""

    def __init__(
        self,
        scenario: Scenario,
        population: Population,
        params: Params,
        n_devices: int,
        keystream: Keystream,
    ) -> None:
        """Give each device a cohort, a value and a permanent response."""
        self.params = params
        self.rng = keystream.spawn(0).generator()
        self._scenario = scenario
        everyone = add_unknown_strings(population, scenario.unknown)
        self._weighted = WeightedSampler(everyone.weights)
        self._truth = compute_true_bits(everyone, params)
        self._target = len(population) - 1
        self._to_value, self._to_cohort = keystream.spawn(1), keystream.spawn(2)
        self._permanent = ChannelNoise(Channel.permanent(params), keystream.spawn(3), params.k)
        self._instantaneous = ChannelNoise(
            Channel.instantaneous(params), keystream.spawn(4), params.k
        )
        self.values = self.answered = np.empty(0, dtype=np.int64)
        self._cohorts = np.empty(0, dtype=np.uint16)
        self._memoised = np.empty((0, params.n_bytes), dtype=np.uint8)
        self._arrive(n_devices)

    def _arrive(self, n: int) -> None:
        """Add n devices, each with a value, a cohort and a permanent response."""
        values = self._weighted.draw(self._to_value, n)
        cohorts = draw_cohorts(self._to_cohort, n, self.params)
        memoised = self._permanent(self._truth.of_devices(values, cohorts))
        self.values = np.concatenate([self.values, values])
        self.answered = np.concatenate([self.answered, values])
        self._cohorts = np.concatenate([self._cohorts, cohorts])
        self._memoised = np.concatenate([self._memoised, memoised])

    def pass_a_day(self) -> None:
        """Replace devices, and change what others hold."""
        stay = self.rng.random(len(self.values)) >= self._scenario.churn
        n_left = int(np.count_nonzero(~stay))
        self.values, self.answered = self.values[stay], self.answered[stay]
        self._cohorts, self._memoised = self._cohorts[stay], self._memoised[stay]
        change = np.flatnonzero(self.rng.random(len(self.values)) < self._scenario.changing)
        self.values[change] = self._weighted.draw(self._to_value, len(change))
        self._arrive(n_left)

    def report(self) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Return the reports of a day, and the forged ones after them."""
        times = self._scenario.reports_a_day
        honest = self._instantaneous(np.tile(self._memoised, (times, 1)))
        share = self._scenario.forged
        n_forged = round(len(honest) * share / (1 - share))
        target = np.full(n_forged, self._target)
        to = draw_cohorts(self._to_cohort, n_forged, self.params)
        forged = self._truth.of_devices(target, to)
        cohorts = np.tile(self._cohorts, times)
        return np.concatenate([honest, forged]), np.concatenate([cohorts, to])


def add_unknown_strings(population: Population, share: float) -> Population:
    """Add strings that no list has, by Zipf's law, to hold a share of all."""
    if not share:
        return population
    unknown = [f"unknown string {number}" for number in range(_UNKNOWN)]
    weights = 1 / np.arange(1.0, _UNKNOWN + 1)
    return Population(
        [*population.values, *unknown],
        np.concatenate([(1 - share) * population.weights, share * weights / weights.sum()]),
    )
