"""Read tokens: stored as hashes, and invalid after their last day or their revocation."""

from __future__ import annotations

import datetime

import pytest
from collectors import TODAY, require_found
from databases import ON_BOTH_DATABASES
from rappor_server.storage import schema, tokens
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, select, update


@ON_BOTH_DATABASES
def test_database_stores_a_hash_of_the_token(engine: Engine) -> None:
    """The stored row does not contain the secret of the token, and its hash does not replace it.

    A thief of the database could send the hash alone, or behind the public name of the token.
    """
    token = tokens.create(engine, metrics=None, expires=None, today=TODAY)
    verified = require_found(tokens.verify(engine, token, today=TODAY))
    assert verified.allows("anything")
    with engine.connect() as db:
        row = db.execute(select(schema.token)).mappings().one()
    prefix, public_name, secret = token.split(".")
    assert secret not in str(dict(row))
    assert secret.encode() not in bytes(row["digest"])
    digest = row["digest"].hex()
    for forged in (digest, f"{prefix}.{public_name}.{digest}"):
        assert tokens.verify(engine, forged, today=TODAY) is None


@ON_BOTH_DATABASES
def test_expired_and_revoked_tokens_are_invalid(engine: Engine) -> None:
    """A token is invalid after its last day, and after it was revoked.

    `token_for_good` has no last day.
    """
    token = tokens.create(engine, metrics=["page"], expires=TODAY, today=TODAY)
    assert tokens.verify(engine, token, today=TODAY) is not None
    assert tokens.verify(engine, token, today=TODAY + datetime.timedelta(days=1)) is None
    token_for_good = tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    verified = require_found(
        tokens.verify(engine, token_for_good, today=TODAY + datetime.timedelta(days=1000))
    )
    assert verified.allows("page")
    assert not verified.allows("sound")
    assert tokens.revoke(engine, verified.id, today=TODAY)
    assert not tokens.revoke(engine, "nothing", today=TODAY)
    assert tokens.verify(engine, token_for_good, today=TODAY) is None
    listed = {token.id: token.revoked for token in tokens.list_all(engine)}
    assert listed[verified.id] == TODAY
    assert len(listed) == 2


@ON_BOTH_DATABASES
@pytest.mark.parametrize("metrics", ["[x", "5", '{"page": 1}', '"page"', "[1]", ""])
def test_a_damaged_token_allows_nothing(metrics: str, engine: Engine) -> None:
    """A token whose stored list of metrics is damaged allows no metric.

    The list of all tokens still contains this token and every other token.
    """
    token = tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    with write_transaction(engine) as db:
        db.execute(update(schema.token).values(metrics=metrics))
    tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    verified = tokens.verify(engine, token, today=TODAY)
    assert verified is not None
    assert not verified.allows("page")
    assert sorted(row.metrics or () for row in tokens.list_all(engine)) == [(), ("page",)]


@ON_BOTH_DATABASES
@pytest.mark.parametrize("wrong", ["", "x", "rappor.a.b", "rappor..", "a.b.c.d", "ü.ü.ü"])
def test_malformed_tokens_are_refused(wrong: str, engine: Engine) -> None:
    """Texts of other forms, and a token with one changed character, are refused."""
    token = tokens.create(engine, metrics=None, expires=None, today=TODAY)
    assert tokens.verify(engine, wrong, today=TODAY) is None
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert tokens.verify(engine, changed, today=TODAY) is None
