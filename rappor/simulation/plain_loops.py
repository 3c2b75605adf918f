"""What `compiled_loops` does, where there is no compiler: slower, and equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.hashing import bits_in_cohorts


def set_hashed(
    words: NDArray[np.uint32],
    values: NDArray[np.int64],
    cohorts: NDArray[np.uint16],
    k: int,
    h: int,
    packed: NDArray[np.uint8],
) -> None:
    """Set the bits of each device's value in its cohort."""
    bits = np.zeros((len(packed), 8 * packed.shape[1]), dtype=np.uint8)
    hashed = bits_in_cohorts(words[values], cohorts, k=k, h=h)
    rows, turns = np.nonzero(hashed >= 0)
    bits[rows, hashed[rows, turns]] = 1
    packed[:] = np.packbits(bits, axis=1, bitorder="little")


def add_devices(
    cells: NDArray[np.int32], devices: NDArray[np.int64], h: int, ones: NDArray[np.int64]
) -> None:
    """Add devices to the cells that their string sets."""
    rows, columns = np.nonzero(cells >= 0)
    np.add.at(ones, cells[rows, columns], devices[rows, columns // h])


def pick(
    words: NDArray[np.uint64],
    guide: NDArray[np.int32],  # noqa: ARG001  (a search needs none)
    bits: int,  # noqa: ARG001
    steps: NDArray[np.float64],
    values: NDArray[np.int64],
) -> None:
    """Find the first step above each fraction."""
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    values[:] = np.searchsorted(steps, uniform, side="right")


def compare(
    truth: NDArray[np.uint64],
    planes: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    answer: NDArray[np.uint64],
    tied: NDArray[np.uint64],
) -> int:
    """Compare the highest bytes of all coins, and count the ties."""
    answer[:] = 0
    tied[:] = ~np.uint64(0)
    for bit in range(8):
        zero = ~planes[bit]
        threshold = thresholds[0, bit] ^ (thresholds[1, bit] & truth)
        answer[:] = (threshold & zero) | (answer & (threshold | zero))
        tied &= threshold ^ zero
    answer |= truth & thresholds[2, 2]
    return int(np.bitwise_count(tied).sum())


def break_ties(
    truth: NDArray[np.uint64],
    tied: NDArray[np.uint64],
    rest: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    answer: NDArray[np.uint64],
) -> None:
    """Decide each tied bit by the rest of its coin."""
    places = np.flatnonzero(_bits(tied))
    true = _bits(truth)[places]
    ones = places[rest >> np.uint64(8) < np.where(true, thresholds[2, 1], thresholds[2, 0])]
    np.bitwise_or.at(answer, ones // 64, np.uint64(1) << (ones % 64).astype(np.uint64))


def _bits(words: NDArray[np.uint64]) -> NDArray[Any]:
    """Return the bits of words, the lowest first."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
