"""Encoders with one planted fault each, of the kinds seen in published code.

The audit must find each fault, so these faults measure the audit. Everything but the fault is the
code of the project. The functions have three forms:

- `Permanent`: a faulty permanent response. The arguments are the secret of a device, the name of
  the metric, the parameters and the true bits. The result is the permanent response.
- `Instantaneous`: a faulty instantaneous response. The arguments are the permanent response and
  the parameters. The result is the bits of a report.
- A function of a metric: starts a whole encoder, for `rappor.auditing.Function`. The encoder is a
  `Respond`: a function from secret, name of the metric and value to a `Response`.

`start` makes an encoder from the first two forms. All bits are packed bytes, bit 0 first.
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


def keep_true_ones(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Return a permanent response in which every true 1 stays 1. Only true zeros have noise."""
    response = derive_permanent_response(secret, name, "", params, bits)
    return bytes(a | b for a, b in zip(response, bits, strict=True))


def skip_last_bit(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Return a permanent response whose last bit is the true bit: a loop ends one bit early."""
    response = int.from_bytes(derive_permanent_response(secret, name, "", params, bits), "little")
    last = 1 << params.k - 1
    truth = int.from_bytes(bits, "little")
    return (response & ~last | truth & last).to_bytes(params.n_bytes, "little")


def redraw_at_each_call(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Draw the permanent response anew at each call."""
    del secret
    return derive_permanent_response(os.urandom(32), name, "", params, bits)


def ignore_metric_name(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Derive the permanent response without the metric's name, so two metrics share their coins.

    The report of a metric whose value is known then reveals the coins of the other metric.
    """
    del name
    return derive_permanent_response(secret, "any", "", params, bits)


def enlarge_f(difference: float, secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Derive the permanent response with f + `difference` in place of f."""
    wrong_params = dataclasses.replace(params, f=params.f + difference, insecure=True)
    return derive_permanent_response(secret, name, "", wrong_params, bits)


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
"""Wrong rules of the permanent response, by the name of the fault. A rule is a threshold and a bit.
The first rule whose threshold is greater than the coin forces the bit. The true bit stays if no
rule applies. The right rules are (t_1, 1) and (t_1 + t_0, 0)."""


def force_bits_by_wrong_rules(
    fault: str, params: Params, bits: bytes, coins: Sequence[int]
) -> bytes:
    """Return the permanent response by the wrong rules of a fault in `FORCED`."""
    truth, rules = int.from_bytes(bits, "little"), FORCED[fault](params)
    response = 0
    for i, coin in enumerate(coins):
        response |= next((bit for threshold, bit in rules if coin < threshold), truth >> i & 1) << i
    return response.to_bytes(params.n_bytes, "little")


def make_wrong_thresholds(fault: str) -> Permanent:
    """Return a permanent response that follows the wrong rules of a fault in `FORCED`."""

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        return force_bits_by_wrong_rules(
            fault, params, bits, derive_permanent_coins(secret, name, "", params, bits)
        )

    return permanently


def use_one_coin_for_all_bits(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Return a permanent response in which the coin of bit 0 decides on every bit."""
    coin = derive_permanent_coins(secret, name, "", params, bits)[0]
    if coin >= params.t_1 + params.t_0:
        return bits
    return ((1 << params.k) - 1 if coin < params.t_1 else 0).to_bytes(params.n_bytes, "little")


def share_coins_of_neighbours(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Return a permanent response in which bits 1 and 2, 3 and 4, and so on share a coin."""
    coins = derive_permanent_coins(secret, name, "", params, bits)
    return draw_permanent_response(bits, params, lambda n: [coins[(i + 1) // 2] for i in range(n)])


def omit_permanent_noise_on_some_devices(
    probability: float,
) -> Callable[[bytes, str, Params, bytes], bytes]:
    """Return a permanent response without noise on this share of the devices.

    The secret decides, so a device has either all its noise or none.
    """

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        is_noiseless = int.from_bytes(secret[-4:], "little") < probability * ONE
        return bits if is_noiseless else derive_permanent_response(secret, name, "", params, bits)

    return permanently


def omit_fresh_noise_in_some_reports(probability: float) -> Callable[[bytes, Params], bytes]:
    """Return an instantaneous response without noise in this share of the reports."""

    def instantly(permanent: bytes, params: Params) -> bytes:
        is_noiseless = draw_system_coins(1)[0] < probability * ONE
        return permanent if is_noiseless else draw_instantaneous_response(permanent, params)

    return instantly


def omit_fresh_noise_on_some_devices(probability: float, metric: Metric) -> Respond:
    """Start an encoder without instantaneous noise on this share of the devices."""
    respond = start(metric)

    def respond_without_fresh_noise(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        is_noiseless = int.from_bytes(secret[-4:], "little") < probability * ONE
        report = response.permanent if is_noiseless and response.permanent else response.report
        return Response(response.cohort, report, response.permanent)

    return respond_without_fresh_noise


def share_coin_of_bits_0_and_5(permanent: bytes, params: Params) -> bytes:
    """Return an instantaneous response in which bits 0 and 5 share a coin."""
    coins = list(draw_system_coins(params.k))
    coins[5] = coins[0]
    return draw_instantaneous_response(permanent, params, lambda n: coins[:n])


def use_p_for_q(permanent: bytes, params: Params) -> bytes:
    """Return an instantaneous response in which a 1 is sent as 1 with p in place of q."""
    return draw_instantaneous_response(bytes(len(permanent)), params)


def respond_honestly(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Derive the permanent response of the protocol."""
    return derive_permanent_response(secret, name, "", params, bits)


def start(
    metric: Metric,
    *,
    permanently: Permanent = respond_honestly,
    instantly: Instantaneous = draw_instantaneous_response,
    shows_permanent: bool = True,
) -> Respond:
    """Start an encoder from a permanent and an instantaneous response, by default the right ones.

    If `shows_permanent` is true, the audit also gets the permanent responses, as from a library.
    Otherwise it gets reports only, as from a program that nobody can look into.
    """
    params = metric.params
    encoder = get_encoder(params)

    def respond(secret: bytes, name: str, value: str) -> Response:
        cohort = derive_cohort(secret, name, "", params)
        bits = encoder.encode(encoder.parse_value(value), cohort)
        permanent = permanently(secret, name, params, bits)
        visible = permanent if shows_permanent else None
        return Response(cohort, instantly(permanent, params), visible)

    return respond


def redraw_at_each_start(metric: Metric, *, shows_permanent: bool = True) -> Respond:
    """Start an encoder that draws other permanent responses after each restart of the program."""
    salt = os.urandom(16)

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        return derive_permanent_response(secret[:16] + salt, name, "", params, bits)

    return start(metric, permanently=permanently, shows_permanent=shows_permanent)


def redraw_after_50_reports(metric: Metric) -> Respond:
    """Start an encoder whose devices draw a new permanent response after 50 reports."""
    reports: Counter[bytes] = Counter()

    def permanently(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
        reports[secret] += 1
        # The epoch of the scope changes after 50 reports, and so do the coins.
        epoch = f"{reports[secret] // 51}"
        return derive_permanent_response(secret, name, epoch, params, bits)

    return start(metric, permanently=permanently)


def shorten_secrets_to_twelve_bits(metric: Metric) -> Respond:
    """Start an encoder that uses 12 bits of a secret, so many devices have equal noise."""
    respond = start(metric)

    def respond_by_short_secret(secret: bytes, name: str, value: str) -> Response:
        short = int.from_bytes(secret[:2], "little") & 0xFFF
        return respond(short.to_bytes(32, "little"), name, value)

    return respond_by_short_secret


def share_coins_of_two_devices(metric: Metric, *, distance: int = 1) -> Respond:
    """Start an encoder in which pairs of devices share their fresh coins.

    Devices are numbered in the order of their first reports. `distance` is the difference of the
    numbers of the two devices of a pair.
    """
    numbers: dict[bytes, int] = {}
    reports: Counter[bytes] = Counter()
    # Coins by the first device of a pair, and by the number of the report.
    drawn: dict[tuple[int, int], Sequence[int]] = {}

    def respond(secret: bytes, name: str, value: str) -> Response:
        reports[secret] += 1
        number = numbers.setdefault(secret, len(numbers))
        # With distance 3, the pairs are 0 and 3, 1 and 4, 2 and 5, 6 and 9, and so on.
        first_of_pair = number - number // distance % 2 * distance
        key = first_of_pair, reports[secret]

        def instantly(permanent: bytes, params: Params) -> bytes:
            return draw_instantaneous_response(
                permanent, params, lambda n: drawn.setdefault(key, draw_system_coins(n))
            )

        return start(metric, instantly=instantly)(secret, name, value)

    return respond


def derive_cohort_from_length(metric: Metric) -> Respond:
    """Start an encoder in which the cohort of a device depends on the length of its value.

    Every cohort stays equally likely for every value, so a histogram of cohorts does not show the
    fault. A change of the cohort reveals that the length of the value has changed.
    """
    respond = start(metric)

    def respond_by_length(secret: bytes, name: str, value: str) -> Response:
        key = hashlib.sha256(secret + str(len(value)).encode()).digest()
        return respond(key, name, value)

    return respond_by_length


def omit_noise_for_canary(metric: Metric) -> Respond:
    """Start an encoder that reports the value "canary" without noise, and all others with noise."""
    return omit_noise_where(metric, lambda value: value == "canary")


def omit_noise_where(metric: Metric, is_noiseless: Callable[[str], bool]) -> Respond:
    """Start an encoder that reports those values without noise for which a condition is true."""
    respond, encoder = start(metric), get_encoder(metric.params)

    def respond_without_noise(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        bits = encoder.encode(value, response.cohort)
        return Response(response.cohort, bits, bits) if is_noiseless(value) else response

    return respond_without_noise


def omit_noise_for_empty_text(metric: Metric) -> Respond:
    """Start an encoder that reports the empty text without noise."""
    return omit_noise_where(metric, lambda value: not value)


def omit_noise_for_long_text(metric: Metric) -> Respond:
    """Start an encoder that reports texts of more than 256 bytes without noise."""
    return omit_noise_where(metric, lambda value: len(value) > 256)


def omit_fresh_noise_of_first_report(metric: Metric) -> Respond:
    """Start an encoder whose first report after the start of the program has no fresh noise."""
    respond, started = start(metric), list[str]()

    def respond_first_without_noise(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        is_first = not started
        started.append(name)
        assert response.permanent is not None
        return response._replace(report=response.permanent) if is_first else response

    return respond_first_without_noise


def leak_in_last_bit(metric: Metric) -> Respond:
    """Start an encoder whose last bit reveals in which half of all values the value is.

    The encoder sets the bit for one half and clears it for the other half, by a hash of the value.
    The bit is not a true bit of the value, so a comparison with the true bits misses the fault.
    """
    respond, last = start(metric), metric.params.k - 1

    def respond_with_leak(secret: bytes, name: str, value: str) -> Response:
        response = respond(secret, name, value)
        report = int.from_bytes(response.report, "little") & ~(1 << last)
        odd = hashlib.sha256(value.encode()).digest()[0] & 1
        report |= odd << last
        return response._replace(report=report.to_bytes(metric.params.n_bytes, "little"))

    return respond_with_leak


def derive_third_coin_from_two(secret: bytes, name: str, params: Params, bits: bytes) -> bytes:
    """Return a permanent response in which bit 2 changes if exactly one of bits 0 and 1 changes.

    Any two of the three bits are independent. So a test of pairs of bits cannot find the fault if
    f0 and f1 are equal. A test of patterns of three bits finds it.
    """
    response = int.from_bytes(derive_permanent_response(secret, name, "", params, bits), "little")
    truth = int.from_bytes(bits, "little")
    flips = response ^ truth
    third = (flips ^ flips >> 1) & 1
    faulty = (response & ~4) | ((truth >> 2 & 1) ^ third) << 2
    return faulty.to_bytes(params.n_bytes, "little")


def derive_coins_from_spelling(metric: Metric) -> Respond:
    """Start an encoder whose permanent coins depend on the value before normalizing.

    Two spellings of a value have equal true bits and get two permanent responses, so a device that
    changes between spellings reveals more than one response does.
    """
    respond = start(metric)

    def respond_by_spelling(secret: bytes, name: str, value: str) -> Response:
        cohort = respond(secret, name, value).cohort
        bits = get_encoder(metric.params).encode(value, cohort)
        key = hashlib.sha256(secret + value.encode()).digest()
        permanent = derive_permanent_response(key, name, "", metric.params, bits)
        report = draw_instantaneous_response(permanent, metric.params)
        return Response(cohort, report, permanent)

    return respond_by_spelling


def use_xorshift_coins(metric: Metric) -> Respond:
    """Start an encoder whose fresh coins come from a 32-bit shift register, and are predictable."""
    coins = make_xorshift_coins()
    return start(
        metric, instantly=lambda bits, params: draw_instantaneous_response(bits, params, coins)
    )


def make_twister_coins(seed: int) -> Coins:
    """Return a source of coins that is a Mersenne Twister, whose state 624 coins reveal."""
    generator = random.Random(seed)  # noqa: S311  (the planted fault)

    def coins(n: int) -> Sequence[int]:
        return [generator.getrandbits(32) for _ in range(n)]

    return coins


def use_twister_coins(metric: Metric) -> Respond:
    """Start an encoder whose fresh coins are equal after each start: they have a constant seed."""
    coins = make_twister_coins(12345)
    return start(
        metric, instantly=lambda bits, params: draw_instantaneous_response(bits, params, coins)
    )


def make_xorshift_coins() -> Coins:
    """Return a source of coins that is the 32-bit xorshift of Marsaglia (2003), with his seed."""
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


def draw_biased_coins(n: int) -> Sequence[int]:
    """Return system coins whose bit 7 is one with probability 5/8."""
    forced = (u < ONE // 4 for u in draw_system_coins(n))
    return [u | force << 7 for u, force in zip(draw_system_coins(n), forced, strict=True)]
