"""The white-box audit: the protocol passes in any language, and each planted fault is found."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable

import mmh3
import pytest
import reference
from audits import SMALL
from planted_faults import FORCED, forced

from rappor import ReportError
from rappor.auditing import JsonLines, audit_exactly, compute_reference_outputs
from rappor.auditing.reference_encoder import DeviceInputs, DeviceOutputs
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import (
    draw_instantaneous_response,
    draw_permanent_response,
    encode_scope,
    expand,
)

Subject = Callable[[DeviceInputs], DeviceOutputs]


def told(value: str, part: str) -> str:
    """Return the text that a part reports of a string."""
    return value[: int(part.split(":")[1])] if part.startswith("prefix") else value


def second_implementation(question: DeviceInputs) -> DeviceOutputs:
    """Encode by the reference of the tests; true bits of other encodings are the package's."""
    secret, metric, epoch, value, params, coins = question
    assert coins is not None
    named = reference.encode_scope(metric, epoch, params.permanent_fingerprint)
    cohort = reference.derive_cohort(secret, named, params.m)
    encoding = get_encoder(params)
    bits = reference.unpack(encoding.encode(encoding.parse_value(value), cohort), params.k)
    if params.encoding == "bloom" and params.normalize == "none":
        bits = reference.compute_bloom_filter(told(value, params.part), cohort, params.k, params.h)
    memoised = reference.derive_permanent_response(secret, named, params.t_1, params.t_0, bits)
    report = reference.draw_instantaneous_response(memoised, params.t_p, params.t_q, list(coins))
    return DeviceOutputs(cohort, *map(reference.pack, (bits, memoised, report)))


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
    """Return the protocol with one fault."""

    def read(data: bytes) -> list[int]:
        return [int.from_bytes(data[i : i + 4], order) for i in range(0, len(data), 4)]  # type: ignore[arg-type]

    def answer(question: DeviceInputs) -> DeviceOutputs:
        secret, metric, epoch, value, params, coins = question
        assert coins is not None
        if fault == "secret":
            secret = hashlib.sha256(secret).digest()
        named = encode_scope(metric, epoch, params)
        cohort = read(expand(secret, prefix + named, 4))[0] * params.m >> 32
        encoding = get_encoder(params)
        bits = encoding.encode(encoding.parse_value(value), cohort)
        if params.encoding == "bloom" and params.normalize == "none":
            digest = hashlib.sha256(told(value, params.part).encode()).digest()[:16]
            seeds = range(cohort * params.h + seed, (cohort + 1) * params.h + seed)
            places = {mmh3.hash(digest, each, signed=False) * params.k >> 32 for each in seeds}
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
        # one less makes `<=` of `<`
        report = draw_instantaneous_response(
            memoised, params, lambda n: [u - late for u in coins[:n]]
        )
        return DeviceOutputs(cohort, bits, memoised, report)

    return answer


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
        *((planted(fault=each), "permanent") for each in FORCED),
    ],
    ids=["<=", "big-endian", "cohort's scope", "hash seed", "bit order", "f/2", "secret", *FORCED],
)
def test_planted_faults_are_found_and_named(fault: Subject, field: str) -> None:
    """The sentence names the first differing field, and never contains the value."""
    bloom = dataclasses.replace(SMALL, params=dataclasses.replace(SMALL.params, m=64))
    (check,) = audit_exactly(fault, bloom, vectors=200).checks
    assert check.verdict == "fault"
    assert f"the first in {field}" in check.detail


def test_answers_of_another_form_are_refused() -> None:
    """Each output must have all four fields."""
    program = "import sys; [print('{\"cohort\": 0}') for _ in sys.stdin]"
    subject = JsonLines(SMALL.params, [sys.executable, "-c", program])
    with pytest.raises(ReportError, match="a report must be"):
        audit_exactly(subject, SMALL, vectors=10)
