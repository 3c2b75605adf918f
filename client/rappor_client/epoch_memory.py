"""The first value of an epoch answers for the whole epoch.

The latch holds the epoch's permanent response and parameters, never the value. It is in force
until the last day of its epoch is over, whatever the registry says meanwhile and however the
clock is set: a clock that is set back leaves the device in the later epoch.
"""

from __future__ import annotations

import datetime
import sqlite3

from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.periods import epoch_end
from rappor_client.prepared import Prepared, prepare_again
from rappor_client.state import keep_params, kept_params


def latched(db: sqlite3.Connection, name: str, day: datetime.date, coins: Coins) -> Prepared | None:
    """Return a fresh report of the epoch that a metric is in, None if it is in none."""
    query = (
        "SELECT epoch, params, cohort, permanent, pattern FROM latch "
        "WHERE metric = ? AND last_day >= ?"
    )
    row = db.execute(query, (name, day.isoformat())).fetchone()
    if row is None:
        return None
    epoch, fingerprint, cohort, permanent, pattern = row
    memory = Prepared(
        params=kept_params(db, fingerprint),
        epoch=epoch,
        pattern=pattern,
        permanent=permanent,
        report=Report(metric=name, params=fingerprint, cohort=cohort, bits=b""),
    )
    return prepare_again(memory, coins)


def latch(db: sqlite3.Connection, metric: Metric, prepared: Prepared, day: datetime.date) -> None:
    """Let a report's permanent response answer for the epoch, if the metric has epochs."""
    if metric.epoch == "life":
        return
    keep_params(db, prepared.report.params, prepared.params)
    row = (
        metric.name,
        prepared.epoch,
        epoch_end(metric.epoch, day).isoformat(),
        prepared.report.params,
        prepared.report.cohort,
        prepared.permanent,
        prepared.pattern,
    )
    db.execute("INSERT OR REPLACE INTO latch VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def latched_epochs(db: sqlite3.Connection) -> dict[str, str]:
    """Return the latched epoch of each metric that has one."""
    return dict(db.execute("SELECT metric, epoch FROM latch ORDER BY metric"))
