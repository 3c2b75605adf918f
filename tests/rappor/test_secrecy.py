"""Error messages, representations and tracebacks contain no value, secret, report or upload.

A message or a representation may reach a log, and more people read logs than reports. Each test
gives the marker `TELLTALE` or another recognisable text to the protocol, and searches for it in all
texts that the protocol returns.
"""

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
"""Marker that stands in the refused values. The project contains neither the marker nor its lower
case spelling, so a message with one of them repeats a refused value."""

TELLTALE_BASE64 = encode_base64url(TELLTALE.encode())
"""The marker in base64url, the form in which JSON contains bits and ids."""

LONE_SURROGATE = "\ud800"
"""Half of a surrogate pair. UTF-8 cannot express it, and Python's error would repeat the text."""

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
BLOOM = Params(k=12, m=4, **NOISE)
ONEHOT = Params(k=2, encoding="onehot", categories=("a", "b"), **NOISE)
BOOLEAN = Params(k=1, encoding="boolean", **NOISE)
BUCKETS = Params(k=3, encoding="buckets", categories=("0", "1"), **NOISE)
SECRET = bytes(range(32))


class Telling:
    """A value whose representation is the marker."""

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


def format_error(call: Callable[[], object]) -> str:
    """Return all texts of the error that a call raises, as a log may contain them.

    The texts are those of the error and of the chained error (`__cause__` or `__context__`).
    """
    with pytest.raises(RapporError) as raised:
        call()
    error = raised.value
    texts = [*traceback.format_exception_only(error), repr(error), str(error), repr(error.args)]
    # A traceback also shows the error that was handled when this one was raised. The clause
    # `from None` suppresses it.
    chained = error.__cause__
    if chained is None and not error.__suppress_context__:
        chained = error.__context__
    return " ".join([*texts, repr(chained), str(chained)])


REFUSED_VALUES: list[tuple[Params, object, str]] = [
    (BLOOM, TELLTALE + LONE_SURROGATE, "12 characters with a lone surrogate"),
    (BLOOM, TELLTALE.encode(), "bytes"),
    (BLOOM, Telling(), "Telling"),
    (BLOOM, [TELLTALE], "list"),
    (ONEHOT, TELLTALE + LONE_SURROGATE, "12 characters with a lone surrogate"),
    (ONEHOT, Telling(), "Telling"),
    (BOOLEAN, TELLTALE, "a str of 11 characters"),
    (BOOLEAN, Telling(), "Telling"),
    (BUCKETS, TELLTALE, "a str of 11 characters"),
    (BUCKETS, Telling(), "Telling"),
]
"""Each row contains parameters, a value of the wrong type, and the description of the value in the
message. The description is the type, with the length of a text."""


@pytest.mark.parametrize("row", range(len(REFUSED_VALUES)))
def test_refused_value_is_in_no_message_of_encoder_or_randomizer(row: int) -> None:
    """The message contains type and length of the value, from the encoder and from `encode_value`.

    `row` is an index of the table. With the value itself as argument, pytest would write the marker
    into the name of the test.
    """
    params, value, description = REFUSED_VALUES[row]
    for call in (
        lambda: get_encoder(params).encode(value, 0),
        lambda: encode_value(SECRET, build_metric(params), value),
    ):
        message = format_error(call)
        assert "a value must be" in message
        assert f", got {description}" in message
        assert TELLTALE not in message
        assert "\\ud" not in message


@pytest.mark.parametrize("name", NORMALIZERS)
def test_refused_text_is_in_no_message_of_a_normalizer(name: str) -> None:
    """The message contains neither the lone surrogate of a text nor its position."""
    message = format_error(lambda: normalize(name, TELLTALE + LONE_SURROGATE))
    assert TELLTALE not in message
    assert "ud800" not in message
    assert "position" not in message


@pytest.mark.parametrize("params", [BOOLEAN, BUCKETS], ids=lambda params: params.encoding)
def test_refused_text_of_a_command_line_is_in_no_message(params: Params) -> None:
    """A text that `parse_value` cannot convert is in no message.

    Bad case: the ValueError of Python's `float` repeats the text, and would be the chained error.
    """
    assert TELLTALE not in format_error(lambda: parse_value(params, TELLTALE))


@given(st.text(min_size=3, alphabet="XYZ"))
def test_message_about_a_text_contains_its_length_only(text: str) -> None:
    """If a number is expected, the message about a text contains its length and never the text.

    No message contains three letters of the alphabet in a row unless it repeats the text.
    """
    message = format_error(lambda: get_encoder(BUCKETS).encode(text, 0))
    assert text not in message
    assert f"{len(text)} characters" in message


@pytest.mark.parametrize("size", [31, 33, 64])
def test_refused_secret_is_in_no_message(size: int) -> None:
    """The message about a secret of the wrong length contains only the right length, 32 bytes."""
    secret = (TELLTALE.encode() * 8)[:size]
    for call in (
        lambda: derive_cohort(secret, "page", "", BLOOM),
        lambda: derive_permanent_response(secret, "page", "", BLOOM, b"\0\0"),
        lambda: encode_value(secret, build_metric(BLOOM), "a"),
    ):
        message = format_error(call)
        assert "secret must be exactly 32 bytes" in message
        assert TELLTALE not in message
        assert secret.hex() not in message


VALID_BITS = "qww"
"""Bits of a valid report: two bytes in base64url, with twelve bits."""

VALID_REPORT: dict[str, Any] = {
    "metric": "page",
    "params": BLOOM.fingerprint,
    "cohort": 0,
    "bits": VALID_BITS,
}

