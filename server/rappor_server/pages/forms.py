"""What people send by forms: read, bounded, and refused unless a page of this site sent it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from rappor.base.errors import ParamsError
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import BodyAllocation, read_body

MOST_BYTES: Final = 20_000
"""Largest size of a form without a file, in bytes. Larger forms are refused."""

_LEAST_SHARE, _MOST_SHARE = 0.0001 / 100, 99.9999 / 100
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_SECONDS: Final = 60.0
_MOST_FIELDS: Final = 50


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, and the bytes of its files that are not empty."""

    fields: Mapping[str, str]
    files: Mapping[str, bytes]

    def text(self, name: str) -> str:
        """Return a field without the white space around it, nothing if it is absent."""
        return self.fields.get(name, "").strip()

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


async def read_form(request: Request, share: BodyAllocation, *, most: int = MOST_BYTES) -> Form:
    """Read a form; 413 if it has more bytes, 415 or 422 if it is none.

    Only a form with a file may have more than MOST_BYTES. The time to read one grows with its
    length and no faster, because uploads wait meanwhile.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_URL_ENCODED, _MULTIPART):
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be that of a form")
    most = most if kind == _MULTIPART else MOST_BYTES
    body = await read_body(request.scope, request.receive, share, max_body=most, seconds=_SECONDS)
    if kind == _MULTIPART:
        return await _multipart(request, body)
    return Form(_url_encoded(body), {})


def _url_encoded(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise _malformed() from None
    return dict(pairs)


async def _multipart(request: Request, body: bytes) -> Form:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers,
        chunks(),
        max_files=_MOST_FIELDS,
        max_fields=_MOST_FIELDS,
        max_part_size=len(body),
    )
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError):
        raise _malformed() from None
    parts = form.multi_items()
    files = {name: await part.read() for name, part in parts if isinstance(part, UploadFile)}
    await form.close()
    fields = {name: part for name, part in parts if isinstance(part, str)}
    return Form(fields, {name: content for name, content in files.items() if content})


def _malformed() -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the form must be whole, in UTF-8")
