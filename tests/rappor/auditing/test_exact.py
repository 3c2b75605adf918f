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
from audits import SMALL_METRIC
from planted_faults import FORCED, force_bits_by_wrong_rules
from registries import build_metric
from set_faults import SET_FAULTS, Draw

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

EncoderUnderTest = Callable[[DeviceInputs], DeviceOutputs]
"""Type of an encoder. It returns the outputs for the inputs of one device."""


def select_part(value: str, part: str) -> str:
    """Return the text that a part reports: the first n characters for `prefix:n`, or all of it."""
    return value[: int(part.split(":")[1])] if part.startswith("prefix") else value


def report_bucket(
    inputs: DeviceInputs,
    cohort: int,
    own: list[int],
    *,
    draw: Draw = reference.draw_bucket,
    fresh: bytes = b"",
) -> DeviceOutputs:
    """Return the outputs for a set. The reported bucket is drawn from its buckets, `own`.

    `draw` is the function of the reference that draws a bucket, or one with a fault. Coins are
    derived from a string that ends with `fresh`, so random `fresh` bytes give fresh coins.
    """
    secret, metric, epoch, _, params, _ = inputs
    k, n = params.k, params.items
    scope = reference.encode_scope(metric, epoch, params.permanent_fingerprint)
    coins = reference.derive_bucket_coins(secret, scope + fresh, own, k, n)
    assert params.keep is not None
    bucket = draw(own, k, n, round(params.keep * 2**32), coins)
    report = reference.pack([int(i == bucket) for i in range(k)])
    bits = reference.pack([int(i in own) for i in range(k)])
    return DeviceOutputs(cohort, bits, report, report)


def second_implementation(inputs: DeviceInputs) -> DeviceOutputs:
    """Encode by the reference implementation of the tests (`tests/support/reference.py`).

    The reference has no encodings of categories and buckets, so their true bits are the package's.
    """
    secret, metric, epoch, value, params, coins = inputs
    assert coins is not None
    scope = reference.encode_scope(metric, epoch, params.permanent_fingerprint)
    cohort = reference.derive_cohort(secret, scope, params.m)
    encoding = get_encoder(params)
    bits = reference.unpack(encoding.encode(encoding.parse_value(value), cohort), params.k)
    if params.encoding == "bloom" and params.normalize == "none":
        bits = reference.compute_bloom_filter(
            select_part(value, params.part), cohort, params.k, params.h
        )
    if params.keep is not None:
        own = [i for i, bit in enumerate(bits) if bit]
        return report_bucket(inputs, cohort, own)
    memoized = reference.derive_permanent_response(secret, scope, params.t_1, params.t_0, bits)
    report = reference.draw_instantaneous_response(memoized, params.t_p, params.t_q, list(coins))
    return DeviceOutputs(cohort, *map(reference.pack, (bits, memoized, report)))


@pytest.mark.slow
def test_the_protocol_passes() -> None:
    """The package's encoder, in this and in another process, and a second implementation pass."""
    process = JsonLines(
        SMALL_METRIC.params, [sys.executable, "-m", "rappor.auditing.reference_encoder"]
    )
    for encoder in (compute_reference_outputs, process, second_implementation, plant_fault()):
        (check,) = audit_exactly(encoder, SMALL_METRIC, vectors=200).checks
        assert check.verdict == "pass", check.detail
        assert check.detail == "all 200 outputs equal the protocol's"


