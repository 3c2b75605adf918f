"""The first value of an epoch answers for the whole of it.

The latch holds the epoch's permanent response and parameters, never the value. It is in force
until the epoch's last day is over, whatever the registry says meanwhile and wherever the clock
goes: a clock that is set back leaves the device in the later epoch.
"""

from __future__ import annotations

import datetime
import sqlite3

from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.periods import epoch_end
from rappor_client.prepared import Made, make_again
from rappor_client.state import keep_params, kept_params


def latched(db: sqlite3.Connection, name: str, day: datetime.date, coins: Coins) -> Made | None:
    """Return a fresh report of the epoch that a metric is in, None if it is in none."""
    query = (
        "SELECT epoch, params, cohort, permanent, pattern FROM latch "
        "WHERE metric = ? AND last_day >= ?"
    )
    row = db.execute(query, (name, day.isoformat())).fetchone()
    if row is None:
        return None
    epoch, fingerprint, cohort, permanent, pattern = row
    silent = Report(metric=name, params=fingerprint, cohort=cohort, bits=b"")
    params = kept_params(db, fingerprint)
    memory = Made(params=params, epoch=epoch, pattern=pattern, permanent=permanent, report=silent)
    return make_again(memory, coins)


def latch(db: sqlite3.Connection, metric: Metric, made: Made, day: datetime.date) -> None:
    """Let a report's permanent response answer for the epoch, if the metric has epochs."""
    if metric.epoch == "life":
        return
    keep_params(db, made.report.params, made.params)
    row = (
        metric.name,
        made.epoch,
        epoch_end(metric.epoch, day).isoformat(),
        made.report.params,
        made.report.cohort,
        made.permanent,
        made.pattern,
    )
    db.execute("INSERT OR REPLACE INTO latch VALUES (?, ?, ?, ?, ?, ?, ?)", row)
