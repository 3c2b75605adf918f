"""Record of the nats that earlier identities have reserved, by calendar year.

The record is the file `budget` in the host's folder. It survives a withdrawal, which erases
everything else. Without it, a person who withdraws consent and agrees again would get the budget of
the year a second time.

The file has three lines: a magic line with the version of the format, a JSON object, and the
SHA-256 of both lines as hex digits.

    rappor budget 1
    {"2026": 16.008, "2027": null}
    5e0c...

A number is in nats. In Python, null is infinity: it is unknown how many nats were reserved in this
year, so no metric reports in it.

What `read` returns:

    file                             nats by year
    absent                           none
    valid                            its contents
    damaged                          infinity for the given year
    in the format of another version ForeignError: its contents are not known, and must not be lost
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rappor.base.atomic_files import replace_file
from rappor_client.folder.access import ForeignError, UnusableError
from rappor_client.folder.copies import compute_checksum, is_intact
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.system import PRIVATE, read_file

NAME: Final = "budget"
_MAGIC: Final = b"rappor budget 1\n"


def read(host: Path, year: int) -> dict[int, float]:
    """Return the reserved nats by calendar year, from the record in a host's folder.

    A damaged record makes the given year infinite. Raises ForeignError for a record of another
    version, and OSError if the file cannot be read.
    """
    try:
        return _read_valid(host)
    except DamagedError:
        return {year: math.inf}


def is_unreadable(host: Path) -> bool:
    """Return whether a host's folder has a record that `read` cannot understand.

    Such a record is damaged, has the format of another version, or cannot be opened. The result is
    False if there is no record.
    """
    try:
        _read_valid(host)
    except (OSError, DamagedError, UnusableError):
        return True
    return False


def write(host: Path, years: Mapping[int, float]) -> None:
    """Write the record in one step: after a kill the file is the old record or the new one.

    A full disk has no space for a second file. Then the new record is written over the old bytes. A
    kill in the middle of this write leaves a damaged record, and the device reports nothing until
    the year is over. Without any record, a withdrawal would renew the budget, which is worse.

    Raises OSError if neither write is possible.
    """
    plain = {str(year): nats if nats < math.inf else None for year, nats in years.items()}
    body = _MAGIC + json.dumps(plain).encode() + b"\n"
    data = body + compute_checksum(body)
    try:
        with replace_file(host / NAME, mode=PRIVATE) as file:
            file.write(data)
    except OSError:
        # "r+b" changes the existing bytes in place, which needs no free space.
        with (host / NAME).open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def take_larger(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """Return the larger of two numbers of nats for each year."""
    return {
        year: max(first.get(year, 0.0), second.get(year, 0.0)) for year in sorted({*first, *second})
    }


def _read_valid(host: Path) -> dict[int, float]:
    """Return the nats by year; empty without a file.

    Raises DamagedError for a wrong checksum, and ForeignError for other contents under a right
    checksum, which another version has written.
    """
    try:
        data = read_file(host / NAME)
    except (FileNotFoundError, NotADirectoryError):  # also without a folder of the host
        return {}
    if not is_intact(data):
        raise DamagedError(NAME)
    # The checksum is right, so no crash has damaged the file. If the number of lines, a year or a
    # number of nats has a wrong form, another version of this library has written the file.
    try:
        magic, text, _checksum = data.splitlines(keepends=True)
        plain = json.loads(text)
        years = {int(year): math.inf if nats is None else nats for year, nats in plain.items()}
        is_ours = magic == _MAGIC and all(nats >= 0 for nats in years.values())
    except (AttributeError, TypeError, ValueError):
        is_ours = False
    if not is_ours:
        raise ForeignError(NAME)
    return years
