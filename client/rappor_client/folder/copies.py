"""Two equal copies of a small text, each with a version number and a checksum.

A write replaces and flushes one copy after the other. So at any moment at least one copy is valid,
also after a crash or a loss of power:

    before the write          state.1 = 7    state.2 = 7
    killed while state.1 is   state.1 = 7    state.2 = 7     a draft is left beside them
    written
    killed between the two    state.1 = 8    state.2 = 7     8 is newer, and repairs the other copy
    after the write           state.1 = 8    state.2 = 8

The second copy is not the previous state. A previous state would lack the last memoized response,
so the device would draw a second permanent response for the same scope.

A copy contains a line with the number, the text, and a line with the SHA-256 of both:

    rappor state 1 8
    ...
    5e0c...
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from rappor_client.folder.access import ForeignError
from rappor_client.folder.identity_folder import IdentityFolder, Stamp

NAMES: Final = ("state.1", "state.2")
_MAGIC: Final = b"rappor state 1 "
"""First bytes of a copy. The 1 is the version of the format; the number of the copy follows."""
_CHECK_BYTES: Final = 2 * hashlib.sha256().digest_size + 1
"""Length of the last line, in bytes. The line consists of the checksum in hex digits and the line
break."""
_DIGITS: Final = 18
"""Largest number of digits of a copy's number. No disk survives so many writes."""


class Sealed:
    """Bytes whose repr is hidden, so that no traceback with local variables shows a secret."""

    __slots__ = ("bytes",)

    def __init__(self, data: bytes) -> None:
        self.bytes = data

    def __repr__(self) -> str:
        return "Sealed(...)"


class Copy(NamedTuple):
    """A text with its version number, and the name of the file that contains them."""

    name: str
    number: int
    text: Sealed


def read(folder: IdentityFolder) -> list[Copy]:
    """Read the valid copies, the newest first.

    Raises OSError if a copy exists and cannot be read, and ForeignError for a copy in the format of
    another version.
    """
    copies = [parse_copy(name, folder.read(name)) for name in NAMES]
    return sorted(filter(None, copies), key=lambda copy: -copy.number)


def write(folder: IdentityFolder, number: int, text: Sealed) -> None:
    """Replace both copies and flush them to the disk."""
    data = Sealed(format_copy(number, text))
    for name in NAMES:
        folder.replace(name, data.bytes)
    folder.sync()


def create(folder: IdentityFolder, text: Sealed) -> bool:
    """Create both copies with version number 1; return False if another process did so before."""
    data = Sealed(format_copy(1, text))
    first, second = NAMES
    # Bad case: two processes start a new device at once, each with a secret of its own in the text.
    # `folder.create` succeeds for only one of them, because it links a file to a new name, and a
    # link fails if the name exists. The other process then reads the text of the first.
    if not folder.create(first, data.bytes):
        return False
    folder.create(second, data.bytes)
    folder.sync()
    return True


def read_stamps(folder: IdentityFolder) -> tuple[Stamp | None, ...]:
    """Return the stamps of both copies, which change when a copy is replaced."""
    return tuple(folder.stamp(name) for name in NAMES)


def format_copy(number: int, text: Sealed) -> bytes:
    """Return the bytes of a copy."""
    body = b"%s%d\n%s\n" % (_MAGIC, number, text.bytes)
    return body + compute_checksum(body)


def compute_checksum(body: bytes) -> bytes:
    """Compute the last line of a copy: the SHA-256 checksum of the lines before it."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def is_intact(data: bytes) -> bool:
    """Return whether the last line of a file is the checksum of the lines before it."""
    return data[-_CHECK_BYTES:] == compute_checksum(data[:-_CHECK_BYTES])


def parse_copy(name: str, data: bytes | None) -> Copy | None:
    """Parse the bytes of the file `name`; None if the copy is damaged or absent.

    Raises ForeignError for a valid copy in the format of another version of this library.
    """
    # If this copy is absent, cut off in a crash or changed by a failing disk, the other copy
    # counts.
    if data is None or not is_intact(data):
        return None
    head, _, body = data.partition(b"\n")
    digits, text = head.removeprefix(_MAGIC), Sealed(body[: -(_CHECK_BYTES + 1)])
    # A valid checksum shows that a program has written these bytes on purpose. So another format
    # means another version of this library, and not damage: the bytes must not be replaced.
    is_ours = head.startswith(_MAGIC) and digits.isdigit() and len(digits) <= _DIGITS
    if not is_ours or data != format_copy(int(digits), text):
        raise ForeignError(name)
    return Copy(name, int(digits), text)
