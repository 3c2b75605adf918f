"""Run the mechanisms of pure-ldp, with the interpreter of their own environment.

    python benchmarks/peers_once.py EPSILON N_REPORTS N_VALUES SEED

prints a JSON object:

    estimates    by mechanism, the estimated counts of the values 0 to N_VALUES - 1
    true_counts  the true counts of these values, whose shares follow Zipf's law
    rappor       how often the RAPPOR client of pure-ldp clears a true bit (`_measure_rappor`)

Mechanisms: OUE (optimized unary encoding, one bit for each value), OLH (optimized local hashing, a
hash of the value), Hadamard response (an index, by a row of a Hadamard matrix), CMS (count-mean
sketch, one row of hashed bits), and Hadamard CMS (one bit of such a row). The program imports
nothing of this project, whose packages are missing in that environment.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from pure_ldp.core import generate_hash_funcs
from pure_ldp.frequency_oracles import (
    CMSClient,
    CMSServer,
    HadamardResponseClient,
    HadamardResponseServer,
    LHClient,
    LHServer,
    RAPPORClient,
    UEClient,
    UEServer,
)

_SKETCH = 256
"""Number of cells in a row of a count-mean sketch. With more cells, fewer values collide."""
_HASHES = 64
"""Number of rows of a count-mean sketch. Each row has its own hash function."""


def main() -> None:
    """Estimate once with every mechanism."""
    epsilon, n_reports, n_values, seed = float(sys.argv[1]), *map(int, sys.argv[2:5])
    random.seed(seed)
    # The package draws from numpy's global generator.
    np.random.seed(seed)
    weights = 1 / np.arange(1.0, n_values + 1)
    true_counts = np.random.multinomial(n_reports, weights / weights.sum())
    values = np.repeat(np.arange(n_values), true_counts)
    estimates = {
        name: _estimate(client, server, values, n_values)
        for name, (client, server) in _list_mechanisms(epsilon, n_values).items()
    }
    json.dump(
        {"true_counts": true_counts.tolist(), "estimates": estimates, "rappor": _measure_rappor()},
        sys.stdout,
    )


def _list_mechanisms(epsilon: float, d: int) -> dict[str, tuple[Any, Any]]:
    """Return client and server of each mechanism for d values, numbered from 0."""
    # Without a mapping of values to indices, the package numbers values from 1. `int` maps each
    # value to itself.
    same: Callable[[int], int] = int
    response = HadamardResponseServer(epsilon, d, index_mapper=same)
    functions = response.get_hash_funcs()
    sketch = CMSServer(epsilon, _HASHES, _SKETCH, index_mapper=same)
    hadamard = CMSServer(epsilon, _HASHES, _SKETCH, is_hadamard=True, index_mapper=same)
    return {
        "OUE": (
            UEClient(epsilon, d, use_oue=True, index_mapper=same),
            UEServer(epsilon, d, use_oue=True, index_mapper=same),
        ),
        "OLH": (
            LHClient(epsilon, d, use_olh=True, index_mapper=same),
            LHServer(epsilon, d, use_olh=True, index_mapper=same),
        ),
        "Hadamard response": (
            HadamardResponseClient(epsilon, d, functions, index_mapper=same),
            response,
        ),
        "CMS": (CMSClient(epsilon, sketch.get_hash_funcs(), _SKETCH), sketch),
        "Hadamard CMS": (
            CMSClient(epsilon, hadamard.get_hash_funcs(), _SKETCH, is_hadamard=True),
            hadamard,
        ),
    }


def _estimate(client: Any, server: Any, values: Any, n_values: int) -> list[float]:
    """Send one report for each value, and return the estimated count of each possible value."""
    for value in values.tolist():
        server.aggregate(client.privatise(value))
    return [float(server.estimate(i, suppress_warnings=True)) for i in range(n_values)]


def _measure_rappor() -> dict[str, float]:
    """Measure how often the package's RAPPOR client clears a true bit at f = .5.

    [EPK14] clears a true bit with probability f / 2 = .25. The result also has the f that the
    package computes for a loss of 2 nats, and the loss that it computes for this f.
    """
    functions = [generate_hash_funcs(2, 32)]
    client = RAPPORClient(0.5, 32, functions, num_of_cohorts=1, index_mapper=int)
    # The package hashes the text of a value's index, here "0" for the value 0.
    true = {function("0") for function in functions[0]}
    n_reports = 2_000
    cleared = 0
    for _ in range(n_reports):
        report, _ = client.privatise(0)
        cleared += sum(report[bit] == 0 for bit in true)
    f = client.convert_eps_to_f(2)
    return {
        "cleared": cleared / (n_reports * len(true)),
        "expected": 0.25,
        "f": f,
        # The second argument is the number of hash functions.
        "epsilon": client.convert_f_to_eps(f, 2),
    }


if __name__ == "__main__":
    main()
