"""Ranked lists: detections with weights by the order of the candidates, and with equal weights.

The list has 10,000 strings that devices have, by Zipf's law, and 10,000 strings that no device has.
In the right order, the present strings are sorted by their shares, and an absent string follows
each of them. So an absent string has the same prior as the present string before it.

Five orders of the same list are compared with equal weights:

- right: the ranks are those of the shares.
- blurred: each rank is multiplied by exp(z), z standard normal. Ranks are wrong by a factor e.
- random, reversed: the order says nothing, or the opposite. The error rate must hold.
- last result: the candidates are sorted by their estimates from an earlier collection with the same
  hash functions and other devices. This order comes from reports of the metric and must not be
  used. The last rows show why: half of the devices have strings that are no candidates, so that
  collisions dominate the noise, and collisions repeat.

The p-values of a decode do not depend on the order of the candidates, so each collection is decoded
once, and the orders differ in their weights only.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import LEVEL, run_many, start_pool
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues
from rappor.estimator.rank_weights import RankWeights
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

N_PRESENT: Final = 10_000
"""Number of strings that devices have, and number of strings that no device has."""

RUNS: Final = 6
"""Number of collections of each row. Each collection has its own strings and its own seed."""

CELLS: Final = (
    ("balanced", 100_000, False),
    ("balanced", 1_000_000, False),
    ("once", 100_000, False),
    ("once", 1_000_000, False),
    ("once", 100_000_000, True),
)
"""Profiles, numbers of devices, and whether half of the devices have strings that are no
candidates."""

ORDERS: Final = ("equal weights", "right", "blurred", "random", "reversed", "last result")


def ranked_lists(*, quick: bool) -> list[Table]:
    """Count true and false detections under each order."""
    n_runs = 2 if quick else RUNS
    table = Table(
        title=f"ranked: {N_PRESENT:,} present and as many absent strings, {n_runs} collections",
        columns=(
            *("profile", "devices", "candidates", "order"),
            *("found", "error", "false share", "its error", "held"),
        ),
        note="Benjamini-Hochberg at 5 %. Errors: standard errors of the means over the "
        "collections. Held: share of the adjusted intervals that contain the truth. The order by "
        "the last result comes from reports of the metric, which is not allowed.",
    )
    with start_pool() as pool:
        for profile, n_devices, is_half in CELLS[:2] if quick else CELLS:
            measure = partial(measure_orders, profile=profile, n_devices=n_devices, is_half=is_half)
            runs = np.array(run_many(measure, n_runs, pool), dtype=float)
            for order, detections in zip(ORDERS, runs.swapaxes(0, 1), strict=True):
                n_true, n_false, n_covered = detections.T
                false_share = n_false / np.maximum(n_true + n_false, 1)
                table.rows.append(
                    [
                        profile,
                        n_devices,
                        "of half the devices" if is_half else "of all devices",
                        order,
                        float(n_true.mean()),
                        float(n_true.std(ddof=1) / math.sqrt(n_runs)),
                        float(false_share.mean()),
                        float(false_share.std(ddof=1) / math.sqrt(n_runs)),
                        float(n_covered.sum() / (n_true + n_false).sum()),
                    ]
                )
    return [table]


def measure_orders(
    seed: int, *, profile: str, n_devices: int, is_half: bool
) -> NDArray[np.float64]:
    """Decode one collection, and count the detections of each order.

    With `is_half`, half of the devices have strings that are no candidates, also by Zipf's law.

    Returns
    -------
    (orders, 3) float64. True detections, false detections, and detections whose adjusted interval
    contains the truth. The last number is NaN for all orders but the right one, whose intervals the
    decode computes.
    """
    params, rng = Params.profile(profile), np.random.default_rng(seed)
    present = [f"present {seed} {i}" for i in range(N_PRESENT)]
    values, shares = present, 1 / np.arange(1.0, N_PRESENT + 1)
    if is_half:
        values = present + [f"unlisted {seed} {i}" for i in range(N_PRESENT)]
        shares = np.concatenate([shares, shares])
    population = Population(values, shares)
    names = [text for i in range(N_PRESENT) for text in (present[i], f"absent {seed} {i}")]
    # The quarters have the same hash functions and different devices.
    last, this = (
        simulate_counts(population, params, n_reports=n_devices, seed=2 * seed + quarter)
        for quarter in (0, 1)
    )
    estimates = decode(this, names, error_control=ErrorControl(alpha=LEVEL, ranked=True))
    last_estimates = decode(last, names)
    # All candidates differ in their bits, so each is tested alone.
    assert not estimates.group.any()
    rows = estimates.indices_of(names)
    p_values = estimates.p_value[rows]
    truth = np.zeros(len(names))
    truth[::2] = shares[:N_PRESENT] / shares.sum()
    is_covered = (estimates.ci_low_adjusted[rows] <= truth) & (
        truth <= estimates.ci_high_adjusted[rows]
    )
    n = len(names)
    ranks = np.arange(1, n + 1)
    orders = {
        "right": ranks,
        "blurred": rank_by(np.exp(rng.standard_normal(n)) * ranks),
        "random": rng.permutation(ranks),
        "reversed": ranks[::-1],
        "last result": rank_by(-last_estimates.share[last_estimates.indices_of(names)]),
    }
    is_present = np.arange(n) % 2 == 0
    counted = []
    for order in ORDERS:
        weights = None
        if order in orders:
            weights = RankWeights.of(orders[order], np.arange(n), n_ranks=n)
        control = ErrorControl(alpha=LEVEL, ranked=weights is not None)
        detected = Thresholds(control, PValues(in_memory=p_values), weights).detected
        n_covered = int(is_covered.sum()) if order == "right" else math.nan
        counted.append([(detected & is_present).sum(), (detected & ~is_present).sum(), n_covered])
    return np.array(counted, dtype=np.float64)


def rank_by(key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rank of each key, from 1. The smallest key has rank 1."""
    ranks = np.empty(len(key), dtype=np.int64)
    ranks[np.argsort(key, kind="stable")] = np.arange(1, len(key) + 1)
    return ranks
