"""The secret and the coins of a device, and the steps from a value to a report.

These tests show which inputs a response depends on, and which inputs are refused. Probabilities
are tested in `test_randomizer_exact`.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registries import build_metric

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
METRIC = build_metric(PARAMS)

SHORT = "0b" * 22
"""Key of test cases 1 and 3 of RFC 5869, in hexadecimal."""


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
    """HKDF-Expand gives the output of test cases 1 to 3 of RFC 5869, appendix A.

    The test cases begin with HKDF-Extract. A device needs only HKDF-Expand, because its secret is
    uniformly random, so the test computes the extraction itself.
    """
    extracted = hmac.digest(bytes.fromhex(salt), bytes.fromhex(key), "sha256")
    assert expand(extracted, bytes.fromhex(info), len(output) // 2).hex() == output


def test_expand_yields_up_to_its_limit() -> None:
    """A shorter output is the beginning of a longer output, up to 255 blocks of 32 bytes.

    RFC 5869 allows no more, because the number of a block is one byte.
    """
    longest = expand(SECRET, b"info", 8160)
    assert len(longest) == 8160
    for n in (0, 1, 31, 32, 33, 64):
        assert expand(SECRET, b"info", n) == longest[:n]
    for n in (-1, 8161):
        with pytest.raises(ParamsError, match=r"n must be an integer in \[0, 8160\], got"):
            expand(SECRET, b"info", n)


@pytest.mark.parametrize("secret", [b"", b"s" * 31, b"s" * 33, "s" * 32, bytearray(32), None])
def test_a_secret_has_exactly_32_bytes(secret: Any) -> None:
    """A secret of another length or type is refused, and the message does not contain the secret.

    A short secret could be guessed, and with it all noise of the device.
    """
    with pytest.raises(ParamsError, match="secret must be exactly 32 bytes") as caught:
        derive_cohort(secret, "page", "", PARAMS)
    assert "sss" not in str(caught.value)
    with pytest.raises(ParamsError, match="secret must be exactly 32 bytes"):
        derive_permanent_response(secret, "page", "", PARAMS, b"\0\0")


LARGE: dict[str, Any] = {"k": 128, "h": 2, "m": 8, "f": 0.5, "p": 0.25, "q": 0.75}
"""Fields of parameters with so many bits that two different responses never agree by chance."""


def make_coins(*coins: int) -> Any:
    """Return a source of these coins that checks the number of requested coins."""

    def draw(n: int) -> Sequence[int]:
        assert n == len(coins)
        return coins

    return draw


@pytest.mark.slow
@given(st.binary(min_size=2, max_size=2), st.integers(2, 16))
def test_padding_stays_zero(bits: bytes, k: int) -> None:
    """A response has zeros past bit k - 1, even if the true bits have ones there.

    A collector refuses a report with ones in the unused bits of its last byte. Coins of 0 force all
    k bits to 1.
    """
    params = Params(k=k, f=0.5, p=0.25, q=0.75)
    for response in (draw_permanent_response, draw_instantaneous_response):
        noisy_bits = response(bits, params, lambda n: [0] * n)
        assert len(noisy_bits) == params.n_bytes
        assert int.from_bytes(noisy_bits, "little") == 2**k - 1


@pytest.mark.parametrize("response", [draw_permanent_response, draw_instantaneous_response])
def test_a_coin_too_few_is_an_error(response: Any) -> None:
    """A response to k - 1 coins raises an error. Otherwise the last bit would be the true bit."""
    with pytest.raises(ValueError, match="zip"):
        response(b"\0\0", PARAMS, lambda n: [0] * (n - 1))


def test_a_permanent_response_is_permanent() -> None:
    """The permanent response is a function of secret, metric, epoch, true bits and parameters.

    It does not depend on p and q, and the cohort does not either. So a change of the instantaneous
    noise does not draw new permanent noise, which an observer could average with the old noise. Any
    other change gives another response, so that no two scopes share their noise.
    """
    params, bits = Params(**LARGE), bytes(16)
    first = derive_permanent_response(SECRET, "page", "", params, bits)
    assert derive_permanent_response(SECRET, "page", "", params, bits) == first
    assert (
        derive_permanent_response(SECRET, "page", "", Params(**LARGE | {"p": 0.1, "q": 0.8}), bits)
        == first
    )
    many, other_noise = (Params(**LARGE | {"m": 65536, "q": q}) for q in (0.75, 0.8))
    assert derive_cohort(SECRET, "page", "", many) == derive_cohort(SECRET, "page", "", other_noise)
    other_responses = [
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
    assert len({first, *other_responses}) == 10


def test_system_coins_are_32_bit_and_fresh() -> None:
    """Coins of the system are uniform 32-bit integers, new at each draw.

    Two draws of 256 bits differ (false alarm: 2^-256). Each of the 32 bits is 0 in some coin and 1
    in another of 1,000 coins (false alarm: 2^-994).
    """
    assert list(draw_system_coins(0)) == []
    coins = draw_system_coins(1000)
    assert len(coins) == 1000
    assert all(0 <= u < 2**32 for u in coins)
    assert list(draw_system_coins(8)) != list(draw_system_coins(8))
    values_of_each_bit = [{u >> i & 1 for u in coins} for i in range(32)]
    assert values_of_each_bit == [{0, 1}] * 32


@pytest.mark.parametrize(
    ("kind", "epoch"),
    [("life", ""), ("year", "2026"), ("quarter", "2026-Q4"), ("month", "2026-11")],
)
def test_encode_value_equals_the_single_steps(kind: str, epoch: str) -> None:
    """`encode_value` returns the cohort, bits, permanent response and report of the single steps.

    The steps are public, too, and a program may use either. The first assertion shows that the
    sixteen devices are in several cohorts. In one cohort, a wrong cohort could remain unseen.
    """
    metric = replace(METRIC, params=Params(**LARGE), epoch=kind)
    params = metric.params
    secrets = [bytes([i]) * 32 for i in range(16)]
    assert len({derive_cohort(secret, "page", epoch, params) for secret in secrets}) > 1
    # 128 coins at equal distances from 0 to 2^32.
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
    """Two reports of a value differ in their instantaneous noise only.

    2,000 bits with p = 0.4 and q = 0.6 agree in both reports with a probability under 2^-128.
    """
    metric = replace(METRIC, params=Params(k=2000, f=0.5, p=0.4, q=0.6))
    first, second = (encode_value(SECRET, metric, "a") for _ in range(2))
    assert (first.bits, first.permanent) == (second.bits, second.permanent)
    assert first.report.bits != second.report.bits


def test_a_wrong_epoch_or_value_makes_no_report() -> None:
    """An epoch of another kind and a value of a wrong type are refused."""
    with pytest.raises(MetricError, match="epoch must be empty, for life, got '2026'"):
        encode_value(SECRET, METRIC, "a", epoch="2026")
    with pytest.raises(ReportError, match="a value must be a text, got int"):
        encode_value(SECRET, METRIC, 5)


def test_representations_reveal_nothing() -> None:
    """The repr of an encoded value has no value, true bits, permanent response or report.

    Programs log such representations, and a log is read by more people than reports.
    """
    encoded = encode_value(SECRET, METRIC, "example.com")
    fingerprint = METRIC.fingerprint
    assert repr(encoded) == f"EncodedValue(metric='page', params='{fingerprint}')"
    assert str(encoded) == repr(encoded)
    assert "bits" not in repr(encoded.report)
    for hidden in (encoded.bits, encoded.permanent, encoded.report.bits):
        assert repr(hidden) not in repr(encoded.report)
