r"""The randomizer of a device: coins, the secret, and the permanent and instantaneous response.

How to think about it
---------------------
A coin is a uniform integer u of 32 bits. Each random decision compares a coin with a threshold t,
and the event happens if u < t, with probability t / 2^32. No floating-point number takes part: the
low bits of floating-point noise can reveal the true value (Mironov, CCS 2012).

There are two kinds of coins:

1. Derived coins come from the device's secret by HKDF, with a text as input that names their use.
   Equal input gives equal coins. The permanent response, the cohort, the part (the prefix of its
   string that a device reports), the sampling and the report day use derived coins. The device can
   therefore repeat them for years without storing anything for each value.
2. System coins come from the generator of the operating system. The instantaneous response uses
   system coins, so every report has new noise.

The input of derived coins contains the scope: metric, epoch and permanent fingerprint. The
permanent fingerprint is a hash of the parameters on which the permanent response depends. Each
scope has independent coins, so an observer cannot link a device between metrics or epochs by its
cohort or its permanent response. The input of the permanent response also contains the true bits.
Otherwise two values of one scope would have the same noise, and the difference of their permanent
responses would reveal the difference of the true bits.

Example, with the secret s and the metric "page" of an epoch for life:

    scope  = "page" \0 "" \0 permanent fingerprint
    cohort = (first coin of HKDF(s, "rappor/1/cohort" \0 scope)) * m >> 32
    bits   = encoding of the value in this cohort
    coins  = k coins of HKDF(s, "rappor/1/permanent" \0 scope \0 bits)
    permanent response = bits, each forced to 1 or 0 by its coin, or kept
    report = permanent response, each bit sent with a new system coin

Functions that take `coins` as an argument are pure. Tests enumerate all outcomes of the coins and
compare the exact distribution with the formulas of [EPK14].

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence
from typing import Final, NoReturn

from rappor.base.errors import ParamsError
from rappor.protocol.params import EXCLUDED_DAYS, Params
from rappor.protocol.responses.response import Coins

SECRET_BYTES: Final = 32
"""Length of a device's secret, in bytes. It equals the output of SHA-256, so HKDF needs no extract
step."""

_HASH_BYTES: Final = 32
"""Length of the output of SHA-256, in bytes."""
_BLOCK_BYTES: Final = 64
"""Length of an input block of SHA-256, in bytes. HMAC pads its key to this length."""
# These tables for bytes.translate XOR a byte with the constants of HMAC (RFC 2104 section 2).
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))


def draw_system_coins(n: int) -> Sequence[int]:
    """Draw n coins from the generator of the operating system."""
    return _read_coins(os.urandom(4 * n))


class Secret:
    """The secret of a device, in a form that no log and no traceback can show.

    Every function of this module accepts a `Secret` in place of the 32 bytes. The object keeps two
    SHA-256 states that have absorbed the padded secret, and not the bytes. Hence no local variable
    of a traceback contains the secret, and `repr` shows nothing of it.

    Parameters
    ----------
    secret : 32 uniform random bytes.

    Raises
    ------
    ParamsError
        The secret is not exactly 32 bytes. The message does not contain the secret.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        """Absorb the secret into the two hashes of HMAC."""
        if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
            raise ParamsError(f"secret must be exactly {SECRET_BYTES} bytes")
        self._inner = hashlib.sha256(secret.ljust(_BLOCK_BYTES, b"\0").translate(_INNER_PAD))
        self._outer = hashlib.sha256(secret.ljust(_BLOCK_BYTES, b"\0").translate(_OUTER_PAD))

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        # The time of a comparison with == depends on the first byte that differs.
        return isinstance(other, Secret) and hmac.compare_digest(
            self._comparison_key, other._comparison_key
        )

    def __hash__(self) -> int:
        return hash(self._comparison_key)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a pickled copy of the secret could reach a file or another process."""
        raise TypeError("a secret is not copied")

    @property
    def _comparison_key(self) -> bytes:
        """Keyed digest that is equal for equal secrets and does not reveal the secret."""
        return self.compute_hmac(b"rappor/1/same secret")

    def compute_hmac(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message with the secret as key (RFC 2104 section 2).

        A device computes about twenty for each report. The standard library's `hmac` wraps the same
        two hashes in a Python object and takes nearly twice as long.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


def expand(secret: bytes | Secret, info: bytes, n: int) -> bytes:
    """Return n bytes of HKDF-Expand-SHA256 (RFC 5869 section 2.3).

    HKDF-Extract is left out, because the secret is uniform already.

    Parameters
    ----------
    secret : the pseudorandom key of HKDF.
    info : a text that names the use of the output. Different texts give independent outputs.
    n : number of bytes, in [0, 8160].

    Raises
    ------
    ParamsError
        n is outside its range, or the secret is not 32 bytes.
    """
    if not isinstance(secret, Secret):
        secret = Secret(secret)
    if not 0 <= n <= 255 * _HASH_BYTES:
        raise ParamsError(f"n must be an integer in [0, {255 * _HASH_BYTES}], got {n!r}")
    # T(i) = HMAC(secret, T(i - 1) + info + i), and the output is T(1) + T(2) + ...
    block = output = b""
    for counter in range(1, -(-n // _HASH_BYTES) + 1):
        block = secret.compute_hmac(block + info + bytes([counter]))
        output += block
    return output[:n]


def encode_scope(metric_name: str, epoch: str, params: Params) -> bytes:
    """Return the bytes that name a scope in the input of derived coins.

    A scope is one metric in one epoch under one permanent response. A change of the metric, the
    epoch or the permanent fingerprint gives other bytes, hence another cohort and other coins for
    every value. A change of p, q or interval keeps the scope. So does a change of the segment (the
    public properties that the device sends without noise).

    Parameters
    ----------
    epoch : name of the epoch, such as "2026-Q4"; empty for life.
    """
    return f"{metric_name}\0{epoch}\0{params.permanent_fingerprint}".encode()


def derive_cohort(secret: bytes | Secret, metric_name: str, epoch: str, params: Params) -> int:
    """Return the cohort of a device in a scope, an integer in [0, m).

    Cohorts of different metrics and epochs are independent. A cohort for life in all metrics would
    be a pseudonym by which an observer could link the reports of a device.
    """
    info = b"rappor/1/cohort\0" + encode_scope(metric_name, epoch, params)
    (u,) = _read_coins(expand(secret, info, 4))
    # Each cohort has floor(2^32 / m) or one more of the 2^32 coins, as with a modulo. The product
    # needs no division.
    return u * params.m >> 32


def derive_part_coin(secret: bytes | Secret, metric_name: str, epoch: str, base: Params) -> int:
    """Return the coin that chooses the part of a string that a device reports.

    A part is a prefix of some length, or the whole string. A metric of strings may divide its
    devices among several parts. `rappor.protocol.parts.choose_part` reads the coin.

    Parameters
    ----------
    base : the parameter set of the metric without a part. It is the same for all devices, because
        the part is not yet chosen.
    """
    info = b"rappor/1/part\0" + encode_scope(metric_name, epoch, base)
    (u,) = _read_coins(expand(secret, info, 4))
    return u


def derive_sampling_coin(secret: bytes | Secret, metric_name: str, epoch: str, base: Params) -> int:
    """Return the coin that decides whether a device takes part in a metric in an epoch.

    A device takes part if the coin is below the threshold of the sampling rate. A larger rate
    therefore keeps all devices of a smaller rate.

    Parameters
    ----------
    base : the parameter set of the metric without a part.
    """
    info = b"rappor/1/sample\0" + encode_scope(metric_name, epoch, base)
    (u,) = _read_coins(expand(secret, info, 4))
    return u


def derive_report_day(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, days: int
) -> int:
    """Return the first day on which a device may report, for metrics with one report in an epoch.

    The last `EXCLUDED_DAYS` days of the epoch are never chosen. A report of these days, with its
    retries, could arrive in the next epoch only.

    Parameters
    ----------
    days : number of days of the epoch, more than `EXCLUDED_DAYS`.

    Returns
    -------
    int
        Day of the epoch, counted from 0.
    """
    info = b"rappor/1/day\0" + encode_scope(metric_name, epoch, params)
    (u,) = _read_coins(expand(secret, info, 4))
    return choose_day(u, days)


def choose_day(u: int, days: int) -> int:
    """Return the day of an epoch that the coin u chooses: uniform in [0, days - EXCLUDED_DAYS)."""
    return u * (days - EXCLUDED_DAYS) >> 32


def derive_permanent_response(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, bits: bytes
) -> bytes:
    """Return the permanent response to true bits. Equal arguments give equal responses.

    Parameters
    ----------
    bits : packed true bits of a value in the cohort of the device, `params.n_bytes` bytes.

    Returns
    -------
    bytes
        Packed bits of the permanent response, `params.n_bytes` bytes.
    """
    # Coins depend on all true bits together: one changed bit gives independent coins for all bits.
    coins = derive_permanent_coins(secret, metric_name, epoch, params, bits)
    return draw_permanent_response(bits, params, lambda n: coins[:n])


def derive_permanent_coins(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, bits: bytes
) -> Sequence[int]:
    """Return the coins of the permanent response to packed true bits.

    The response of RAPPOR has one coin for each of the k bits. Generalized randomized response
    (`rappor.protocol.responses.generalized_response`) reports one bucket of a value, and has n + 2
    coins: n coins pad or cut the buckets of the value to n buckets, one coin decides whether the
    report names one of them or a random bucket, and one coin draws the bucket. n is `params.items`.
    """
    response = params.response
    info = response.coin_label + encode_scope(metric_name, epoch, params) + b"\0" + bits
    return _read_coins(expand(secret, info, 4 * response.n_coins))


def derive_own_buckets(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, bits: bytes
) -> list[int]:
    """Return the n own buckets of a device, in ascending order.

    The own buckets are the buckets of the device's value: the bits of `bits` that are 1. If there
    are more than n, the device keeps n of them, chosen at random. If there are fewer, the device
    adds random buckets. The list is empty for RAPPOR's response, whose reports name no bucket.

    Parameters
    ----------
    bits : packed true bits of a value in the cohort of the device, `params.n_bytes` bytes.
    """
    coins = derive_permanent_coins(secret, metric_name, epoch, params, bits)
    return params.response.choose_own_buckets(bits, lambda n: coins[:n])


def draw_permanent_response(bits: bytes, params: Params, coins: Coins) -> bytes:
    """Draw the packed permanent response to packed true bits from a source of coins."""
    return params.response.draw_permanent(bits, coins)


def draw_instantaneous_response(
    permanent: bytes, params: Params, coins: Coins = draw_system_coins
) -> bytes:
    """Draw the packed bits of a report of a permanent response, from fresh coins."""
    return params.response.draw_instantaneous(permanent, coins)


def _read_coins(data: bytes) -> Sequence[int]:
    """Read bytes as little-endian integers of 32 bits."""
    return struct.unpack(f"<{len(data) // 4}I", data)
