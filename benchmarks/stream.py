"""The cost of a streamed candidate: time of a decode against the model candidates * (a + b m).

A stream is a list of candidates that is generated instead of stored, here all strings of a first
letter and four more. Its decode passes over the candidates several times. The benchmark decodes the
same stream with m = 32 to 512 cohorts, and fits the time of a candidate, a, and of a candidate and
cohort, b, by least squares.
"""

from __future__ import annotations

import dataclasses
import string
import time
from typing import Final

import numpy as np

from benchmarks.record import read_processor
from benchmarks.tables import Table
from rappor.candidates.candidates import Candidates
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

COHORTS: Final = (32, 64, 128, 256, 512)
"""Numbers of cohorts over which the cost of a candidate is fitted."""
_LETTERS: Final = string.ascii_lowercase
_ADDED: Final = 4
"""Number of letters that follow the first letter of a candidate."""
_CANDIDATES_A_HEAD: Final = len(_LETTERS) ** _ADDED
"""Number of candidates that begin with the same letter."""


def stream(*, quick: bool) -> list[Table]:
    """Decode one stream under several numbers of cohorts, and fit the cost of a candidate."""
    # A quick run has the strings of one first letter, 457 thousand, instead of five.
    heads = 1 if quick else 5
    n = heads * _CANDIDATES_A_HEAD
    seconds = [_time_fastest(m, heads, repeats=1 if quick else 3) for m in COHORTS]
    per_candidate = np.array(seconds) / n
    # Least squares of the relative error: every row counts alike.
    design = np.stack([np.ones(len(COHORTS)), np.array(COHORTS)], axis=1) / per_candidate[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(COHORTS)), rcond=None)
    table = Table(
        title=f"stream: {n:,} candidates, k = 128, 1e7 reports, one core of {read_processor()}",
        columns=("cohorts", "seconds", "candidates (a + b m)", "off by"),
        note=f"Seconds of this process's CPU. a = {1e9 * a:.0f} ns and b = {1e9 * b:.1f} ns a "
        "candidate, and a cohort, all passes together.",
    )
    for m, taken in zip(COHORTS, seconds, strict=True):
        expected = n * (a + b * m)
        table.rows.append([m, taken, expected, f"{100 * (expected / taken - 1):+.0f} %"])
    return [table]


def _time_fastest(m: int, heads: int, *, repeats: int) -> float:
    """Return the CPU seconds of the fastest of several decodes."""
    params = dataclasses.replace(Params.profile("balanced"), m=m)
    population = Population(
        [f"{i} is no candidate" for i in range(1000)], 1 / np.arange(1.0, 1001.0)
    )
    counts = simulate_counts(population, params, n_reports=1e7, seed=1)
    # A first decode compiles the loops, and does not count.
    decode(counts, _build_candidates("a", 3))
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        decode(counts, _build_candidates(_LETTERS[:heads], _ADDED))
        seconds.append(time.process_time() - start)
    return min(seconds)


def _build_candidates(heads: str, added: int) -> Candidates:
    """Return the stream of all strings of one of the first letters and `added` more letters."""
    return Candidates.product(list(heads), _LETTERS, added, added)