def plant_fault(
    *,
    order: str = "little",
    prefix: bytes = b"rappor/1/cohort\0",
    seed: int = 0,
    late: int = 0,
    fault: str = "",
) -> EncoderUnderTest:
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

    def encode_with_fault(inputs: DeviceInputs) -> DeviceOutputs:
        secret, metric, epoch, value, params, coins = inputs
        if params.keep is not None:
            return compute_reference_outputs(inputs)
        assert coins is not None
        if fault == "secret":
            secret = hashlib.sha256(secret).digest()
        scope = encode_scope(metric, epoch, params)
        cohort = read(expand(secret, prefix + scope, 4))[0] * params.m >> 32
        encoding = get_encoder(params)
        bits = encoding.encode(encoding.parse_value(value), cohort)
        if params.encoding == "bloom" and params.normalize == "none":
            digest = hashlib.sha256(select_part(value, params.part).encode()).digest()[:16]
            seeds = range(cohort * params.h + seed, (cohort + 1) * params.h + seed)
            indices = {mmh3.hash(digest, seed, signed=False) * params.k >> 32 for seed in seeds}
            bits = sum(1 << i for i in indices).to_bytes(params.n_bytes, "little")
        if fault == "bit order":
            reversed_bits = f"{int.from_bytes(bits, 'little'):0{params.k}b}"[::-1]
            bits = int(reversed_bits, 2).to_bytes(params.n_bytes, "little")
        info = b"rappor/1/permanent\0" + scope + b"\0" + bits
        drawn = read(expand(secret, info, 4 * params.k))
        noise = dataclasses.replace(params, f=params.f / 2) if fault == "f/2" else params
        memoized = draw_permanent_response(bits, noise, lambda n: drawn[:n])
        if fault in FORCED:
            memoized = force_bits_by_wrong_rules(fault, params, bits, drawn)
        report = draw_instantaneous_response(
            memoized, params, lambda n: [u - late for u in coins[:n]]
        )
        return DeviceOutputs(cohort, bits, memoized, report)

    return encode_with_fault


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        (plant_fault(late=1), "report"),  # a quarter of the audit's coins equal a threshold
        (plant_fault(order="big"), "cohort"),
        (plant_fault(prefix=b"rappor/1/cohort"), "cohort"),
        (plant_fault(seed=1), "bits"),
        (plant_fault(fault="bit order"), "bits"),
        (plant_fault(fault="f/2"), "permanent"),
        (plant_fault(fault="secret"), "cohort"),
        *((plant_fault(fault=fault), "permanent") for fault in FORCED),
    ],
    ids=["<=", "big-endian", "cohort's scope", "hash seed", "bit order", "f/2", "secret", *FORCED],
)
def test_planted_faults_are_found_and_named(fault: EncoderUnderTest, field: str) -> None:
    """The detail of the check names the first output that differs from the protocol."""
    bloom = dataclasses.replace(SMALL_METRIC, params=dataclasses.replace(SMALL_METRIC.params, m=64))
    (check,) = audit_exactly(fault, bloom, vectors=200).checks
    assert check.verdict == "fault"
    assert f"the first in {field}" in check.detail


def test_outputs_without_all_fields_are_refused() -> None:
    """A program that writes only the cohort is refused, because outputs have four fields."""
    program = "import sys; [print('{\"cohort\": 0}') for _ in sys.stdin]"
    encoder = JsonLines(SMALL_METRIC.params, [sys.executable, "-c", program])
    with pytest.raises(ReportError, match="a report must be"):
        audit_exactly(encoder, SMALL_METRIC, vectors=10)


PLUGINS = build_metric(
    Params(k=24, m=64, items=3, keep=0.5, encoding="set"), epoch="quarter", interval="epoch"
)


def plant_in_sets(
    draw: Draw = reference.draw_bucket,
    *,
    is_fresh: bool = False,
    is_one_cohort: bool = False,
) -> EncoderUnderTest:
    """Return an encoder with one fault in the reports of sets, and with no fault elsewhere.

    Parameters
    ----------
    draw : function that draws the reported bucket, `reference.draw_bucket` or one with a fault.
    is_fresh : draw fresh coins for each report. The protocol derives them from the secret.
    is_one_cohort : put all devices into cohort 0.
    """

    def encode_with_fault(inputs: DeviceInputs) -> DeviceOutputs:
        expected = compute_reference_outputs(inputs)
        if inputs.params.encoding != "set":
            return expected
        cohort = 0 if is_one_cohort else expected.cohort
        encoding = get_encoder(inputs.params)
        packed = encoding.encode(encoding.parse_value(inputs.value), cohort)
        own = [i for i, bit in enumerate(reference.unpack(packed, inputs.params.k)) if bit]
        fresh = os.urandom(8) if is_fresh else b""
        return report_bucket(inputs, cohort, own, draw=draw, fresh=fresh)

    return encode_with_fault


@pytest.mark.slow
@pytest.mark.parametrize("draw", SET_FAULTS.values(), ids=SET_FAULTS)
def test_planted_faults_of_sets_are_found(
    draw: Draw,
) -> None:
    """The audit finds each fault of drawing a bucket. Each fault changes the bucket for some coins.

    The coins of 500 inputs are enough for every fault.
    """
    (check,) = audit_exactly(plant_in_sets(draw), PLUGINS, vectors=500, seed=1).checks
    assert check.verdict == "fault"
    assert "the first in permanent" in check.detail


@pytest.mark.slow
def test_faults_of_coins_and_cohorts_of_sets_are_found() -> None:
    """Fresh coins for each report, and one cohort for all devices, are found.

    The encoder without a fault passes.
    """
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
    """An encoder of tuples that replaces the last field by the first has wrong true bits.

    A quarter of the strings that the audit sends are tuples.
    """

    def ignore_last_field(inputs: DeviceInputs) -> DeviceOutputs:
        fields = inputs.value.split("\x1f")
        if inputs.params.field_names:
            inputs = inputs._replace(value="\x1f".join([*fields[:-1], fields[0]]))
        return compute_reference_outputs(inputs)

    (check,) = audit_exactly(ignore_last_field, SMALL_METRIC, vectors=200, seed=1).checks
    assert check.verdict == "fault"
    assert "the first in bits" in check.detail
