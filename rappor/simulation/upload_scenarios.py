"""Scenarios: collections with events that a plain simulation leaves out, such as lost uploads.

The estimator assumes that every device sends its reports, and that each report arrives once. In a
real collection devices come and go, uploads are lost or arrive twice, and some reports are forged.
Tests and benchmarks use scenarios to measure how a collector and an estimator work then. The input
is a `Scenario` (the probabilities of the events), a `Population` and `Params`. The output is the
uploads of each day, with the true values of the devices.

*Example.* 10,000 devices report on one day under `Scenario(lost=0.2, repeated=0.1)`. About 8,000 of
the 10,000 uploads arrive, and about 800 of these arrive a second time. The `Day` has about 8,800
uploads with 8,000 different ids, and `Day.counts` has 8,000 reports.

A device has a cohort, a value and a permanent response. On each day the following happens, in this
order:

1. Some devices are replaced by new devices, and some devices change their value. A device keeps
   reporting its first value, as in one epoch.
2. All devices report, and forgers add uploads.
3. Some uploads are lost, and some arrive twice because the collector's response was lost.
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
from rappor.simulation.channels import Channel, ChannelNoise, create_permanent_noise
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population
from rappor.simulation.true_bits import compute_true_bits
from rappor.simulation.weighted_sampler import WeightedSampler, draw_cohorts

_UNLISTED: Final = 1000
"""Number of strings that no candidate list contains.

Their frequencies follow Zipf's law: string r is 1 / r times as frequent as the first. With 1,000
strings, the first has 13 % of the devices with an unknown string. With more strings, every string
would have a smaller share, and a decode would show fewer unexplained bits.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Events of a collection and their probabilities.

    Attributes
    ----------
    days : number of days.
    reports_a_day : number of reports of a device on each day.
    churn : probability that a device is replaced by a new device on the next day.
    changing : probability that a device draws its value anew on the next day.
    unknown : expected share of the devices with one of 1,000 strings that are in no list.
    forged : share of the uploads that are forged. A forged upload has the true bits of the
        population's last value, without noise.
    lost : probability that an upload never arrives.
    repeated : probability that an upload that arrives is repeated, because its response was lost.

    Raises
    ------
    ParamsError
        A number is outside its range.
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
"""Scenarios by name, for tests and benchmarks. All but the last have one kind of event."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Day:
    """Uploads of one day with one report each, as they reach a collector, and the true values.

    Attributes
    ----------
    params : parameters of all reports.
    packed : (n, ceil(k/8)) uint8, packed bits of the reports.
    cohorts : (n,) uint16, cohorts of the reports.
    ids : (n,) int64. Uploads with the same id are one upload that was repeated, bit for bit.
    values : (n_devices,) int64, index of the value that each device has on this day. Indices after
        those of the population stand for strings that are in no list.
    reported_values : (n_devices,) int64, index of the value that each device reports: its first
        value.
    """

    params: Params
    packed: NDArray[np.uint8]
    cohorts: NDArray[np.uint16]
    ids: NDArray[np.int64]
    values: NDArray[np.int64]
    reported_values: NDArray[np.int64]

    @property
    def counts(self) -> Counts:
        """Counts of a collector that counts each upload once."""
        # Only the first upload of each id counts. A collector recognises a repeated upload by its
        # key.
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
    """Draw the uploads of every day. One day is in memory at a time.

    Parameters
    ----------
    scenario : the events.
    population : values and their shares.
    params : parameters of the reports.
    n_devices : number of devices on each day.
    seed : the same seed gives the same uploads; None for different uploads in every call.

    Yields
    ------
    Day, with the uploads and the true values of the devices.

    Raises
    ------
    ParamsError
        A number is outside its range, or the parameters have the hash layout of other software.
    ReportError
        The encoding cannot encode a value of the population.

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
    return _draw_days(scenario, _Devices(scenario, population, params, n, Keystream(seed)))


def _draw_days(scenario: Scenario, devices: _Devices) -> Iterator[Day]:
    """Yield the uploads of every day. Uploads are numbered over all days (`ids`)."""
    first_id = 0
    for number in range(scenario.days):
        if number:
            devices.pass_a_day()
        packed, cohorts = devices.report()
        ids = np.arange(first_id, first_id + len(packed))
        first_id += len(packed)
        arrivals = _draw_arrivals(scenario, devices.rng, len(packed))
        yield Day(
            params=devices.params,
            packed=packed[arrivals],
            cohorts=cohorts[arrivals],
            ids=ids[arrivals],
            values=devices.values.copy(),
            reported_values=devices.reported_values.copy(),
        )


