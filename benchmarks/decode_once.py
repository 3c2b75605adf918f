"""Decode once in a process of its own and print seconds and peak memory as JSON.

Run as `python -m benchmarks.decode_once N_CANDIDATES`. Imports, compilation and the making
of the data come first and are not timed.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time

import numpy as np

from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

PARAMS = dataclasses.replace(Params.profile("balanced"), m=64)
N_REPORTS = 10_000_000
N_TRUE = 1000


def measure(n_candidates: int) -> dict[str, float]:
    """Hash and decode a number of candidates, 1,000 of them present by Zipf's law."""
    strings = [f"example.org/{i}" for i in range(n_candidates)]
    population = Population(strings[:N_TRUE], 1 / np.arange(1.0, N_TRUE + 1))
    counts = simulate_counts(population, PARAMS, n_reports=N_REPORTS, seed=1)
    _decode(strings[:N_TRUE], counts)  # compiles and imports what is compiled and imported once
    before = peak_bytes()
    start = time.perf_counter()
    n_found = _decode(strings, counts)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "before": before, "peak": peak_bytes(), "found": n_found}


def _decode(strings: list[str], counts: Counts) -> int:
    candidates = Candidates.from_list(strings)
    return int(decode(counts, candidates).detected.sum())


def peak_bytes() -> int:
    """Return the largest resident size that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    json.dump(measure(int(sys.argv[1])), sys.stdout)
