"""Who is signed in to the pages: visits that end after a time, and links that sign in once.

A visit is a cookie of 256 random bits, of which the database has a hash, and the public name of the
token that was signed in with. Whether that token is still valid is asked at every request. Before
somebody signs in the same cookie belongs to nobody; it is what the form to sign in is bound to.
Any process finds a visit that another one began.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from typing import Final

from sqlalchemy import ColumnElement, Engine, delete, func, insert, or_, select, update

from rappor_server.storage import schema
from rappor_server.storage.database import translate_errors, write_transaction

IDLE_SECONDS: Final = 30 * 60.0
"""How long after its last request a visit ends."""
LONGEST_SECONDS: Final = 12 * 3600.0
"""How long a visit lasts at most."""
LINK_SECONDS: Final = 10 * 60.0
"""How long a link that signs in once is valid."""
MOST: Final = 1000
"""Visits at a time; beyond them the one that was idle longest ends."""
_NOTED_SECONDS: Final = 30.0
"""Requests that follow each other within this time are not written down each."""
_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_VISIT: Final = schema.visit.c


def begin(
    engine: Engine, token_id: str, *, now: float | None = None, most: int = MOST, once: bool = False
) -> str:
    """Return the cookie of a new visit by the token of this public name.

    With `once` it is a link's. Visits and links that are over or too many are forgotten.
    """
    now = time.time() if now is None else now
    secret = new_cookie()
    row = {"digest": _digest(secret), "token": token_id, "once": once, "began": now, "seen": now}
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_is_over(now)))
        n = db.execute(select(func.count()).select_from(schema.visit)).scalar_one()
        if n >= most:
            idle = select(_VISIT.digest).order_by(_VISIT.seen).limit(n - most + 1)
            db.execute(delete(schema.visit).where(_VISIT.digest.in_(idle)))
        db.execute(insert(schema.visit), row)
    return secret


def find(engine: Engine, cookie: str, *, now: float | None = None) -> str | None:
    """Return the public name of a visit's token, None if it has ended; it was seen now."""
    now = time.time() if now is None else now
    own = _VISIT.digest == _digest(cookie)
    query = select(_VISIT.token, _VISIT.seen).where(own, ~_VISIT.once, ~_is_over(now))
    with translate_errors(), engine.connect() as db:
        row = db.execute(query).first()
    if row is None:
        return None
    if row.seen < now - _NOTED_SECONDS:
        with write_transaction(engine) as db:
            db.execute(update(schema.visit).where(own).values(seen=now))
    return str(row.token)


def open_link(engine: Engine, secret: str, *, now: float | None = None) -> str | None:
    """Use up a link; return the public name of its token, None if it was used or is too old."""
    now = time.time() if now is None else now
    own = _VISIT.digest == _digest(secret)
    query = select(_VISIT.token).where(own, _VISIT.once, ~_is_over(now))
    with write_transaction(engine) as db:
        token_id = db.execute(query).scalar_one_or_none()
        gone = db.execute(delete(schema.visit).where(own, _VISIT.once)).rowcount
    return str(token_id) if token_id is not None and gone else None


def end(engine: Engine, cookie: str) -> None:
    """Forget a visit."""
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_VISIT.digest == _digest(cookie)))


def form_token(cookie: str) -> str:
    """Return what each form must carry that is sent with this cookie, which it does not tell."""
    return hmac.digest(cookie.encode(), b"rappor/pages/form", hashlib.sha256).hex()


def is_form_token(cookie: str, given: str) -> bool:
    """Return whether a form was made for this cookie."""
    return hmac.compare_digest(form_token(cookie).encode(), given.encode())


def new_cookie() -> str:
    """Return a cookie that nobody can guess."""
    return secrets.token_urlsafe(32)


def is_cookie(text: str) -> bool:
    """Return whether a text has the form of a cookie."""
    return _COOKIE.fullmatch(text) is not None


def _is_over(now: float) -> ColumnElement[bool]:
    return or_(
        _VISIT.seen < now - IDLE_SECONDS,
        _VISIT.began < now - LONGEST_SECONDS,
        _VISIT.once & (_VISIT.began < now - LINK_SECONDS),
    )


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
