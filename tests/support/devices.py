"""Metrics, settings and disks that the tests of the device share."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rappor_client import Caps, Client
from rappor_client.budget import budget_copy
from rappor_client.budget.budget_copy import BudgetCopy
from rappor_client.folder.secret_file import SecretFile
from rappor_client.folder.store import in_memory
from rappor_client.person.identity import mark_of

from rappor import Metric, Params

UNCAPPED = Caps()
BALANCED = dataclasses.replace(Params.profile("balanced"), m=1)
"""In one cohort the same values share their bits in every run; in many, now and then others."""
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
DATABASE = "telemetry.sqlite3"

Opener = Callable[..., Client]
"""(*metrics, folder=..., **settings of Client.open) -> a client on one folder of a test."""


def metric_of(name: str = "page", params: Params = BALANCED, **fields: Any) -> Metric:
    """Return a metric that lasts until 2030."""
    given: dict[str, Any] = {
        "expires": datetime.date(2030, 12, 31),
        "description": "a",
        "owner": "b",
        "epoch": "life",
        "interval": "none",
    } | fields
    return Metric(name=name, params=params, **given)


def secret_of(folder: Path) -> bytes:
    """Return the secret as the folder's file holds it."""
    return SecretFile(folder).read()


def write_device(folder: Path, secret: bytes) -> None:
    """Write the files of a device that has spent nothing yet, as their formats say.

    The secret's file is a line, the secret, and 8 bytes of SHA-256 over both.
    """
    head = b"rappor identity 1\n" + secret
    folder.mkdir(mode=0o700)
    (folder / "identity").write_bytes(head + hashlib.sha256(head).digest()[:8])
    with contextlib.closing(in_memory()) as db:
        budget_copy.write_mark(db, mark_of(secret))
        BudgetCopy(folder).write(budget_copy.dump(db))


def lose(folder: Path) -> None:
    """Remove the database."""
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()


@contextlib.contextmanager
def database(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a device's database beside its client; keep what the block writes."""
    db = sqlite3.connect(folder / DATABASE)
    try:
        with db:
            yield db
    finally:
        db.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the database's write lock, as another process would, while the block runs."""
    other = sqlite3.connect(folder / DATABASE, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


@contextlib.contextmanager
def refusing_disk(folder: Path) -> Iterator[None]:
    """Let the database refuse every further report while the block runs."""
    refuse = "BEFORE INSERT ON report BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with database(folder) as db:
        db.execute(f"CREATE TRIGGER refusing {refuse}")
    try:
        yield
    finally:
        with database(folder) as db:
            db.execute("DROP TRIGGER refusing")


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Let no file of this process grow past the database's largest while the block runs."""
    import resource  # noqa: PLC0415 - POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
