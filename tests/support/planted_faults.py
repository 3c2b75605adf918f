"""Encoders with one planted fault each, of the kinds seen in published code.

Each starts as a callable for `rappor.auditing.Function`; all but the fault is the real code.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Sequence

from rappor.auditing.shipped_encoder import Respond, Response
from rappor.protocol.encodings import encoder
from rappor.protocol.params import ONE, Params
from rappor.protocol.randomizer import (
    Coins,
    cohort,
    instantaneous_response,
    permanent,
    permanent_coins,
    system_coins,
)
from rappor.registry.metric import Metric

Permanent = Callable[[bytes, str, Params, bytes], bytes]
Instantaneous = Callable[[bytes, Params], bytes]


def never_cleared(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Respond without ever clearing a set bit."""
    honest = permanent(secret, name, "", params, bits)
    return bytes(a | b for a, b in zip(honest, bits, strict=True))


def last_bit_skipped(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Stop one bit early: the last one is the truth."""
    honest = int.from_bytes(permanent(secret, name, "", params, bits), "little")
    last = 1 << params.k - 1
    truth = int.from_bytes(bits, "little")
    return (honest & ~last | truth & last).to_bytes(params.n_bytes, "little")


def redrawn(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Draw the permanent response anew at each call."""
    del secret
    return permanent(os.urandom(32), name, "", params, bits)


def not_keyed_by_metric(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Key the response by secret and bits alone."""
    del name
    return permanent(secret, "any", "", params, bits)


def f_off(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Randomize with f + 1/128."""
    other = dataclasses.replace(params, f=params.f + 1 / 128, insecure=True)
    return permanent(secret, name, "", other, bits)


def one_coin_for_all(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Decide on every bit by the coin of the first."""
    u = permanent_coins(secret, name, "", params, bits)[0]
    always, never = params.t_f, 2 * params.t_f
    if never <= u:
        return bits
    return ((1 << params.k) - 1 if u < always else 0).to_bytes(params.n_bytes, "little")


def p_for_q(memoised: bytes, params: Params) -> bytes:
    """Report every bit as 1 with probability p."""
    return instantaneous_response(bytes(len(memoised)), params)


def honest(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Respond as the protocol says."""
    return permanent(secret, name, "", params, bits)


def start(
    metric: Metric,
    *,
    permanently: Permanent = honest,
    instantly: Instantaneous = instantaneous_response,
    permanent_seen: bool = True,
) -> Respond:
    """Start an encoder with these two responses."""
    params = metric.params
    encode = encoder(params)

    def respond(secret: bytes, name: str, value: str) -> Response:
        own = cohort(secret, name, "", params)
        memoised = permanently(secret, name, params, encode.encode(encode.parse_value(value), own))
        seen = memoised if permanent_seen else None
        return Response(own, instantly(memoised, params), seen)

    return respond


def twister(seed: int) -> Coins:
    """Return coins of a Mersenne Twister."""
    generator = random.Random(seed)  # noqa: S311  (the planted fault)

    def coins(n: int) -> Sequence[int]:
        return [generator.getrandbits(32) for _ in range(n)]

    return coins


def twister_for_system(metric: Metric) -> Respond:
    """Start an encoder whose fresh coins come from a constant seed."""
    coins = twister(12345)
    return start(metric, instantly=lambda bits, params: instantaneous_response(bits, params, coins))


def xorshift() -> Coins:
    """Return coins of Marsaglia's 32-bit xorshift."""
    x = 2463534242

    def coins(n: int) -> Sequence[int]:
        nonlocal x
        drawn = []
        for _ in range(n):
            x ^= x << 13 & ONE - 1
            x ^= x >> 17
            x ^= x << 5 & ONE - 1
            drawn.append(x)
        return drawn

    return coins


def biased(n: int) -> Sequence[int]:
    """Return system coins whose bit 7 is one with probability 5/8."""
    forced = (u < ONE // 4 for u in system_coins(n))
    return [u | force << 7 for u, force in zip(system_coins(n), forced, strict=True)]
