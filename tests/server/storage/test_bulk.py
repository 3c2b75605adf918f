"""Bulk inserts: what happens to a row whose primary key the table already has."""

from __future__ import annotations

import pytest
from databases import ON_BOTH_DATABASES
from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, select

STORED = ("0123456789abcdef", "stored")
"""A row of the table `params`, which contains a fingerprint (the primary key) and a document."""
SAME_KEY, OTHER = (STORED[0], "new"), ("fedcba9876543210", "other")
"""Two rows to insert. The table already has the primary key of the first one."""


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    ("options", "documents"),
    [
        ({"skip_stored": True}, {"stored", "other"}),
        ({"update": "document = excluded.document"}, {"new", "other"}),
    ],
)
def test_caller_decides_about_a_stored_row(
    engine: Engine, options: dict[str, object], documents: set[str]
) -> None:
    """A new row with the key of a stored row is skipped, or changes the stored row."""
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [STORED])
        insert_rows(db, schema.params, [SAME_KEY, OTHER], **options)  # type: ignore[arg-type]
    assert read_documents(engine) == documents


@ON_BOTH_DATABASES
def test_stored_row_is_an_error_by_default(engine: Engine) -> None:
    """Without an option, the whole transaction fails, so no row is lost unnoticed.

    Bad case: a second block with the key of a stored block was skipped. The counters from which the
    block was made were deleted in the same transaction, and their reports were lost.
    """
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [STORED])
    with pytest.raises(StoreError), write_transaction(engine) as db:
        insert_rows(db, schema.params, [OTHER, SAME_KEY])
    assert read_documents(engine) == {"stored"}


def read_documents(engine: Engine) -> set[str]:
    """Return the documents of all rows of the table `params`."""
    with engine.connect() as db:
        return set(db.execute(select(schema.params.c.document)).scalars())
