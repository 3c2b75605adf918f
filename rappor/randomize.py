"""The two responses of RAPPOR [EPK14], drawn from coins, and the secret behind the first.

A coin is a uniform 32-bit integer, compared with integer thresholds: no floating point
decides anything. Both responses take their coins as an argument, so that every way they can
fall can be tried; on a device the permanent coins are a function of its secret, and the
instantaneous ones come fresh from the system's generator.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rappor.encoding import encoder
from rappor.errors import ParamsError
from rappor.params import Params

Coins = Callable[[int], Sequence[int]]
"""Given n, returns n uniform 32-bit integers."""

SECRET_BYTES = 32


def system_coins(n: int) -> Sequence[int]:
    """Draw n coins from the system's generator."""
    return struct.unpack(f"<{n}I", os.urandom(4 * n))


def expand(secret: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand-SHA256 (RFC 5869, section 2.3) with the secret as its key.

    Raises ParamsError unless the secret has 32 bytes; it is never shown.
    """
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise ParamsError(f"secret must be {SECRET_BYTES} bytes, got another length or type")
    return hkdf_expand(secret, info, length)


def hkdf_expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand-SHA256 (RFC 5869, section 2.3) for a key of any length."""
    blocks: list[bytes] = []
    previous = b""
    for counter in range(1, -(-length // 32) + 1):
        previous = hmac.digest(key, previous + info + bytes([counter]), hashlib.sha256)
        blocks.append(previous)
    return b"".join(blocks)[:length]


def cohort(secret: bytes, metric: str, m: int) -> int:
    """Return the device's cohort for a metric, in 0..m-1."""
    (u,) = struct.unpack("<I", expand(secret, f"rappor/1/cohort\0{metric}".encode(), 4))
    return int(u * m >> 32)


def permanent_response(bits: bytes, params: Params, coins: Coins) -> bytes:
    """Return the permanent randomized response: 1 with f/2, 0 with f/2, else the true bit.

    Parameters
    ----------
    bits : true bits, ceil(k/8) bytes.
    """
    true = int.from_bytes(bits, "little")
    forced = params.t_f
    response = 0
    for i, u in enumerate(coins(params.k)):
        if u < forced:
            response |= 1 << i
        elif not u < 2 * forced:
            response |= true & 1 << i
    return response.to_bytes(params.n_bytes, "little")


def permanent(secret: bytes, metric: str, epoch: str, params: Params, bits: bytes) -> bytes:
    """Return the one permanent response that a device ever gives for these bits.

    A function of its arguments and nothing else. p and q are not among them: they may
    change under it. f is: coins used again under another f would give the true bit away.
    """
    info = f"rappor/1/permanent\0{metric}\0{epoch}\0{params.t_f}\0".encode() + bits
    return permanent_response(
        bits, params, lambda n: struct.unpack(f"<{n}I", expand(secret, info, 4 * n))
    )


def instantaneous_response(permanent: bytes, params: Params, coins: Coins = system_coins) -> bytes:
    """Return one report: each bit is 1 with q where the permanent response is, else with p."""
    memoised = int.from_bytes(permanent, "little")
    thresholds = (params.t_p, params.t_q)
    response = 0
    for i, u in enumerate(coins(params.k)):
        if u < thresholds[memoised >> i & 1]:
            response |= 1 << i
    return response.to_bytes(params.n_bytes, "little")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Encoded:
    """All that a device computes for one value; it shows nothing of it.

    `bits`, `permanent` and `report` are ceil(k/8) bytes each.
    """

    cohort: int
    bits: bytes
    permanent: bytes
    report: bytes

    def __repr__(self) -> str:
        return "Encoded(...)"


def encode_value(
    value: Any,
    params: Params,
    *,
    secret: bytes,
    metric: str,
    epoch: str = "",
    coins: Coins = system_coins,
) -> Encoded:
    """Take a value the whole way to a report, as a device does."""
    own = cohort(secret, metric, params.m)
    bits = encoder(params).encode(value, own)
    memoised = permanent(secret, metric, epoch, params, bits)
    return Encoded(
        cohort=own,
        bits=bits,
        permanent=memoised,
        report=instantaneous_response(memoised, params, coins),
    )
