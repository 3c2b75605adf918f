"""What people send by forms: read, bounded, and refused unless a page of this site sent it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from rappor.errors import ParamsError
from rappor_server.problems import Problem
from rappor_server.request_limits import Share, read_body

MOST_BYTES: Final = 20_000
"""Of a form without a file."""

_LEAST_SHARE, _MOST_SHARE = 0.0001 / 100, 99.9999 / 100
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = re.compile(
    r"""multipart/form-data *; *boundary=("?)([A-Za-z0-9'()+_,./:=?-]{1,70})\1""", re.IGNORECASE
)
_PART: Final = re.compile(
    rb"""^Content-Disposition: *form-data; *name="([^"\r\n]*)"(; *filename=)?""",
    re.IGNORECASE | re.MULTILINE,
)

_SECONDS: Final = 60.0
_MOST_FIELDS: Final = 50
_MOST_HEAD: Final = 2000
"""Bytes of the head of one part."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, and the bytes of its files that are not empty."""

    fields: Mapping[str, str]
    files: Mapping[str, bytes]

    def text(self, name: str) -> str:
        """Return a field without the white space around it, nothing if it is absent."""
        return self.fields.get(name, "").strip()

    def day(self, name: str) -> str | None:
        """Return a day as it was written, None where the field is empty."""
        return self.text(name) or None

    def share(self, name: str, default: float) -> float:
        """Return a share, which is written in per cent."""
        text = self.text(name)
        try:
            share = float(text) / 100 if text else default
        except ValueError:
            share = 0.0
        if not _LEAST_SHARE <= share <= _MOST_SHARE:
            raise ParamsError(f"{name} must be a number in [0.0001, 99.9999] per cent")
        return share

    def whole(self, name: str, default: int, *, most: int) -> int:
        """Return a whole number from 1 on."""
        text = self.text(name) or f"{default}"
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not 1 <= number <= most:
            raise ParamsError(f"{name} must be a whole number in [1, {most:,}]")
        return number

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of some choices, the first where the field is empty."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise ParamsError(f"{name} must be one of {', '.join(choices)}")
        return text


def check_origin(request: Request) -> None:
    """Raise the problem 403 unless a request comes from a page of this site.

    Browsers say so themselves where the connection can be trusted; elsewhere they name the origin.
    """
    told = request.headers.get("sec-fetch-site") or request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if told not in ("same-origin", own):
        raise Problem(HTTPStatus.FORBIDDEN, "a form must be sent from a page of this site")


async def read_form(request: Request, share: Share, *, most: int = MOST_BYTES) -> Form:
    """Read a form; 413 if it has more bytes, 415 or 422 if it is none.

    Only a form with a file may have more than MOST_BYTES. The time to read one grows with its
    length and no faster, because uploads wait meanwhile.
    """
    kind = request.headers.get("content-type", "")
    multipart = _MULTIPART.fullmatch(kind)
    if not multipart:
        if kind.partition(";")[0].strip().lower() != _URL_ENCODED:
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be that of a form")
        most = MOST_BYTES
    body = await read_body(request.scope, request.receive, share, max_body=most, seconds=_SECONDS)
    return _multipart(multipart[2], body) if multipart else Form(_url_encoded(body), {})


def _url_encoded(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise _malformed() from None
    return dict(pairs)


def _multipart(boundary: str, body: bytes) -> Form:
    """Read multipart/form-data (RFC 7578) as browsers write it."""
    mark = b"--" + boundary.encode()
    if not body.startswith(mark):
        raise _malformed()
    first, *parts = body[len(mark) :].split(b"\r\n" + mark, _MOST_FIELDS)
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in (first, *parts):
        if part in (b"--", b"--\r\n"):  # the end
            return Form(fields, files)
        head, found, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not found or len(head) > _MOST_HEAD or not (named := _PART.search(head)):
            raise _malformed()
        name = _text(named[1])
        if not named[2]:
            fields[name] = _text(content)
        elif content:
            files[name] = content
    raise _malformed()


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _malformed() from None


def _malformed() -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the form must be whole, in UTF-8")
