"""Analysts' tokens: hashed at rest, and no longer valid once they end."""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY, there
from rappor_server.storage import schema, tokens
from rappor_server.storage.database import writing
from rappor_server.storage.store import Store
from sqlalchemy import select, update


def test_token_is_shown_once_and_hashed_at_rest(store: Store) -> None:
    """The database holds a hash of the token, which is no token itself."""
    token = tokens.create(store, metrics=None, expires=None, today=TODAY)
    found = there(tokens.verify(store, token, today=TODAY))
    assert found.allows("anything")
    with store.engine.connect() as db:
        row = db.execute(select(schema.token)).mappings().one()
    secret = token.split(".")[2]
    assert secret not in str(dict(row))
    assert secret.encode() not in bytes(row["digest"])
    assert tokens.verify(store, row["digest"].hex(), today=TODAY) is None


def test_tokens_end(store: Store) -> None:
    """A token ends after its last day, and when it is revoked."""
    token = tokens.create(store, metrics=["page"], expires=TODAY, today=TODAY)
    assert tokens.verify(store, token, today=TODAY) is not None
    assert tokens.verify(store, token, today=TODAY + datetime.timedelta(days=1)) is None
    other = tokens.create(store, metrics=["page"], expires=None, today=TODAY)
    found = there(tokens.verify(store, other, today=TODAY + datetime.timedelta(days=1000)))
    assert found.allows("page")
    assert not found.allows("sound")
    assert tokens.revoke(store, found.id, today=TODAY)
    assert not tokens.revoke(store, "nothing", today=TODAY)
    assert tokens.verify(store, other, today=TODAY) is None
    listed = {token.id: token.revoked for token in tokens.list_all(store)}
    assert listed[found.id] == TODAY
    assert len(listed) == 2


@pytest.mark.parametrize("metrics", ["[x", "5", '{"page": 1}', '"page"', "[1]", ""])
def test_a_damaged_token_allows_nothing(metrics: str, store: Store) -> None:
    """It hides no other one from who lists them all."""
    token = tokens.create(store, metrics=["page"], expires=None, today=TODAY)
    with writing(store.engine) as db:
        db.execute(update(schema.token).values(metrics=metrics))
    tokens.create(store, metrics=["page"], expires=None, today=TODAY)
    found = tokens.verify(store, token, today=TODAY)
    assert found is not None
    assert not found.allows("page")
    assert sorted(each.metrics or () for each in tokens.list_all(store)) == [(), ("page",)]


@pytest.mark.parametrize("wrong", ["", "x", "rappor.a.b", "rappor..", "a.b.c.d", "ü.ü.ü"])
def test_nonsense_is_no_token(wrong: str, store: Store) -> None:
    """Texts of other forms, and a token with one changed character, are refused."""
    token = tokens.create(store, metrics=None, expires=None, today=TODAY)
    assert tokens.verify(store, wrong, today=TODAY) is None
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert tokens.verify(store, changed, today=TODAY) is None
