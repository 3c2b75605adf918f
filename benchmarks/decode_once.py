"""Decode once in a fresh process, and print seconds and peak memory as JSON.

Run as `python -m benchmarks.decode_once N_CANDIDATES [N_TRUE N_REPORTS]`. With the last two
arguments, the strings are in 256 cohorts with little noise, and most of them are detected. Imports,
compilation and the simulation of the data come first and are not timed.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

PARAMS = dataclasses.replace(Params.profile("balanced"), m=64)
"""Parameters of the usual decode. Fewer cohorts than the profile's 128 take less time."""
N_REPORTS = 10_000_000
"""Number of reports of the usual decode. With fewer reports fewer strings are found."""
N_TRUE = 1000
"""Number of strings that devices have in the usual decode."""
LOW_NOISE = dataclasses.replace(Params.profile("low-noise"), m=256)
"""Parameters with little noise, under which most of many strings are detected."""


def measure(n_candidates: int) -> dict[str, float]:
    """Hash and decode a number of candidates. 1,000 of them are present by Zipf's law."""
    weights = 1 / np.arange(1.0, N_TRUE + 1)
    return _measure(n_candidates, weights, PARAMS, N_REPORTS)


def measure_many_detections(n_candidates: int, n_true: int, n_reports: int) -> dict[str, float]:
    """Hash and decode candidates of which many are detected. Their shares fall as i^-0.6."""
    weights = np.arange(1.0, n_true + 1) ** -0.6
    return _measure(n_candidates, weights, LOW_NOISE, n_reports)


def _measure(
    n_candidates: int, weights: NDArray[np.float64], params: Params, n_reports: int
) -> dict[str, float]:
    """Hash and decode once; return seconds, CPU seconds, memory in bytes, and detections.

    "before" is the peak memory before the timed region, "peak" the peak memory at its end.
    """
    strings = [f"example.org/{i}" for i in range(n_candidates)]
    population = Population(strings[: len(weights)], weights)
    counts = simulate_counts(population, params, n_reports=n_reports, seed=1)
    # A first decode loads modules and compiles loops, so that the timed decode does not.
    _decode(strings[:N_TRUE], simulate_counts(population, PARAMS, n_reports=N_REPORTS, seed=1))
    before, cpu = peak_bytes(), time.process_time()
    start = time.perf_counter()
    n_found = _decode(strings, counts)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "before": before,
        "peak": peak_bytes(),
        "found": n_found,
    }


def _decode(strings: list[str], counts: Counts) -> int:
    """Hash and decode candidates, and return the number of detections."""
    candidates = Candidates.from_list(strings)
    return int(decode(counts, candidates).detected.sum())


def peak_bytes() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    n, *present_and_reports = (int(float(argument)) for argument in sys.argv[1:])
    if present_and_reports:
        json.dump(measure_many_detections(n, *present_and_reports), sys.stdout)
    else:
        json.dump(measure(n), sys.stdout)
