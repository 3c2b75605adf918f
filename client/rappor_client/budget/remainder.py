"""Record that outlives an identity: the nats reserved by calendar year.

    rappor budget 1
    {"2026": 16.008, "2027": null}
    SHA-256, as hex digits, of both lines

Null stands for a year in which nobody knows how much was reserved. No metric reports in it.
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


def read_years(host: Path, year: int) -> dict[int, float]:
    """Return the nats reserved by year: none without a record, infinite where nobody knows them.

    A damaged record makes the given year infinite. Raises ForeignError for a record of another
    version, and OSError if the file cannot be read.
    """
    try:
        return _read(host)
    except DamagedError:
        return {year: math.inf}


def is_unreadable(host: Path) -> bool:
    """Return whether there is a file in the place of the record that is not such a record."""
    try:
        _read(host)
    except (OSError, DamagedError, UnusableError):
        return True
    return False


def write(host: Path, years: Mapping[int, float]) -> None:
    """Write the record, whole or not at all; a full disk gets it over the old bytes."""
    plain = {str(year): nats if nats < math.inf else None for year, nats in years.items()}
    body = _MAGIC + json.dumps(plain).encode() + b"\n"
    data = body + compute_checksum(body)
    try:
        with replace_file(host / NAME, mode=PRIVATE) as file:
            file.write(data)
    except OSError:
        with (host / NAME).open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def greater(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """Return the greater of two numbers for each year."""
    return {year: max(one.get(year, 0.0), other.get(year, 0.0)) for year in sorted({*one, *other})}


def _read(host: Path) -> dict[int, float]:
    try:
        data = read_file(host / NAME)
    except FileNotFoundError:
        return {}
    if not is_intact(data):
        raise DamagedError(NAME)
    try:
        magic, text, _check = data.splitlines(keepends=True)
        plain = json.loads(text)
        years = {int(year): math.inf if nats is None else nats for year, nats in plain.items()}
        is_ours = magic == _MAGIC and all(nats >= 0 for nats in years.values())
    except (AttributeError, TypeError, ValueError):
        is_ours = False
    if not is_ours:
        raise ForeignError(NAME)
    return years
