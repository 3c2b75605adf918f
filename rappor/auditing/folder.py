"""Checks of the files that devices leave on the disk: permissions, and values in plain sight.

Input: the folders of the devices of a client audit, and the values that the devices recorded.
Output: two exact checks. One counts the files that other users can access. The other counts the
files that contain a value as text, as hexadecimal, as base64, or in a compressed stream. An
encrypted or rearranged value is missed, and a value of less than 6 bytes.
"""

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
"""Smallest number of bytes of a text that is searched for.

48 bits do not occur by accident in files of a few megabytes. Shorter texts would raise false
alarms.
"""

_COMPRESSED: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
"""Pattern of the first bytes of a zlib or gzip stream."""


def check_folder(root: Path, texts: Sequence[str], categories: Sequence[str]) -> Iterator[Check]:
    """Check the permissions of all files below a folder, and search the files for values.

    The list of all categories is allowed: the registry contains the list, and every device has the
    same. On systems without POSIX permissions only the values are searched for.
    """
    files = [path for path in root.rglob("*") if path.is_file()]
    if os.name == "posix":
        n_open = sum(_is_open_to_others(path, root) for path in files)
        yield check_exact("folder: only its user can read it", (n_open, len(files)))
    patterns = [pattern for text in texts for pattern in _yield_byte_forms(text)]
    n_with_value = sum(
        _contains_pattern(_remove_categories(path.read_bytes(), categories), patterns)
        for path in files
    )
    yield check_exact("folder: no value is in it", (n_with_value, len(files)))


def _is_open_to_others(file: Path, root: Path) -> bool:
    """Return whether another user than the owner can read or write a file below `root`.

    The other user needs permission for the file, and permission to pass through each folder from
    the device's folder down to the file. A file with mode 0644 in a folder with mode 0700 is thus
    private. The group and all others are examined separately.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(root) and folder != root]
    modes = [folder.stat().st_mode for folder in folders]
    # For the group, then for all others: permissions to access a file, and to pass a folder.
    accesses = (
        (stat.S_IRGRP | stat.S_IWGRP, stat.S_IXGRP),
        (stat.S_IROTH | stat.S_IWOTH, stat.S_IXOTH),
    )
    return any(
        bool(file.stat().st_mode & access) and all(mode & passage for mode in modes)
        for access, passage in accesses
    )


def _contains_pattern(content: bytes, patterns: Sequence[bytes]) -> bool:
    """Return whether a file, or a compressed stream in the file, contains one of the patterns."""
    streams = (_decompress(content[match.start() :]) for match in _COMPRESSED.finditer(content))
    return any(pattern in data for data in (content, *streams) for pattern in patterns)


def _decompress(stream: bytes) -> bytes:
    """Decompress the first megabyte of a zlib or gzip stream.

    Returns no bytes if the data only begins like a stream by accident.
    """
    with contextlib.suppress(zlib.error):
        # wbits = 32 + 15: detect zlib or gzip by the header, with the largest window.
        return zlib.decompressobj(wbits=47).decompress(stream, 1 << 20)
    return b""


def _remove_categories(content: bytes, categories: Sequence[str]) -> bytes:
    """Return the content of a file without the list of categories, as JSON or as a text in JSON."""
    # A client may store the registry as JSON, or as a JSON text inside JSON with escaped quotation
    # marks. In both forms characters outside ASCII may be escaped or not.
    for is_ascii in (True, False):
        listed = json.dumps(categories, separators=(",", ":"), ensure_ascii=is_ascii)
        for pattern in (json.dumps(listed, ensure_ascii=is_ascii)[1:-1], listed):
            content = content.replace(pattern.encode(), b"")
    return content


def _yield_byte_forms(text: str) -> Iterator[bytes]:
    """Yield the byte strings as which a file may contain a text: UTF-8, hexadecimal and base64.

    Yields nothing for a text of less than 6 bytes, because such texts occur by accident.
    """
    data = text.encode()
    if len(data) >= _MIN_SEARCHED_BYTES:
        yield from (data, data.hex().encode())
        # base64 writes 3 bytes as 4 characters. So a text has three forms, by its offset modulo 3
        # in the encoded data. The characters that also depend on the bytes before or after the
        # text are cut off.
        for offset in range(3):
            pattern = base64.b64encode(bytes(offset) + data)[(4 * offset + 2) // 3 :]
            yield pattern[: (4 * offset + 4 * len(data)) // 3 - (4 * offset + 2) // 3]
