"""A battery of tests of coins: uniform 32-bit integers, independent and unpredictable.

Every test has its exact distribution. Frequencies alone miss the fault that matters most, a
generator whose future follows from its past. The Mersenne Twister, xorshift and other shift
registers are linear over the field of two elements whatever their seed. The shortest shift register
that produces their bits is no longer than their state, but that of n fair bits is about n/2 long
(Rueppel 1986, chapter 4; Massey 1969 finds it).

The coins behind a encoder's own reports are tested as far as these show them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.check import (
    FALSE_ALARM_RATE,
    Case,
    Check,
    check_binomial,
    check_condition,
    check_p_value,
    mark_not_seen,
)
from rappor.counts.arrays import Booleans
from rappor.protocol.params import ONE, Params
from rappor.protocol.randomizer import SECRET_BYTES, Coins, permanent_coins

WORDS: Final = 1 << 17
"""Coins that the battery draws: it then misses a bit that is one with probability .514 once in
1,000 audits, since that is 10 standard errors off and ALARM over 33 counts is 6.7 of them."""

_LAGS: Final = 64
"""Distances over which bits (of two coins) are compared, and the coins behind reports."""

_REGISTER: Final = 1 << 16
"""Bits whose shortest register is sought; the Mersenne Twister's, 19,937, needs 39,874 bits."""

_DRAWN: Final = 1024
"""Coins that are drawn at a time, as many as a device draws for a large report."""


def coin_checks(name: str, coins: Coins, params: Params, *, words: int = WORDS) -> list[Check]:
    """Return every check of a source of coins; `name` says which it is."""
    starts = range(0, words, _DRAWN)
    drawn = np.concatenate(
        [np.asarray(coins(min(_DRAWN, words - at)), dtype=np.uint64) for at in starts]
    )
    words32 = drawn.astype(np.uint32)
    bits = np.unpackbits(words32.astype("<u4").view(np.uint8), bitorder="little")
    return [
        check_binomial(f"{name}: ones by position", _monobit(bits)),
        check_binomial(f"{name}: runs and lags", _lags(bits)),
        check_binomial(f"{name}: thresholds", _thresholds(drawn, params)),
        _blocks(name, words32),
        register_check(f"{name}: no shift register", bits[31::32]),
    ]


def permanent_source(params: Params, secret: bytes) -> Coins:
    """Return the coins of one device's permanent responses to one pattern after another."""
    assert len(secret) == SECRET_BYTES
    numbers = count()

    def coins(n: int) -> Sequence[int]:
        rows = (each.to_bytes(params.n_bytes + 8, "little") for each in numbers)
        drawn = (coin for row in rows for coin in permanent_coins(secret, "audit", "", params, row))
        return list(islice(drawn, n))

    return coins


