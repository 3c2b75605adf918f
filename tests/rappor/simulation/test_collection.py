"""Simulated collections: repeatable, exact without noise, and with the derived distribution.

A device is in cohort j with probability 1/m and reports a 1 at bit i with probability q* or p*. So
the bit count of each cell (j, i) has the distribution Binomial(n, r_ij), with r_ij = sum over
values of weight (q* if the value sets bit i in cohort j, else p*) / m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.counts.counts import Counts
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.simulation.collection import ReportBlock, simulate, simulate_counts, simulate_reports
from rappor.simulation.population import Population

FALSE_ALARM = 1e-9
"""Probability that a statistical check below fails although the code is right."""

PARAMS = Params(k=11, h=2, m=3, f=0.25, p=0.2, q=0.7)
NOISELESS = Params(k=11, h=2, m=3, f=0.0, p=0.0, q=1.0, insecure=True)
POPULATION = Population(["a", "b", "never", "c"], [5, 3, 0, 2])

Simulate = Callable[[int, int], Counts]
"""Draws the counts of a number of devices from a seed."""


def simulate_by_counts(n: int, seed: int) -> Counts:
    """Simulate the counts of n devices without single reports."""
    return simulate_counts(POPULATION, PARAMS, n_reports=n, seed=seed)


def simulate_by_reports(n: int, seed: int) -> Counts:
    """Simulate the reports of n devices, and add them up."""
    return add_blocks(simulate_reports(POPULATION, PARAMS, n_reports=n, seed=seed), PARAMS)


def add_blocks(blocks: Iterator[ReportBlock], params: Params) -> Counts:
    """Return the counts of all reports of the blocks."""
    counts = (Counts.from_packed(block.packed, block.cohorts, params) for block in blocks)
    return sum(counts, Counts.zero(params))


def true_bits(value: str, cohort: int, params: Params) -> NDArray[np.uint8]:
    """Return the (k,) true bits of a value in a cohort, as a device encodes them."""
    packed = np.frombuffer(get_encoder(params).encode(value, cohort), dtype=np.uint8)
    return np.unpackbits(packed, count=params.k, bitorder="little")


def compute_cell_probabilities() -> NDArray[np.float64]:
    """Return the (m, k) probabilities r_ij that a device adds 1 to the bit count of a cell."""
    probabilities = np.zeros((PARAMS.m, PARAMS.k))
    for value, weight in zip(POPULATION.values, POPULATION.weights, strict=True):
        for j in range(PARAMS.m):
            probability_of_one = np.where(true_bits(value, j, PARAMS), PARAMS.q_star, PARAMS.p_star)
            probabilities[j] += weight * probability_of_one / PARAMS.m
    return probabilities


def assert_binomial(
    counts: NDArray[np.int64], n: int, probabilities: NDArray[np.float64], *, detect: float
) -> None:
    """Check counts against Binomial(n, probability).

    The last two lines check the power: probabilities that are wrong by `detect` would be within the
    bounds with a probability below 1e-3.
    """
    low, high = stats.binom.interval(1 - FALSE_ALARM / counts.size, n, probabilities)
    assert ((low <= counts) & (counts <= high)).all()
    assert np.all(stats.binom.cdf(high, n, probabilities + detect) < 1e-3)
    assert np.all(stats.binom.sf(low - 1, n, probabilities - detect) < 1e-3)


@pytest.mark.parametrize("collect", [simulate_by_counts, simulate_by_reports])
def test_every_cell_has_its_binomial_distribution(collect: Simulate) -> None:
    """Bit counts of each cell and reports of each cohort have the derived probabilities."""
    n = 400_000
    counts = collect(n, 1)
    assert counts.n_reports == n
    assert_binomial(counts.bit_counts, n, compute_cell_probabilities(), detect=0.01)
    assert_binomial(counts.cohort_reports, n, np.full(PARAMS.m, 1 / PARAMS.m), detect=0.01)


@pytest.mark.parametrize("collect", [simulate_by_counts, simulate_by_reports])
def test_every_cell_has_its_variance(collect: Simulate) -> None:
    """For each cell, the sum of squared errors over 500 seeds has a chi-squared distribution.

    Half or twice the variance would be detected. The variances n r (1 - r) exceed 100, so the
    binomial distributions are nearly normal.
    """
    n, runs, r = 2000, 500, compute_cell_probabilities()
    bit_counts = np.array([collect(n, seed).bit_counts for seed in range(runs)])
    spread = (((bit_counts - n * r) ** 2) / (n * r * (1 - r))).sum(axis=0)
    low, high = stats.chi2.interval(1 - FALSE_ALARM / spread.size, runs)
    assert ((low <= spread) & (spread <= high)).all()
    assert stats.chi2.cdf(high / 2, runs) < 1e-3
    assert stats.chi2.sf(low * 2, runs) < 1e-3


def test_a_report_without_noise_has_the_true_bits() -> None:
    """Every simulated report without noise equals the bits that a device encodes.

    All nine pairs of three values and three cohorts occur.
    """
    pairs = set()
    for block in simulate_reports(POPULATION, NOISELESS, n_reports=300, seed=1, block=64):
        for row, j, v in zip(block.packed, block.cohorts, block.values, strict=True):
            expected = get_encoder(NOISELESS).encode(POPULATION.values[v], int(j))
            assert row.tobytes() == expected
            pairs.add((int(j), int(v)))
    assert len(pairs) == 9


def test_counts_without_noise_have_the_true_bits() -> None:
    """If all devices have one string, the bit counts are the reports of the cohort, or 0."""
    for value in ("a", "ä", ""):
        counts = simulate_counts(Population([value], [1]), NOISELESS, n_reports=10_000, seed=2)
        for j in range(NOISELESS.m):
            expected = true_bits(value, j, NOISELESS) * counts.cohort_reports[j]
            assert counts.bit_counts[j].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("encoding", "k", "categories", "values"),
    [
        ("onehot", 3, ("x", "y", "z"), ["z", "x", "y"]),
        ("boolean", 1, (), ["true", "no"]),
        ("onehot", 9, tuple("abcdefghi"), ["i", "", "b"]),
        ("buckets", 3, ("0", "10"), ["-1", "3.5", "1e9"]),
    ],
)
def test_every_encoding_without_noise_has_the_true_bits(
    encoding: str, k: int, categories: tuple[str, ...], values: list[str]
) -> None:
    """Counts and reports set the bits that the device's encoder sets for each value."""
    params = Params(
        k=k, f=0.0, p=0.0, q=1.0, encoding=encoding, categories=categories, insecure=True
    )
    encode = get_encoder(params)
    bits = {v: encode.encode(encode.parse_value(v), 0) for v in values}
    population = Population(values, np.ones(len(values)))
    result = simulate(population, params, n_reports=1000, seed=1)
    table = np.frombuffer(b"".join(bits.values()), np.uint8).reshape(len(values), -1)
    unpacked = np.unpackbits(table, axis=1, count=k, bitorder="little").astype(int)
    assert result.counts.bit_counts.tolist() == [(result.devices @ unpacked).tolist()]
    (block,) = simulate_reports(population, params, n_reports=1000, seed=1)
    assert np.array_equal(block.packed, table[block.values])
    assert set(block.cohorts.tolist()) == {0}


