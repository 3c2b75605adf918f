"""The cells of the atlas for sets: settings in which shares of items are compared with the truth.

`benchmarks.atlas_cells` has the words cell, factor, level and grid. A value of this grid is a set
of items, and the response is generalized randomized response (GRR) at 4 nats: the report of
a device names one of k buckets of its cohort. A device owns the bucket of each item of its set.

A collection is drawn from its exact distribution, without drawing devices. Devices are a random
sample of the population, and each device makes one report. So the reports of a cohort are
independent, and the numbers of reports by bucket are multinomial. Let a set own b buckets of
a cohort, w be its share of the devices, n the largest number of items and keep the probability that
the report is drawn from the n own buckets after padding or cutting. A report names

- with probability keep min(1, b / n), one of the b buckets of the set;
- with probability keep max(0, 1 - b / n), one of the k - b other buckets, which padding may add;
- with probability 1 - keep, one of all k buckets.

The mean over all sets, weighted by w, is the probability of each bucket.

Example: n = 8, and a set owns b = 2 buckets. The report is one of the two with the probability keep
/ 4, another bucket with keep 3 / 4, and any of the k buckets with 1 - keep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.counts.counts import Counts
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params

Sets = NDArray[np.bool_]
"""(sets, items) bool. True for the items of each set. All sets have equally many devices."""

_N_SETS: Final = 2000
"""Number of sets of a population. More sets would change no result, because the shares of the items
are computed from the sets, and take more time."""

_LARGEST: Final = 0.9
"""Share of the most frequent item, before sets with too many items are drawn anew."""

_SMALLEST: Final = 0.001
"""Share of the rarest item. With 100,000 devices 100 devices have the item."""


def _draw_independent(rng: np.random.Generator, n: int) -> Sets:
    """Draw sets of at most n independent items with falling shares.

    Sets of more than n items are drawn anew, so no set is cut.
    """
    shares = np.geomspace(_LARGEST, _SMALLEST, max(2 * n, 8))
    sets = rng.random((_N_SETS, len(shares))) < shares
    while (is_large := sets.sum(axis=1) > n).any():
        sets[is_large] = rng.random((int(is_large.sum()), len(shares))) < shares
    return sets


def _draw_correlated(rng: np.random.Generator, n: int) -> Sets:
    """Draw bundles of n items: a device has a whole bundle, or no item of the bundle.

    Every device has at most one bundle. So the items of a bundle always occur together, and items
    of two bundles never do.
    """
    shares = np.array([0.6, 0.2, 0.1, 0.03])
    bundles = rng.choice(len(shares) + 1, size=_N_SETS, p=[*shares, 1 - shares.sum()])
    has_bundle = bundles[:, None] == np.arange(len(shares))
    return np.repeat(has_bundle, n, axis=1)


def _draw_large(rng: np.random.Generator, n: int) -> Sets:
    """Draw sets of independent items, of which most have more than n items and are cut."""
    shares = np.linspace(_LARGEST, _SMALLEST, 4 * n)
    return rng.random((_N_SETS, len(shares))) < shares


_POPULATIONS: Final[Mapping[str, Callable[[np.random.Generator, int], Sets]]] = {
    "independent": _draw_independent,
    "correlated": _draw_correlated,
    "cut": _draw_large,
}
"""Maps a level of the factor "population" to the function that draws the sets of the devices."""

SETS: Final[Mapping[str, tuple[str | int, ...]]] = {
    "items": (8, 2, 32),
    "m": (32, 8, 128),
    "population": tuple(_POPULATIONS),
    "absent": (100, 1000),
    "devices": (10**5, 1000, 10**4, 10**6, 10**7),
}
"""Levels of the factors of sets. The first level of a factor is the usual level.

"items" is the largest number n of items of a set. "absent" is the number of candidates that no
device has."""


def draw_sets(cell: Mapping[str, str | int], seed: int) -> tuple[Counts, dict[str, float]]:
    """Draw one collection of sets.

    Returns
    -------
    counts : the counts.
    shares : true share of every candidate, 0 for absent items. The share of an item is the share of
        the devices that have the item after cutting: a set of b > n buckets keeps each of them with
        probability n / b. The share is the mean over the cohorts, in which b may differ.
    """
    rng = np.random.default_rng([seed, 2])
    n, m = int(cell["items"]), int(cell["m"])
    params = dataclasses.replace(Params.profile("once", encoding="set", items=n), m=m)
    sets = _POPULATIONS[str(cell["population"])](rng, n)
    names = [f"{seed}/held/{i}" for i in range(sets.shape[1])]
    encoder = get_encoder(params)
    cohort_reports = rng.multinomial(int(cell["devices"]), np.full(m, 1 / m))
    bit_counts = np.zeros((m, params.k), dtype=np.int64)
    item_shares = np.zeros(len(names))
    for cohort in range(m):
        buckets = [min(encoder.find_set_bits([name], cohort)) for name in names]
        probabilities, is_kept = _compute_report_probabilities(params, sets, np.array(buckets))
        bit_counts[cohort] = rng.multinomial(cohort_reports[cohort], probabilities)
        item_shares += (sets * is_kept[:, None]).mean(axis=0) / m
    counts = Counts(
        params, bit_counts, cohort_reports, sum_squared_reports=int(cohort_reports.sum())
    )
    shares = dict(zip(names, item_shares.tolist(), strict=True))
    return counts, shares | {f"{seed}/absent/{i}": 0.0 for i in range(int(cell["absent"]))}


def _compute_report_probabilities(
    params: Params, sets: Sets, buckets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the probability that a report of a cohort names each bucket.

    Parameters
    ----------
    params : parameters of the reports.
    sets : the sets of the devices.
    buckets : (items,) int64. Bucket of each item in the cohort.

    Returns
    -------
    probabilities : (k,) float64, with sum 1.
    is_kept : (sets,) float64. Probability that a bucket of each set is not cut: min(1, n / b).
    """
    n, k = params.items, params.k
    assert params.keep is not None
    owns = np.zeros((len(sets), k), dtype=np.bool_)
    for item, bucket in enumerate(buckets.tolist()):
        owns[:, bucket] |= sets[:, item]
    n_own = owns.sum(axis=1)
    # Probabilities that a report names a certain own bucket, and a certain other bucket, because of
    # keep. The empty set owns no bucket, so its first probability has no effect.
    p_own = np.minimum(1, n_own / n) / np.maximum(n_own, 1)
    p_other = np.maximum(0, 1 - n_own / n) / (k - n_own)
    named = (owns * (p_own - p_other)[:, None]).mean(axis=0) + p_other.mean()
    probabilities = params.keep * named + (1 - params.keep) / k
    return probabilities / probabilities.sum(), np.minimum(1, n / np.maximum(n_own, 1))
