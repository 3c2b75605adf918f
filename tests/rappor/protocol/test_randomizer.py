"""The coins and the secret of a device, and the steps of a value to a report.

`test_randomizer_exact` tests the exact probabilities.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registries import metric_of

from rappor.base.errors import MetricError, ParamsError, ReportError
from rappor.encode import encode_value
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import (
    derive_cohort,
    derive_permanent_response,
    draw_instantaneous_response,
    draw_permanent_response,
    draw_system_coins,
    expand,
)
from rappor.protocol.wire import Report

SECRET = bytes(range(32))
PARAMS = Params(k=12, h=2, m=8, f=0.5, p=0.25, q=0.75)
METRIC = metric_of(PARAMS)


SHORT = "0b" * 22


@pytest.mark.parametrize(
    ("key", "salt", "info", "output"),
    [
        (
            *(SHORT, "000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9"),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            *(bytes(range(first, first + 0x50)).hex() for first in (0, 0x60, 0xB0)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            *(SHORT, "", ""),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_expand_agrees_with_rfc_5869(key: str, salt: str, info: str, output: str) -> None:
    """Output equals test cases 1 to 3 of appendix A. The test extracts, which devices never do."""
    extracted = hmac.digest(bytes.fromhex(salt), bytes.fromhex(key), "sha256")
    assert expand(extracted, bytes.fromhex(info), len(output) // 2).hex() == output


def test_expand_yields_up_to_its_limit() -> None:
    """A shorter output is the beginning of a longer one; the longest has 255 blocks."""
    longest = expand(SECRET, b"info", 8160)
    assert len(longest) == 8160
    for n in (0, 1, 31, 32, 33, 64):
        assert expand(SECRET, b"info", n) == longest[:n]
    for n in (-1, 8161):
        with pytest.raises(ParamsError, match=r"n must be an integer in \[0, 8160\], got"):
            expand(SECRET, b"info", n)


@pytest.mark.parametrize("secret", [b"", b"s" * 31, b"s" * 33, "s" * 32, bytearray(32), None])
def test_a_secret_has_exactly_32_bytes(secret: Any) -> None:
    """A secret of another length is refused, and the message does not contain it."""
    with pytest.raises(ParamsError, match="secret must be exactly 32 bytes") as caught:
        derive_cohort(secret, "page", "", PARAMS)
    assert "sss" not in str(caught.value)
    with pytest.raises(ParamsError, match="secret must be exactly 32 bytes"):
        derive_permanent_response(secret, "page", "", PARAMS, b"\0\0")


LARGE: dict[str, Any] = {"k": 128, "h": 2, "m": 8, "f": 0.5, "p": 0.25, "q": 0.75}


def make_coins(*coins: int) -> Any:
    """Return a source of these coins that checks the number of requested coins."""

    def draw(n: int) -> Sequence[int]:
        assert n == len(coins)
        return coins

    return draw


@pytest.mark.slow
@given(st.binary(min_size=2, max_size=2), st.integers(2, 16))
def test_padding_stays_zero(bits: bytes, k: int) -> None:
    """Input bits past bit k - 1 do not reach the response."""
    params = Params(k=k, f=0.5, p=0.25, q=0.75)
    for response in (draw_permanent_response, draw_instantaneous_response):
        noisy_bits = response(bits, params, lambda n: [0] * n)
        assert len(noisy_bits) == params.n_bytes
        assert int.from_bytes(noisy_bits, "little") == 2**k - 1


@pytest.mark.parametrize("response", [draw_permanent_response, draw_instantaneous_response])
def test_a_coin_too_few_is_an_error(response: Any) -> None:
    """A response with k - 1 coins raises an error and does not keep the last true bit."""
    with pytest.raises(ValueError, match="zip"):
        response(b"\0\0", PARAMS, lambda n: [0] * (n - 1))


def test_a_permanent_response_is_permanent() -> None:
    """It depends on all arguments but p and q, and so does the cohort."""
    params, bits = Params(**LARGE), bytes(16)
    first = derive_permanent_response(SECRET, "page", "", params, bits)
    assert derive_permanent_response(SECRET, "page", "", params, bits) == first
    assert (
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"p": 0.1, "q": 0.8}), bits)
        == first
    )
    many, other_noise = (Params(**LARGE | {"m": 65536, "q": q}) for q in (0.75, 0.8))
    assert derive_cohort(SECRET, "page", "", many) == derive_cohort(SECRET, "page", "", other_noise)
    others = [
        derive_permanent_response(bytes(32), "page", "", params, bits),
        derive_permanent_response(SECRET, "pages", "", params, bits),
        derive_permanent_response(SECRET, "page", "2026", params, bits),
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"f": 0.5000001}), bits),
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"h": 1}), bits),
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"m": 7}), bits),
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"normalize": "nfc"}), bits),
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"part": "prefix:3"}), bits),
        derive_permanent_response(SECRET, "page", "", params, b"\1" + bytes(15)),
    ]
    assert len({first, *others}) == 10


def test_system_coins_are_32_bit_and_fresh() -> None:
    """Two draws of 256 bits differ, and every bit of 1,000 coins is 0 and 1."""
    assert list(draw_system_coins(0)) == []
    coins = draw_system_coins(1000)
    assert len(coins) == 1000
    assert all(0 <= u < 2**32 for u in coins)
    assert list(draw_system_coins(8)) != list(draw_system_coins(8))
    either = [{u >> i & 1 for u in coins} for i in range(32)]
    assert either == [{0, 1}] * 32


@pytest.mark.parametrize(
    ("kind", "epoch"),
    [("life", ""), ("year", "2026"), ("quarter", "2026-Q4"), ("month", "2026-11")],
)
def test_encode_value_equals_the_single_steps(kind: str, epoch: str) -> None:
    """Cohort, bits, permanent response and report equal those of the single steps.

    The first assertion excludes that all sixteen devices are in one cohort by mistake.
    """
    metric = replace(METRIC, params=Params(**LARGE), epoch=kind)
    params = metric.params
    secrets = [bytes([i]) * 32 for i in range(16)]
    assert len({derive_cohort(secret, "page", epoch, params) for secret in secrets}) > 1
    coins = make_coins(*range(0, 128 << 25, 1 << 25))
    for secret in secrets:
        encoded = encode_value(secret, metric, "example.com", epoch=epoch, coins=coins)
        cohort = derive_cohort(secret, "page", epoch, params)
        bits = get_encoder(params).encode("example.com", cohort)
        permanent = derive_permanent_response(secret, "page", epoch, params, bits)
        assert (encoded.cohort, encoded.bits, encoded.permanent) == (cohort, bits, permanent)
        report = draw_instantaneous_response(permanent, params, coins)
        expected = Report(metric="page", params=params.fingerprint, cohort=cohort, bits=report)
        assert encoded.report == expected


def test_only_the_report_is_drawn_anew() -> None:
    """Two reports of a value differ in their instantaneous noise only (false alarm: 2^-128)."""
    metric = replace(METRIC, params=Params(k=2000, f=0.5, p=0.4, q=0.6))
    one, two = (encode_value(SECRET, metric, "a") for _ in range(2))
    assert (one.bits, one.permanent) == (two.bits, two.permanent)
    assert one.report.bits != two.report.bits


def test_a_wrong_epoch_or_value_makes_no_report() -> None:
    """An epoch of another kind and a value of a wrong type are refused."""
    with pytest.raises(MetricError, match="epoch must be empty, for life, got '2026'"):
        encode_value(SECRET, METRIC, "a", epoch="2026")
    with pytest.raises(ReportError, match="a value must be a text, got int"):
        encode_value(SECRET, METRIC, 5)


def test_representations_reveal_nothing() -> None:
    """A log of the records contains no value, true bits, permanent response or report."""
    encoded = encode_value(SECRET, METRIC, "example.com")
    fingerprint = METRIC.fingerprint
    assert repr(encoded) == f"EncodedValue(metric='page', params='{fingerprint}')"
    assert str(encoded) == repr(encoded)
    assert "bits" not in repr(encoded.report)
    for hidden in (encoded.bits, encoded.permanent, encoded.report.bits):
        assert repr(hidden) not in repr(encoded.report)
