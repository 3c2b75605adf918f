"""Checks of the files that devices leave on the disk: permissions, and values in plain sight."""

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

from rappor.auditing.check import Check, check_exact

_MIN_SEARCHED_BYTES: Final = 6
"""Smallest number of bytes of a text that is searched for. 48 bits do not occur by accident."""

_COMPRESSED: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
"""Pattern of the first bytes of a zlib or gzip stream."""


def check_folder(root: Path, texts: Sequence[str], categories: Sequence[str]) -> Iterator[Check]:
    """Check the permissions of all files below a folder, and search the files for values.

    The list of all categories is not a value: the registry contains it, and it is the same on every
    device.
    """
    files = [path for path in root.rglob("*") if path.is_file()]
    if os.name == "posix":
        n_open = sum(_is_open_to_others(path, root) for path in files)
        yield check_exact("folder: only its user can read it", (n_open, len(files)))
    patterns = [pattern for text in texts for pattern in _forms(text)]
    named = sum(
        _contains(_remove_categories(path.read_bytes(), categories), patterns) for path in files
    )
    yield check_exact("folder: no value is in it", (named, len(files)))


def _is_open_to_others(file: Path, root: Path) -> bool:
    """Return whether another user than the owner can read or write a file below `root`.

    The other user needs permission for the file, and permission to pass through each folder from
    the device's folder down to the file. A file with mode 0644 in a folder with mode 0700 is thus
    private. The group and all others are examined separately.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(root) and folder != root]
    modes = [folder.stat().st_mode for folder in folders]
    accesses = (
        (stat.S_IRGRP | stat.S_IWGRP, stat.S_IXGRP),
        (stat.S_IROTH | stat.S_IWOTH, stat.S_IXOTH),
    )
    return any(
        bool(file.stat().st_mode & access) and all(mode & passage for mode in modes)
        for access, passage in accesses
    )


def _contains(content: bytes, patterns: Sequence[bytes]) -> bool:
    """Return whether a file, or a compressed stream in the file, contains one of the forms."""
    streams = (_decompress(content[match.start() :]) for match in _COMPRESSED.finditer(content))
    return any(pattern in each for each in (content, *streams) for pattern in patterns)


def _decompress(stream: bytes) -> bytes:
    """Decompress a zlib or gzip stream; return no bytes if the data is no such stream."""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(wbits=47).decompress(stream, 1 << 20)  # 47: zlib or gzip
    return b""


def _remove_categories(content: bytes, categories: Sequence[str]) -> bytes:
    """Return the content of a file without the list of categories, as JSON or as a text in JSON."""
    for is_ascii in (True, False):
        listed = json.dumps(categories, separators=(",", ":"), ensure_ascii=is_ascii)
        for pattern in (json.dumps(listed, ensure_ascii=is_ascii)[1:-1], listed):
            content = content.replace(pattern.encode(), b"")
    return content


def _forms(text: str) -> Iterator[bytes]:
    """Yield the byte strings as which a file may contain a text: UTF-8, hexadecimal, and base64.

    Texts shorter than 6 bytes are skipped, because they occur by accident.
    """
    data = text.encode()
    if len(data) >= _MIN_SEARCHED_BYTES:
        yield from (data, data.hex().encode())
        # base64 encodes a text in three ways, depending on its offset modulo 3. Search all three.
        for offset in range(3):  # bytes, with which base64 writes a text differently
            pattern = base64.b64encode(bytes(offset) + data)[(4 * offset + 2) // 3 :]
            yield pattern[: (4 * offset + 4 * len(data)) // 3 - (4 * offset + 2) // 3]
