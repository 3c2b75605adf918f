"""Visits: the sessions of people who are signed in to the pages, and one-time sign-in links.

A secret of 256 random bits identifies a visit. The browser stores the secret in its session cookie.
The database stores a hash of the secret and the public name of the token with which the person
signed in. Every request checks that the token is still valid. All processes share the visits of a
database.

Without a row in the database, a copy of a signed cookie would stay valid after the person has
signed out. So the cookie contains only the secret of the visit, and the table `visit` decides
whether the secret is valid. Because of the signature, a forged cookie is refused without a query. A
thief of the database gets hashes of the secrets and the key that signs cookies. The thief cannot
make a valid cookie, because a cookie needs the secret itself.

A one-time sign-in link is a row of the same table with `once` = true. It begins a visit and is
deleted when it is opened.
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
"""Time after the sign-in at which a visit ends, in seconds. It limits a visit that is never idle,
for example because a page in a forgotten browser reloads itself. The value is a convention: longer
than a working day. A larger value lets such a browser show counts for longer."""
LINK_SECONDS: Final = 10 * 60.0
"""Time for which a one-time sign-in link is valid, in seconds. The value is a convention. A larger
value gives more time to somebody who finds the link, for example in the history of a terminal."""
MAX_VISITS: Final = 1000
"""Largest number of visits and links in the database. A further visit ends the visit that was idle
longest. On PostgreSQL, visits that begin at the same moment may exceed the number until the next
visit begins. A larger value uses more of the disk."""
_UPDATE_SECONDS: Final = 30.0
"""Shortest time between two updates of a visit's time of the last request, in seconds. A smaller
value writes to the database more often."""
_VISIT: Final = schema.visit.c


def begin(
    engine: Engine,
    token_id: str,
    *,
    now: float | None = None,
    max_visits: int = MAX_VISITS,
    is_link: bool = False,
) -> str:
    """Start a visit, and return its secret.

    Visits and links that have ended are deleted. If the database then has `max_visits` visits or
    more, the visits that were idle longest are deleted, too.

    Parameters
    ----------
    engine : the database
    token_id : public name of the token
    now : seconds since 1970; by default the clock
    max_visits : largest number of visits
    is_link : whether to create a one-time sign-in link instead of a visit
    """
    now = time.time() if now is None else now
    secret = secrets.token_urlsafe(32)
    row = {"digest": _digest(secret), "token": token_id, "once": is_link, "began": now, "seen": now}
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_is_over(now)))
        n_visits = db.execute(select(func.count()).select_from(schema.visit)).scalar_one()
        if n_visits >= max_visits:
            idle_longest = (
                select(_VISIT.digest).order_by(_VISIT.seen).limit(n_visits - max_visits + 1)
            )
            db.execute(delete(schema.visit).where(_VISIT.digest.in_(idle_longest)))
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
    if row.seen < now - _UPDATE_SECONDS:
        with write_transaction(engine) as db:
            db.execute(update(schema.visit).where(is_same).values(seen=now))
    return str(row.token)


def open_link(engine: Engine, secret: str, *, now: float | None = None) -> str | None:
    """Use a one-time sign-in link, and return the public name of its token.

    Returns None if the link was used before, or has expired.
    """
    now = time.time() if now is None else now
    is_same = _VISIT.digest == _digest(secret)
    query = select(_VISIT.token).where(is_same, _VISIT.once, ~_is_over(now))
    with write_transaction(engine) as db:
        token_id = db.execute(query).scalar_one_or_none()
        n_deleted = db.execute(delete(schema.visit).where(is_same, _VISIT.once)).rowcount
    # On PostgreSQL, another transaction may have deleted the row after this one read it. Then the
    # other request has used the link.
    return str(token_id) if token_id is not None and n_deleted else None


def end(engine: Engine, secret: str) -> None:
    """Delete a visit."""
    with write_transaction(engine) as db:
        db.execute(delete(schema.visit).where(_VISIT.digest == _digest(secret)))


def cookie_key(engine: Engine) -> str:
    """Return the key that signs the cookies of sessions, as hexadecimal digits."""
    with translate_errors(), engine.connect() as db:
        return str(db.execute(select(schema.cookie_key.c.secret)).scalar_one().hex())


def _is_over(now: float) -> ColumnElement[bool]:
    """Return the SQL condition of visits and links that have ended."""
    return or_(
        # Case: the clock was ahead when the person signed in, and was set back since. Without this
        # condition, the visit would last until the clock has the time of the sign-in again. Clocks
        # of several hosts differ by seconds, so a visit may be seen a little in the future.
        _VISIT.seen > now + IDLE_SECONDS,
        _VISIT.seen < now - IDLE_SECONDS,
        _VISIT.began < now - LONGEST_SECONDS,
        _VISIT.once & ~_VISIT.began.between(now - LINK_SECONDS, now + LINK_SECONDS),
    )


def _digest(secret: str) -> bytes:
    """Return the hash of a secret that the database stores."""
    return hashlib.sha256(secret.encode()).digest()