def _draw_arrivals(scenario: Scenario, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Draw which of n uploads arrive. Returns their numbers in the order of arrival."""
    arrived = np.flatnonzero(rng.random(n) >= scenario.lost)
    repeated = arrived[rng.random(len(arrived)) < scenario.repeated]
    # Delays are random, so the order of arrival contains no information about devices.
    return rng.permutation(np.concatenate([arrived, repeated]))


class _Devices:
    """Devices with cohort, value and permanent response, from day to day."""

    def __init__(
        self,
        scenario: Scenario,
        population: Population,
        params: Params,
        n_devices: int,
        keystream: Keystream,
    ) -> None:
        """Draw the devices of the first day."""
        self.params = params
        self.rng = keystream.spawn(0).generator()
        self._scenario = scenario
        all_values = add_unknown_strings(population, scenario.unknown)
        self._sampler = WeightedSampler(all_values.weights)
        self._truth = compute_true_bits(all_values, params)
        self._forged_value = len(population) - 1
        # `rng` draws the events. Values, cohorts, permanent responses and reports have substreams
        # of their own. So the devices of the first day do not depend on the probabilities of
        # events, except that `unknown` changes the shares of the values.
        self._value_stream, self._cohort_stream = keystream.spawn(1), keystream.spawn(2)
        self._permanent_noise = create_permanent_noise(params, keystream.spawn(3))
        # Generalized randomized response has p = 0 and q = 1, so this channel changes no bit, and a
        # device repeats its report.
        self._report_noise = ChannelNoise(
            Channel.instantaneous(params), keystream.spawn(4), params.k
        )
        self.values = self.reported_values = np.empty(0, dtype=np.int64)
        self._cohorts = np.empty(0, dtype=np.uint16)
        self._permanent = np.empty((0, params.n_bytes), dtype=np.uint8)
        self._add_devices(n_devices)

    def _add_devices(self, n: int) -> None:
        """Add n devices, each with a value, a cohort and a permanent response."""
        values = self._sampler.draw(self._value_stream, n)
        cohorts = draw_cohorts(self._cohort_stream, n, self.params)
        permanent = self._permanent_noise(self._truth.pack_device_bits(values, cohorts))
        self.values = np.concatenate([self.values, values])
        self.reported_values = np.concatenate([self.reported_values, values])
        self._cohorts = np.concatenate([self._cohorts, cohorts])
        self._permanent = np.concatenate([self._permanent, permanent])

    def pass_a_day(self) -> None:
        """Replace some devices, and change the values of some others."""
        # A device that is replaced has a new secret, and therefore a new cohort and a new response.
        stay = self.rng.random(len(self.values)) >= self._scenario.churn
        n_replaced = int(np.count_nonzero(~stay))
        self.values, self.reported_values = self.values[stay], self.reported_values[stay]
        self._cohorts, self._permanent = self._cohorts[stay], self._permanent[stay]
        change = np.flatnonzero(self.rng.random(len(self.values)) < self._scenario.changing)
        # `reported_values` and the permanent responses stay: the epoch does not end.
        self.values[change] = self._sampler.draw(self._value_stream, len(change))
        self._add_devices(n_replaced)

    def report(self) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Draw the packed reports of a day and their cohorts, honest reports before forged ones."""
        times = self._scenario.reports_a_day
        honest = self._report_noise(np.tile(self._permanent, (times, 1)))
        share = self._scenario.forged
        # `share` refers to all uploads, honest and forged: n_forged / (n_honest + n_forged).
        n_forged = round(len(honest) * share / (1 - share))
        forged_values = np.full(n_forged, self._forged_value)
        forged_cohorts = draw_cohorts(self._cohort_stream, n_forged, self.params)
        # A forger adds no noise. A forged upload then changes the estimate as much as one upload
        # can.
        forged = self._truth.pack_device_bits(forged_values, forged_cohorts)
        cohorts = np.concatenate([np.tile(self._cohorts, times), forged_cohorts])
        return np.concatenate([honest, forged]), cohorts


def add_unknown_strings(population: Population, share: float) -> Population:
    """Add 1,000 strings that are in no list, which together have a share of the devices.

    Their frequencies follow Zipf's law.
    """
    if not share:
        return population
    unknown = [f"unknown string {number}" for number in range(_UNLISTED)]
    weights = 1 / np.arange(1.0, _UNLISTED + 1)
    return Population(
        [*population.values, *unknown],
        np.concatenate([(1 - share) * population.weights, share * weights / weights.sum()]),
    )
