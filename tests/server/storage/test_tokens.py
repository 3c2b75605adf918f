"""Read tokens: stored as hashes, and invalid after their last day or their revocation."""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY, require_found
from rappor_server.storage import schema, tokens
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, select, update


def test_database_stores_a_hash_of_the_token(engine: Engine) -> None:
    """The stored row does not contain the secret, and the hash in it is no valid token."""
    token = tokens.create(engine, metrics=None, expires=None, today=TODAY)
    found = require_found(tokens.verify(engine, token, today=TODAY))
    assert found.allows("anything")
    with engine.connect() as db:
        row = db.execute(select(schema.token)).mappings().one()
    secret = token.split(".")[2]
    assert secret not in str(dict(row))
    assert secret.encode() not in bytes(row["digest"])
    assert tokens.verify(engine, row["digest"].hex(), today=TODAY) is None


def test_expired_and_revoked_tokens_are_invalid(engine: Engine) -> None:
    """A token is invalid after its last day, and after it was revoked."""
    token = tokens.create(engine, metrics=["page"], expires=TODAY, today=TODAY)
    assert tokens.verify(engine, token, today=TODAY) is not None
    assert tokens.verify(engine, token, today=TODAY + datetime.timedelta(days=1)) is None
    other = tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    found = require_found(tokens.verify(engine, other, today=TODAY + datetime.timedelta(days=1000)))
    assert found.allows("page")
    assert not found.allows("sound")
    assert tokens.revoke(engine, found.id, today=TODAY)
    assert not tokens.revoke(engine, "nothing", today=TODAY)
    assert tokens.verify(engine, other, today=TODAY) is None
    listed = {token.id: token.revoked for token in tokens.list_all(engine)}
    assert listed[found.id] == TODAY
    assert len(listed) == 2


@pytest.mark.parametrize("metrics", ["[x", "5", '{"page": 1}', '"page"', "[1]", ""])
def test_a_damaged_token_allows_nothing(metrics: str, engine: Engine) -> None:
    """A token whose stored list of metrics is damaged allows no metric.

    The list of all tokens still contains this token and every other token.
    """
    token = tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    with write_transaction(engine) as db:
        db.execute(update(schema.token).values(metrics=metrics))
    tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    found = tokens.verify(engine, token, today=TODAY)
    assert found is not None
    assert not found.allows("page")
    assert sorted(each.metrics or () for each in tokens.list_all(engine)) == [(), ("page",)]


@pytest.mark.parametrize("wrong", ["", "x", "rappor.a.b", "rappor..", "a.b.c.d", "ü.ü.ü"])
def test_malformed_tokens_are_refused(wrong: str, engine: Engine) -> None:
    """Texts of other forms, and a token with one changed character, are refused."""
    token = tokens.create(engine, metrics=None, expires=None, today=TODAY)
    assert tokens.verify(engine, wrong, today=TODAY) is None
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert tokens.verify(engine, changed, today=TODAY) is None
