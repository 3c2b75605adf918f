"""Simulated collections: the counts alone, however many devices, or every device's report.

The noise of each bit of each device is independent. So if T_ij of the N_j devices of cohort j
have a true bit i, the ones that arrive are exactly
Binomial(T_ij, q*) + Binomial(N_j - T_ij, p*) ([EPK14] Lemma 1), and a billion devices cost no
more than a thousand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.hashing import bits_in_cohorts, bloom_cells, digest_strings
from rappor.counts.counts import Counts
from rappor.errors import ParamsError
from rappor.protocol.encodings import encoder, encoding_of
from rappor.protocol.encodings.bloom import LAYOUT
from rappor.protocol.normalizers import normalize
from rappor.protocol.params import Params
from rappor.protocol.parts import cut
from rappor.ranges import check_integer, read_count
from rappor.simulation.kernels import add_cells, respond, set_bits
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population

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
    people = People(population, params)
    rng = Keystream(seed).generator()
    devices, reports, true_ones = people.draw(rng, n_reports)
    ones = rng.binomial(true_ones, params.q_star)
    ones += rng.binomial(reports[:, None] - true_ones, params.p_star)
    return Simulation(
        counts=Counts(params, ones, reports, metric, squares=n_reports), devices=devices
    )


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


class People:
    """Devices with values of a population, spread over the cohorts of a parameter set.

    Raises ParamsError and ReportError as `simulate` does.
    """

    def __init__(self, population: Population, params: Params) -> None:
        """Hash or encode every value once."""
        _check_order(population, params)
        self._weights = population.weights
        self._params = params
        self._truth = _true_bits(population, params)

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
        m = self._params.m
        devices = _multinomial(rng, n_devices, self._weights)
        cohorts = np.zeros(m, dtype=np.int64)
        true_ones = np.zeros((m, self._params.k), dtype=np.int64)
        for start in range(0, len(devices), _VALUES_AT_ONCE):
            block = slice(start, start + _VALUES_AT_ONCE)
            spread = rng.multinomial(devices[block], np.full(m, 1 / m))
            cohorts += spread.sum(axis=0)
            self._truth.add_ones(true_ones, block, spread)
        return devices, cohorts, true_ones


def simulate_reports(
    population: Population,
    params: Params,
    *,
    n_reports: float | None = None,
    seed: int | None = None,
    block: int = 1 << 16,
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
        n_reports is negative, block is not positive, the arguments are in another order, or
        the hash layout is foreign.
    ReportError
        The encoding cannot encode a value of the population.
    """
    _check_order(population, params)
    check_integer("block", block, 1)
    keystream = Keystream(seed)
    if values is None:
        n_devices = read_count("n_reports", n_reports, 0, MOST_DEVICES)
        picks = _draw_values(population.weights, keystream.spawn(0), n_devices, block)
    else:
        picks = (values[start : start + block] for start in range(0, len(values), block))
    return _draw_reports(_true_bits(population, params), picks, params, keystream)


def _draw_values(
    weights: NDArray[np.float64], stream: Keystream, n_reports: int, block: int
) -> Iterator[NDArray[np.int64]]:
    steps = np.cumsum(weights)
    steps /= steps[-1]
    for start in range(0, n_reports, block):
        uniform = _uniform(stream, min(block, n_reports - start))
        yield np.searchsorted(steps, uniform, side="right")


def _draw_reports(
    truth: _TrueBits,
    picks: Iterable[NDArray[np.int64]],
    params: Params,
    keystream: Keystream,
) -> Iterator[ReportBlock]:
    to_cohort, permanent, instantaneous = (keystream.spawn(role) for role in (1, 2, 3))
    for values in picks:
        n = len(values)
        cohorts = (to_cohort.coins(n) * np.uint64(params.m) >> np.uint64(32)).astype(np.uint16)
        packed = respond(
            truth.of_devices(values, cohorts),
            permanent.coins((n, params.k)),
            instantaneous.coins((n, params.k)),
            params,
        )
        yield ReportBlock(packed=packed, cohorts=cohorts, values=values)


def _uniform(stream: Keystream, n: int) -> NDArray[np.float64]:
    """Draw (n,) float64, uniform on the multiples of 2^-53 in [0, 1)."""
    draws = stream.coins((n, 2)).view(np.uint64).ravel() >> np.uint64(11)
    uniform = draws.astype(np.float64)
    uniform *= 2.0**-53
    return uniform


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


class _TrueBits(Protocol):
    """The bits that a population's values set, before any noise."""

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        """Add to ones, (m, k), those of the devices, (values, m), with these values."""

    def of_devices(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        """Return (n, ceil(k/8)) packed true bits of n devices."""


def _true_bits(population: Population, params: Params) -> _TrueBits:
    if encoding_of(params).hashed:
        return _BloomBits(population, params)
    return _TableBits(population, params)


class _BloomBits:
    """Strings: their bits differ from cohort to cohort."""

    def __init__(self, population: Population, params: Params) -> None:
        if params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT} to simulate, got {params.layout!r}")
        texts = (normalize(params.normalize, value) for value in population.values)
        self._digests = digest_strings(cut(params.part, text).encode() for text in texts)
        self._params = params

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        add_cells(bloom_cells(self._digests[values], self._params), devices, ones)

    def of_devices(
        self, values: NDArray[np.int64], cohorts: NDArray[np.uint16]
    ) -> NDArray[np.uint8]:
        """Hash each device in its own cohort only."""
        bits = bits_in_cohorts(self._digests[values], cohorts, self._params)
        return set_bits(bits, self._params.k)


class _TableBits:
    """Every other encoding: it has one cohort, so the bits of a value are one row of a table."""

    def __init__(self, population: Population, params: Params) -> None:
        encode = encoder(params)
        rows = b"".join(encode.encode(encode.parse_value(v), 0) for v in population.values)
        self._table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, params.n_bytes)

    def add_ones(self, ones: NDArray[np.int64], values: slice, devices: NDArray[np.int64]) -> None:
        bits = np.unpackbits(self._table[values], axis=1, count=ones.shape[1], bitorder="little")
        ones += devices.T @ bits

    def of_devices(
        self,
        values: NDArray[np.int64],
        cohorts: NDArray[np.uint16],  # noqa: ARG002  (one cohort)
    ) -> NDArray[np.uint8]:
        return self._table[values]
