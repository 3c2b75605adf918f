"""What devices have left on the disk: for whom, and whether a value is in it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rappor.auditing.check import Check, exact_check

_TELLING: Final = 6
"""Bytes of a text that no file holds by accident: 48 bits in some kilobytes."""

_COMPRESSED: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
"""Where a zlib or a gzip stream may begin."""


def folder_checks(place: Path, texts: Sequence[str], categories: Sequence[str]) -> Iterator[Check]:
    """Look at all files below a place.

    The list of all categories is no value: it is in the registry, and alike for every device.
    """
    files = [path for path in place.rglob("*") if path.is_file()]
    if os.name == "posix":
        others = stat.S_IRWXG | stat.S_IRWXO
        folders = [path for path in place.iterdir() if path.stat().st_mode & others]
        open_files = [path for path in files if path.parent in folders]
        readable = sum(bool(path.stat().st_mode & others) for path in open_files)
        yield exact_check("folder: only its user can read it", (readable, len(files)))
    forms = [form for text in texts for form in _forms(text)]
    named = sum(_holds(_without(path.read_bytes(), categories), forms) for path in files)
    yield exact_check("folder: no value is in it", (named, len(files)))


def _holds(content: bytes, forms: Sequence[bytes]) -> bool:
    """Return whether a file, or a compressed stream in it, holds one of the forms."""
    streams = (_inflated(content[found.start() :]) for found in _COMPRESSED.finditer(content))
    return any(form in each for each in (content, *streams) for form in forms)


def _inflated(stream: bytes) -> bytes:
    """Return what a zlib or gzip stream holds; nothing where it is none."""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(wbits=47).decompress(stream, 1 << 20)  # 47: zlib or gzip
    return b""


def _without(content: bytes, categories: Sequence[str]) -> bytes:
    """Return a file without the list of categories, as JSON or as a text in JSON."""
    for is_ascii in (True, False):
        listed = json.dumps(categories, separators=(",", ":"), ensure_ascii=is_ascii)
        for form in (json.dumps(listed, ensure_ascii=is_ascii)[1:-1], listed):
            content = content.replace(form.encode(), b"")
    return content


def _forms(text: str) -> Iterator[bytes]:
    """Yield how a file may hold a text; short ones occur by accident."""
    data = text.encode()
    if len(data) >= _TELLING:
        yield from (data, data.hex().encode())
        for before in range(3):  # bytes, with which base64 writes a text differently
            form = base64.b64encode(bytes(before) + data)[(4 * before + 2) // 3 :]
            yield form[: (4 * before + 4 * len(data)) // 3 - (4 * before + 2) // 3]
