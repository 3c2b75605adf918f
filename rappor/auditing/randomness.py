"""Tests of coins: whether 32-bit integers are uniform, independent and unpredictable.

A coin is an integer from 0 to 2^32 - 1, and an encoder compares it with a threshold to decide one
bit of a response. Two sources are tested: coins that a generator returns directly (`check_coins`),
and the coins of an encoder under test (`check_report_coins`). The coins of an encoder are not
visible. They are tested as far as its reports reveal on which side of a threshold each coin lies.

    check                 statistic                                      finds
    ones by position      ones at each of the 32 positions               a biased bit
    runs and lags         changes between bits 1 to 64 positions apart   short-range dependence
    thresholds            coins below t(f g), t(f), t(p), t(q)           bias at a threshold
    repetition            blocks of coins or of reports that recur       a short period
    no shift register     length of the shortest shift register, which   xorshift, Mersenne Twister
                          must not be short

The thresholds are those of the parameters (`rappor.protocol.params`). t(x) is the integer nearest
to x times 2^32, so a coin is below t(x) with probability x. f is the share of bits that the
permanent response forces, and g is the share of the forced bits that become 1. A coin below t(f g)
forces a bit to 1, a coin from t(f g) to t(f) forces it to 0, and a larger coin keeps the true bit.
The instantaneous response sends 1 if a coin is below t(p) for a permanent 0, or below t(q) for a
permanent 1.

Frequencies alone miss the most serious fault: a generator whose future follows from its past. The
Mersenne Twister and xorshift are linear: each new bit is the XOR of certain bits of their state,
whatever the seed is. A linear generator with a state of L bits therefore computes each output bit
as a fixed XOR of the L output bits before it. Such a rule is a *linear feedback shift register* of
length L. The algorithm of Massey (1969) finds the shortest register that produces a sequence of
bits. For n fair bits it has a length of about n / 2 (Rueppel 1986, chapter 4).

*Example.* The bits 110110110 repeat every three bits. Each bit is the XOR of the two bits before
it, so a register of length 2 produces them. Most sequences of nine bits need a register of length 4
or 5.

False alarms: each check finds a fault in correct coins with probability at most `FALSE_ALARM_RATE`.
The checks miss congruential generators, coins of 16 or 24 bits, and a generator that is seeded by
the time.
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
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES, derive_permanent_coins
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE

WORDS: Final = 1 << 17
"""Number of coins that the tests draw.

A bit that is one with probability .514 is then missed once in 1,000 audits. Derivation: among 2^17
coins the number of ones at a position has a standard deviation of 181, so .014 (2^17) is a
deviation of 10. The check compares 33 counts (32 positions, and all bits). Its false alarm rate of
1e-9, divided by 33, is the tail beyond 6.7 standard deviations. The count stays below 6.7 if noise
takes away 3.1 of the 10 or more, which happens once in 1,000 audits.
"""

_MAX_LAG: Final = 64
"""Largest lag at which two bits of coins are compared.

In `check_coins`, where all 32 bits of a coin are visible, 64 bits are the distance of two coins. A
larger lag finds dependence over longer distances and takes more time.
"""

_REGISTER_BITS: Final = 1 << 16
"""Number of bits whose shortest register is computed.

A register of L bits can be found from 2 L bits of its output. For the Mersenne Twister, with a
state of 19,937 bits, these are 39,874 bits. The time grows with the square of the number.
"""

_COINS_PER_DRAW: Final = 1024
"""Number of coins that one call of the source draws: as many as a device needs for a large report.

