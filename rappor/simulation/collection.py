"""Simulated collections in which every device reports once: counts, or the report of every device.

Researchers and tests use this module. The input is a `Population` and `Params`. There are two
outputs:

- `simulate_counts` draws the counts that a collector would have, without drawing single reports.
- `simulate_reports` draws the report of every device, block by block.

A report has k bits, and there are m cohorts. p* and q* are the probabilities that a report shows a
1 for a true bit 0 and 1. The noise of each bit of each device is independent. If T_ij of the N_j
devices of cohort j have a true bit i, the number of ones in their reports is therefore exactly

    Binomial(T_ij, q*) + Binomial(N_j - T_ij, p*)       ([EPK14] Lemma 1)

Reports of generalized randomized response name one bucket. If every device owns one bucket, the
counts are a binomial and a multinomial number (`draw_bucket_counts`). The counts of sets are sums
of simulated reports, because the padding of a device depends on its whole set.

So the counts of a billion devices take no more time than the counts of a thousand. Example: of 100
devices of a cohort, 40 have a true bit. With p* = .12 and q* = .5 the bit has about
40 * .5 + 60 * .12 = 27 ones.
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
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.simulation.bucket_reports import draw_bucket_counts
from rappor.simulation.channels import count_reports_per_piece, create_report_noise
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population
from rappor.simulation.true_bits import TrueBits, compute_true_bits
from rappor.simulation.weighted_sampler import WeightedSampler, draw_cohorts

MOST_DEVICES: Final = (1 << 62) - 1
"""Largest number of devices, and of reports.

Counts store 64-bit integers. Twice this number still fits, so two simulations can be added.
"""

_VALUES_AT_ONCE: Final = 4096
"""Number of values whose devices are distributed over the cohorts at a time.

