"""The exact audit (`audit_exactly`): outputs of an encoder are compared with those of the protocol.

The audit sends inputs with a device secret and all coins, so that the outputs (cohort, true bits,
permanent response, report) are determined. A second implementation must pass, in this process or in
another one. An encoder with one planted fault must fail, and the audit must name the first field
that differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable

import mmh3
import pytest
import reference
from audits import SMALL
from planted_faults import FORCED, forced
from registries import metric_of

from rappor import Params, ParamsError, ReportError
from rappor.auditing import (
    JsonLines,
    Sampler,
    audit,
    audit_exactly,
    compute_reference_outputs,
    create_reference_function,
)
from rappor.auditing.reference_encoder import DeviceInputs, DeviceOutputs
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import (
    draw_instantaneous_response,
    draw_permanent_response,
    encode_scope,
    expand,
)

Subject = Callable[[DeviceInputs], DeviceOutputs]
"""An encoder under test. It returns the outputs for the inputs of one device."""


def select_part(value: str, part: str) -> str:
    """Return the text that a part reports of a string: its first n characters for `prefix:n`."""
    return value[: int(part.split(":")[1])] if part.startswith("prefix") else value


def name_bucket(
    question: DeviceInputs,
    cohort: int,
    own: list[int],
    *,
    draw: Callable[[list[int], int, int, int, list[int]], int] = reference.draw_bucket,
    fresh: bytes = b"",
) -> DeviceOutputs:
    """Report one bucket of a set, drawn from the buckets of its items (`own`).

    `draw` is the drawing of the reference, or one with a fault. `fresh` is added to the string from
    which coins are derived, so that coins are new for each report.
    """
    secret, metric, epoch, _, params, _ = question
    k, n = params.k, params.items
    scope = reference.encode_scope(metric, epoch, params.permanent_fingerprint)
    coins = reference.derive_bucket_coins(secret, scope + fresh, own, k, n)
    assert params.keep is not None
    bucket = draw(own, k, n, round(params.keep * 2**32), coins)
    report = reference.pack([int(i == bucket) for i in range(k)])
    bits = reference.pack([int(i in own) for i in range(k)])
    return DeviceOutputs(cohort, bits, report, report)


def second_implementation(question: DeviceInputs) -> DeviceOutputs:
    """Encode by the reference implementation of the tests.

    The reference has no true bits of categories and buckets, which come from the package.
    """
    secret, metric, epoch, value, params, coins = question
    assert coins is not None
    named = reference.encode_scope(metric, epoch, params.permanent_fingerprint)
    cohort = reference.derive_cohort(secret, named, params.m)
    encoding = get_encoder(params)
    bits = reference.unpack(encoding.encode(encoding.parse_value(value), cohort), params.k)
    if params.encoding == "bloom" and params.normalize == "none":
        bits = reference.compute_bloom_filter(
            select_part(value, params.part), cohort, params.k, params.h
        )
    if params.keep is not None:
        own = [i for i, bit in enumerate(bits) if bit]
        return name_bucket(question, cohort, own)
    memoised = reference.derive_permanent_response(secret, named, params.t_1, params.t_0, bits)
    report = reference.draw_instantaneous_response(memoised, params.t_p, params.t_q, list(coins))
    return DeviceOutputs(cohort, *map(reference.pack, (bits, memoised, report)))


@pytest.mark.slow
def test_the_protocol_passes() -> None:
    """The shipped encoder in this process and in another, and a second implementation, pass."""
    process = JsonLines(SMALL.params, [sys.executable, "-m", "rappor.auditing.reference_encoder"])
    for subject in (compute_reference_outputs, process, second_implementation, planted()):
        (check,) = audit_exactly(subject, SMALL, vectors=200).checks
        assert check.verdict == "pass", check.detail
        assert check.detail == "all 200 outputs equal the protocol's"


def planted(
    *,
    order: str = "little",
    prefix: bytes = b"rappor/1/cohort\0",
    seed: int = 0,
    late: int = 0,
    fault: str = "",
) -> Subject:
    """Return an encoder with one fault, or without a fault by default.

    Parameters
    ----------
    order : byte order in which derived bytes are read as coins.
    prefix : beginning of the string from which the cohort is derived.
    seed : number added to the seeds of the hash functions.
    late : number subtracted from fresh coins. 1 turns the comparison `<` into `<=`.
    fault : name of another fault, such as "bit order".
    """

    def read(data: bytes) -> list[int]:
        return [int.from_bytes(data[i : i + 4], order) for i in range(0, len(data), 4)]  # type: ignore[arg-type]

    def encode_with_fault(question: DeviceInputs) -> DeviceOutputs:
        secret, metric, epoch, value, params, coins = question
        if params.keep is not None:
            return compute_reference_outputs(question)
        assert coins is not None
        if fault == "secret":
            secret = hashlib.sha256(secret).digest()
        named = encode_scope(metric, epoch, params)
        cohort = read(expand(secret, prefix + named, 4))[0] * params.m >> 32
        encoding = get_encoder(params)
        bits = encoding.encode(encoding.parse_value(value), cohort)
        if params.encoding == "bloom" and params.normalize == "none":
            digest = hashlib.sha256(select_part(value, params.part).encode()).digest()[:16]
            seeds = range(cohort * params.h + seed, (cohort + 1) * params.h + seed)
            places = {mmh3.hash(digest, seed, signed=False) * params.k >> 32 for seed in seeds}
            bits = sum(1 << i for i in places).to_bytes(params.n_bytes, "little")
        if fault == "bit order":
            whole = f"{int.from_bytes(bits, 'little'):0{params.k}b}"[::-1]
            bits = int(whole, 2).to_bytes(params.n_bytes, "little")
        info = b"rappor/1/permanent\0" + named + b"\0" + bits
        drawn = read(expand(secret, info, 4 * params.k))
        noise = dataclasses.replace(params, f=params.f / 2) if fault == "f/2" else params
        memoised = draw_permanent_response(bits, noise, lambda n: drawn[:n])
        if fault in FORCED:
            memoised = forced(fault, params, bits, drawn)
        report = draw_instantaneous_response(
            memoised, params, lambda n: [u - late for u in coins[:n]]
        )
        return DeviceOutputs(cohort, bits, memoised, report)

    return encode_with_fault


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        (planted(late=1), "report"),  # <= for <: a quarter of the coins are at a threshold
        (planted(order="big"), "cohort"),
        (planted(prefix=b"rappor/1/cohort"), "cohort"),
        (planted(seed=1), "bits"),
        (planted(fault="bit order"), "bits"),
        (planted(fault="f/2"), "permanent"),
        (planted(fault="secret"), "cohort"),
        *((planted(fault=fault), "permanent") for fault in FORCED),
    ],
    ids=["<=", "big-endian", "cohort's scope", "hash seed", "bit order", "f/2", "secret", *FORCED],
)
def test_planted_faults_are_found_and_named(fault: Subject, field: str) -> None:
    """The sentence of the audit names the first field that differs from the protocol."""
    bloom = dataclasses.replace(SMALL, params=dataclasses.replace(SMALL.params, m=64))
    (check,) = audit_exactly(fault, bloom, vectors=200).checks
    assert check.verdict == "fault"
    assert f"the first in {field}" in check.detail


def test_outputs_without_all_fields_are_refused() -> None:
    """A program that writes only the cohort is refused, because outputs have four fields."""
    program = "import sys; [print('{\"cohort\": 0}') for _ in sys.stdin]"
    subject = JsonLines(SMALL.params, [sys.executable, "-c", program])
    with pytest.raises(ReportError, match="a report must be"):
        audit_exactly(subject, SMALL, vectors=10)


# The faults below have the arguments of `reference.draw_bucket`: the buckets `own` of the items,
# the number k of buckets, the number n of buckets to choose, the threshold t below which the coin
# u[n] keeps the truth, and the coins u.


def draw_without_padding(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Draw from the own buckets without padding, so that a small set shows its items more often."""
    chosen = reference.choose_own_buckets(own, k, n, u) if len(own) > n or not own else own
    return chosen[u[n + 1] * len(chosen) >> 32] if u[n] < t else u[n + 1] * k >> 32


