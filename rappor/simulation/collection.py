"""Simulated collections: the counts alone, however many devices, or every device's report.

The noise of each bit of each device is independent. So if T_ij of the N_j devices of cohort j
have a true bit i, the ones that arrive are exactly
Binomial(T_ij, q*) + Binomial(N_j - T_ij, p*) ([EPK14] Lemma 1), and a billion devices cost no
more than a thousand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, read_count
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.simulation.channels import Channel, ChannelNoise, reports_per_piece
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population
from rappor.simulation.true_bits import TrueBits, compute_true_bits
from rappor.simulation.weighted_sampler import WeightedSampler, draw_cohorts

MOST_DEVICES: Final = (1 << 62) - 1
"""Devices that can be simulated: twice as many still fit the 64-bit integers of Counts."""

_VALUES_AT_ONCE: Final = 4096
"""Values whose devices are spread over the cohorts at a time: 4 MB at 128 cohorts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A simulated collection and the truth behind it.

    `devices` is (n_values,) int64: the devices that have each value of the population.
    """

    counts: Counts
    devices: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportBlock:
    """Reports of n simulated devices, and the truth behind them.

    `packed` is (n, ceil(k/8)) uint8; `cohorts` (n,) uint16; `values` (n,) int64, the index
    of each device's value in the population.
    """

    packed: NDArray[np.uint8]
    cohorts: NDArray[np.uint16]
    values: NDArray[np.int64]


def simulate(
    population: Population,
    params: Params,
    *,
    n_reports: float,
    seed: int | None = None,
    metric: str = "",
) -> Simulation:
    """Draw the counts of one report from each of `n_reports` devices, and the truth.

    Values and cohorts are multinomial, cohorts uniform. Without a seed every call differs.
    `n_reports` is a whole number, which may be written as 1e6.

    Raises
    ------
    ParamsError
        n_reports is negative, the arguments are in another order, or the hash layout is
        foreign.
    ReportError
        The encoding cannot encode a value of the population.
    """
    n_reports = read_count("n_reports", n_reports, 0, MOST_DEVICES)
    people = DeviceSampler(population, params)
    rng = Keystream(seed).generator()
    devices, reports, true_ones = people.draw(rng, n_reports)
    counts = add_noise(rng, params, reports, true_ones, metric=metric)
    return Simulation(counts=counts, devices=devices)


def add_noise(
    rng: np.random.Generator,
    params: Params,
    reports: NDArray[np.int64],
    true_ones: NDArray[np.int64],
    *,
    metric: str,
) -> Counts:
    """Draw the counts of one report from each device of some cohorts, of `reports`, (m,)."""
    ones = draw_ones(rng, reports, true_ones, of_one=params.q_star, of_zero=params.p_star)
    return Counts(params, ones, reports, metric, sum_squared_reports=int(reports.sum()))


def draw_ones(
    rng: np.random.Generator,
    answers: NDArray[np.int64],
    true: NDArray[np.int64],
    *,
    of_one: float,
    of_zero: float,
) -> NDArray[np.int64]:
    """Draw how many of some answers, (m,), are 1 at each bit, (m, k) int64.

    `true`, (m, k), of them answer a 1, which stays one with the probability `of_one`; a 0 becomes
    one with the probability `of_zero`.
    """
    ones = rng.binomial(true, of_one)
    ones += rng.binomial(answers[:, None] - true, of_zero)
    return ones


def simulate_counts(
    population: Population,
    params: Params,
    *,
    n_reports: float,
    seed: int | None = None,
    metric: str = "",
) -> Counts:
    """Draw the counts of one report from each of `n_reports` devices; see `simulate`."""
    return simulate(population, params, n_reports=n_reports, seed=seed, metric=metric).counts


class DeviceSampler:
    """Devices with values of a population, spread over the cohorts of a parameter set.

    Raises ParamsError and ReportError as `simulate` does.
    """

    def __init__(self, population: Population, params: Params) -> None:
        """Hash or encode every value once."""
        _check_order(population, params)
        self._weights = population.weights
        self._params = params
        self._truth = compute_true_bits(population, params)

    def draw(
        self, rng: np.random.Generator, n_devices: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Draw the values and cohorts of n devices.

        Returns
        -------
        devices : (n_values,) int64, those that have each value.
        cohorts : (m,) int64, those in each cohort.
        true_ones : (m, k) int64, those whose value sets each bit.
        """
        devices = _multinomial(rng, n_devices, self._weights)
        return devices, *self.spread(rng, devices)

    def spread(
        self, rng: np.random.Generator, devices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the cohorts of devices with these values; `cohorts` and `true_ones` of `draw`."""
        m = self._params.m
        cohorts = np.zeros(m, dtype=np.int64)
        true_ones = np.zeros((m, self._params.k), dtype=np.int64)
        for start in range(0, len(devices), _VALUES_AT_ONCE):
            block = slice(start, start + _VALUES_AT_ONCE)
            spread = rng.multinomial(devices[block], np.full(m, 1 / m))
            cohorts += spread.sum(axis=0)
            self._truth.add_ones(true_ones, block, spread)
        return cohorts, true_ones


def simulate_reports(
    population: Population,
    params: Params,
    *,
    n_reports: float | None = None,
    seed: int | None = None,
    block: int = 1 << 14,
    values: NDArray[np.int64] | None = None,
) -> Iterator[ReportBlock]:
    """Draw one whole report from each of many devices, a block at a time.

    The reports depend on the seed, not on the size of the blocks.

    Parameters
    ----------
    n_reports : devices whose values are drawn from the population; or else
    values : (n,) int64, the index of each device's value in the population.

    Raises
    ------
    ParamsError
        n_reports is negative, block is not positive, values has no place of the population, the
        arguments are in another order, or the hash layout is foreign.
    ReportError
        The encoding cannot encode a value of the population.
    """
    _check_order(population, params)
    check_integer("block", block, 1)
    keystream, at_once = Keystream(seed), reports_per_piece(params.n_bytes)
    if values is None:
        n_devices = read_count("n_reports", n_reports, 0, MOST_DEVICES)
        picks = _draw_values(population, keystream.spawn(0), n_devices, at_once)
    else:
        _check_values(values, len(population))
        picks = (values[start : start + at_once] for start in range(0, len(values), at_once))
    return _in_blocks(
        _draw_reports(compute_true_bits(population, params), picks, params, keystream), block
    )


def _check_values(values: NDArray[np.int64], n_values: int) -> None:
    """Refuse what is no place in the population: compiled loops read whatever is there."""
    if len(values) and not 0 <= values.min() <= values.max() < n_values:
        raise ParamsError(f"values must be integers in [0, {n_values - 1}]")


def _draw_values(
    population: Population, stream: Keystream, n_devices: int, at_once: int
) -> Iterator[NDArray[np.int64]]:
    weighted = WeightedSampler(population.weights)
    for start in range(0, n_devices, at_once):
        yield weighted.draw(stream, min(at_once, n_devices - start))


def _draw_reports(
    truth: TrueBits,
    picks: Iterable[NDArray[np.int64]],
    params: Params,
    keystream: Keystream,
) -> Iterator[ReportBlock]:
    to_cohort = keystream.spawn(1)
    noise = ChannelNoise(Channel.report(params), keystream.spawn(2), params.k)
    for values in picks:
        cohorts = draw_cohorts(to_cohort, len(values), params)
        packed = noise(truth.of_devices(values, cohorts))
        yield ReportBlock(packed=packed, cohorts=cohorts, values=values)


def _in_blocks(pieces: Iterable[ReportBlock], block: int) -> Iterator[ReportBlock]:
    """Join and cut pieces to blocks of one size; the last block may be smaller."""
    held: list[ReportBlock] = []
    n = 0
    for piece in pieces:
        held.append(piece)
        n += len(piece.values)
        if n >= block:
            joined, whole = _join(held), n - n % block
            yield from (_cut(joined, start, start + block) for start in range(0, whole, block))
            held, n = [_cut(joined, whole, n)], n - whole
    if n:
        yield _join(held)


def _join(pieces: Sequence[ReportBlock]) -> ReportBlock:
    return ReportBlock(
        packed=np.concatenate([piece.packed for piece in pieces]),
        cohorts=np.concatenate([piece.cohorts for piece in pieces]),
        values=np.concatenate([piece.values for piece in pieces]),
    )


def _cut(block: ReportBlock, start: int, stop: int) -> ReportBlock:
    return ReportBlock(
        packed=block.packed[start:stop],
        cohorts=block.cohorts[start:stop],
        values=block.values[start:stop],
    )


def _multinomial(
    rng: np.random.Generator, n: int, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Draw (n_values,) int64; rounding gives no device to a value of weight 0."""
    devices = np.zeros(len(weights), dtype=np.int64)
    possible = np.flatnonzero(weights)
    devices[possible] = rng.multinomial(n, weights[possible])
    return devices


def _check_order(population: object, params: object) -> None:
    if not isinstance(population, Population) or not isinstance(params, Params):
        raise ParamsError(
            "the first argument must be a Population and the second Params, "
            f"got {type(population).__name__} and {type(params).__name__}"
        )
