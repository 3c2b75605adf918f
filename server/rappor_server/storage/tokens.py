"""Read tokens: secrets by which analysts read counts, with an expiry and a list of metrics.

A token is printed once, when it is created, and only its hash is stored. It has two parts:

    rappor.1f3a9c0d5e7b2846.Kq4...    public name (`Token.id`, 16 hexadecimal digits) and secret

The public name finds the row of the token, and may appear in lists of tokens. The secret has 256
random bits, so nobody can find it by trying. A single SHA-256 is therefore enough as a hash.
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
    """A stored token without its secret. `metrics` is None if the token may read all metrics."""

    id: str
    metrics: tuple[str, ...] | None
    expires: datetime.date | None
    revoked: datetime.date | None

    def allows(self, metric: str) -> bool:
        """Return whether the token may read a metric."""
        return self.metrics is None or metric in self.metrics

    def is_valid(self, today: datetime.date) -> bool:
        """Return whether the token is neither revoked nor expired. The last day is included."""
        return self.revoked is None and (self.expires is None or today <= self.expires)


def create(
    engine: Engine,
    *,
    metrics: Sequence[str] | None,
    expires: datetime.date | None,
    today: datetime.date,
) -> str:
    """Create a token and return it.

    The database stores only a hash, so the token can never be shown again.
    """
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
    """Return the stored token, or None if the token is unknown, expired or revoked.

    The comparison takes the same time wherever the tokens differ, so time reveals no part of a
    token.
    """
    # The row is found by the public name. Only the comparison of the digests decides.
    token_id = token.split(".")[1] if token.count(".") == 2 else ""
    with translate_errors(), engine.connect() as db:
        query = select(schema.token.c.digest).where(schema.token.c.id == token_id)
        # An unknown name is compared with an empty digest, which no token has.
        stored = db.execute(query).scalar() or b""
    is_right = hmac.compare_digest(bytes(stored), _digest(token))
    return find(engine, token_id, today=today) if is_right else None


def list_all(engine: Engine) -> list[Token]:
    """Return all tokens, including revoked tokens."""
    with translate_errors(), engine.connect() as db:
        rows = db.execute(select(schema.token).order_by(schema.token.c.created, schema.token.c.id))
        return [_parse_token(row) for row in rows]


def find(engine: Engine, token_id: str, *, today: datetime.date) -> Token | None:
    """Return the token of a public name, or None if it is unknown, expired or revoked."""
    with translate_errors(), engine.connect() as db:
        row = db.execute(select(schema.token).where(schema.token.c.id == token_id)).first()
    token = None if row is None else _parse_token(row)
    return token if token is not None and token.is_valid(today) else None


def revoke(engine: Engine, token_id: str, *, today: datetime.date) -> bool:
    """Revoke the token of a public name; return whether there is such a token."""
    columns = schema.token.c
    with write_transaction(engine) as db:
        result = db.execute(
            update(schema.token).where(columns.id == token_id).values(revoked=today)
        )
        return bool(result.rowcount)


def _digest(token: str) -> bytes:
    """Return the hash of a token that the database stores."""
    return hashlib.sha256(token.encode()).digest()


def _parse_token(row: Row[tuple[object, ...]]) -> Token:
    """Return the token of a row of the table."""
    try:
        metrics = msgspec.json.decode(row.metrics, type=tuple[str, ...] | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # A damaged row allows nothing. An error here would hide all other tokens of the list.
        metrics = ()
    return Token(id=row.id, metrics=metrics, expires=row.expires, revoked=row.revoked)
