"""Speed: reports and candidates a second, seconds and peak memory, compared with plain numpy.

Benchmarks: `decode` (many candidates), `draw` (simulated reports), `aggregate` (sums of reports),
`hash` (bits of candidates) and `exact` (counts without reports). The data is made outside the timed
region. Every figure is the best of several repetitions, and the median is in the next column. The
best time depends on the code. A median far above the best time shows that other work slowed the
machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode_once import N_REPORTS, PARAMS
from benchmarks.record import read_processor
from benchmarks.tables import Cell, Table
from rappor.candidates.candidates import Candidates
from rappor.counts.bit_sums import sum_bits
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts, simulate_reports
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population, english_words

_BLOCK = 1 << 16
"""Number of reports that plain numpy draws or sums at a time. Limits its memory."""
_MEGABYTE = 1e6
"""The tables show memory in megabytes of this number of bytes."""


def time_work(work: Callable[[], object], *, repeats: int) -> tuple[float, float]:
    """Run the work once without measuring, then return the best and the median seconds."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), statistics.median(seconds)


def decode(*, quick: bool) -> list[Table]:
    """Measure a decode of many candidates, each in a fresh process."""
    table = Table(
        title=f"decode: k = 128, m = 64, {N_REPORTS:.0e} reports, Zipf over 1,000 strings",
        columns=("candidates", "seconds", "median", "peak MB", "of which before", "found"),
        note="Hashing and decoding. Imports, data and compilation are not timed. "
        '"of which before": peak memory before the timed work, with the texts of the candidates.',
    )
    for n_candidates in (10_000,) if quick else (100_000, 1_000_000):
        runs = [_decode_in_process(str(n_candidates)) for _ in range(1 if quick else 3)]
        seconds = [run["seconds"] for run in runs]
        best = runs[seconds.index(min(seconds))]
        table.rows.append(
            [
                f"{n_candidates:,}",
                best["seconds"],
                statistics.median(seconds),
                best["peak"] / _MEGABYTE,
                best["before"] / _MEGABYTE,
                int(best["found"]),
            ]
        )
    return [table, _measure_many_detections(quick=quick)]


def _measure_many_detections(*, quick: bool) -> Table:
    """Measure a decode that detects hundreds or thousands of strings."""
    table = Table(
        title="decode with many detections: 20,000 candidates, k = 128, m = 256, low-noise",
        columns=("present", "reports", "found", "CPU seconds", "peak MB"),
        note="Shares fall as i^-0.6. One run each.",
    )
    cases = [("300", "1e8"), ("1000", "1e9"), ("2000", "1e9"), ("4000", "1e10")]
    for present, reports in cases[:1] if quick else cases:
        run = _decode_in_process("20000", present, reports)
        cells: list[Cell] = [int(present), reports, int(run["found"]), run["cpu"]]
        table.rows.append([*cells, run["peak"] / _MEGABYTE])
    return table


def _decode_in_process(*arguments: str) -> dict[str, float]:
    """Decode in a fresh process, whose peak memory is that of the decode."""
    command = [sys.executable, "-m", "benchmarks.decode_once", *arguments]
    root = Path(__file__).resolve().parents[1]
    process = subprocess.run(command, cwd=root, capture_output=True, check=True)  # noqa: S603  # ours
    document: dict[str, float] = json.loads(process.stdout)
    return document


