"""Upload keys: secrets that programs need to upload, each with a name and a last day.

The setting `upload_key_file` names a text file with one key a line:

    # NAME    KEY                     LAST-DAY
    app-2025  3q2-7wYhVb1kXb9cR0ZzEw  2026-12-31
    app-2026  Zt5mQ8yJc0oXn4rLkUe1Vg

Several keys are valid at the same time, so a key can be replaced without an interruption: add the
new key, update the programs, then set the last day of the old key. An upload key keeps out
strangers who have no copy of the program. It does not authenticate a device, because all copies of
a program have the same key.
"""

from __future__ import annotations

import datetime
import hmac
import re
from dataclasses import dataclass, field
from typing import Final, Self

from rappor.base.errors import FileError
from rappor.base.text_lines import split_lines

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
"""Pattern of the name of a key, which is also the pattern of the name of a metric. The name is the
value of a label in the Prometheus counter of uploads, `rappor_key_uploads`."""
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
"""Pattern of a day. `date.fromisoformat` also parses weeks such as 2026-W48-1."""

_MIN_CHARACTERS: Final = 16
"""Least number of characters of a key. A stranger could guess a shorter key by sending uploads:
three letters are 18 thousand attempts. A random key of 16 characters has about 96 bits."""
_TOO_SHORT: Final = (
    f"a key must have at least {_MIN_CHARACTERS} characters: make one with "
    "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
)
"""Message for a key that is too short. It does not contain the key."""

_EXPECTED_LINE: Final = (
    "a line must be NAME KEY or NAME KEY LAST-DAY, with a name of small letters, digits, _, . and "
    "- that no other line has, and a day such as 2026-12-31"
)
"""Message for every line that is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadKey:
    """One upload key.

    Attributes
    ----------
    name : name of the key in the Prometheus counter of uploads. It is not secret.
    key : the secret
    last_day : last day (UTC) on which the key is valid, or None if the key has no last day
    """

    name: str
    key: bytes = field(repr=False)
    last_day: datetime.date | None = None


class UploadKeys:
    """The upload keys of one file."""

    def __init__(self, keys: tuple[UploadKey, ...]) -> None:
        self._keys = keys

    @classmethod
    def loads(cls, text: str, *, path: str) -> Self:
        """Parse lines of the form `NAME KEY` or `NAME KEY LAST-DAY`; # begins a comment.

        A key has at least 16 characters.

        Raises
        ------
        FileError
            A line has another form, a key is too short, two keys have the same name, or the file
            has no key. An empty file is refused, because the operator may believe either that no
            key is needed or that nobody can upload.
        """
        keys: dict[str, UploadKey] = {}
        for number, line in enumerate(split_lines(text), start=1):
            words = line.partition("#")[0].split()
            if not words:  # an empty line, or a line with a comment only
                continue
            key = _parse_key(words)
            if key is None or key.name in keys:
                # The message does not repeat the line, which contains a secret.
                raise FileError(path, _EXPECTED_LINE, line=number)
            if len(key.key) < _MIN_CHARACTERS:
                raise FileError(path, _TOO_SHORT, line=number)
            keys[key.name] = key
        if not keys:
            raise FileError(path, "the file must have a key")
        return cls(tuple(keys.values()))

    def find(self, authorization: str, *, today: datetime.date) -> str | None:
        """Return the name of the valid key in an Authorization header (`Bearer KEY`), or None.

        The method compares the header with every key, and each comparison takes the same time
        wherever the texts differ. The duration therefore reveals neither which key matches nor how
        many characters of a wrong key are right.
        """
        header = authorization.encode()
        name = None
        for key in self._keys:
            is_equal = hmac.compare_digest(header, b"Bearer " + key.key)
            if is_equal and (key.last_day is None or today <= key.last_day):
                name = key.name
        return name


def _parse_key(words: list[str]) -> UploadKey | None:
    """Return the key in the words of a line, or None if the line is malformed."""
    # A single word may be a key without a name, or a name whose key is missing. Bad case: an
    # operator wrote the name only, so the public name became the key that programs needed.
    if len(words) == 1:
        return None
    name, key, *days = words
    if not _NAME.fullmatch(name) or len(days) > 1 or not all(map(_DAY.fullmatch, days)):
        return None
    try:
        last_day = datetime.date.fromisoformat(days[0]) if days else None
    except ValueError:  # a day that no calendar has, such as 2026-13-01
        return None
    return UploadKey(name=name, key=key.encode(), last_day=last_day)
