"""Forms as browsers send them, and malformed forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyBudget
from rappor_server.pages.forms import Form, check_origin, read_form
from starlette.requests import Request

from rappor.base.errors import ParamsError

# A form as browsers send it: a field that is not ASCII, a file, and an empty file. The name of the
# file is not ASCII. Its content is not UTF-8, and has a line that looks like a boundary.
BROWSER_FORM = (
    b'--B\r\nContent-Disposition: form-data; name="name"\r\n\r\nmy \xc3\xa9\r\n'
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="\xe6\x97\xa5%22.txt"\r\n'
    b"Content-Type: text/plain\r\n\r\na\r\n--b\r\n\xff\r\n"
    b'--B\r\nContent-Disposition: form-data; name="none"; filename=""\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n\r\n"
    b"--B--\r\n"
)


def make_request(headers: dict[str, str], body: bytes = b"") -> Request:
    """Return a request for http://ops.example with headers and a body."""
    all_headers = {"host": "ops.example", "content-length": f"{len(body)}"} | headers
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "query_string": b"",
        "server": ("ops.example", 80),
        "headers": [
            (name.encode(), value.encode("latin-1")) for name, value in all_headers.items()
        ],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)


def parse(body: bytes, media_type: str, *, max_bytes: int = 20_000) -> Form:
    """Parse a body as a form."""

    async def run() -> Form:
        with BodyBudget(1_000_000).allocate() as allocation:
            request = make_request({"content-type": media_type}, body)
            return await read_form(request, allocation, max_bytes=max_bytes)

    reading: Callable[[], Awaitable[Form]] = run
    return anyio.run(reading)


def test_fields_and_files_are_parsed() -> None:
    """Fields and files of both kinds of forms are parsed."""
    form = parse(BROWSER_FORM, "multipart/form-data; boundary=B")
    assert form.fields == {"name": "my é"}
    assert form.files == {"file": b"a\r\n--b\r\n\xff"}
    assert parse(b"a=1+2&b=%C3%A9", "application/x-www-form-urlencoded").fields == {
        "a": "1 2",
        "b": "é",
    }


REPEATED_FIELD = b'--B\r\nContent-Disposition: form-data; name="b"\r\n\r\n1\r\n'
"""Part of a form with the field b. A form with the part twice has two fields of this name."""
REPEATED_FILE = REPEATED_FIELD.replace(b'"b"', b'"b"; filename="b.txt"')
"""A form with this part has the file b."""


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"a=1&b=%C3%A9&b=3", "application/x-www-form-urlencoded"),
        (b"b=&b=", "application/x-www-form-urlencoded"),
        (2 * REPEATED_FIELD + b"--B--\r\n", "multipart/form-data; boundary=B"),
        (2 * REPEATED_FILE + b"--B--\r\n", "multipart/form-data; boundary=B"),
        (REPEATED_FIELD + REPEATED_FILE + b"--B--\r\n", "multipart/form-data; boundary=B"),
    ],
)
def test_repeated_field_is_an_error(body: bytes, kind: str) -> None:
    """A form with two fields or files of one name is refused: it is unclear which one counts."""
    with pytest.raises(ParamsError, match="b must occur once"):
        parse(body, kind)


def test_query_string_is_parsed_as_a_form() -> None:
    """The fields of a query string are read as those of a form, also if they are empty."""
    request = make_request({})
    request.scope["query_string"] = b"from=2026-11-01&to="
    assert Form.parse_query(request).fields == {"from": "2026-11-01", "to": ""}


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a=1", "text/plain", 415),
        (b"a=1", "", 415),
        (b"a=%FF", "application/x-www-form-urlencoded", 422),
        (b"\xff", "application/x-www-form-urlencoded", 422),
        (b"&".join(b"a=1" for _ in range(51)), "application/x-www-form-urlencoded", 422),
        (BROWSER_FORM, "multipart/form-data; boundary=C", 422),
        (BROWSER_FORM, "multipart/form-data", 422),
        (BROWSER_FORM, "multipart/mixed; boundary=B", 415),
        (b"--B\r\nno end", "multipart/form-data; boundary=B", 422),
        (
            b"--B\r\n" + b"X: y\r\n" * 1000 + b"\r\na\r\n--B--",
            "multipart/form-data; boundary=B",
            422,
        ),
        (b"--B\r\nX: y\r\n\r\n\r\n" * 60 + b"--B--", "multipart/form-data; boundary=B", 422),
        (b"a=" + b"1" * 20_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_malformed_forms_are_refused(body: bytes, kind: str, status: int) -> None:
    """Other media types get 415, too large bodies 413, and all other malformed forms 422.

    A form may have at most 50 fields.
    """
    with pytest.raises(Problem) as caught:
        parse(body, kind)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"origin": "http://ops.example"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, True),
        ({}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://ops.example"}, False),
        ({"origin": "http://ops.example.evil"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://ops.example"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://ops.example"}, False),
        ({"sec-fetch-site": "none"}, False),
    ],
)
def test_forms_of_other_sites_are_refused(headers: dict[str, str], is_accepted: bool) -> None:
    """A form is accepted if a header of the browser states that it comes from the same origin.

    The headers are Sec-Fetch-Site and, in older browsers, Origin.
    """
    request = make_request(headers)
    if is_accepted:
        check_origin(request)
        return
    with pytest.raises(Problem, match="must be sent from a page of this site"):
        check_origin(request)


def test_numbers_and_choices_are_checked() -> None:
    """Values out of range, other texts and unknown choices are refused.

    A missing field has its default. Shares are written in per cent.
    """
    fields = {"level": " 5 ", "far": "100", "word": "x", "not": "nan", "kind": "b"}
    form = Form(fields | {"close": "99.99999999999999"}, {})
    assert (
        form.get_whole_number("level", 1, largest=5),
        form.get_whole_number("absent", 3, largest=5),
    ) == (5, 3)
    for name in ("far", "word", "kind"):
        with pytest.raises(ParamsError, match=r"must be a whole number in \[1, 99\]"):
            form.get_whole_number(name, 1, largest=99)
    assert form.get_share("level", 0.1) == 0.05
    assert form.get_share("absent", 0.1) == 0.1
    assert (form.get_choice("kind", ("a", "b")), form.get_choice("absent", ("a", "b"))) == (
        "b",
        "a",
    )
    for name in ("far", "word", "not", "close"):
        with pytest.raises(ParamsError, match="must be a number"):
            form.get_share(name, 0.1)
    with pytest.raises(ParamsError, match="must be one of a, b"):
        form.get_choice("word", ("a", "b"))


def test_only_a_form_with_a_file_may_be_long() -> None:
    """A URL-encoded form may have 20,000 bytes, and a form with files up to `max_bytes`.

    Decoding a long URL-encoded form would delay uploads.
    """
    long = b"a" * 20_001
    with pytest.raises(Problem) as caught:
        parse(b"text=" + long, "application/x-www-form-urlencoded", max_bytes=10_000_000)
    assert caught.value.status == 413
    part = b'--B\r\nContent-Disposition: form-data; name="text"\r\n\r\n' + long + b"\r\n--B--"
    form = parse(part, "multipart/form-data; boundary=B", max_bytes=10_000_000)
    assert form.fields == {"text": long.decode()}