def draw(*, quick: bool) -> list[Table]:
    """Measure the drawing of complete reports on one core."""
    n = 1 << (17 if quick else 20)
    repeats = 2 if quick else 5
    population = Population([f"value {i}" for i in range(1000)], 1 / np.arange(1.0, 1001.0))
    bits = _build_bit_table(population, PARAMS)

    def draw_by_simulator() -> int:
        blocks = simulate_reports(population, PARAMS, n_reports=n, seed=1)
        return sum(len(block.packed) for block in blocks)

    def draw_by_numpy() -> int:
        rng = np.random.default_rng(1)
        return sum(
            len(draw_block_by_numpy(rng, population, bits, PARAMS)) for _ in range(n // _BLOCK)
        )

    packed = np.zeros((n, PARAMS.n_bytes), dtype=np.uint8)
    # The random bytes of 4,096 reports, a byte for each bit of a report. `simulate_reports` needs
    # slightly more: one random byte decides a bit, except in one of 256 cases, which need seven
    # further bytes.
    coins = np.empty((_BLOCK // 16, 8 * PARAMS.n_bytes), dtype=np.uint8)
    stream = Keystream(1)

    def draw_keystream() -> None:
        for _ in range(n // len(coins)):
            stream.fill(coins)

    table = _make_rate_table(
        f"draw: whole reports, k = 128, m = 64, one core of {read_processor()}", "reports"
    )
    work: tuple[tuple[str, Callable[[], object]], ...] = (
        ("memory copy", packed.copy),
        ("keystream alone", draw_keystream),
        ("simulate_reports", draw_by_simulator),
        ("plain numpy", draw_by_numpy),
    )
    _add_ways(table, n, work, repeats=repeats)
    table.note = (
        "Plain numpy: PCG64, a uniform float for each of two coins a bit, not packed. Keystream: "
        "the 128 bytes of coins of each report, in pieces that stay in a cache."
    )
    return [table]


def _build_bit_table(population: Population, params: Params) -> NDArray[np.uint8]:
    """Return the true bits of each value in each cohort, (values, m, k) uint8."""
    encode = get_encoder(params).encode
    rows = [encode(value, j) for value in population.values for j in range(params.m)]
    packed = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, params.n_bytes)
    bits = np.unpackbits(packed, axis=1, count=params.k, bitorder="little")
    return bits.reshape(len(population), params.m, params.k)


def draw_block_by_numpy(
    rng: np.random.Generator,
    population: Population,
    bits: NDArray[np.uint8],
    params: Params,
) -> NDArray[np.bool_]:
    """Draw a block of reports by plain numpy, for comparison, as (65536, k) bool."""
    values = rng.choice(len(population), size=_BLOCK, p=population.weights)
    cohorts = rng.integers(params.m, size=_BLOCK)
    permanent = bits[values, cohorts].astype(bool)
    # Permanent response: a coin below f forces the bit, whatever the true bit is. The forced bit is
    # 1 if the coin is below f1 too, else 0.
    coins = rng.random(permanent.shape)
    permanent = np.where(coins < params.f, coins < params.f1, permanent)
    # Instantaneous response: a 1 with probability q for a permanent 1, and p for a permanent 0.
    coins = rng.random(permanent.shape)
    return np.asarray(coins < np.where(permanent, params.q, params.p))


def aggregate(*, quick: bool) -> list[Table]:
    """Measure the addition of packed reports whose cohorts come in any order."""
    n = 1 << (17 if quick else 21)
    repeats = 2 if quick else 5
    rng = np.random.default_rng(1)
    packed = rng.integers(0, 256, size=(n, PARAMS.n_bytes), dtype=np.uint8)
    cohorts = rng.integers(0, PARAMS.m, size=n).astype(np.uint16)
    title = "aggregate: packed reports, k = 128, m = 64, unsorted, one core"
    table = _make_rate_table(f"{title} of {read_processor()}", "reports")
    work = (
        ("memory copy", packed.copy),
        ("sum_bits", lambda: sum_bits(packed, cohorts, k=PARAMS.k, m=PARAMS.m)),
        ("plain numpy", lambda: sum_by_numpy(packed, cohorts, k=PARAMS.k, m=PARAMS.m)),
    )
    _add_ways(table, n, work, repeats=repeats)
    table.note = (
        "Plain numpy: unpackbits in blocks of 65,536, then a sum for each cohort. Memory copy: the "
        "reports, of 16 bytes, written once."
    )
    return [table]


def sum_by_numpy(
    packed: NDArray[np.uint8], cohorts: NDArray[np.uint16], *, k: int, m: int
) -> NDArray[np.int64]:
    """Add up reports by plain numpy, for comparison, as (m, k) int64."""
    ones = np.zeros((m, k), dtype=np.int64)
    for start in range(0, len(packed), _BLOCK):
        block = slice(start, start + _BLOCK)
        bits = np.unpackbits(packed[block], axis=1, count=k, bitorder="little")
        for j in range(m):
            ones[j] += bits[cohorts[block] == j].sum(axis=0, dtype=np.int64)
    return ones


def hash_candidates(*, quick: bool) -> list[Table]:
    """Measure the hashing of candidates in all cohorts."""
    n = 10_000 if quick else 200_000
    strings = [f"example.org/{i}" for i in range(n)]
    # The device's encoder is hundreds of times slower, so it gets a hundredth of the strings.
    few = strings[: n // 100]
    encode = get_encoder(PARAMS).encode
    table = _make_rate_table(
        "hash: candidates in 64 cohorts, k = 128, h = 1, one core", "candidates"
    )

    def hash_together() -> object:
        return Candidates.from_list(strings).compute_cells(PARAMS, 0, n)

    def encode_one_by_one() -> object:
        return [encode(text, j) for text in few for j in range(PARAMS.m)]

    repeats = 2 if quick else 5
    best, median = time_work(hash_together, repeats=repeats)
    encoder_best, encoder_median = time_work(encode_one_by_one, repeats=repeats)
    rate, encoder_rate = n / best, len(few) / encoder_best
    table.rows.append(["Candidates.cells", rate, n / median, rate / encoder_rate])
    table.rows.append(["device's encoder", encoder_rate, len(few) / encoder_median, 1.0])
    return [table]


def exact(*, quick: bool) -> list[Table]:
    """Measure counts that are drawn exactly, without drawing reports."""
    n_devices = 1_000_000_000
    params = Params.profile("balanced")
    population = english_words()
    if quick:
        population = Population(population.values[:5000], population.weights[:5000])

    def draw_counts() -> object:
        return simulate_counts(population, params, n_reports=n_devices, seed=1)

    best, median = time_work(draw_counts, repeats=1 if quick else 3)
    words = len(population)
    table = Table(
        title=f"exact: counts of {n_devices:.0e} devices over {words:,} English words, m = 128",
        columns=("what", "seconds", "median"),
        rows=[["simulate_counts", best, median]],
        note="The time depends on words and cohorts, not on devices.",
    )
    return [table]


def _make_rate_table(title: str, noun: str) -> Table:
    """Return an empty table of rates. `noun` names the things that are counted a second."""
    return Table(title=title, columns=("what", f"{noun}/s", "median", "ratio"))


def _add_ways(
    table: Table, n: int, work: tuple[tuple[str, Callable[[], object]], ...], *, repeats: int
) -> None:
    """Time each way to do the same work, and add a row for it.

    The last way is plain numpy. The column "ratio" says how many times as fast a way is.

    Parameters
    ----------
    table : table of `_make_rate_table`
    n : number of things, such as reports, that each way processes
    work : name and function of each way
    repeats : number of timed repetitions
    """
    seconds = [time_work(run, repeats=repeats) for _, run in work]
    last = seconds[-1][0]
    for (name, _), (best, median) in zip(work, seconds, strict=True):
        row: list[Cell] = [name, n / best, n / median, last / best]
        table.rows.append(row)