def _monobit(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Count ones: of all bits, and at each of the 32 positions in a coin."""
    yield Case("all bits", int(bits.sum()), len(bits), 0.5)
    for position, ones in enumerate(bits.reshape(-1, 32).sum(axis=0, dtype=np.int64).tolist()):
        yield Case(f"bit {position} of a coin", ones, len(bits) // 32, 0.5)


def _lags(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Count changes: between neighbours they end runs; at any lag the XORs are fair coins."""
    for lag in range(1, _LAGS + 1):
        changed = int((bits[lag:] ^ bits[:-lag]).sum(dtype=np.int64))
        yield Case(f"changes over {lag} bits", changed, len(bits) - lag, 0.5)


def _thresholds(drawn: NDArray[np.uint64], params: Params) -> Iterator[Case]:
    """Count the coins below each threshold that decides on a bit."""
    t_1, t_0 = params.t_1, params.t_0
    named = {"f g": t_1, "f": t_1 + t_0, "p": params.t_p, "q": params.t_q}
    for letter, threshold in named.items():
        below = int((drawn < threshold).sum())
        yield Case(f"coins below {letter}", below, len(drawn), threshold / ONE)


def _blocks(name: str, words: NDArray[np.uint32]) -> Check:
    """Look for blocks of 128 bits that repeat: among n fair ones with probability n^2 / 2^129."""
    blocks = words[: len(words) // 4 * 4].reshape(-1, 4)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    detail = f"{repeated:,} of {len(blocks):,} blocks of 128 bits repeat an earlier one"
    return check_condition(f"{name}: repetition", detail, is_fault=repeated > 0)


def register_check(name: str, bits: NDArray[np.uint8]) -> Check:
    """Look for a shift register that makes the first of the top bits of coins."""
    bits = bits[:_REGISTER]
    n, length = len(bits), shortest_register(bits.tolist())
    needed = f"a register of {length:,} bits, expected about {n // 2:,}"
    return check_p_value(name, register_p(length, n), f"the top bits of {n:,} coins need {needed}")


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
"""Lengths that are summed: away from n/2 each has at most half of the probability before it."""


def _log2_sum(n: int, lengths: range) -> float:
    """Return log2 of the probability that the register has one of these lengths."""
    exponents = [min(2 * n - 2 * each, 2 * each - 1) if each else 0 for each in lengths]
    top = max(exponents)
    return top - n + math.log2(sum(2.0 ** (each - top) for each in exponents))


def shows_top_bits(params: Params) -> bool:
    """Return whether a report can show the top bit of a coin."""
    return ONE // 2 in (params.t_p, params.t_q)


def fresh_checks(
    reports: Booleans | None, permanents: Booleans | None, params: Params
) -> list[Check]:
    """Return the checks of the coins behind many reports, in the order in which they were made.

    A report tells of each coin on which side of a threshold it fell. Where that is one half, it
    shows the coin's top bit; elsewhere, only dependence over short distances and repetition.

    Both are (n, k) bool, one report a row, with the permanent response behind it; None if the
    permanent response is not known.
    """
    names = [f"own coins: {what}" for what in ("lags", "repetition", "no shift register")]
    if reports is None or permanents is None:
        unknown = "the permanent response behind the reports is not known"
        return [mark_not_seen(name, unknown) for name in names]
    return [
        check_binomial(names[0], _own_lags(reports, permanents, params)),
        _own_repetition(names[1], reports, params),
        _own_register(names[2], reports, permanents, params),
    ]


def _own_lags(reports: Booleans, permanents: Booleans, params: Params) -> Iterator[Case]:
    """Yield coins at each distance, in pairs without a common coin, by their thresholds."""
    ones = (params.p, params.q)
    bits, behind = reports.ravel(), permanents.ravel()
    for lag in sorted({*range(1, _LAGS + 1), params.k, 2 * params.k}):
        first = np.arange(max(0, len(bits) - lag))
        first = first[first // lag % 2 == 0]
        kinds = 2 * behind[first].astype(np.int64) + behind[first + lag]
        n = np.bincount(kinds, minlength=4).tolist()
        both = np.bincount(kinds[bits[first] & bits[first + lag]], minlength=4).tolist()
        for kind in range(4):
            a, b = divmod(kind, 2)
            what = f"coins {lag} apart both hit, permanent {a} and {b}"
            yield Case(what, both[kind], n[kind], ones[a] * ones[b])


def _own_repetition(name: str, reports: Booleans, params: Params) -> Check:
    """Look for reports in a row that come again, as in a generator of a short period."""
    same = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q))
    n = len(reports)
    if same == 1:
        return mark_not_seen(name, "reports need no fresh coins: p = 0 and q = 1")
    row = max(1, math.ceil(math.log(2 * FALSE_ALARM_RATE / n**2) / (params.k * math.log(same))))
    blocks = np.packbits(reports[: n // row * row].reshape(n // row, row * params.k), axis=1)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    detail = f"{repeated:,} of {len(blocks):,} rows of {row:,} reports repeat an earlier one"
    return check_condition(name, detail, is_fault=repeated > 0)


def _own_register(name: str, reports: Booleans, permanents: Booleans, params: Params) -> Check:
    half = np.array([params.t_p == ONE // 2, params.t_q == ONE // 2])
    fair = half[permanents.astype(np.int64)].all(axis=0)
    if not fair.any():
        return mark_not_seen(name, "no top bit of a coin decides: neither p nor q is one half")
    return register_check(name, reports[:, int(np.argmax(fair))].astype(np.uint8))
