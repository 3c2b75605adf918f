"""Checks of the files that devices leave on the disk: permissions, and values in plain sight.

The input is the folders of the devices of a client audit, and the values that the devices recorded.
The output is two exact checks. One counts the files that other users can access. The other counts
the files that contain a value as text, as hexadecimal, as base64, or in a compressed stream.

The check misses values that are encrypted or rearranged. It does not search for short values, with
fewer than 6 letters or 15 digits, because such texts occur by accident.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rappor.auditing.check import Check, check_exact

_MIN_SEARCHED_BITS: Final = 48
"""Smallest information of a text that is searched for, in bits: 8 for a byte, log2(10) for a digit.

48 bits do not occur by accident in files of a few megabytes. Texts of less information would raise
false alarms: "1000.0" occurs in times in seconds, such as 1800001000.0.
"""

_COMPRESSED: Final = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08")
"""Matches the first bytes of a zlib or gzip stream."""


def check_folder(root: Path, texts: Sequence[str], categories: Sequence[str]) -> Iterator[Check]:
    """Check the permissions of all files below a folder, and search the files for values.

    The list of all categories is allowed: the registry contains the list, and every device has the
    same. On systems without POSIX permissions only the values are searched for.
    """
    files = [path for path in root.rglob("*") if path.is_file()]
    if os.name == "posix":
        n_open = sum(_is_open_to_others(path, root) for path in files)
        # `check_exact` takes the number of files with the fault, and the number of all files.
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

    The result is empty if the data only begins like a stream by accident.
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

    Yields nothing for a text of few bits, because such texts occur by accident.
    """
    data = text.encode()
    n_digits = sum(character in b"0123456789." for character in data)
    if 8 * (len(data) - n_digits) + math.log2(10) * n_digits >= _MIN_SEARCHED_BITS:
        yield from (data, data.hex().encode())
        # base64 writes 3 bytes as 4 characters of 6 bits. So a text has three forms, by its offset
        # modulo 3 in the encoded data. Only those characters are searched for whose 6 bits all
        # belong to the text. The text has the bits 8 offset to 8 (offset + length) of the data, so
        # its first whole character has the number 8 offset / 6, rounded up, and its last whole
        # character ends at 8 (offset + length) / 6, rounded down.
        for offset in range(3):
            first = (4 * offset + 2) // 3
            end = 4 * (offset + len(data)) // 3
            yield base64.b64encode(bytes(offset) + data)[first:end]
