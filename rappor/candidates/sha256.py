"""SHA-256 of many short strings at once, compiled: for candidates that are never texts of Python.

64 strings go through every round side by side, so the compiler turns them into vector
instructions. A string of at most 55 bytes fits one block; a longer one is hashed by the standard
library. Importing this loads the compiler.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.texts import Texts
from rappor.ground.jit import compiled

LONGEST: Final = 55
"""Bytes of a string that fits one block: 1 of padding and 8 for the length come on top."""

_LANES: Final = 64
"""Strings hashed side by side: state and schedule are 6 KB and stay in the first cache."""


def _roots(power: int, primes: list[int]) -> NDArray[np.uint32]:
    """Return the first 32 bits of the fractional parts of roots of primes (FIPS 180-4, 4.2.2)."""
    found = []
    for prime in primes:
        low, high = 0, prime << 32
        while high - low > 1:
            middle = (low + high) // 2
            below = middle**power <= prime << 32 * power
            low, high = (middle, high) if below else (low, middle)
        found.append(low & 0xFFFFFFFF)
    return np.array(found, dtype=np.uint32)


_PRIMES: Final = [n for n in range(2, 312) if all(n % d for d in range(2, n))]
_ROUNDS: Final = _roots(3, _PRIMES)
_START: Final = _roots(2, _PRIMES[:8])


def digest_texts(texts: Texts) -> NDArray[np.uint32]:
    """Hash every string once, as far as no cohort is needed.

    Returns
    -------
    (n, 4) uint32: the words of the first 16 bytes of SHA-256, little-endian, each mixed as
    MurmurHash3_x86_32 mixes a block.
    """
    words = np.empty((len(texts), 4), dtype=np.uint32)
    data = texts.data.view()
    data.flags.writeable = False  # the compiler makes one kernel for what is read only
    _digest(data, texts.starts, texts.ends, _ROUNDS, _START, words)
    for i in np.flatnonzero(texts.ends - texts.starts > LONGEST).tolist():
        value = texts.data[texts.starts[i] : texts.ends[i]].tobytes()
        words[i] = np.frombuffer(hashlib.sha256(value).digest()[:16], dtype="<u4")
    _premix(words.reshape(-1))
    return words


@compiled
def _digest(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rounds: NDArray[np.uint32],
    start: NDArray[np.uint32],
    words: NDArray[np.uint32],
) -> None:
    """Leave the first 16 bytes of each digest in words, (n, 4), as little-endian numbers."""
    schedule = np.zeros((16, _LANES), dtype=np.uint32)
    state = np.zeros((8, _LANES), dtype=np.uint32)
    spare = np.zeros(_LANES, dtype=np.uint32)
    for first in range(0, len(starts), _LANES):
        n = min(_LANES, len(starts) - first)
        for lane in range(n):
            i = first + lane
            _load(data, starts[i], min(ends[i] - starts[i], LONGEST), schedule, lane)
        _compress(schedule, rounds, start, state, spare)
        for lane in range(n):
            for part in range(4):
                x = np.uint32(state[part, lane] + start[part])
                words[first + lane, part] = _swap(x)


@compiled
def _load(
    data: NDArray[np.uint8], start: int, length: int, schedule: NDArray[np.uint32], lane: int
) -> None:
    """Write one padded message into its lane, big-endian."""
    whole = length >> 2
    for word in range(whole):
        at = start + 4 * word
        schedule[word, lane] = (
            np.uint32(data[at]) << np.uint32(24)
            | np.uint32(data[at + 1]) << np.uint32(16)
            | np.uint32(data[at + 2]) << np.uint32(8)
            | np.uint32(data[at + 3])
        )
    # The rest of the string, then the one bit of padding.
    last = np.uint32(0)
    rest = length & 3
    for byte in range(rest):
        last |= np.uint32(data[start + 4 * whole + byte]) << np.uint32(24 - 8 * byte)
    schedule[whole, lane] = last | np.uint32(0x80) << np.uint32(24 - 8 * rest)
    for word in range(whole + 1, 15):
        schedule[word, lane] = 0
    schedule[15, lane] = np.uint32(8 * length)


@compiled
def _compress(
    w: NDArray[np.uint32],
    rounds: NDArray[np.uint32],
    start: NDArray[np.uint32],
    state: NDArray[np.uint32],
    spare: NDArray[np.uint32],
) -> None:
    """Go through the 64 rounds of FIPS 180-4, 6.2.2; `w`, (16, lanes), is used up.

    The eight words turn through the rows of `state` instead of being moved: in round t the word
    called a is row -t modulo 8. Each loop has few arrays, or the compiler gives vectors up.
    """
    lanes = w.shape[1]
    for part in range(8):
        state[part, :] = start[part]
    for t in range(64):
        row = w[t & 15]
        if t >= 16:
            w1, w9, w14 = w[(t + 1) & 15], w[(t + 9) & 15], w[(t + 14) & 15]
            for j in range(lanes):
                x, y = w1[j], w14[j]
                low = _turn(x, 7) ^ _turn(x, 18) ^ (x >> np.uint32(3))
                high = _turn(y, 17) ^ _turn(y, 19) ^ (y >> np.uint32(10))
                row[j] = np.uint32(row[j] + low + w9[j] + high)
        a, b, c, d = state[-t & 7], state[1 - t & 7], state[2 - t & 7], state[3 - t & 7]
        e, f, g, h = state[4 - t & 7], state[5 - t & 7], state[6 - t & 7], state[7 - t & 7]
        for j in range(lanes):
            spare[j] = np.uint32(h[j] + rounds[t] + row[j])
        for j in range(lanes):
            x = e[j]
            chosen = (x & f[j]) ^ (~x & g[j])
            spare[j] = np.uint32(spare[j] + chosen + (_turn(x, 6) ^ _turn(x, 11) ^ _turn(x, 25)))
        for j in range(lanes):
            d[j] = np.uint32(d[j] + spare[j])
        for j in range(lanes):
            x, y, z = a[j], b[j], c[j]
            most = (x & y) ^ (x & z) ^ (y & z)
            h[j] = np.uint32(spare[j] + most + (_turn(x, 2) ^ _turn(x, 13) ^ _turn(x, 22)))


@compiled
def _turn(x: np.uint32, right: int) -> np.uint32:
    return np.uint32(x >> np.uint32(right)) | np.uint32(x << np.uint32(32 - right))


@compiled
def _swap(x: np.uint32) -> np.uint32:
    """Reverse the bytes of a word."""
    x = np.uint32(x >> np.uint32(16)) | np.uint32(x << np.uint32(16))
    high = np.uint32(x & np.uint32(0xFF00FF00)) >> np.uint32(8)
    return np.uint32(high | np.uint32((x & np.uint32(0x00FF00FF)) << np.uint32(8)))


@compiled
def _premix(words: NDArray[np.uint32]) -> None:
    """Mix each word as MurmurHash3_x86_32 mixes a block."""
    for i in range(len(words)):
        x = np.uint32(words[i] * np.uint32(0xCC9E2D51))
        x = np.uint32(x << np.uint32(15)) | np.uint32(x >> np.uint32(17))
        words[i] = np.uint32(x * np.uint32(0x1B873593))
