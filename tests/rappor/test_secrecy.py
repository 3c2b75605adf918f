"""Refusals are silent: no message, representation or traceback shows what was refused."""

from __future__ import annotations

import datetime
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.base.errors import RapporError, ReportError
from rappor.encode import encode_value
from rappor.protocol.encodings import get_encoder, parse_value
from rappor.protocol.normalizers import NORMALIZERS, normalize
from rappor.protocol.params import Params
from rappor.protocol.randomizer import derive_cohort, derive_permanent_response
from rappor.protocol.wire import Upload, encode_base64url, parse_upload
from rappor.registry.metric import Metric

TELLTALE = "Telltale-7q"
"""No name, number or sentence of the project contains it, in whole or folded."""

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
BLOOM = Params(k=12, m=4, **NOISE)
ONEHOT = Params(k=2, encoding="onehot", categories=("a", "b"), **NOISE)
BOOLEAN = Params(k=1, encoding="boolean", **NOISE)
BUCKETS = Params(k=3, encoding="buckets", categories=("0", "1"), **NOISE)
SECRET = bytes(range(32))


class Telling:
    """A value whose own representation gives it away."""

    def __repr__(self) -> str:
        return TELLTALE


def build_metric(params: Params) -> Metric:
    """Return a metric of a parameter set."""
    day = datetime.date(2030, 1, 1)
    return Metric(
        name="page",
        params=params,
        description="a",
        owner="b",
        expires=day,
        epoch="life",
    )


def format_refusal(refused: Callable[[], object]) -> str:
    """Return all that a log would hold of a refusal, chained exceptions too."""
    with pytest.raises(RapporError) as caught:
        refused()
    message = "".join(traceback.format_exception_only(caught.value))
    chained = caught.value
    messages = [message, repr(chained), str(chained), repr(chained.args)]
    # What `raise ... from None` suppresses is not printed; all else is.
    cause = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
    return " ".join([*messages, repr(cause), str(cause)])