The number bounds memory: the table of devices by value and cohort has 4 MB with 128 cohorts.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """Counts of a simulated collection, and the number of devices with each value.

    Attributes
    ----------
    counts : the counts.
    devices : (n_values,) int64, number of devices that have each value of the population.
    """

    counts: Counts
    devices: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportBlock:
    """Reports of n simulated devices, with their cohorts and values.

    Attributes
    ----------
    packed : (n, ceil(k/8)) uint8, packed bits of the reports.
    cohorts : (n,) uint16, cohort of each device.
    values : (n,) int64, index of each device's value in the population.
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
    """Draw the counts of one report from each of many devices, and the number of devices by value.

    The numbers of devices by value and by cohort are multinomial. All cohorts are equally likely.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.
    n_reports : number of devices, a whole number, which may be written as 1e6.
    seed : the same seed gives the same counts; None for different counts in every call.
    metric : name of the metric in the counts.

    Raises
    ------
    ParamsError
        n_reports is negative, the arguments are in another order, or the parameters have the
        hash layout of other software.
    ReportError
        The encoding cannot encode a value of the population.
    """
    n_reports = read_count("n_reports", n_reports, 0, MOST_DEVICES)
    _check_order(population, params)
    if get_encoding(params).supports_items:
        return _simulate_sets(population, params, n_reports, seed, metric)
    sampler = DeviceSampler(population, params)
    rng = Keystream(seed).generator()
    devices, reports, true_ones = sampler.draw(rng, n_reports)
    counts = add_noise(rng, params, reports, true_ones, metric=metric)
    return Simulation(counts=counts, devices=devices)


def _simulate_sets(
    population: Population, params: Params, n_reports: int, seed: int | None, metric: str
) -> Simulation:
    """Draw the reports of sets, a block at a time, and add them up."""
    devices = np.zeros(len(population), dtype=np.int64)
    ones = np.zeros((params.m, params.k), dtype=np.int64)
    reports = np.zeros(params.m, dtype=np.int64)
    for block in simulate_reports(population, params, n_reports=n_reports, seed=seed):
        devices += np.bincount(block.values, minlength=len(population))
        counts = Counts.from_packed(block.packed, block.cohorts, params)
        ones += counts.bit_counts
        reports += counts.cohort_reports
    # One report a device: the sum of squared reports is the number of reports.
    counts = Counts(params, ones, reports, metric, sum_squared_reports=n_reports)
    return Simulation(counts=counts, devices=devices)


def draw_permanent_ones(
    rng: np.random.Generator,
    n_devices: NDArray[np.int64],
    true_ones: NDArray[np.int64],
    params: Params,
) -> NDArray[np.int64]:
    """Draw the number of ones at each bit of the permanent responses, (m, k) int64.

    Raises
    ------
    ParamsError
        The values are sets: the numbers of true ones do not determine their permanent responses.
    """
    if get_encoding(params).supports_items:
        raise ParamsError("encoding must not be set here; sets are simulated by simulate_counts")
    if params.response.is_exclusive:
        return draw_bucket_counts(rng, n_devices, true_ones, params)
    return draw_ones(rng, n_devices, true_ones, of_one=1 - params.f0, of_zero=params.f1)


def add_noise(
    rng: np.random.Generator,
    params: Params,
    reports: NDArray[np.int64],
    true_ones: NDArray[np.int64],
    *,
    metric: str,
) -> Counts:
    """Draw the counts of one report from each device.

    `reports`, (m,), contains the number of devices of each cohort, and `true_ones`, (m, k), the
    number of devices with each true bit.
    """
    if params.response.is_exclusive:
        ones = draw_bucket_counts(rng, reports, true_ones, params)
    else:
        ones = draw_ones(rng, reports, true_ones, of_one=params.q_star, of_zero=params.p_star)
    # One report a device: the sum of squared reports is the number of reports.
    return Counts(params, ones, reports, metric, sum_squared_reports=int(reports.sum()))


def draw_ones(
    rng: np.random.Generator,
    n_responses: NDArray[np.int64],
    input_ones: NDArray[np.int64],
    *,
    of_one: float,
    of_zero: float,
) -> NDArray[np.int64]:
    """Draw the number of ones at each bit after a response, (m, k) int64.

    A response maps each bit of its input to a bit of its output: from true bits to a permanent
    response, from a permanent response to a report, or both in one step.

    Parameters
    ----------
    rng : source of random numbers.
    n_responses : (m,), number of responses of each cohort.
    input_ones : (m, k), number of responses whose input has a 1 at the bit.
    of_one : probability that a 1 of the input stays a 1.
    of_zero : probability that a 0 of the input becomes a 1.
    """
    # Some ones of the input stay, and some zeros become ones. Both numbers are binomial and
    # independent.
    ones = rng.binomial(input_ones, of_one)
    ones += rng.binomial(n_responses[:, None] - input_ones, of_zero)
    return ones


def simulate_counts(
    population: Population,
    params: Params,
    *,
    n_reports: float,
    seed: int | None = None,
    metric: str = "",
) -> Counts:
    """Draw the counts of one report from each of many devices.

    The time does not depend on the number of devices, except for sets: the report of every device
    is drawn if values are sets.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.
    n_reports : number of devices, a whole number, which may be written as 1e6.
    seed : the same seed gives the same counts; None for different counts in every call.
    metric : name of the metric in the counts.

    Raises
    ------
    ParamsError
        n_reports is negative, the arguments are in another order, or the parameters have the
        hash layout of other software.
    ReportError
        The encoding cannot encode a value of the population.

    Examples
    --------
    >>> editors = Population(["vim", "emacs"], [3, 1])
    >>> counts = simulate_counts(editors, Params.profile("balanced"), n_reports=1e6, seed=1)
    >>> counts.n_reports
    1000000
    """
    return simulate(population, params, n_reports=n_reports, seed=seed, metric=metric).counts


class DeviceSampler:
    """Sampler of devices: their values from a population, and their cohorts uniformly.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.

    Raises ParamsError and ReportError as `simulate`.
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
        devices : (n_values,) int64, number of devices with each value.
        cohorts : (m,) int64, number of devices in each cohort.
        true_ones : (m, k) int64, number of devices whose value sets each bit.
        """
        devices = _draw_multinomial(rng, n_devices, self._weights)
        return devices, *self.distribute(rng, devices)

    def distribute(
        self, rng: np.random.Generator, devices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the cohorts of devices whose values are known.

        Parameters
        ----------
        rng : source of random numbers.
        devices : (n_values,) int64, number of devices with each value.

        Returns
        -------
        cohorts, true_ones : as in `draw`.
        """
        m = self._params.m
        cohorts = np.zeros(m, dtype=np.int64)
        true_ones = np.zeros((m, self._params.k), dtype=np.int64)
        # The table of devices by value and cohort is never stored as a whole.
        for start in range(0, len(devices), _VALUES_AT_ONCE):
            block = slice(start, start + _VALUES_AT_ONCE)
            by_cohort = rng.multinomial(devices[block], np.full(m, 1 / m))
            cohorts += by_cohort.sum(axis=0)
            self._truth.add_ones(true_ones, block, by_cohort)
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
    """Draw one report from each of many devices, a block at a time.

    The reports depend on the seed, not on the size of the blocks.

    Parameters
    ----------
    population : values and their shares.
    params : parameters of the reports.
    n_reports : number of devices, whose values are drawn from the population.
    seed : the same seed gives the same reports; None for different reports in every call.
    block : number of reports in a block. The last block may be smaller.
    values : (n,) int64, the index of each device's value in the population, instead of `n_reports`.

    Yields
    ------
    ReportBlock, with the packed bits, the cohorts and the values of the devices.

    Raises
    ------
    ParamsError
        n_reports is negative, block is not positive, values contains an index outside the
        population, the arguments are in another order, or the parameters have the hash layout of
        other software.
    ReportError
        The encoding cannot encode a value of the population.

    Examples
    --------
    >>> editors = Population(["vim", "emacs"], [3, 1])
    >>> (block,) = simulate_reports(editors, Params.profile("balanced"), n_reports=5, seed=1)
    >>> block.packed.shape, block.cohorts.shape
    ((5, 16), (5,))
    """
    _check_order(population, params)
    check_integer("block", block, 1)
    keystream, at_once = Keystream(seed), count_reports_per_piece(params.n_bytes)
    # Values, cohorts and noise have separate substreams, so passing `values` changes no cohort.
    if values is None:
        n_devices = read_count("n_reports", n_reports, 0, MOST_DEVICES)
        value_pieces = _draw_values(population, keystream.spawn(0), n_devices, at_once)
    else:
        _check_values(values, len(population))
        value_pieces = (values[start : start + at_once] for start in range(0, len(values), at_once))
    pieces = _draw_reports(compute_true_bits(population, params), value_pieces, params, keystream)
    return _cut_into_blocks(pieces, block)


