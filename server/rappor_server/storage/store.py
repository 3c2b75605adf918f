"""The database that all parts of the collector share: opened, asked whether it is there, closed."""

from __future__ import annotations

from typing import Self

from sqlalchemy import Engine, select

from rappor_server.errors import StoreError
from rappor_server.storage.database import check_schema, failing_as_store_error, open_engine


class Store:
    """One database; for any thread."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine whose database has the schema of this program."""
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database; SchemaError unless it has the schema of this program."""
        engine = open_engine(url)
        try:
            check_schema(engine)
        except StoreError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close all connections to the database."""
        self.engine.dispose()

    def ping(self) -> None:
        """Raise StoreError unless the database answers a query."""
        with failing_as_store_error(), self.engine.connect() as db:
            db.execute(select(1))
