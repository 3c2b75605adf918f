"""Measure the variance of multi-freq-ldpy's clients for categories, in a separate environment.

    python benchmarks/peers_categories_once.py EPSILON N_CATEGORIES SHARE N_DEVICES RUNS SEED

prints JSON: for each mechanism, the variance of the estimated share of category 0 over RUNS
collections, times N_DEVICES. The estimate is unbiased: (share of reports - q) / (p - q), where a
report names category 0 with probability p if the device has it, and otherwise q. The aggregators of
multi-freq-ldpy are not used, because they clip the estimates and divide them by their sum.

Mechanisms: GRR reports one of k categories. OUE (optimized) and SUE (symmetric unary encoding)
report k bits with noise. The file imports nothing of this project, whose packages are missing in
that environment.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client
from numba import njit


@njit
def count_grr(values, k, epsilon):  # type: ignore[no-untyped-def]
    """Count the reports of category 0 under generalized randomized response."""
    count = 0
    for value in values:
        count += GRR_Client(value, k, epsilon) == 0
    return count


@njit
def count_unary(values, k, epsilon, optimal):  # type: ignore[no-untyped-def]
    """Count the ones of category 0 under a unary encoding."""
    count = 0.0
    for value in values:
        count += UE_Client(value, k, epsilon, optimal)[0]
    return count


@njit
def set_seed(seed):  # type: ignore[no-untyped-def]
    """Seed the generator of compiled code, which numpy's own `seed` does not reach."""
    np.random.seed(seed)


def main() -> None:
    """Estimate the share many times with every mechanism."""
    epsilon, k, share = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    n_devices, n_runs, seed = map(int, sys.argv[4:7])
    rng = np.random.default_rng(seed)
    set_seed(seed)
    weights = np.array([share, *[(1 - share) / (k - 1)] * (k - 1)])
    e, half = np.exp(epsilon), np.exp(epsilon / 2)
    probabilities = {
        "GRR": (e / (e + k - 1), 1 / (e + k - 1)),
        "OUE": (0.5, 1 / (e + 1)),
        "SUE": (half / (half + 1), 1 / (half + 1)),
    }
    estimates: dict[str, list[float]] = {name: [] for name in probabilities}
    for _ in range(n_runs):
        values = rng.choice(k, size=n_devices, p=weights)
        counts = {
            "GRR": count_grr(values, k, epsilon),
            "OUE": count_unary(values, k, epsilon, optimal=True),
            "SUE": count_unary(values, k, epsilon, optimal=False),
        }
        for name, (p, q) in probabilities.items():
            estimates[name].append((counts[name] / n_devices - q) / (p - q))
    variances = {name: float(np.var(rows, ddof=1)) * n_devices for name, rows in estimates.items()}
    json.dump(variances, sys.stdout)


if __name__ == "__main__":
    main()
