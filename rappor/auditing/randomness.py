"""A battery on coins: uniform 32-bit integers, independent of each other and unpredictable.

Each test has its exact law, but for the chi-square of bytes, whose limit is good to its tail at
the 400 and more expected in each of 256 cells. Statistics alone miss what matters most, a
generator whose future follows from its past. The Mersenne Twister, xorshift and other shift
registers are linear over the field of two elements whatever their seed: the shortest shift
register that makes their bits is no longer than their state, where that of n fair bits is near
n/2 (Rueppel 1986, chapter 4; Massey 1969 finds it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rappor.auditing.check import ALARM, Check, law_check
from rappor.protocol.params import ONE, Params
from rappor.protocol.randomizer import SECRET_BYTES, Coins, permanent_coins

WORDS: Final = 1 << 17
"""Coins that the battery draws."""

_LAGS: Final = 64
_REGISTER: Final = 1 << 16
"""Bits that the shortest register is sought of: the Mersenne Twister's has 19,937."""


def coin_checks(name: str, coins: Coins, params: Params, *, words: int = WORDS) -> list[Check]:
    """Return every check of a source of coins; `name` says which it is."""
    drawn = np.concatenate(
        [np.asarray(coins(min(1024, words - at)), dtype=np.uint64) for at in range(0, words, 1024)]
    )
    words32 = drawn.astype(np.uint32)
    bits = np.unpackbits(words32.astype("<u4").view(np.uint8), bitorder="little")
    return [
        law_check(f"{name}: ones, by place", _monobit(bits)),
        law_check(f"{name}: runs and lags", _lags(bits)),
        law_check(f"{name}: thresholds", _thresholds(drawn, params)),
        _bytes(name, words32),
        _blocks(name, words32),
        _register(name, bits[31::32][:_REGISTER]),
    ]


def permanent_source(params: Params, secret: bytes) -> Coins:
    """Return the coins of one device's permanent responses to one pattern after another."""
    assert len(secret) == SECRET_BYTES
    number = 0

    def coins(n: int) -> Sequence[int]:
        nonlocal number
        drawn: list[int] = []
        while len(drawn) < n:
            pattern = number.to_bytes(params.n_bytes + 8, "little")
            drawn += permanent_coins(secret, "audit", "", params, pattern)
            number += 1
        return drawn[:n]

    return coins


def _monobit(bits: NDArray[np.uint8]) -> Iterator[tuple[str, int, int, float]]:
    """Count ones: of all bits, and of each of the 32 places in a word."""
    yield "ones", int(bits.sum()), len(bits), 0.5
    for place, ones in enumerate(bits.reshape(-1, 32).sum(axis=0, dtype=np.int64).tolist()):
        yield f"bit {place} of a coin", ones, len(bits) // 32, 0.5


def _lags(bits: NDArray[np.uint8]) -> Iterator[tuple[str, int, int, float]]:
    """Count changes: between neighbours they end runs; their XORs are fair coins at any lag."""
    for lag in range(1, _LAGS + 1):
        changed = int((bits[lag:] ^ bits[:-lag]).sum(dtype=np.int64))
        yield f"changes over {lag}", changed, len(bits) - lag, 0.5


def _thresholds(drawn: NDArray[np.uint64], params: Params) -> Iterator[tuple[str, int, int, float]]:
    """Count what decides: the coins below each threshold."""
    named = {"f/2": params.t_f, "f": 2 * params.t_f, "p": params.t_p, "q": params.t_q}
    for letter, threshold in named.items():
        yield f"below {letter}", int((drawn < threshold).sum()), len(drawn), threshold / ONE


def _bytes(name: str, words: NDArray[np.uint32]) -> Check:
    cells = np.bincount(words.view(np.uint8), minlength=256)
    expected = cells.sum() / 256
    chi2 = float(((cells - expected) ** 2).sum() / expected)
    p_value = min(1.0, 2 * min(stats.chi2.sf(chi2, 255), stats.chi2.cdf(chi2, 255)))
    return Check(
        name=f"{name}: bytes",
        verdict="fault" if p_value < ALARM else "pass",
        p_value=p_value,
        detail=f"chi-square {chi2:.1f} with 255 degrees of freedom",
    )


def _blocks(name: str, words: NDArray[np.uint32]) -> Check:
    """Look for blocks of 128 bits that came twice: never, but for n^2 / 2^129."""
    blocks = words[: len(words) // 4 * 4].reshape(-1, 4)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    return Check(
        name=f"{name}: repetition",
        verdict="fault" if repeated else "pass",
        p_value=min(1.0, len(blocks) ** 2 / 2.0**129) if repeated else 1.0,
        detail=f"{repeated:,} of {len(blocks):,} blocks of 128 bits had come before",
    )


def _register(name: str, bits: NDArray[np.uint8]) -> Check:
    n, length = len(bits), shortest_register(bits.tolist())
    p_value = register_p(length, n)
    return Check(
        name=f"{name}: no shift register",
        verdict="fault" if p_value < ALARM else "pass",
        p_value=p_value,
        detail=f"the shortest register for the top bits of {n:,} coins has {length:,} bits",
    )


def shortest_register(bits: Sequence[int]) -> int:
    """Return the length of the shortest linear feedback shift register (Massey 1969).

    Examples
    --------
    >>> shortest_register([1, 1, 0, 1, 1, 0, 1, 1, 0])
    2
    """
    connection = previous = 1
    length, since, window = 0, 1, 0
    for n, bit in enumerate(bits):
        window = window << 1 | bit
        if (window & connection).bit_count() & 1 == 0:
            since += 1
            continue
        longer = connection ^ previous << since
        if 2 * length <= n:
            length, previous, since = n + 1 - length, connection, 1
        else:
            since += 1
        connection = longer
    return length


def register_p(length: int, n: int) -> float:
    """Return the two-sided p-value of a shortest register's length for n fair bits.

    Of the 2^n sequences 2^min(2n - 2L, 2L - 1) need a register of L > 0 bits, one needs none
    (Rueppel 1986).
    """
    shorter = _log2_sum(n, range(max(0, length - _FAR), length + 1))
    longer = _log2_sum(n, range(length, min(n, length + _FAR) + 1))
    return float(min(1.0, 2 * 2.0 ** max(-1000.0, min(shorter, longer))))


_FAR: Final = 64
"""Lengths beyond which the sums of `register_p` no longer change."""


def _log2_sum(n: int, lengths: range) -> float:
    """Return log2 of the chance that the register has one of these lengths."""
    exponents = [min(2 * n - 2 * each, 2 * each - 1) if each else 0 for each in lengths]
    top = max(exponents)
    return top - n + math.log2(sum(2.0 ** (each - top) for each in exponents))