WRONG: list[tuple[Params, object]] = [
    (BLOOM, TELLTALE + "\udfff"),
    (BLOOM, TELLTALE.encode()),
    (BLOOM, Telling()),
    (BLOOM, [TELLTALE]),
    (ONEHOT, TELLTALE + "\ud800"),
    (ONEHOT, Telling()),
    (BOOLEAN, TELLTALE),
    (BOOLEAN, Telling()),
    (BUCKETS, TELLTALE),
    (BUCKETS, Telling()),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_refused_value_is_in_no_message_of_encoder_or_randomizer(number: int) -> None:
    """Type and length are told, whether the encoder is asked or the whole way is gone."""
    params, value = WRONG[number]
    message = format_refusal(lambda: get_encoder(params).encode(value, 0))
    message += format_refusal(lambda: encode_value(SECRET, build_metric(params), value))
    assert "a value must be" in message
    assert TELLTALE not in message
    assert "\\ud" not in message


@pytest.mark.parametrize("name", NORMALIZERS)
def test_refused_text_is_in_no_message_of_a_normalizer(name: str) -> None:
    """Not even the one surrogate that was wrong is shown, nor where it stood."""
    message = format_refusal(lambda: normalize(name, TELLTALE + "\udfff"))
    assert TELLTALE not in message
    assert "udfff" not in message
    assert "position" not in message


@pytest.mark.parametrize("params", [BOOLEAN, BUCKETS], ids=lambda params: params.encoding)
def test_refused_text_of_a_command_line_is_in_no_message(params: Params) -> None:
    """The reader of a number would repeat the text in its own error."""
    assert TELLTALE not in format_refusal(lambda: parse_value(params, TELLTALE))


@given(st.text(min_size=3, alphabet="XYZ"))
def test_no_text_is_ever_repeated(text: str) -> None:
    """Whatever the text, where none is expected it is told by its length."""
    assert text not in format_refusal(lambda: get_encoder(BUCKETS).encode(text, 0))
    assert f"{len(text)} characters" in format_refusal(lambda: get_encoder(BUCKETS).encode(text, 0))


@pytest.mark.parametrize("size", [31, 33, 64])
def test_refused_secret_is_in_no_message(size: int) -> None:
    """Wrong secrets are told by the length that they should have."""
    secret = (TELLTALE.encode() * 8)[:size]
    for refused in (
        lambda: derive_cohort(secret, "page", "", BLOOM),
        lambda: derive_permanent_response(secret, "page", "", BLOOM, b"\0\0"),
        lambda: encode_value(secret, build_metric(BLOOM), "a"),
    ):
        message = format_refusal(refused)
        assert TELLTALE not in message
        assert secret.hex() not in message


GOOD: dict[str, Any] = {
    "metric": "page",
    "params": BLOOM.fingerprint,
    "cohort": 0,
    "bits": "qww",
}


def lookup(metric: str, fingerprint: str) -> Params | None:
    """Know one metric under one parameter set."""
    return BLOOM if (metric, fingerprint) == ("page", BLOOM.fingerprint) else None


FAULTS: list[object] = [
    TELLTALE,
    [TELLTALE],
    {TELLTALE: 1},
    GOOD | {TELLTALE: 1},
    *(GOOD | {key: TELLTALE} for key in GOOD),
    *(GOOD | {key: [TELLTALE]} for key in GOOD),
    *(GOOD | {key: TELLTALE + "\ud800"} for key in GOOD),
    GOOD | {"metric": TELLTALE.lower()},
    GOOD | {"params": "7e117a1e7e117a1e"},
    GOOD | {"cohort": 71177},
    GOOD | {"bits": encode_base64url(TELLTALE.encode())},
    GOOD | {"bits": encode_base64url(b"\x00\x71")},
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_refused_report_is_in_no_message(number: int) -> None:
    """A refusal tells the parameters' constraint, and nothing of what was sent."""
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": [FAULTS[number]]}).encode()
    _, (error,) = parse_upload(body, lookup)
    assert isinstance(error, ReportError)
    message = f"{error} {error!r} {error.args} {error.__cause__}".lower()
    if not error.__suppress_context__:
        message += f"{error.__context__!r}".lower()
    spelt = encode_base64url(TELLTALE.encode()).lower()
    for hidden in (TELLTALE.lower(), "7e117a1e", "71177", spelt, "ahe", "qww"):
        assert hidden not in message


@pytest.mark.parametrize(
    "body",
    [
        TELLTALE.encode(),
        b'{"' + TELLTALE.encode(),
        TELLTALE.encode() + b"\xff",
        json.dumps({TELLTALE: 1}).encode(),
        json.dumps([TELLTALE]).encode(),
        json.dumps({"v": TELLTALE, "id": "A" * 22, "reports": [GOOD]}).encode(),
        json.dumps({"v": 1, "id": TELLTALE, "reports": [GOOD]}).encode(),
        json.dumps({"v": 1, "id": TELLTALE + "\ud800", "reports": [GOOD]}).encode(),
        json.dumps({"v": 1, "id": "VGVsbHRhbGUtN3E", "reports": [GOOD]}).encode(),
        json.dumps({"v": 1, "id": "A" * 22, "reports": TELLTALE}).encode(),
        b'{"' + TELLTALE.encode() + b'":1,"' + TELLTALE.encode() + b'":2}',
        b'{"v":7117' + b"7" * 5000 + b"}",
    ],
)
def test_refused_upload_is_in_no_message(body: bytes) -> None:
    """Neither keys, nor ids, nor bytes that are no text, nor where a parser stopped."""
    message = format_refusal(lambda: parse_upload(body, lookup))
    for hidden in (TELLTALE, "0xff", "char ", "position", "VGVsbHRhbGUtN3E", "7117", "digits "):
        assert hidden not in message


def test_what_is_accepted_shows_nothing_either() -> None:
    """Representations of values under way hold no value, bits, permanent response or secret."""
    encoded = encode_value(SECRET, build_metric(BLOOM), TELLTALE)
    upload = Upload(id="A" * 22, reports=(encoded.report,))
    texts = f"{encoded} {encoded!r} {upload} {upload!r} {get_encoder(BLOOM)!r}"
    for hidden in (encoded.bits, encoded.permanent, encoded.report.bits, SECRET):
        assert repr(hidden)[2:-1] not in texts
        assert encode_base64url(hidden) not in texts
        assert hidden.hex() not in texts
    assert TELLTALE not in texts