UNKNOWN_FINGERPRINT = "7e117a1e7e117a1e"
"""Sixteen hex digits that are no fingerprint of the metric."""

TOO_LARGE_COHORT = 71177
"""A cohort outside [0, 4). No message of the project contains its digits."""

BITS_WITH_PADDING = encode_base64url(b"\x00\x71")
"""Two bytes with bits after the twelfth one, which must be 0: AHE."""


def find_params(metric: str, fingerprint: str) -> Params | None:
    """Return the parameter set of the metric `page`, None for any other metric or fingerprint."""
    return BLOOM if (metric, fingerprint) == ("page", BLOOM.fingerprint) else None


REFUSED_REPORTS: list[object] = [
    # The report is not a JSON object with the four keys.
    TELLTALE,
    [TELLTALE],
    {TELLTALE: 1},
    VALID_REPORT | {TELLTALE: 1},
    # One of the four fields is another text, is a list, or has a lone surrogate.
    *(VALID_REPORT | {key: TELLTALE} for key in VALID_REPORT),
    *(VALID_REPORT | {key: [TELLTALE]} for key in VALID_REPORT),
    *(VALID_REPORT | {key: TELLTALE + LONE_SURROGATE} for key in VALID_REPORT),
    # One field is well-formed and wrong: an unknown metric, unknown parameters, a cohort that is
    # too large, eleven bytes of bits, and bits past the last one.
    VALID_REPORT | {"metric": TELLTALE.lower()},
    VALID_REPORT | {"params": UNKNOWN_FINGERPRINT},
    VALID_REPORT | {"cohort": TOO_LARGE_COHORT},
    VALID_REPORT | {"bits": TELLTALE_BASE64},
    VALID_REPORT | {"bits": BITS_WITH_PADDING},
]


@pytest.mark.parametrize("row", range(len(REFUSED_REPORTS)))
def test_refused_report_is_in_no_message(row: int) -> None:
    """The error of a refused report contains no field of the report.

    It contains what the parameters require. The valid bits are hidden too, because a report with
    another wrong field contains them.
    """
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": [REFUSED_REPORTS[row]]}).encode()
    _, (error,) = parse_upload(body, find_params)
    assert isinstance(error, ReportError)
    message = f"{error} {error!r} {error.args} {error.__cause__}"
    if not error.__suppress_context__:
        message += f"{error.__context__!r}"
    for hidden in (
        TELLTALE,
        TELLTALE_BASE64,
        UNKNOWN_FINGERPRINT[:8],
        str(TOO_LARGE_COHORT),
        VALID_BITS,
        BITS_WITH_PADDING,
    ):
        assert hidden.lower() not in message.lower()


HUGE_NUMBER = "7117" + "7" * 5000
"""An integer of more digits than Python converts. Python's error contains the number of digits."""


@pytest.mark.parametrize(
    "body",
    [
        # Text that is not JSON, JSON that ends too early, and a byte that is not UTF-8.
        TELLTALE.encode(),
        b'{"' + TELLTALE.encode(),
        TELLTALE.encode() + b"\xff",
        # JSON that is not an object with the three keys of an upload.
        json.dumps({TELLTALE: 1}).encode(),
        json.dumps([TELLTALE]).encode(),
        # A wrong version, three wrong ids and wrong reports. The third id has eleven bytes in place
        # of sixteen.
        json.dumps({"v": TELLTALE, "id": "A" * 22, "reports": [VALID_REPORT]}).encode(),
        json.dumps({"v": 1, "id": TELLTALE, "reports": [VALID_REPORT]}).encode(),
        json.dumps({"v": 1, "id": TELLTALE + LONE_SURROGATE, "reports": [VALID_REPORT]}).encode(),
        json.dumps({"v": 1, "id": TELLTALE_BASE64, "reports": [VALID_REPORT]}).encode(),
        json.dumps({"v": 1, "id": "A" * 22, "reports": TELLTALE}).encode(),
        # A key that occurs twice.
        b'{"' + TELLTALE.encode() + b'":1,"' + TELLTALE.encode() + b'":2}',
        b'{"v":' + HUGE_NUMBER.encode() + b"}",
    ],
)
def test_refused_upload_is_in_no_message(body: bytes) -> None:
    """The error of a refused upload contains no key, id or byte of the upload.

    The errors of Python's decoders name a byte ("0xff"), a position ("char 0", "position 11") or a
    number of digits ("has 5004 digits"). None of them is repeated.
    """
    message = format_error(lambda: parse_upload(body, find_params))
    for hidden in (TELLTALE, TELLTALE_BASE64, "0xff", "char ", "position", "7117", "digits"):
        assert hidden not in message


def test_representations_of_accepted_values_contain_no_value() -> None:
    """Representations contain no value, true bits, permanent response, report bits or secret.

    The parameters have 128 bits, so that random bits do not stand in a representation by chance.
    Bad case: with 12 bits, the base64url text of a report without ones, AAA, stood in the id.
    """
    params = Params.profile("balanced")
    encoded = encode_value(SECRET, build_metric(params), TELLTALE)
    upload = Upload(id="A" * 22, reports=(encoded.report,))
    texts = f"{encoded} {encoded!r} {upload} {upload!r} {get_encoder(params)!r}"
    for hidden in (encoded.bits, encoded.permanent, encoded.report.bits, SECRET):
        escaped_bytes = repr(hidden).removeprefix("b")[1:-1]  # without the quotation marks
        assert escaped_bytes not in texts
        assert encode_base64url(hidden) not in texts
        assert hidden.hex() not in texts
    assert TELLTALE not in texts
