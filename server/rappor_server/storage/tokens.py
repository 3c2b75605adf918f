"""Analysts' tokens: shown once, hashed at rest, with an expiry and the metrics they may read.

A token holds 256 random bits, so one SHA-256 hides it: nobody can guess it by trying.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Engine, Row, select, update

from rappor_server.storage import schema
from rappor_server.storage.database import translate_errors, write_transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What the database holds of a token, without its secret; `metrics` None allows all."""

    id: str
    metrics: tuple[str, ...] | None
    expires: datetime.date | None
    revoked: datetime.date | None

    def allows(self, metric: str) -> bool:
        """Return whether the token may read a metric."""
        return self.metrics is None or metric in self.metrics

    def is_valid(self, today: datetime.date) -> bool:
        """Return whether the token is neither expired nor revoked; it is valid on its last day."""
        return self.revoked is None and (self.expires is None or today <= self.expires)


def create(
    engine: Engine,
    *,
    metrics: Sequence[str] | None,
    expires: datetime.date | None,
    today: datetime.date,
) -> str:
    """Create a token and return it; it cannot be shown again."""
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    token = f"rappor.{token_id}.{secret}"
    row = {
        "id": token_id,
        "digest": _digest(token),
        "metrics": json.dumps(None if metrics is None else list(metrics)),
        "expires": expires,
        "created": today,
    }
    with write_transaction(engine) as db:
        db.execute(schema.token.insert(), row)
    return token


def verify(engine: Engine, token: str, *, today: datetime.date) -> Token | None:
    """Return what a token may do, None if it is unknown, expired or revoked.

    The comparison takes the same time wherever the two tokens differ.
    """
    token_id = token.split(".")[1] if token.count(".") == 2 else ""
    with translate_errors(), engine.connect() as db:
        query = select(schema.token.c.digest).where(schema.token.c.id == token_id)
        stored = db.execute(query).scalar() or b""
    is_right = hmac.compare_digest(bytes(stored), _digest(token))
    return find(engine, token_id, today=today) if is_right else None


def list_all(engine: Engine) -> list[Token]:
    """Return all tokens, revoked ones too."""
    with translate_errors(), engine.connect() as db:
        rows = db.execute(select(schema.token).order_by(schema.token.c.created, schema.token.c.id))
        return [_token(row) for row in rows]


def find(engine: Engine, token_id: str, *, today: datetime.date) -> Token | None:
    """Return what the token of a public name may do, None if it is not valid any more."""
    with translate_errors(), engine.connect() as db:
        row = db.execute(select(schema.token).where(schema.token.c.id == token_id)).first()
    found = None if row is None else _token(row)
    return found if found is not None and found.is_valid(today) else None


def revoke(engine: Engine, token_id: str, *, today: datetime.date) -> bool:
    """Revoke the token of a public name; False if there is none."""
    columns = schema.token.c
    with write_transaction(engine) as db:
        result = db.execute(
            update(schema.token).where(columns.id == token_id).values(revoked=today)
        )
        return bool(result.rowcount)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _token(row: Row[tuple[object, ...]]) -> Token:
    try:
        metrics = msgspec.json.decode(row.metrics, type=tuple[str, ...] | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # it allows nothing, and hides no other one
        metrics = ()
    return Token(id=row.id, metrics=metrics, expires=row.expires, revoked=row.revoked)
