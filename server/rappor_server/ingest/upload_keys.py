"""The upload keys: several with names and last days, so that one can follow another."""

from __future__ import annotations

import datetime
import hmac
import re
from dataclasses import dataclass, field
from typing import Final, Self

from rappor.base.errors import FileError
from rappor.base.text_lines import split_lines

_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadKey:
    """One key; `last` is the last day (UTC) on which it is taken, None if it has none."""

    name: str
    key: bytes = field(repr=False)
    last: datetime.date | None = None


class UploadKeys:
    """The keys of one file."""

    def __init__(self, keys: tuple[UploadKey, ...]) -> None:
        self._keys = keys

    @classmethod
    def loads(cls, text: str, *, path: str) -> Self:
        """Read `KEY`, `NAME KEY` or `NAME KEY LAST-DAY` a line; # begins a comment.

        Raises FileError for another line, for a name that comes twice, and where there is no key:
        an empty file must not let everyone send.
        """
        keys: dict[str, UploadKey] = {}
        for number, line in enumerate(split_lines(text), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            key = _read(words)
            if key is None or key.name in keys:
                raise FileError(
                    path, "a line must be NAME KEY LAST-DAY, each name once", line=number
                )
            keys[key.name] = key
        if not keys:
            raise FileError(path, "there must be a key in the file")
        return cls(tuple(keys.values()))

    def find(self, authorization: str, *, today: datetime.date) -> str | None:
        """Return the name of the key that a request carries, None if it carries no valid one.

        The time does not depend on which key it is, nor on where the bytes differ.
        """
        given = authorization.encode()
        found = None
        for key in self._keys:
            is_equal = hmac.compare_digest(given, b"Bearer " + key.key)
            if is_equal and (key.last is None or today <= key.last):
                found = key.name
        return found


def _read(words: list[str]) -> UploadKey | None:
    if len(words) == 1:
        return UploadKey(name="key", key=words[0].encode())
    name, key, *last = words
    if not _NAME.fullmatch(name) or len(last) > 1 or not all(map(_DAY.fullmatch, last)):
        return None
    try:
        day = datetime.date.fromisoformat(last[0]) if last else None
    except ValueError:
        return None
    return UploadKey(name=name, key=key.encode(), last=day)
