"""Tests of coins: uniform 32-bit integers, independent and unpredictable.

Every test has an exact distribution. Frequencies alone miss the most serious fault: a generator
whose future follows from its past. The Mersenne Twister, xorshift and other shift registers are
linear over the field of two elements for every seed. The shortest shift register that produces
their bits is no longer than their state. For n fair bits the shortest register has a length of
about n / 2 (Rueppel 1986, chapter 4; Massey 1969 finds the register).

The coins of an encoder are not visible. They are tested as far as its reports reveal them.
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
from rappor.protocol.randomizer import SECRET_BYTES, Coins, derive_permanent_coins

WORDS: Final = 1 << 17
"""Number of coins that the tests draw.

A bit that is one with probability .514 is then missed once in 1,000 audits: the deviation is 10
standard errors, and a false alarm rate of 1e-9 over 33 counts corresponds to 6.7 standard errors.
"""

_MAX_LAG: Final = 64
"""Largest lag, in bits, at which two coins are compared."""

_REGISTER_BITS: Final = 1 << 16
"""Number of bits whose shortest register is computed. The Mersenne Twister needs 39,874 bits."""

_COINS_PER_DRAW: Final = 1024
"""Number of coins per draw: as many as a device draws for a large report."""


def check_coins(name: str, coins: Coins, params: Params, *, words: int = WORDS) -> list[Check]:
    """Return all checks of a source of coins; `name` labels the source."""
    starts = range(0, words, _COINS_PER_DRAW)
    drawn = np.concatenate(
        [np.asarray(coins(min(_COINS_PER_DRAW, words - at)), dtype=np.uint64) for at in starts]
    )
    words32 = drawn.astype(np.uint32)
    bits = np.unpackbits(words32.astype("<u4").view(np.uint8), bitorder="little")
    return [
        check_binomial(f"{name}: ones by position", _yield_position_cases(bits)),
        check_binomial(f"{name}: runs and lags", _yield_lag_cases(bits)),
        check_binomial(f"{name}: thresholds", _yield_threshold_cases(drawn, params)),
        _check_blocks(name, words32),
        check_register(f"{name}: no shift register", bits[31::32]),
    ]


def create_permanent_source(params: Params, secret: bytes) -> Coins:
    """Return the coins of one device's permanent responses to consecutive bit patterns."""
    assert len(secret) == SECRET_BYTES
    numbers = count()

    def coins(n: int) -> Sequence[int]:
        rows = (each.to_bytes(params.n_bytes + 8, "little") for each in numbers)
        drawn = (
            coin
            for row in rows
            for coin in derive_permanent_coins(secret, "audit", "", params, row)
        )
        return list(islice(drawn, n))

    return coins


