"""The one line that outlives an identity: the nats reserved by calendar year.

The file has the name and the form that an earlier version of this library gave to its budget. That
version reads in it that everything is lost until the year 9999, and is silent. It may write it
anew: then it has a mark, and says the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rappor.ground.files import replacing
from rappor_client.folder.copies import Sealed, check_of
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.system import PRIVATE, read_file

NAME: Final = "budget"
_MAGIC: Final = "rappor budget 1"
_LOST: Final = 9999
_OLD: Final[Mapping[str, Any]] = {
    "mark": "",
    "carried": 0,
    "scopes": [],
    "charged": [],
    "params": {},
    "lost": [_LOST, 1, None],
}
"""What the version before reads: no identity has answered anything, and everything is lost."""


def read_document(host: Path) -> dict[str, Any] | None:
    """Return what the file holds, of whichever version; None if there is none.

    Raises DamagedError for anything else, and OSError where it cannot be read.
    """
    try:
        data = Sealed(read_file(host / NAME))
    except FileNotFoundError:
        return None
    body = data.bytes[: -(2 * hashlib.sha256().digest_size + 1)]
    head, _, text = body.partition(b"\n")
    if head != _MAGIC.encode() or data.bytes != body + check_of(body):
        raise DamagedError(NAME)
    try:
        document = json.loads(text)
        if not (isinstance(document["mark"], str) and isinstance(document["lost"], list)):
            raise DamagedError(NAME)
    except (ValueError, TypeError, LookupError):
        raise DamagedError(NAME) from None
    return dict(document)


def is_ours(document: Mapping[str, Any] | None) -> bool:
    """Return whether a document is of this version."""
    return document is not None and document["lost"][:1] == [_LOST]


def is_clean(document: Mapping[str, Any] | None) -> bool:
    """Return whether a document, if there is one, is of this version and names no identity."""
    return document is None or (is_ours(document) and not document["mark"])


def is_unclean(host: Path) -> bool:
    """Return whether the file holds anything but the one line of this version."""
    try:
        return not is_clean(read_document(host))
    except (OSError, DamagedError):
        return True


def years_of(document: Mapping[str, Any] | None) -> dict[int, float]:
    """Return the nats reserved by year; infinite where that is not known."""
    if document is None or not is_ours(document):
        return {}
    years: dict[int, float] = {}
    try:
        for year, _, _, nats in document["reserved"]:
            years[int(year)] = years.get(int(year), 0.0) + float(nats)
    except (LookupError, TypeError, ValueError):
        raise DamagedError(NAME) from None
    return years


def read_years(host: Path, year: int) -> dict[int, float]:
    """Return the nats reserved by year; the given one is lost where the file is damaged."""
    try:
        return years_of(read_document(host))
    except DamagedError:
        return {year: math.inf}


def write(host: Path, years: Mapping[int, float]) -> None:
    """Write what was reserved by year, whole or not at all; over the old bytes on a full disk."""
    kept = [[year, "", "", nats] for year, nats in years.items()]
    body = f"{_MAGIC}\n{json.dumps({**_OLD, 'reserved': kept})}\n".encode()
    data = body + check_of(body)
    try:
        with replacing(host / NAME, mode=PRIVATE) as file:
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