A generator that restarts with each call repeats its coins after this number.
"""


def check_coins(name: str, coins: Coins, params: Params, *, words: int = WORDS) -> list[Check]:
    """Return all checks of a source of coins.

    `name` labels the source in the names of the checks, `words` is the number of coins to draw. The
    thresholds are those of `params`.
    """
    starts = range(0, words, _COINS_PER_DRAW)
    sampled_coins = np.concatenate(
        [
            np.asarray(coins(min(_COINS_PER_DRAW, words - start)), dtype=np.uint64)
            for start in starts
        ]
    )
    words32 = sampled_coins.astype(np.uint32)
    # 32 bits of each coin in a row, lowest bit first.
    bits = np.unpackbits(words32.astype("<u4").view(np.uint8), bitorder="little")
    return [
        check_binomial(f"{name}: ones by position", _yield_position_cases(bits)),
        check_binomial(f"{name}: runs and lags", _yield_lag_cases(bits)),
        check_binomial(f"{name}: thresholds", _yield_threshold_cases(sampled_coins, params)),
        _check_blocks(name, words32),
        check_register(f"{name}: no shift register", bits[31::32]),
    ]


def create_permanent_source(params: Params, secret: bytes) -> Coins:
    """Return a source of the coins of one device's permanent responses.

    The device answers the bit patterns 0, 1, 2, ... one after the other, and each pattern has k
    coins, derived from the secret. Coins that a call leaves over from its last pattern are dropped.
    """
    assert len(secret) == SECRET_BYTES
    numbers = count()

    def coins(n: int) -> Sequence[int]:
        # k = 1 has only two patterns of bits. The numbers are written with 8 bytes more than a
        # pattern has, so that the coins of every number are different.
        patterns = (number.to_bytes(params.n_bytes + 8, "little") for number in numbers)
        pattern_coins = (
            coin
            for pattern in patterns
            for coin in derive_permanent_coins(secret, "audit", "", params, pattern)
        )
        return list(islice(pattern_coins, n))

    return coins


def _yield_position_cases(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Yield the count of ones of all bits, and at each of the 32 positions of a coin."""
    yield Case("all bits", int(bits.sum()), len(bits), 0.5)
    for position, ones in enumerate(bits.reshape(-1, 32).sum(axis=0, dtype=np.int64).tolist()):
        yield Case(f"bit {position} of a coin", ones, len(bits) // 32, 0.5)


def _yield_lag_cases(bits: NDArray[np.uint8]) -> Iterator[Case]:
    """Yield the count of changes at each lag.

    A change is a pair of bits with the XOR 1. The XORs of fair independent bits are fair and
    independent, even where two pairs share a bit: in x1 ^ x2 and x2 ^ x3, the bit x3 is fair
    whatever the first XOR is. So the count of changes is binomial.
    """
    for lag in range(1, _MAX_LAG + 1):
        changed = int((bits[lag:] ^ bits[:-lag]).sum(dtype=np.int64))
        yield Case(f"changes over {lag} bits", changed, len(bits) - lag, 0.5)


def _yield_threshold_cases(coins: NDArray[np.uint64], params: Params) -> Iterator[Case]:
    """Yield the count of coins below each threshold that decides a bit."""
    t_1, t_0 = params.t_1, params.t_0
    named = {"f g": t_1, "f": t_1 + t_0, "p": params.t_p, "q": params.t_q}
    for letter, threshold in named.items():
        below = int((coins < threshold).sum())
        yield Case(f"coins below {letter}", below, len(coins), threshold / ONE)


def _check_blocks(name: str, words: NDArray[np.uint32]) -> Check:
    """Test for repeated blocks of 128 bits.

    Among n fair blocks, P(repetition) < n^2 / 2^129, so a single repetition is a fault.
    """
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

    A register of length L predicts bit n as the XOR of some of the L bits before bit n. The
    algorithm reads the bits in order and keeps the shortest register so far. `connection` contains
    the register as binary digits: digit i is 1 if bit n - i takes part in the XOR, and digit 0 is
    always 1. For the rule "bit n is bit n - 1 XOR bit n - 2" it is 111 in binary. The XOR of bit n
    and of all bits that take part is 0 if the prediction is right.

    If a prediction is wrong, the register is corrected by an older register whose prediction was
    wrong as well. The XOR of both, at the right distance, predicts all bits so far.

    Examples
    --------
    >>> compute_shortest_register([1, 1, 0, 1, 1, 0, 1, 1, 0])
    2
    """
    connection, length = 1, 0
    # The register before the last change of length, and the number of bits since its wrong
    # prediction.
    previous_connection, bits_since = 1, 1
    # The bits so far as one integer, the latest bit last.
    window = 0
    for n, bit in enumerate(bits):
        window = window << 1 | bit
        is_predicted = (window & connection).bit_count() & 1 == 0
        if is_predicted:
            bits_since += 1
            continue
        corrected = connection ^ previous_connection << bits_since
        if 2 * length <= n:
            # No register of this length produces the bits: a longer one is needed.
            length, previous_connection, bits_since = n + 1 - length, connection, 1
        else:
            bits_since += 1
        connection = corrected
    return length


def compute_register_p_value(length: int, n: int) -> float:
    """Compute the two-sided p-value of a shortest register's length for n fair bits.

    Of the 2^n sequences of n bits, 2^min(2n - 2L, 2L - 1) need a register of L > 0 bits, and one
    sequence needs none (Rueppel 1986). *Example.* Of the 16 sequences of four bits, 1, 2, 8, 4 and
    1 sequences need registers of 0, 1, 2, 3 and 4 bits. The probability is computed as a power of
    two, which is cut at 2^-1000 because smaller powers underflow.
    """
    shorter = _compute_log2_sum(n, range(max(0, length - _SUMMED_LENGTHS), length + 1))
    longer = _compute_log2_sum(n, range(length, min(n, length + _SUMMED_LENGTHS) + 1))
    return float(min(1.0, 2 * 2.0 ** max(-1000.0, min(shorter, longer))))


_SUMMED_LENGTHS: Final = 64
"""Number of lengths in a tail sum.

Each length has at most half the probability of its neighbour that is nearer to n / 2. So the
lengths beyond this number add nothing that float64 can represent.
"""


def _compute_log2_sum(n: int, lengths: range) -> float:
    """Compute log2 of the probability that the register of n bits has one of these lengths.

    The largest power of two is factored out of the sum, because 2^n overflows.
    """
    exponents = [min(2 * n - 2 * length, 2 * length - 1) if length else 0 for length in lengths]
    largest = max(exponents)
    return largest - n + math.log2(sum(2.0 ** (exponent - largest) for exponent in exponents))


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

    `reports` and `permanents` are (n, k) bool: a row is one report, and the permanent response
    behind it. If either is None, the permanent response is unknown and the checks are "not seen".
    """
    names = [
        f"own coins: {property_name}"
        for property_name in ("lags", "repetition", "no shift register")
    ]
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
    """Yield the cases of pairs of coins at each lag, by the permanent bits of both coins.

    A coin hits if it is below its threshold: t(p) for a permanent 0, t(q) for a permanent 1. A hit
    is a reported 1. So two independent coins both hit with probability p^2, p q or q^2, by their
    permanent bits. The lags k and 2 k compare the same bit of a report and of one of the next two
    reports.
    """
    p_of_ones = (params.p, params.q)
    bits, permanent_bits = reports.ravel(), permanents.ravel()
    for lag in sorted({*range(1, _MAX_LAG + 1), params.k, 2 * params.k}):
        first = np.arange(max(0, len(bits) - lag))
        # Pairs without a common coin, so that the counts are binomial.
        first = first[first // lag % 2 == 0]
        classes = 2 * permanent_bits[first].astype(np.int64) + permanent_bits[first + lag]
        n = np.bincount(classes, minlength=4).tolist()
        counts_of_two_ones = np.bincount(
            classes[bits[first] & bits[first + lag]], minlength=4
        ).tolist()
        for index in range(4):
            first_bit, second_bit = divmod(index, 2)
            description = f"coins {lag} apart both hit, permanent {first_bit} and {second_bit}"
            yield Case(
                description,
                counts_of_two_ones[index],
                n[index],
                p_of_ones[first_bit] * p_of_ones[second_bit],
            )


def _check_report_repetition(name: str, reports: Booleans, params: Params) -> Check:
    """Test whether rows of reports occur again, as with a generator of a short period.

    A row is r consecutive reports, and the next row begins where it ends. Two independent coins
    with a threshold x give equal bits with probability x^2 + (1 - x)^2. With s the larger of these
    probabilities for x = p and x = q, two rows of a correct encoder are equal with probability at
    most s^(k r). n reports have fewer than n^2 / 2 pairs of rows. So r is chosen such that
    (n^2 / 2) s^(k r) <= FALSE_ALARM_RATE.

    A generator with a period of P reports repeats the first row after lcm(P, r) reports, the first
    multiple of P at which a row begins. It is found if n is at least lcm(P, r) + r.
    """
    p_same_bit = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q))
    n = len(reports)
    if p_same_bit == 1:
        # With p = 0 a permanent 0 is always sent as 0, and with q = 1 a permanent 1 as 1. If all
        # permanent bits are such bits, all reports of a device are equal, and that is no fault.
        return mark_not_seen(name, "equal reports are no fault with p = 0 or q = 1")
    log_limit = math.log(2 * FALSE_ALARM_RATE / n**2)
    row = max(1, math.ceil(log_limit / (params.k * math.log(p_same_bit))))
    blocks = np.packbits(reports[: n // row * row].reshape(n // row, row * params.k), axis=1)
    repeated = len(blocks) - len(np.unique(blocks, axis=0))
    detail = f"{repeated:,} of {len(blocks):,} rows of {row:,} reports repeat an earlier one"
    return check_condition(name, detail, is_fault=repeated > 0)


def _check_report_register(
    name: str, reports: Booleans, permanents: Booleans, params: Params
) -> Check:
    """Test whether a short shift register produces the top bits of one position's coins.

    The threshold of a coin is t(p) for a permanent 0 and t(q) for a permanent 1. If the threshold
    is one half, a reported 1 shows that the top bit of the coin is 0: the reported bit is the
    inverted top bit. The test reads the first position whose threshold is one half in all reports.

    The inversion does no harm. Inverted bits are the XOR of the bits with a sequence of ones, which
    has a register of length 1. So their shortest register is longer by 1 at most.
    """
    is_half = np.array([params.t_p == ONE // 2, params.t_q == ONE // 2])
    # (k,): whether the threshold of the bit is one half in all reports.
    shows_top_bit = is_half[permanents.astype(np.int64)].all(axis=0)
    if not shows_top_bit.any():
        return mark_not_seen(name, "no top bit of a coin decides: neither p nor q is one half")
    return check_register(name, reports[:, int(np.argmax(shows_top_bit))].astype(np.uint8))