def _check_values(values: NDArray[np.int64], n_values: int) -> None:
    """Raise ParamsError for an index outside the population.

    Compiled loops check no bounds, and would read memory outside the array.
    """
    if len(values) and not 0 <= values.min() <= values.max() < n_values:
        raise ParamsError(f"values must be integers in [0, {n_values - 1}]")


def _draw_values(
    population: Population, stream: Keystream, n_devices: int, at_once: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the index of each device's value, `at_once` devices at a time."""
    sampler = WeightedSampler(population.weights)
    for start in range(0, n_devices, at_once):
        yield sampler.draw(stream, min(at_once, n_devices - start))


def _draw_reports(
    truth: TrueBits,
    value_pieces: Iterable[NDArray[np.int64]],
    params: Params,
    keystream: Keystream,
) -> Iterator[ReportBlock]:
    """Yield the reports of devices whose values are drawn, a piece at a time.

    A piece has as many reports as `ChannelNoise` draws at a time. So the same coins go to the same
    devices, whatever the size of the blocks is.
    """
    cohort_stream = keystream.spawn(1)
    noise = create_report_noise(params, keystream.spawn(2))
    for values in value_pieces:
        cohorts = draw_cohorts(cohort_stream, len(values), params)
        packed = noise(truth.pack_device_bits(values, cohorts))
        yield ReportBlock(packed=packed, cohorts=cohorts, values=values)


def _cut_into_blocks(pieces: Iterable[ReportBlock], block: int) -> Iterator[ReportBlock]:
    """Join and cut pieces to blocks of one size. The last block may be smaller."""
    pending: list[ReportBlock] = []
    n = 0
    for piece in pieces:
        pending.append(piece)
        n += len(piece.values)
        # Many small pieces are joined at once. Joining after each piece would copy all bytes again.
        if n >= block:
            joined, n_complete = _join_blocks(pending), n - n % block
            yield from (
                _slice_block(joined, start, start + block) for start in range(0, n_complete, block)
            )
            pending, n = [_slice_block(joined, n_complete, n)], n - n_complete
    if n:
        yield _join_blocks(pending)


def _join_blocks(pieces: Sequence[ReportBlock]) -> ReportBlock:
    """Concatenate pieces of reports."""
    return ReportBlock(
        packed=np.concatenate([piece.packed for piece in pieces]),
        cohorts=np.concatenate([piece.cohorts for piece in pieces]),
        values=np.concatenate([piece.values for piece in pieces]),
    )


def _slice_block(block: ReportBlock, start: int, stop: int) -> ReportBlock:
    """Return the reports with the indices from `start` to `stop` - 1."""
    return ReportBlock(
        packed=block.packed[start:stop],
        cohorts=block.cohorts[start:stop],
        values=block.values[start:stop],
    )


def _draw_multinomial(
    rng: np.random.Generator, n: int, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Draw the number of devices with each value, (n_values,) int64.

    numpy draws the values one after the other, and gives all remaining devices to the last value.
    Bad case: the last value has the weight 0. The rounded weights of the other values may sum to
    less than 1, so that a device remains for it. Values of weight 0 are therefore left out.
    """
    devices = np.zeros(len(weights), dtype=np.int64)
    possible = np.flatnonzero(weights)
    devices[possible] = rng.multinomial(n, weights[possible])
    return devices


def _check_order(population: object, params: object) -> None:
    """Raise ParamsError if the two first arguments are in the wrong order or of other types."""
    if not isinstance(population, Population) or not isinstance(params, Params):
        raise ParamsError(
            "the first argument must be a Population and the second Params, "
            f"got {type(population).__name__} and {type(params).__name__}"
        )