def draw_with_repeated_padding(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Pad a small set by repeating its own buckets instead of drawing other buckets."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    if own and len(own) < n:
        chosen = sorted((own * n)[:n])
    return chosen[u[n + 1] * n >> 32] if u[n] < t else u[n + 1] * k >> 32


def draw_with_a_remainder(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Take the remainder of a coin, which prefers small indices."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    return chosen[u[n + 1] % n] if u[n] < t else u[n + 1] % k


def draw_the_first(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Report the smallest own bucket instead of drawing one of the own buckets."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    return chosen[0] if u[n] < t else u[n + 1] * k >> 32


def cut_by_order(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Cut a large set to its first n buckets instead of drawing n of them."""
    return reference.draw_bucket(own[:n], k, n, t, u)


def mark_the_empty_set(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Report bucket 0 for the empty set."""
    return reference.draw_bucket(own, k, n, t, u) if own else 0


def use_other_k(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Draw from k - 1 buckets, so that the last bucket is never reported."""
    return reference.draw_bucket([i for i in own if i < k - 1], k - 1, min(n, k - 2), t, u)


SET_FAULTS: dict[str, Callable[[list[int], int, int, int, list[int]], int]] = {
    "no padding": draw_without_padding,
    "padding repeats items": draw_with_repeated_padding,
    "biased index": draw_with_a_remainder,
    "choice by order": draw_the_first,
    "cut by order": cut_by_order,
    "empty set has its own bucket": mark_the_empty_set,
    "k of another n": use_other_k,
}
PLUGINS = metric_of(
    Params(k=24, m=64, items=3, keep=0.5, encoding="set"), epoch="quarter", interval="epoch"
)


def plant_in_sets(
    draw: Callable[[list[int], int, int, int, list[int]], int] = reference.draw_bucket,
    *,
    is_fresh: bool = False,
    is_one_cohort: bool = False,
) -> Subject:
    """Return an encoder with one fault in the reports of sets, and with no fault elsewhere."""

    def encode_with_fault(question: DeviceInputs) -> DeviceOutputs:
        expected = compute_reference_outputs(question)
        if question.params.encoding != "set":
            return expected
        cohort = 0 if is_one_cohort else expected.cohort
        encoding = get_encoder(question.params)
        packed = encoding.encode(encoding.parse_value(question.value), cohort)
        own = [i for i, bit in enumerate(reference.unpack(packed, question.params.k)) if bit]
        fresh = os.urandom(8) if is_fresh else b""
        return name_bucket(question, cohort, own, draw=draw, fresh=fresh)

    return encode_with_fault


@pytest.mark.slow
@pytest.mark.parametrize("draw", SET_FAULTS.values(), ids=SET_FAULTS)
def test_planted_faults_of_sets_are_found(
    draw: Callable[[list[int], int, int, int, list[int]], int],
) -> None:
    """Each fault changes the reported bucket for some coins. 500 inputs contain such coins."""
    (check,) = audit_exactly(plant_in_sets(draw), PLUGINS, vectors=500, seed=1).checks
    assert check.verdict == "fault"
    assert "the first in permanent" in check.detail


@pytest.mark.slow
def test_sets_without_a_fault_pass_and_faults_of_coins_are_found() -> None:
    """The reference passes. Fresh coins for each report, and one cohort for all devices, fail."""
    (check,) = audit_exactly(plant_in_sets(), PLUGINS, vectors=500, seed=1).checks
    assert check.verdict == "pass"
    for fault, field in (
        (plant_in_sets(is_fresh=True), "permanent"),
        (plant_in_sets(is_one_cohort=True), "cohort"),
    ):
        (check,) = audit_exactly(fault, PLUGINS, vectors=500, seed=1).checks
        assert check.verdict == "fault"
        assert f"the first in {field}" in check.detail


def test_a_black_box_audit_refuses_reports_of_one_bucket() -> None:
    """A black-box audit assumes independent noise on each bit, so it refuses metrics of sets.

    The message names the exact audit as remedy.
    """
    for call in (
        lambda: create_reference_function(PLUGINS),
        lambda: audit(Sampler(PLUGINS.params, lambda: lambda _: "1"), PLUGINS, trials=1000),
    ):
        with pytest.raises(ParamsError, match="must be audited bit by bit: rappor audit --exact"):
            call()


def test_an_encoder_that_ignores_the_last_field_is_found() -> None:
    """A quarter of the strings are tuples, and the first output without the field is named."""

    def ignore_last_field(query: DeviceInputs) -> DeviceOutputs:
        fields = query.value.split("\x1f")
        if query.params.field_names:
            query = query._replace(value="\x1f".join([*fields[:-1], fields[0]]))
        return compute_reference_outputs(query)

    (check,) = audit_exactly(ignore_last_field, SMALL, vectors=200, seed=1).checks
    assert check.verdict == "fault"
    assert "the first in bits" in check.detail
