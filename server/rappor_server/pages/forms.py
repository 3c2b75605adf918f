"""Parser of HTML forms and query strings, with limits, and the check against cross-site forms.

A form arrives as the body of a POST request in one of two encodings. Forms with a file use
multipart/form-data. Forms without a file use application/x-www-form-urlencoded, which is also the
encoding of a query string. `Form` returns its fields with a type. A wrong or repeated field raises
ParamsError (422) with the name of the field.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from rappor.base.errors import ParamsError
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyAllocation, read_body

MAX_FORM_BYTES: Final = 20_000
"""Largest size of a form without a file, in bytes. The longest form has a dozen short fields. A
larger value lets a form use more memory, and lets its parsing delay uploads for longer."""

_MIN_SHARE, _MAX_SHARE = 0.0001 / 100, 99.9999 / 100
"""Smallest and largest error rate or confidence level of a form, as shares. The form has per cent.
Beyond the limits, the quantiles of the computations have no meaning."""
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_BODY_SECONDS: Final = 60.0
"""Longest time in seconds in which a form must arrive: a list of 5 MB at 0.1 MB/s. A larger value
serves slower networks, and lets a slow client keep its memory for longer."""
_MAX_FIELDS: Final = 50
"""Largest number of fields of a form. The longest form has a dozen. A larger value lets the parsing
of a form take longer."""
_MAX_ECHO: Final = 40
"""Largest number of characters of the name of a field that a message repeats. A larger value makes
a message longer than a line."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form or of a query string.

    Attributes
    ----------
    fields : text of each field, by name
    files : contents of each uploaded file that is not empty, by name of the field
    """

    fields: Mapping[str, str]
    files: Mapping[str, bytes]

    @classmethod
    def parse_query(cls, request: Request) -> Self:
        """Return the fields of the query string of a request, whose names were checked before."""
        return cls(dict(request.query_params), {})

    def get_text(self, name: str) -> str:
        """Return a field without surrounding white space, or an empty text if it is absent."""
        return self.fields.get(name, "").strip()

    def get_share(self, name: str, default: float) -> float:
        """Return a field in per cent as a share, or the default if the field is empty.

        Raises ParamsError if the field is not a number, or is out of range. Example: "5" is 0.05.
        """
        text = self.get_text(name)
        try:
            share = float(text) / 100 if text else default
        except ValueError:
            share = 0.0  # out of range, as is `nan`
        if not _MIN_SHARE <= share <= _MAX_SHARE:
            raise ParamsError(f"{name} must be a number in [0.0001, 99.9999] per cent")
        return share

    def get_whole_number(self, name: str, default: int, *, largest: int) -> int:
        """Return a field as a number in [1, largest], or the default if the field is empty.

        Raises ParamsError if the field is not a number in digits, or is out of range.
        """
        text = self.get_text(name) or f"{default}"
        # `isdigit` accepts digits of other scripts, too, and `int` takes long for very long texts.
        # 0 is out of range.
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not 1 <= number <= largest:
            raise ParamsError(f"{name} must be a whole number in [1, {largest:,}]")
        return number

    def get_choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a field that is one of some choices; ParamsError if it is not one of them.

        The first choice is the default of an empty field.
        """
        text = self.get_text(name) or choices[0]
        if text not in choices:
            raise ParamsError(f"{name} must be one of {', '.join(choices)}")
        return text


def collect_fields(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each field by name; raise ParamsError if a name occurs twice.

    Bad case: of two fields `from`, the last one was used. The reader of the page believed in the
    other one.
    """
    fields: dict[str, str] = {}
    for name, text in pairs:
        if name in fields:
            raise ParamsError(f"{name[:_MAX_ECHO]} must occur once, got it several times")
        fields[name] = text
    return fields


def check_origin(request: Request) -> None:
    """Raise Problem 403 unless a form comes from a page of this site.

    Browsers send the header Sec-Fetch-Site over HTTPS and to localhost. Over plain HTTP they send
    only Origin. A request without both headers is refused: no browser sends a form in this way.
    """
    source = request.headers.get("sec-fetch-site") or request.headers.get("origin")
    site_origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if source not in ("same-origin", site_origin):
        raise Problem(HTTPStatus.FORBIDDEN, "a form must be sent from a page of this site")


async def read_form(
    request: Request, allocation: BodyAllocation, *, max_bytes: int = MAX_FORM_BYTES
) -> Form:
    """Read and parse a form.

    The parsing blocks the event loop, and uploads wait during this time. The time grows linearly
    with the size of the form, which is limited.

    Parameters
    ----------
    request : the request
    allocation : memory for the body
    max_bytes : largest size of a form with a file. A form without a file has `MAX_FORM_BYTES`.

    Raises
    ------
    Problem
        413 if the form is too large, 415 if the body is not a form, 422 if the form is malformed,
        and the other problems of `read_body`
    ParamsError
        A field is repeated (422).
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (_URL_ENCODED, _MULTIPART):
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be that of a form")
    limit = max_bytes if media_type == _MULTIPART else MAX_FORM_BYTES
    body = await read_body(
        request.scope, request.receive, allocation, max_body=limit, seconds=_BODY_SECONDS
    )
    if media_type == _MULTIPART:
        return await _parse_multipart(request, body)
    return Form(_parse_url_encoded(body), {})


def _parse_url_encoded(body: bytes) -> dict[str, str]:
    """Return the fields of a form without a file.

    Raises Problem 422 if the body is malformed, and ParamsError if a field is repeated.
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise _make_form_problem() from None
    return collect_fields(pairs)


async def _parse_multipart(request: Request, body: bytes) -> Form:
    """Return the fields and files of a form.

    Raises Problem 422 if the body is malformed, and ParamsError if a field is repeated.
    """

    async def stream_body() -> AsyncGenerator[bytes, None]:
        # Starlette's parser reads a stream, although the body has arrived already.
        yield body

    parser = MultiPartParser(
        request.headers,
        stream_body(),
        max_files=_MAX_FIELDS,
        max_fields=_MAX_FIELDS,
        max_part_size=len(body),
    )
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError):
        raise _make_form_problem() from None
    parts = form.multi_items()
    files = {name: await part.read() for name, part in parts if isinstance(part, UploadFile)}
    await form.close()
    # A file and a field must not have one name either. Only the names are checked here.
    collect_fields((name, "") for name, _ in parts)
    fields = {name: part for name, part in parts if isinstance(part, str)}
    return Form(fields, {name: content for name, content in files.items() if content})


def _make_form_problem() -> Problem:
    """Return the problem of a form that cannot be parsed."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the form must be complete and in UTF-8")
