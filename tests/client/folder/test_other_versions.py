"""Folders in the format of another version: the client is disabled and changes no file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from devices import Home, get_identity_folder, peek, read_device_state
from rappor_client import SkipReason, Withdrawal
from rappor_client.budget import reservation_record
from rappor_client.folder import copies
from rappor_client.folder.copies import compute_checksum
from rappor_client.testing import MemoryTransport

from rappor.base.errors import FileError

EARLIER_RECORD = {"reserved": [[2026, "page", "life", 4.0]], "mark": "", "lost": [9999, 1, None]}
"""A record of reserved nats is valid JSON with other keys in an earlier development version."""


def write_with_checksum(path: Path, body: bytes) -> None:
    """Write a file with a valid checksum in its last line."""
    path.write_bytes(body + compute_checksum(body))


def change_state(folder: Path, change: Callable[[bytes], bytes], *, names: tuple[str, ...]) -> None:
    """Change the copies of the state that have these names, and give them a valid checksum."""
    for name in names:
        path = get_identity_folder(folder) / name
        body = b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
        write_with_checksum(path, change(body))


def change_number(body: bytes) -> bytes:
    """Return a copy of the state whose first line has the number of another version."""
    return body.replace(b"rappor state 1 ", b"rappor state 2 ", 1)


def remove_keys(body: bytes) -> bytes:
    """Return a copy of the state whose JSON object has none of the expected keys."""
    magic, secret, _ = body.splitlines(keepends=True)
    return magic + secret + b"{}\n"


def replace_by_record(folder: Path, record: bytes) -> None:
    """Replace the content of a folder by a record of reserved nats, as a withdrawal does."""
    for path in get_identity_folder(folder).iterdir():
        path.unlink()
    get_identity_folder(folder).rmdir()
    write_with_checksum(folder / "budget", record)


FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "number of the state": (
        "state.1",
        lambda folder: change_state(folder, change_number, names=copies.NAMES),
    ),
    "number of one copy": (
        "state.2",
        lambda folder: change_state(folder, change_number, names=copies.NAMES[1:]),
    ),
    "keys of the state": (
        "state.1",
        lambda folder: change_state(folder, remove_keys, names=copies.NAMES),
    ),
    "number of the record": (
        "budget",
        lambda folder: replace_by_record(folder, b"rappor budget 2\n{}\n"),
    ),
    "rows of the record": (
        "budget",
        lambda folder: replace_by_record(
            folder, b"rappor budget 1\n" + json.dumps(EARLIER_RECORD).encode() + b"\n"
        ),
    ),
    "lines of the record": (
        "budget",
        lambda folder: replace_by_record(folder, b"rappor budget 1\n{}\n\n"),
    ),
}
"""Contains, by description of the change: the file that the error message names, and a function
that changes a folder."""


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of all files of a folder by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_of_another_version_disables_the_device(kind: str, home: Home) -> None:
    """The client is disabled and changes no file.

    A client that took the folder for a damaged one would replace the secret.
    """
    name, change_folder = FOLDERS[kind]
    home.open().close()
    change_folder(home.folder)
    before = read_files(home.folder)
    client = home.open(collector=MemoryTransport())
    assert client.disabled_reason.startswith(f"the file {name} has the format of another version")
    assert client.record("page", "x").reason is SkipReason.DISABLED
    assert client.flush().detail == client.disabled_reason
    assert client.privacy_spent().nats == math.inf  # unknown: the folder cannot be read
    client.close()
    assert read_files(home.folder) == before
    with pytest.raises(FileError, match=f"the file {name} has the format of another version"):
        peek(home.folder)


@pytest.mark.parametrize("kind", FOLDERS)
def test_withdrawal_erases_a_folder_of_another_version(kind: str, home: Home) -> None:
    """The withdrawal erases the secret, and leaves a record of reserved nats only.

    The year counts as used up (infinite nats), because its reservations are unknown.
    """
    client = home.open()
    secret = read_device_state(home.folder).sealed_secret.bytes
    client.close()
    _, change_folder = FOLDERS[kind]
    change_folder(home.folder)
    assert home.open().withdraw() == Withdrawal(secret_gone=True)
    ((path, data),) = read_files(home.folder).items()
    assert path.name == "budget"
    assert not any(text in data for text in (secret, secret.hex().encode()))
    assert home.open().privacy_spent().reserved == {2026: math.inf}


def test_another_version_that_takes_over_an_open_folder_disables_the_device(home: Home) -> None:
    """An open client is disabled, drops the events in memory, and does not change the copies."""
    client = home.open(collector=MemoryTransport())
    change_state(home.folder, remove_keys, names=copies.NAMES)
    before = read_files(home.folder)
    client.record("page", "x")
    assert client.flush().detail == client.disabled_reason
    assert client.disabled_reason.startswith("the file state.1 has the format of another version")
    assert client.record("page", "x").reason is SkipReason.DISABLED
    copies_before = {path: data for path, data in before.items() if path.name in copies.NAMES}
    assert read_files(home.folder).items() >= copies_before.items()


@pytest.mark.parametrize("nats", [{}, {2026: 8.0}, {2026: math.inf, 2027: 0.5}], ids=str)
def test_record_of_reserved_nats_is_read_as_written(nats: dict[int, float], tmp_path: Path) -> None:
    """A record is read as written, infinity included, and every truncation counts as damaged."""
    reservation_record.write(tmp_path, nats)
    assert reservation_record.read(tmp_path, 2030) == nats
    data = (tmp_path / "budget").read_bytes()
    for n in range(len(data)):
        (tmp_path / "budget").write_bytes(data[:n])
        assert reservation_record.read(tmp_path, 2030) == {2030: math.inf}
