"""The simulator's loops over reports, compiled: setting their bits and adding noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.jit import compiled
from rappor.protocol.params import Params


def set_bits(cells: NDArray[np.int32], k: int) -> NDArray[np.uint8]:
    """Pack the bits whose numbers are listed.

    Parameters
    ----------
    cells : (n, h) int32, bit numbers in [0, k), or -1 for none.
    k : bits of a report.

    Returns
    -------
    (n, ceil(k/8)) uint8, packed.
    """
    packed = np.zeros((len(cells), (k + 7) // 8), dtype=np.uint8)
    _set_bits(cells, packed)
    return packed


@compiled
def _set_bits(cells: NDArray[np.int32], packed: NDArray[np.uint8]) -> None:
    for row in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            i = cells[row, column]
            if i >= 0:
                packed[row, i >> 3] |= np.uint8(1 << (i & 7))


def add_cells(
    cells: NDArray[np.int32], devices: NDArray[np.int64], ones: NDArray[np.int64]
) -> None:
    """Add to every cell the devices that set it.

    Parameters
    ----------
    cells : (n, m * h) int32, from `rappor.candidates.hashing.bloom_cells`.
    devices : (n, m) int64, devices of each cohort that hold string s.
    ones : (m, k) int64, C-contiguous, changed in place.
    """
    _add_cells(cells, devices, cells.shape[1] // devices.shape[1], ones.reshape(-1))


@compiled
def _add_cells(
    cells: NDArray[np.int32], devices: NDArray[np.int64], h: int, ones: NDArray[np.int64]
) -> None:
    for s in range(cells.shape[0]):
        for column in range(cells.shape[1]):
            if cells[s, column] >= 0:
                ones[cells[s, column]] += devices[s, column // h]


def respond(
    bits: NDArray[np.uint8],
    permanent_coins: NDArray[np.uint32],
    instantaneous_coins: NDArray[np.uint32],
    params: Params,
) -> NDArray[np.uint8]:
    """Turn true bits into reports, one device a row, by the protocol's two responses.

    Inputs are trusted: they come from our own encoders and keystream.

    Parameters
    ----------
    bits : (n, ceil(k/8)) uint8, packed true bits.
    permanent_coins, instantaneous_coins : (n, k) uint32, uniform.
    params : supplies k and the thresholds.

    Returns
    -------
    (n, ceil(k/8)) uint8, packed reports.
    """
    packed = np.empty_like(bits)
    _respond(
        bits,
        permanent_coins,
        instantaneous_coins,
        np.array([params.t_f, 2 * params.t_f, params.t_p, params.t_q - 1], dtype=np.uint32),
        packed,
    )
    return packed


@compiled
def _respond(
    bits: NDArray[np.uint8],
    permanent_coins: NDArray[np.uint32],
    instantaneous_coins: NDArray[np.uint32],
    thresholds: NDArray[np.uint32],
    packed: NDArray[np.uint8],
) -> None:
    """Respond without a branch in the inner loop.

    All comparisons fit 32 bits: t_f < 2^31 and t_p < t_q, so only t_q can be 2^32, and
    u < t_q is u <= last_q. A coin below t_p is below t_q too: a 1 whatever the bit.
    """
    t_f, t_2f, t_p, last_q = thresholds[0], thresholds[1], thresholds[2], thresholds[3]
    n, k = permanent_coins.shape
    row_bits = np.zeros(8 * bits.shape[1], dtype=np.uint8)
    for row in range(n):
        for i in range(8 * bits.shape[1]):
            row_bits[i] = bits[row, i >> 3] >> (i & 7) & 1
        for i in range(k):
            u, v = permanent_coins[row, i], instantaneous_coins[row, i]
            permanent = (u < t_f) | ((u >= t_2f) & (row_bits[i] != 0))
            row_bits[i] = (v < t_p) | (permanent & (v <= last_q))
        for b in range(bits.shape[1]):
            byte = 0
            for lane in range(8):
                byte |= row_bits[8 * b + lane] << lane
            packed[row, b] = byte
