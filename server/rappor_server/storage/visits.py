"""Visits: the sessions of people who are signed in to the pages, and one-time sign-in links.

A visit is known by a secret of 256 random bits, which the browser stores in its session cookie. The
database stores a hash of the secret and the public name of the token with which the person signed
in; every request checks that the token is still valid. All processes share the visits of a
database.

A signed cookie alone could not end on the server: a copy of the cookie would stay valid after the
person has signed out. So the cookie has only the secret, and this table decides whether it is
valid. The signature adds that a forged cookie is refused without a query. Whoever steals the
database gets hashes of secrets and the key that signs cookies, and cannot make a valid cookie from
them.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Final

from sqlalchemy import ColumnElement, Engine, delete, func, insert, or_, select, update

from rappor_server.storage import schema
from rappor_server.storage.database import translate_errors, write_transaction

IDLE_SECONDS: Final = 30 * 60.0
"""Time after the last request at which a visit ends, in seconds. The value is a convention: longer
than a break, shorter than a working day. A larger value lets a forgotten browser show counts for
longer."""
LONGEST_SECONDS: Final = 12 * 3600.0
"""Time after the sign-in at which a visit ends, in seconds. It limits a visit that never pauses, as
of a page that reloads itself."""
LINK_SECONDS: Final = 10 * 60.0
"""Time for which a one-time sign-in link is valid."""
MOST: Final = 1000
"""Largest number of visits. A further visit ends the visit that was idle longest."""
_NOTED_SECONDS: Final = 30.0
"""Shortest time between two updates of the last request. A smaller value writes more often."""
_VISIT: Final = schema.visit.c


def begin(
    engine: Engine, token_id: str, *, now: float | None = None, most: int = MOST, once: bool = False
) -> str:
    """Start a visit, and return its secret.

    Visits and links that have ended are deleted, and the visits idle longest if there are too many.

    Parameters
    ----------
    engine : the database
    token_id : public name of the token
    now : seconds since 1970; by default the clock
    most : largest number of visits
    once : whether to create a one-time sign-in link instead of a visit
    """
    now = time.time() if now is None else now
    secret = secrets.token_urlsafe(32)
    row = {"digest": _digest(secret), "token": token_id, "once": once, "began": now, "seen": now}
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_is_over(now)))
        n = db.execute(select(func.count()).select_from(schema.visit)).scalar_one()
        if n >= most:
            idle = select(_VISIT.digest).order_by(_VISIT.seen).limit(n - most + 1)
            db.execute(delete(schema.visit).where(_VISIT.digest.in_(idle)))
        db.execute(insert(schema.visit), row)
    return secret


def find(engine: Engine, secret: str, *, now: float | None = None) -> str | None:
    """Return the public name of a visit's token, or None if the visit has ended.

    The call counts as a request of the visit.
    """
    now = time.time() if now is None else now
    is_same = _VISIT.digest == _digest(secret)
    query = select(_VISIT.token, _VISIT.seen).where(is_same, ~_VISIT.once, ~_is_over(now))
    with translate_errors(), engine.connect() as db:
        row = db.execute(query).first()
    if row is None:
        return None
    if row.seen < now - _NOTED_SECONDS:
        with write_transaction(engine) as db:
            db.execute(update(schema.visit).where(is_same).values(seen=now))
    return str(row.token)


def open_link(engine: Engine, secret: str, *, now: float | None = None) -> str | None:
    """Use a sign-in link; return its token's public name, or None if it was used or expired."""
    now = time.time() if now is None else now
    is_same = _VISIT.digest == _digest(secret)
    query = select(_VISIT.token).where(is_same, _VISIT.once, ~_is_over(now))
    with write_transaction(engine) as db:
        token_id = db.execute(query).scalar_one_or_none()
        gone = db.execute(delete(schema.visit).where(is_same, _VISIT.once)).rowcount
    return str(token_id) if token_id is not None and gone else None


def end(engine: Engine, secret: str) -> None:
    """Delete a visit."""
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_VISIT.digest == _digest(secret)))


def cookie_key(engine: Engine) -> str:
    """Return the key that signs the cookies of sessions, as hexadecimal digits."""
    with translate_errors(), engine.connect() as db:
        return str(db.execute(select(schema.cookie_key.c.secret)).scalar_one().hex())


def _is_over(now: float) -> ColumnElement[bool]:
    return or_(
        _VISIT.seen < now - IDLE_SECONDS,
        _VISIT.began < now - LONGEST_SECONDS,
        _VISIT.once & (_VISIT.began < now - LINK_SECONDS),
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