def _yield_position_cases(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Yield the count of ones of all bits, and at each of the 32 positions of a coin."""
    yield Case("all bits", int(bits.sum()), len(bits), 0.5)
    for position, ones in enumerate(bits.reshape(-1, 32).sum(axis=0, dtype=np.int64).tolist()):
        yield Case(f"bit {position} of a coin", ones, len(bits) // 32, 0.5)


def _yield_lag_cases(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Yield the count of changes at each lag. XORs of fair independent bits are fair bits."""
    for lag in range(1, _MAX_LAG + 1):
        changed = int((bits[lag:] ^ bits[:-lag]).sum(dtype=np.int64))
        yield Case(f"changes over {lag} bits", changed, len(bits) - lag, 0.5)


def _yield_threshold_cases(drawn: NDArray[np.uint64], params: Params) -> Iterator[Case]:
    """Yield the count of coins below each threshold that decides a bit."""
    t_1, t_0 = params.t_1, params.t_0
    named = {"f g": t_1, "f": t_1 + t_0, "p": params.t_p, "q": params.t_q}
    for letter, threshold in named.items():
        below = int((drawn < threshold).sum())
        yield Case(f"coins below {letter}", below, len(drawn), threshold / ONE)


def _check_blocks(name: str, words: NDArray[np.uint32]) -> Check:
    """Test for repeated blocks of 128 bits. Among n fair blocks, P(repetition) < n^2 / 2^129."""
    blocks = words[: len(words) // 4 * 4].reshape(-1, 4)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    detail = f"{repeated:,} of {len(blocks):,} blocks of 128 bits repeat an earlier one"
    return check_condition(f"{name}: repetition", detail, is_fault=repeated > 0)


def check_register(name: str, bits: NDArray[np.uint8]) -> Check:
    """Test whether a short shift register produces the first 65,536 top bits of coins."""
    bits = bits[:_REGISTER_BITS]
    n, length = len(bits), compute_shortest_register(bits.tolist())
    needed = f"a register of {length:,} bits, expected about {n // 2:,}"
    return check_p_value(
        name, compute_register_p_value(length, n), f"the top bits of {n:,} coins need {needed}"
    )


def compute_shortest_register(bits: Sequence[int]) -> int:
    """Compute the length of the shortest linear feedback shift register (Massey 1969).

    Examples
    --------
    >>> compute_shortest_register([1, 1, 0, 1, 1, 0, 1, 1, 0])
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


def compute_register_p_value(length: int, n: int) -> float:
    """Compute the two-sided p-value of a shortest register's length for n fair bits.

    Of the 2^n sequences, 2^min(2n - 2L, 2L - 1) need a register of L > 0 bits, and one needs none
    (Rueppel 1986).
    """
    shorter = _log2_sum(n, range(max(0, length - _SUMMED_LENGTHS), length + 1))
    longer = _log2_sum(n, range(length, min(n, length + _SUMMED_LENGTHS) + 1))
    return float(min(1.0, 2 * 2.0 ** max(-1000.0, min(shorter, longer))))


_SUMMED_LENGTHS: Final = 64
"""Number of lengths in a tail sum.

Away from n / 2, each length has at most half the probability of the length before it.
"""


def _log2_sum(n: int, lengths: range) -> float:
    """Compute log2 of the probability that the register has one of these lengths."""
    exponents = [min(2 * n - 2 * each, 2 * each - 1) if each else 0 for each in lengths]
    top = max(exponents)
    return top - n + math.log2(sum(2.0 ** (each - top) for each in exponents))


def shows_top_bits(params: Params) -> bool:
    """Return whether a report reveals the top bit of a coin: p or q is one half."""
    return ONE // 2 in (params.t_p, params.t_q)


def check_report_coins(
    reports: Booleans | None, permanents: Booleans | None, params: Params
) -> list[Check]:
    """Return the checks of the coins behind consecutive reports of one device.

    A report reveals on which side of a threshold each coin lies. If the threshold is one half, that
    is the coin's top bit, and a shift register can be found. For other thresholds only dependence
    over short lags and repetitions are tested.

    `reports` and `permanents` are (n, k) bool, one report a row with its permanent response, or
    None if the permanent response is not known.
    """
    names = [f"own coins: {what}" for what in ("lags", "repetition", "no shift register")]
    if reports is None or permanents is None:
        unknown = "the permanent response behind the reports is not known"
        return [mark_not_seen(name, unknown) for name in names]
    return [
        check_binomial(names[0], _yield_report_lag_cases(reports, permanents, params)),
        _check_report_repetition(names[1], reports, params),
        _check_report_register(names[2], reports, permanents, params),
    ]


def _yield_report_lag_cases(
    reports: Booleans, permanents: Booleans, params: Params
) -> Iterator[Case]:
    """Yield the cases of pairs of coins at each lag, by the thresholds of both coins."""
    ones = (params.p, params.q)
    bits, permanent_bits = reports.ravel(), permanents.ravel()
    for lag in sorted({*range(1, _MAX_LAG + 1), params.k, 2 * params.k}):
        first = np.arange(max(0, len(bits) - lag))
        first = first[first // lag % 2 == 0]
        classes = 2 * permanent_bits[first].astype(np.int64) + permanent_bits[first + lag]
        n = np.bincount(classes, minlength=4).tolist()
        both = np.bincount(classes[bits[first] & bits[first + lag]], minlength=4).tolist()
        for index in range(4):
            a, b = divmod(index, 2)
            what = f"coins {lag} apart both hit, permanent {a} and {b}"
            yield Case(what, both[index], n[index], ones[a] * ones[b])


def _check_report_repetition(name: str, reports: Booleans, params: Params) -> Check:
    """Test whether rows of reports occur again, as with a generator of a short period."""
    same = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q))
    n = len(reports)
    if same == 1:
        return mark_not_seen(name, "reports need no fresh coins: p = 0 and q = 1")
    row = max(1, math.ceil(math.log(2 * FALSE_ALARM_RATE / n**2) / (params.k * math.log(same))))
    blocks = np.packbits(reports[: n // row * row].reshape(n // row, row * params.k), axis=1)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    detail = f"{repeated:,} of {len(blocks):,} rows of {row:,} reports repeat an earlier one"
    return check_condition(name, detail, is_fault=repeated > 0)


def _check_report_register(
    name: str, reports: Booleans, permanents: Booleans, params: Params
) -> Check:
    half = np.array([params.t_p == ONE // 2, params.t_q == ONE // 2])
    fair = half[permanents.astype(np.int64)].all(axis=0)
    if not fair.any():
        return mark_not_seen(name, "no top bit of a coin decides: neither p nor q is one half")
    return check_register(name, reports[:, int(np.argmax(fair))].astype(np.uint8))
