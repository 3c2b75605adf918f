"""What a device's folder holds: all of it at one moment, for people and for tests.

Nothing true is in it: reports are noisy, permanent responses go by keyed names, and of the secret
it tells only whether there is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rappor.ground.errors import FileError
from rappor.protocol.wire import Report
from rappor_client.budget import budget_copy, ledger, reservoir, scope_memory
from rappor_client.budget.budget_copy import BudgetCopy
from rappor_client.budget.ledger import NOTHING_SPENT, Pattern, Spent
from rappor_client.budget.reservoir import Held
from rappor_client.folder import spool
from rappor_client.folder.secret_file import SecretFile
from rappor_client.folder.spool import Pending, Sent
from rappor_client.folder.state import counters
from rappor_client.folder.store import Store, failing_as_file_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a device's folder holds.

    `waiting` are the finished reports without an answer; the first of them are in the uploads
    `pending`. `held` are the reports that wait for the end of their interval. `latched`
    names the epoch that each metric answers for, empty for life. `patterns` are the permanent
    responses in the ledger, which `spent` sums up. `sent` is the log of uploads.
    """

    has_secret: bool
    waiting: tuple[Report, ...] = ()
    pending: tuple[Pending, ...] = ()
    held: tuple[Held, ...] = ()
    latched: Mapping[str, str]
    patterns: tuple[Pattern, ...] = ()
    spent: Spent = NOTHING_SPENT
    sent: tuple[Sent, ...] = ()
    counters: Mapping[str, int]


def read_contents(folder: str | os.PathLike[str]) -> Contents:
    """Read what a folder holds; FileError where it cannot be read.

    A folder without telemetry, or no folder at all, has empty contents.
    """
    place = Path(folder).expanduser()
    has_secret = SecretFile(place).exists()
    store = Store(place)
    with failing_as_file_error(place):
        if not store.exists():
            spent = budget_copy.spent(BudgetCopy(place).read(), None)
            return Contents(has_secret=has_secret, latched={}, spent=spent, counters={})
        try:
            copy = BudgetCopy(place).read()
            with store.reading() as db:
                return Contents(
                    has_secret=has_secret,
                    waiting=tuple(spool.waiting_reports(db)),
                    pending=tuple(spool.pending(db)),
                    held=tuple(reservoir.held(db)),
                    latched=scope_memory.latched_epochs(db),
                    patterns=tuple(ledger.patterns(db)),
                    spent=budget_copy.spent(copy, db),
                    sent=tuple(spool.log(db)),
                    counters=counters(db),
                )
        finally:
            store.close()


def check_telemetry(folder: Path) -> None:
    """Raise FileError unless a folder holds anything of a device, if only what it has spent."""
    if not (Store(folder).exists() or BudgetCopy(folder).exists() or SecretFile(folder).exists()):
        raise FileError(folder, "there is no telemetry in it")
