"""Who is signed in: visits in memory, that end after a time, and the tokens of their forms.

A visit is a cookie of 256 random bits, of which only a hash is kept, and the public name of the
token that was signed in with. Whether that token is still valid is asked at every request. Before
somebody signs in the same cookie belongs to nobody; it is what the form to sign in is bound to.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

IDLE_SECONDS: Final = 30 * 60.0
"""How long after its last request a visit ends."""

LONGEST_SECONDS: Final = 12 * 3600.0
"""How long a visit lasts at most."""

MOST: Final = 1000
"""Visits at a time; beyond them the one that was idle longest ends."""

_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(slots=True)
class _Visit:
    token_id: str
    began: float
    seen: float


class Visits:
    """All visits of a process; for one thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nobody yet. Forms of an earlier process are refused."""
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._visits: dict[bytes, _Visit] = {}

    def begin(self, token_id: str) -> str:
        """Return the cookie of a new visit by the token of this public name."""
        self._sweep()
        if len(self._visits) >= MOST:
            del self._visits[min(self._visits, key=lambda each: self._visits[each].seen)]
        cookie = new_cookie()
        now = self._clock()
        self._visits[_digest(cookie)] = _Visit(token_id, now, now)
        return cookie

    def find(self, cookie: str) -> str | None:
        """Return the public name of a visit's token, None if it has ended; it was seen now."""
        visit = self._visits.get(_digest(cookie))
        if visit is None:
            return None
        if self._is_over(visit):
            self.end(cookie)
            return None
        visit.seen = self._clock()
        return visit.token_id

    def end(self, cookie: str) -> None:
        """Forget a visit."""
        self._visits.pop(_digest(cookie), None)

    def form_token(self, cookie: str) -> str:
        """Return what each form must carry that is sent with this cookie."""
        return hmac.digest(self._key, cookie.encode(), hashlib.sha256).hex()

    def is_form_token(self, cookie: str, given: str) -> bool:
        """Return whether a form was made for this cookie."""
        return hmac.compare_digest(self.form_token(cookie).encode(), given.encode())

    def _is_over(self, visit: _Visit) -> bool:
        now = self._clock()
        return now - visit.seen > IDLE_SECONDS or now - visit.began > LONGEST_SECONDS

    def _sweep(self) -> None:
        for digest in [each for each, visit in self._visits.items() if self._is_over(visit)]:
            del self._visits[digest]


def new_cookie() -> str:
    """Return a cookie that nobody can guess."""
    return secrets.token_urlsafe(32)


def is_cookie(text: str) -> bool:
    """Return whether a text has the form of a cookie."""
    return _COOKIE.fullmatch(text) is not None


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
