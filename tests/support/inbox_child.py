"""Processes that add uploads to an inbox, or merge the inbox into counters, until they are killed.

The inbox is the collector's durable queue of accepted uploads.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from multiprocessing.connection import Connection
from typing import Any

from collectors import append, parse_submission
from rappor_server.base.errors import StoreError
from rappor_server.storage.database import open_database
from rappor_server.storage.inbox import open_inbox
from rappor_server.storage.merge import merge
from rappor_server.storage.schema_versions import open_checked
from sqlalchemy import Engine


def receive(link: Connection[Any, Any], database: str, today: datetime.date) -> None:
    """Add each batch of uploads to the inbox. When the batch is durable, send back its number."""
    engine: Engine | None = None
    while True:
        number, bodies = link.recv()
        submissions = [parse_submission(body) for body in bodies]
        while True:
            try:
                engine = engine or open_checked(database)
                append(engine, submissions, today=today)
                break
            except StoreError:
                time.sleep(0.05)
        link.send(number)


def merge_always(database: str, today: datetime.date) -> None:
    """Merge the inbox again and again, at most 5,000 bytes in a transaction.

    Small transactions let a kill fall between two of them.
    """
    while True:
        with (
            contextlib.suppress(StoreError),
            open_database(database) as engine,
            contextlib.closing(open_inbox(engine, max_merge_bytes=5000)) as inbox,
        ):
            while True:
                merge(engine, inbox, today=today)
                time.sleep(0.01)
        time.sleep(0.05)
