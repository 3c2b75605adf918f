"""The device's two randomized responses and what decides them: coins and one secret.

A coin is a uniform 32-bit integer u; it hits a threshold t when u < t. No
floating-point number takes part. The coins of the permanent response are a function of the
secret and the true bits, so that it is always the same without being stored; those of the
instantaneous response come fresh from the system.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from rappor.base.errors import ParamsError
from rappor.protocol.params import Params

Coins = Callable[[int], Sequence[int]]
"""n -> n uniform 32-bit integers."""

SECRET_BYTES: Final = 32
UNDRAWN_DAYS: Final = 8
"""Days at the end of an epoch on which no device begins: one until its report leaves, and seven
for retries.

A report that was drawn on the last day would leave in the next epoch, take the turn of that epoch's
report there, and so on for good.
"""
_HASH_BYTES: Final = 32
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


def system_coins(n: int) -> Sequence[int]:
    """Draw n coins from the operating system's generator."""
    return _coins_from(os.urandom(4 * n))


class Secret:
    """A device's secret that shows nothing of itself: not printed, and not in a traceback.

    Every function here takes it in place of the bytes. What it holds are hashes that have taken
    them in, so no local variable shows them.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        """Take in the bytes of a secret."""
        if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
            raise ParamsError(f"secret must be exactly {SECRET_BYTES} bytes")
        self._inner = hashlib.sha256(secret.ljust(_BLOCK_BYTES, b"\0").translate(_INNER))
        self._outer = hashlib.sha256(secret.ljust(_BLOCK_BYTES, b"\0").translate(_OUTER))

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._name, other._name)

    def __hash__(self) -> int:
        return hash(self._name)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not copied")

    @property
    def _name(self) -> bytes:
        return self.digest(b"rappor/1/same secret")

    def digest(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message under the secret (RFC 2104 section 2).

        A device asks twenty times a report, and `hmac` takes nearly twice as long.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


def expand(secret: bytes | Secret, info: bytes, n: int) -> bytes:
    """Return n bytes of HKDF-Expand-SHA256 (RFC 5869 section 2.3) with the secret as PRK."""
    if not isinstance(secret, Secret):
        secret = Secret(secret)
    if not 0 <= n <= 255 * _HASH_BYTES:
        raise ParamsError(f"n must be an integer in [0, {255 * _HASH_BYTES}], got {n!r}")
    block = output = b""
    for counter in range(1, -(-n // _HASH_BYTES) + 1):
        block = secret.digest(block + info + bytes([counter]))
        output += block
    return output[:n]


def scope(metric_name: str, epoch: str, params: Params) -> bytes:
    """Return the name of what one permanent response answers for, as it enters the coins.

    Metric, epoch and everything of the parameters but p, q, segment, interval and epoch. A change
    of any of it gives another cohort and other coins, for every value alike.
    """
    return f"{metric_name}\0{epoch}\0{params.permanent_fingerprint}".encode()


def cohort(secret: bytes | Secret, metric_name: str, epoch: str, params: Params) -> int:
    """Return the device's cohort in a scope; it links neither metrics nor epochs."""
    info = b"rappor/1/cohort\0" + scope(metric_name, epoch, params)
    (u,) = _coins_from(expand(secret, info, 4))
    return u * params.m >> 32


def part_coin(secret: bytes | Secret, metric_name: str, epoch: str, base: Params) -> int:
    """Return the coin that chooses the device's part; `base` are the parameters without one."""
    (u,) = _coins_from(expand(secret, b"rappor/1/part\0" + scope(metric_name, epoch, base), 4))
    return u


def sample_coin(secret: bytes | Secret, metric_name: str, epoch: str, base: Params) -> int:
    """Return the coin that decides whether the device takes part; `base` is without a part."""
    (u,) = _coins_from(expand(secret, b"rappor/1/sample\0" + scope(metric_name, epoch, base), 4))
    return u


def drawn_day(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, days: int
) -> int:
    """Return the day of an epoch, counted from 0, from which on the device reports once.

    `days` is the number of days of the epoch. The last eight of them are never drawn.
    """
    (u,) = _coins_from(expand(secret, b"rappor/1/day\0" + scope(metric_name, epoch, params), 4))
    return choose_day(u, days)


def choose_day(u: int, days: int) -> int:
    """Return the day that a coin chooses among all but the last eight days of an epoch."""
    return u * (days - UNDRAWN_DAYS) >> 32


def permanent(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, bits: bytes
) -> bytes:
    """Return the permanent response to packed true bits, always the same for the same input."""
    coins = permanent_coins(secret, metric_name, epoch, params, bits)
    return permanent_response(bits, params, lambda n: coins[:n])


def permanent_coins(
    secret: bytes | Secret, metric_name: str, epoch: str, params: Params, bits: bytes
) -> Sequence[int]:
    """Return the k coins that decide the permanent response to packed true bits."""
    info = b"rappor/1/permanent\0" + scope(metric_name, epoch, params) + b"\0" + bits
    return _coins_from(expand(secret, info, 4 * params.k))


def permanent_response(bits: bytes, params: Params, coins: Coins) -> bytes:
    """Replace each bit by 1 with probability f g and by 0 with f (1 - g).

    [EPK14] section 2 has f/2 for both.
    """
    always, never = params.t_1, params.t_1 + params.t_0
    truth = int.from_bytes(bits, "little")
    answer = 0
    for i, u in zip(range(params.k), coins(params.k), strict=True):
        bit = 1 if u < always else 0 if u < never else truth >> i & 1
        answer |= bit << i
    return answer.to_bytes(params.n_bytes, "little")


def instantaneous_response(permanent: bytes, params: Params, coins: Coins = system_coins) -> bytes:
    """Show each bit as 1 with probability q where it is 1, and p where it is 0 ([EPK14] 2)."""
    thresholds = params.t_p, params.t_q
    memoised = int.from_bytes(permanent, "little")
    answer = 0
    for i, u in zip(range(params.k), coins(params.k), strict=True):
        bit = u < thresholds[memoised >> i & 1]
        answer |= bit << i
    return answer.to_bytes(params.n_bytes, "little")


def _coins_from(data: bytes) -> Sequence[int]:
    """Read bytes as little-endian 32-bit integers."""
    return struct.unpack(f"<{len(data) // 4}I", data)