def test_values_are_normalised_as_on_a_device() -> None:
    """Two spellings with the same normal form set the same bits."""
    params = Params(k=32, m=2, f=0.0, p=0.0, q=1.0, normalize="casefold", insecure=True)
    mixed = Population(["Abc", "ABC"], [1, 1])
    plain = Population(["abc"], [1])
    counts = simulate_counts(mixed, params, n_reports=1000, seed=3)
    assert np.count_nonzero(counts.bit_counts) == 2
    reports = add_blocks(simulate_reports(mixed, params, n_reports=1000, seed=3), params)
    assert reports == add_blocks(simulate_reports(plain, params, n_reports=1000, seed=3), params)


def test_a_seed_repeats_a_simulation() -> None:
    """Equal seeds give equal results. Other seeds, and calls without a seed, give other results."""
    for collect in (simulate_by_counts, simulate_by_reports):
        assert collect(5000, 7) == collect(5000, 7)
        assert collect(5000, 7) != collect(5000, 8)
    of_float = simulate_counts(POPULATION, PARAMS, n_reports=1e4, seed=1)
    assert of_float == simulate_by_counts(10_000, 1)
    unseeded = [simulate_counts(POPULATION, PARAMS, n_reports=5000) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


@pytest.mark.parametrize("block", [1, 7, 99, 100, 101])
def test_reports_do_not_depend_on_the_blocks(block: int) -> None:
    """The same devices send the same reports for every size of a block."""
    whole = next(simulate_reports(POPULATION, PARAMS, n_reports=100, seed=5))
    parts = list(simulate_reports(POPULATION, PARAMS, n_reports=100, seed=5, block=block))
    sizes = [min(block, 100 - start) for start in range(0, 100, block)]
    assert [len(part.packed) for part in parts] == sizes
    for name in ("packed", "cohorts", "values"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(whole, name))


def test_no_devices_make_no_reports() -> None:
    """Zero devices give zero counts."""
    assert simulate_by_counts(0, 1) == simulate_by_reports(0, 1) == Counts.zero(PARAMS)


def test_a_billion_devices_are_simulated() -> None:
    """Counts of 1e9 devices are drawn without a loop over devices.

    The devices of all values sum to 1e9, and a value of weight 0 has no device.
    """
    result = simulate(POPULATION, PARAMS, n_reports=10**9, seed=1, metric="page")
    assert result.counts.n_reports == result.devices.sum() == 10**9
    assert result.devices[2] == 0
    has_devices = POPULATION.weights > 0
    weights = POPULATION.weights[has_devices]
    assert_binomial(result.devices[has_devices], 10**9, weights, detect=0.001)
    assert result.counts.metric == "page"
    assert_binomial(result.counts.bit_counts, 10**9, compute_cell_probabilities(), detect=0.001)


def test_more_values_than_one_block_are_simulated() -> None:
    """All devices of a population of 10,000 values are in the counts.

    With h = 1 and without noise, each report has one 1, so the bit counts sum to the reports.
    """
    many = Population([f"v{i}" for i in range(10_000)], np.ones(10_000))
    result = simulate(many, NOISELESS, n_reports=50_000, seed=1)
    singles = Params(k=11, h=1, m=3, f=0.0, p=0.0, q=1.0, insecure=True)
    assert simulate_counts(many, singles, n_reports=50_000, seed=1).bit_counts.sum() == 50_000
    assert result.counts.n_reports == result.devices.sum() == 50_000


@pytest.mark.parametrize("n", [-1, 2**62, 1.5, True, "5", None])
def test_the_number_of_devices_is_checked(n: Any) -> None:
    """A wrong number raises at the call, before the first block is requested."""
    for run in (simulate, simulate_counts, simulate_reports):
        with pytest.raises(ParamsError, match="n_reports must be an integer in"):
            run(POPULATION, PARAMS, n_reports=n, seed=1)


def test_blocks_and_layouts_are_checked() -> None:
    """A block of 0 reports and an unknown hash layout are refused."""
    with pytest.raises(ParamsError, match="block must be an integer of at least 1, got 0"):
        simulate_reports(POPULATION, PARAMS, n_reports=1, block=0)
    foreign = Params(k=16, f=0.5, p=0.25, q=0.75, layout="other")
    with pytest.raises(ParamsError, match="layout must be rappor-1 to simulate, got 'other'"):
        simulate_counts(POPULATION, foreign, n_reports=1)


@pytest.mark.parametrize("values", [[-1], [0, 4], [10**9]])
def test_values_beyond_the_population_are_refused(values: list[int]) -> None:
    """The call raises. A compiled loop would read outside its table without an error."""
    with pytest.raises(ParamsError, match=r"values must be integers in \[0, 3\]"):
        simulate_reports(POPULATION, PARAMS, values=np.array(values))


def test_swapped_arguments_are_refused() -> None:
    """The message states the order of the arguments."""
    for run in (simulate, simulate_counts, simulate_reports):
        with pytest.raises(ParamsError, match="first argument must be a Population and the second"):
            run(PARAMS, POPULATION, n_reports=1)  # type: ignore[arg-type]
