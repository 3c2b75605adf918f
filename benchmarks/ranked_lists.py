"""Detections in ranked lists, compared with detections under equal weights.

In a ranked list, the test of a candidate has a weight that falls with its rank
(`rappor.estimator.rank_weights`). The list has 10,000 present strings, whose shares follow Zipf's
law, and 10,000 absent strings, which no device has. In the right order, the present strings are
sorted by their shares, and an absent string follows each present string. The two strings have
nearly the same weight.

Five orders of the same list are compared with equal weights:

- right: the candidates are sorted by their true shares.
- blurred: each rank of the right order is multiplied by exp(z), with z standard normal. Two thirds
  of the ranks are then wrong by a factor of at most e.
- random, reversed: the order contains no information, or wrong information. Detections become
  fewer, but the false discovery rate must still hold.
- last result: the candidates are sorted by their estimates from an earlier collection with the same
  hash functions and other devices. This order comes from reports of the metric, which is not
  allowed. The last rows show the reason: half of the devices have strings that are no candidates.
  The collisions of these strings dominate the noise, and are the same in both collections.

The p-values of a decode do not depend on the order of the candidates. Each collection is therefore
decoded once, and only the weights differ between the orders.
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
"""The list has this number of present strings, and as many absent strings."""

RUNS: Final = 6
"""Number of collections of each row. Each collection has strings and a seed of its own. More
collections give smaller standard errors, and take more time."""

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
"""The table has a row for each order and cell. The module docstring explains the orders."""


def ranked_lists(*, quick: bool) -> list[Table]:
    """Build the table of true and false detections by profile, number of devices and order."""
    n_runs = 2 if quick else RUNS
    table = Table(
        title=f"ranked: {N_PRESENT:,} present and as many absent strings, {n_runs} collections",
        columns=(
            *("profile", "devices", "candidates", "order"),
            *("found", "error", "false share", "its error", "covered"),
        ),
        note="Benjamini-Hochberg at 5 %. Errors: standard errors of the means over the "
        "collections. Covered: share of the adjusted intervals that contain the truth. The order "
        "by the last result comes from reports of the metric, which is not allowed.",
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

    Parameters
    ----------
    seed : seed of the collection, also a part of the names of its strings.
    profile : name of the parameters.
    n_devices : number of devices.
    is_half : whether half of the devices have strings that are no candidates. Their shares follow
        Zipf's law, too.

    Returns
    -------
    (orders, 3) float64. Number of true detections, of false detections, and of detections whose
    adjusted interval contains the true share. The last number is NaN for all orders except the
    right order, because the decode computes intervals for the right order.
    """
    params, rng = Params.profile(profile), np.random.default_rng(seed)
    present = [f"present {seed} {i}" for i in range(N_PRESENT)]
    values, shares = present, 1 / np.arange(1.0, N_PRESENT + 1)
    if is_half:
        values = present + [f"unlisted {seed} {i}" for i in range(N_PRESENT)]
        shares = np.concatenate([shares, shares])
    population = Population(values, shares)
    names = [text for i in range(N_PRESENT) for text in (present[i], f"absent {seed} {i}")]
    # Both collections have the same hash functions and different devices. The second collection is
    # tested, and the first one gives the order "last result".
    last, tested = (
        simulate_counts(population, params, n_reports=n_devices, seed=2 * seed + index)
        for index in (0, 1)
    )
    estimates = decode(tested, names, error_control=ErrorControl(alpha=LEVEL, ranked=True))
    last_estimates = decode(last, names)
    # All candidates differ in their bits, so no two candidates are tested as one group.
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
            # The second argument is the entry of each candidate: every candidate is its own entry.
            weights = RankWeights.of(orders[order], np.arange(n), n_ranks=n)
        control = ErrorControl(alpha=LEVEL, ranked=weights is not None)
        detected = Thresholds(control, PValues(in_memory=p_values), weights).detected
        # The intervals are those of `estimates` and do not depend on the order. So the intervals of
        # all candidates that cover the truth are counted once, in the row of the first order.
        n_covered = int(is_covered.sum()) if order == "right" else math.nan
        counted.append([(detected & is_present).sum(), (detected & ~is_present).sum(), n_covered])
    return np.array(counted, dtype=np.float64)


def rank_by(key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rank of each key, from 1. The smallest key has rank 1."""
    ranks = np.empty(len(key), dtype=np.int64)
    ranks[np.argsort(key, kind="stable")] = np.arange(1, len(key) + 1)
    return ranks
