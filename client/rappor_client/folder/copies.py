"""A small text in two equal copies, each with a running number and a checksum.

Both are replaced and flushed, one after the other. So at any moment one of them is whole, and if
both are, the higher number is the newer text; it mends the other one.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from rappor_client.folder.own_folder import OwnFolder, Stamp
from rappor_client.folder.place import ForeignError

NAMES: Final = ("state.1", "state.2")
_MAGIC: Final = b"rappor state 1 "
_CHECK_BYTES: Final = 2 * hashlib.sha256().digest_size + 1
_DIGITS: Final = 18
"""Of a running number at most: more replacements than any disk survives."""


class Sealed:
    """Bytes that show nothing of themselves: not printed, and not in a traceback."""

    __slots__ = ("bytes",)

    def __init__(self, data: bytes) -> None:
        self.bytes = data

    def __repr__(self) -> str:
        return "Sealed(...)"


class Copy(NamedTuple):
    """A text with its running number."""

    number: int
    text: Sealed


def read(folder: OwnFolder) -> list[Copy]:
    """Return what the valid copies hold, the highest number first.

    Raises OSError where a copy is there and cannot be read, and ForeignError for one of another
    version.
    """
    found = [parsed(folder.read(name)) for name in NAMES]
    return sorted(filter(None, found), key=lambda each: -each.number)


def write(folder: OwnFolder, number: int, text: Sealed) -> None:
    """Replace both copies and wait for the disk."""
    data = Sealed(written(number, text))
    for name in NAMES:
        folder.replace(name, data.bytes)
    folder.sync()


def begin(folder: OwnFolder, text: Sealed) -> bool:
    """Create both copies with the number 1; false if somebody was faster."""
    data = Sealed(written(1, text))
    first, second = NAMES
    if not folder.create(first, data.bytes):
        return False
    folder.create(second, data.bytes)
    folder.sync()
    return True


def stamps(folder: OwnFolder) -> tuple[Stamp | None, ...]:
    """Return what changes when a copy does; a look is cheap."""
    return tuple(folder.stamp(name) for name in NAMES)


def written(number: int, text: Sealed) -> bytes:
    """Return the bytes of a copy."""
    body = b"%s%d\n%s\n" % (_MAGIC, number, text.bytes)
    return body + check_of(body)


def check_of(body: bytes) -> bytes:
    """Return the last line of a file, the checksum of what is before it."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def is_intact(data: bytes) -> bool:
    """Return whether the last line of a file is the checksum of what is before it."""
    return data[-_CHECK_BYTES:] == check_of(data[:-_CHECK_BYTES])


def parsed(data: bytes | None) -> Copy | None:
    """Read what `written` wrote; None for a damaged copy and for none.

    Raises ForeignError for a whole copy of another version.
    """
    if data is None or not is_intact(data):
        return None
    head, _, rest = data.partition(b"\n")
    digits, text = head.removeprefix(_MAGIC), Sealed(rest[: -(_CHECK_BYTES + 1)])
    is_ours = head.startswith(_MAGIC) and digits.isdigit() and len(digits) <= _DIGITS
    if not is_ours or data != written(int(digits), text):
        raise ForeignError(NAMES[0])
    return Copy(int(digits), text)
