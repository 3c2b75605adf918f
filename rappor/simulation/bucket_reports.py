"""Reports of generalized randomized response (GRR) of many devices at once.

A device owns the buckets of its value: one for a category, and one for each item of a set. If it
owns fewer than n buckets, random other buckets are added (padding). If it owns more, random own
buckets are dropped (cutting). The report names

- with probability `keep`, one of these n buckets, each equally likely,
- otherwise one of all k buckets, each equally likely.

This module does not draw the n buckets of each device. Let b be the number of own buckets before
padding or cutting. In the first case the report names

- with probability min(1, b / n), one of the b own buckets, each equally likely, because cutting
  drops each own bucket with the same probability,
- otherwise one of the k - b other buckets, each equally likely, because padding adds each other
  bucket with the same probability.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.protocol.params import Params
from rappor.simulation.keystream import Keystream


class BucketNoise:
    """Reports of GRR with a source of random numbers. A call draws a report for each device.

    Parameters
    ----------
    params : parameters of the reports.
    stream : source of the random numbers.
    """

    def __init__(self, params: Params, stream: Keystream) -> None:
        """Create the generator."""
        self._params = params
        self._rng = stream.generator()

    def __call__(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Draw the report of each device.

        Parameters
        ----------
        bits : (n, ceil(k/8)) uint8, the packed true bits of n devices.

        Returns
        -------
        (n, ceil(k/8)) uint8, the packed reports. Exactly one bit of a report is 1.
        """
        k, n_devices = self._params.k, len(bits)
        assert self._params.keep is not None
        is_own = np.unpackbits(bits, axis=1, count=k, bitorder="little").astype(np.bool_)
        n_own = is_own.sum(axis=1)
        # Each device has a set of possible buckets, all equally likely. With probability 1 - `keep`
        # (the second case of the module docstring), the set contains all k buckets.
        possible = np.ones_like(is_own)
        is_kept = self._rng.random(n_devices) < self._params.keep
        # True with probability min(1, b / n), as in the module docstring: b is `n_own`, and n is
        # `items`.
        is_from_value = self._rng.random(n_devices) * self._params.items < n_own
        possible[is_kept & is_from_value] = is_own[is_kept & is_from_value]
        possible[is_kept & ~is_from_value] = ~is_own[is_kept & ~is_from_value]
        # Draw the rank of a possible bucket, from 0. The bucket of rank r is the first bucket at
        # which the number of possible buckets so far exceeds r.
        n_possible = np.cumsum(possible, axis=1, dtype=np.int32)
        ranks = self._rng.integers(0, n_possible[:, -1])
        bucket = (n_possible > ranks[:, None]).argmax(axis=1)
        reports = np.zeros((n_devices, self._params.n_bytes), dtype=np.uint8)
        reports[np.arange(n_devices), bucket // 8] = 1 << (bucket % 8)
        return reports


def draw_bucket_counts(
    rng: np.random.Generator,
    n_devices: NDArray[np.int64],
    true_ones: NDArray[np.int64],
    params: Params,
) -> NDArray[np.int64]:
    """Draw how many reports name each bucket, (m, k) int64, if every device owns one bucket.

    Parameters
    ----------
    rng : source of random numbers.
    n_devices : (m,) int64, number of devices of each cohort.
    true_ones : (m, k) int64, number of devices of each cohort that own each bucket.
    params : parameters of the reports, with one own bucket (`items` = 1).
    """
    assert params.keep is not None
    assert params.items == 1
    # Reports that name the own bucket because of `keep`. All other reports name any bucket.
    own_bucket_counts = rng.binomial(true_ones, params.keep)
    n_random = n_devices - own_bucket_counts.sum(axis=1)
    random_bucket_counts: NDArray[np.int64] = rng.multinomial(
        n_random, np.full(params.k, 1 / params.k)
    )
    return own_bucket_counts + random_bucket_counts
