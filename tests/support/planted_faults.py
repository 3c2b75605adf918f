"""Encoders with one planted fault each, of the kinds seen in published code.

Everything but the fault is the code of the project. There are three forms of faults:

- `Permanent` is a permanent response: (secret, metric, params, true bits) to permanent bits.
- `Instantaneous` is an instantaneous response: (permanent bits, params) to the bits of a report.
- A function of a metric starts a whole encoder, a `Respond` for `rappor.auditing.Function`.

`start` makes an encoder from the first two. All bits are packed bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

from rappor.auditing.reference_encoder import Respond, Response
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import (
    derive_cohort,
    derive_permanent_coins,
    derive_permanent_response,
    draw_instantaneous_response,
    draw_permanent_response,
    draw_system_coins,
)
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor.registry.metric import Metric

Permanent = Callable[[bytes, str, Params, bytes], bytes]
Instantaneous = Callable[[bytes, Params], bytes]


def never_cleared(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Respond without ever changing a true 1 to 0."""
    honest = derive_permanent_response(secret, name, "", params, bits)
    return bytes(a | b for a, b in zip(honest, bits, strict=True))


def last_bit_skipped(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Stop one bit early, so that the last bit is the true bit."""
    honest = int.from_bytes(derive_permanent_response(secret, name, "", params, bits), "little")
    last = 1 << params.k - 1
    truth = int.from_bytes(bits, "little")
    return (honest & ~last | truth & last).to_bytes(params.n_bytes, "little")


def redrawn(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Draw the permanent response anew at each call."""
    del secret
    return derive_permanent_response(os.urandom(32), name, "", params, bits)


def not_keyed_by_metric(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Derive the response from secret and bits only, so that two metrics share their coins."""
    del name
    return derive_permanent_response(secret, "any", "", params, bits)


def f_too_large(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Randomize with f + 1/128."""
    other = dataclasses.replace(params, f=params.f + 1 / 128, insecure=True)
    return derive_permanent_response(secret, name, "", other, bits)


FORCED: dict[str, Callable[[Params], Sequence[tuple[int, int]]]] = {
    "forced zeros come before forced ones": lambda params: (
        (params.t_0, 0),
        (params.t_1 + params.t_0, 1),
    ),
    "f0 is ignored": lambda params: ((params.t_1, 1), (2 * params.t_1, 0)),
    "f0 and f1 are exchanged": lambda params: ((params.t_0, 1), (params.t_1 + params.t_0, 0)),
    "g is lost": lambda params: (
        ((params.t_1 + params.t_0) // 2, 1),
        (params.t_1 + params.t_0, 0),
    ),
}
"""Wrong thresholds of the permanent response. Each threshold has the bit that it forces: a coin
below the threshold gives this bit, and later thresholds do not count."""


def forced(fault: str, params: Params, bits: bytes, coins: Sequence[int]) -> bytes:
    """Return the permanent response by wrong thresholds."""
    truth, rules = int.from_bytes(bits, "little"), FORCED[fault](params)
    response = 0
    for i, coin in enumerate(coins):
        response |= next((bit for threshold, bit in rules if coin < threshold), truth >> i & 1) << i
    return response.to_bytes(params.n_bytes, "little")


def with_wrong_thresholds(fault: str) -> Permanent:
    """Respond by wrong thresholds."""

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        return forced(fault, params, bits, derive_permanent_coins(secret, name, "", params, bits))

    return permanently


def one_coin_for_all(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Decide every bit by the coin of the first bit."""
    coin = derive_permanent_coins(secret, name, "", params, bits)[0]
    if coin >= params.t_1 + params.t_0:
        return bits
    return ((1 << params.k) - 1 if coin < params.t_1 else 0).to_bytes(params.n_bytes, "little")


def shared_coins(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Let bits 1 and 2, 3 and 4, ... share their coins."""
    coins = derive_permanent_coins(secret, name, "", params, bits)
    return draw_permanent_response(bits, params, lambda n: [coins[(i + 1) // 2] for i in range(n)])


def noiseless_on_some_devices(
    probability: float,
) -> Callable[[bytes, str, Params, bytes], bytes]:
    """Leave out the permanent noise on this share of the devices."""

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        is_noiseless = int.from_bytes(secret[-4:], "little") < probability * ONE
        return bits if is_noiseless else derive_permanent_response(secret, name, "", params, bits)

    return permanently


def noiseless_in_some_reports(probability: float) -> Callable[[bytes, Params], bytes]:
    """Leave out the fresh noise in this share of the reports."""

    def instantly(memoised: bytes, params: Params) -> bytes:
        is_noiseless = draw_system_coins(1)[0] < probability * ONE
        return memoised if is_noiseless else draw_instantaneous_response(memoised, params)

    return instantly


def without_fresh_noise_on_some_devices(probability: float, metric: Metric) -> Respond:
    """Start an encoder that leaves out the fresh noise on this share of the devices."""
    respond = start(metric)

    def sometimes(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        is_noiseless = int.from_bytes(secret[-4:], "little") < probability * ONE
        report = response.permanent if is_noiseless and response.permanent else response.report
        return Response(response.cohort, report, response.permanent)

    return sometimes


def bits_0_and_5_share_a_coin(memoised: bytes, params: Params) -> bytes:
    """Let bits 0 and 5 share their fresh coin."""
    coins = list(draw_system_coins(params.k))
    coins[5] = coins[0]
    return draw_instantaneous_response(memoised, params, lambda n: coins[:n])


def p_for_q(memoised: bytes, params: Params) -> bytes:
    """Report every bit as 1 with probability p."""
    return draw_instantaneous_response(bytes(len(memoised)), params)


def honest(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Derive the permanent response of the protocol."""
    return derive_permanent_response(secret, name, "", params, bits)


def start(
    metric: Metric,
    *,
    permanently: Permanent = honest,
    instantly: Instantaneous = draw_instantaneous_response,
    permanent_seen: bool = True,
) -> Respond:
    """Start an encoder with these two responses.

    `permanent_seen` says whether the encoder reveals its permanent responses.
    """
    params = metric.params
    encode = get_encoder(params)

    def respond(secret: bytes, name: str, value: str) -> Response:
        cohort = derive_cohort(secret, name, "", params)
        bits = encode.encode(encode.parse_value(value), cohort)
        permanent = permanently(secret, name, params, bits)
        visible = permanent if permanent_seen else None
        return Response(cohort, instantly(permanent, params), visible)

    return respond


def redrawn_by_process(metric: Metric, *, permanent_seen: bool = True) -> Respond:
    """Start an encoder that draws new permanent responses at each start."""
    salt = os.urandom(16)

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        return derive_permanent_response(secret[:16] + salt, name, "", params, bits)

    return start(metric, permanently=permanently, permanent_seen=permanent_seen)


def redrawn_after_50_reports(metric: Metric) -> Respond:
    """Start an encoder whose devices draw a new permanent response after 50 reports."""
    reports: Counter[bytes] = Counter()

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        reports[secret] += 1
        # The epoch of the scope changes after 50 reports, and so do the coins.
        epoch = f"{reports[secret] // 51}"
        return derive_permanent_response(secret, name, epoch, params, bits)

    return start(metric, permanently=permanently)


def secrets_of_twelve_bits(metric: Metric) -> Respond:
    """Start an encoder that uses 12 bits of a secret."""
    respond = start(metric)

    def respond_by_short_secret(secret: bytes, name: str, value: str) -> Response:
        short = int.from_bytes(secret[:2], "little") & 0xFFF
        return respond(short.to_bytes(32, "little"), name, value)

    return respond_by_short_secret


def shared_by_two_devices(metric: Metric, *, apart: int = 1) -> Respond:
    """Start an encoder in which two devices at a distance of `apart` share their fresh coins."""
    numbers: dict[bytes, int] = {}
    reports: Counter[bytes] = Counter()
    # Coins by the first device of a pair, and by the number of the report.
    drawn: dict[tuple[int, int], Sequence[int]] = {}

    def respond(secret: bytes, name: str, value: str) -> Response:
        reports[secret] += 1
        number = numbers.setdefault(secret, len(numbers))
        key = number - number // apart % 2 * apart, reports[secret]

        def instantly(memoised: bytes, params: Params) -> bytes:
            return draw_instantaneous_response(
                memoised, params, lambda n: drawn.setdefault(key, draw_system_coins(n))
            )

        return start(metric, instantly=instantly)(secret, name, value)

    return respond


def cohort_by_length(metric: Metric) -> Respond:
    """Start an encoder whose devices have one cohort for each length of the value.

    Every cohort stays equally likely for every value.
    """
    respond = start(metric)

    def keyed(secret: bytes, name: str, value: str) -> Response:
        key = hashlib.sha256(secret + str(len(value)).encode()).digest()
        return respond(key, name, value)

    return keyed


def noiseless_canary(metric: Metric) -> Respond:
    """Start an encoder that reports one value without noise."""
    return noiseless_where(metric, lambda value: value == "canary")


def noiseless_where(metric: Metric, is_noiseless: Callable[[str], bool]) -> Respond:
    """Start an encoder that reports some values without noise."""
    respond, encode = start(metric), get_encoder(metric.params)

    def sometimes(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        bits = encode.encode(value, response.cohort)
        return Response(response.cohort, bits, bits) if is_noiseless(value) else response

    return sometimes


def noiseless_empty_text(metric: Metric) -> Respond:
    """Start an encoder that reports the empty text without noise."""
    return noiseless_where(metric, lambda value: not value)


def noiseless_long_text(metric: Metric) -> Respond:
    """Start an encoder that reports texts of more than 256 bytes without noise."""
    return noiseless_where(metric, lambda value: len(value) > 256)


def noiseless_first_report(metric: Metric) -> Respond:
    """Start an encoder whose first report has no fresh noise."""
    respond, started = start(metric), list[str]()

    def first(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        is_first = not started
        started.append(name)
        assert response.permanent is not None
        return response._replace(report=response.permanent) if is_first else response

    return first


def leak_in_last_bit(metric: Metric) -> Respond:
    """Start an encoder that reports the last bit as 1 for half of the values.

    The bit is not a true bit of these values. It reveals to which half the value belongs.
    """
    respond, last = start(metric), metric.params.k - 1

    def respond_with_leak(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        report = int.from_bytes(response.report, "little") & ~(1 << last)
        odd = hashlib.sha256(value.encode()).digest()[0] & 1
        report |= odd << last
        return response._replace(report=report.to_bytes(metric.params.n_bytes, "little"))

    return respond_with_leak


def third_coin_from_two_others(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Change the third bit if exactly one of the first two changes, for symmetric f0 and f1."""
    response = int.from_bytes(derive_permanent_response(secret, name, "", params, bits), "little")
    flips = response ^ int.from_bytes(bits, "little")
    third = (flips ^ flips >> 1) & 1
    return ((response & ~4) | ((int.from_bytes(bits, "little") >> 2 & 1) ^ third) << 2).to_bytes(
        params.n_bytes, "little"
    )


def keyed_by_spelling(metric: Metric) -> Respond:
    """Start an encoder whose permanent coins depend on a value as it was before normalizing."""
    respond = start(metric)

    def spelled(secret: bytes, name: str, value: str) -> Response:
        cohort = respond(secret, name, value).cohort
        bits = get_encoder(metric.params).encode(value, cohort)
        key = hashlib.sha256(secret + value.encode()).digest()
        permanent = derive_permanent_response(key, name, "", metric.params, bits)
        report = draw_instantaneous_response(permanent, metric.params)
        return Response(cohort, report, permanent)

    return spelled


def xorshift_for_system(metric: Metric) -> Respond:
    """Start an encoder whose fresh coins come from a small shift register."""
    coins = xorshift()
    return start(
        metric, instantly=lambda bits, params: draw_instantaneous_response(bits, params, coins)
    )


def twister(seed: int) -> Coins:
    """Return coins of a Mersenne Twister."""
    generator = random.Random(seed)  # noqa: S311  (the planted fault)

    def coins(n: int) -> Sequence[int]:
        return [generator.getrandbits(32) for _ in range(n)]

    return coins


def twister_for_system(metric: Metric) -> Respond:
    """Start an encoder whose fresh coins come from a constant seed."""
    coins = twister(12345)
    return start(
        metric, instantly=lambda bits, params: draw_instantaneous_response(bits, params, coins)
    )


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
    forced = (u < ONE // 4 for u in draw_system_coins(n))
    return [u | force << 7 for u, force in zip(draw_system_coins(n), forced, strict=True)]
