"""What the device has spent, in nats: exact for what was reported, and capped.

The loss is the sum over distinct bit patterns of the loss of each one's reports under its one
permanent response. What that promises, and what not, depends on the metric; `Spent` says it.
The ledger holds no value: a pattern is named by a keyed hash. It survives a new secret, which
draws new permanent responses and so spends everything anew.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rappor.errors import ParamsError
from rappor.privacy.notice import at_most
from rappor.protocol.loss import belief_bound, epsilon_reports
from rappor_client.errors import BudgetError
from rappor_client.prepared import Made
from rappor_client.state import fact, keep_params, kept_params, set_fact

_CARRIED: Final = "carried_nats"
_SUSPICION: Final = 0.5

FOR_LIFE: Final = (
    "Compare any two histories that are reported at the same times and whose values repeat in "
    "the same way: the loss is at most this number. That a value changed, or came back, is not "
    "hidden by it: a new permanent response follows, and over many reports it shows."
)
BY_EPOCH: Final = (
    "In each epoch the device answers for the first value only. The loss is at most this number "
    "for any two histories, as long as the number and times of reports do not depend on the "
    "values. The cohort stays the same over epochs and links them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What a device may spend at most; `math.inf` lifts a cap.

    `patterns` distinct permanent responses and `epsilon` nats for each metric, `lifetime` nats
    over all metrics and all identities of the device.
    """

    patterns: float = 8
    epsilon: float = 16.0
    lifetime: float = 64.0

    def __post_init__(self) -> None:
        """Refuse what is no bound."""
        for name in ("patterns", "epsilon", "lifetime"):
            cap = getattr(self, name)
            if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:
                raise ParamsError(f"{name} must be a number in [0, infinity], got {cap!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpent:
    """What one metric has spent: nats, distinct permanent responses, reports, and the promise."""

    nats: float
    patterns: int
    reports: int
    promise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a device has spent: nats in all, by metric, and before consent was last withdrawn."""

    nats: float
    carried: float
    metrics: Mapping[str, MetricSpent]

    def belief(self, prior: float = _SUSPICION) -> tuple[float, float]:
        """Return the lowest and highest belief that all reports can make of a suspicion."""
        return belief_bound(self.nats, prior)

    def __str__(self) -> str:
        """Say it in plain words."""
        lines = [
            f"{self.nats:.3f} nats spent: a suspicion of {100 * _SUSPICION:.0f} % can become at "
            f"most {at_most(self.belief()[1])}."
        ]
        for name, spent in self.metrics.items():
            lines += [
                f"  {name}: {spent.nats:.3f} nats by {spent.reports} reports of {spent.patterns} "
                f"distinct patterns.",
                f"    {spent.promise}",
            ]
        if self.carried:
            lines.append(f"  before consent was withdrawn: {self.carried:.3f} nats")
        return "\n".join(lines)


def charge(db: sqlite3.Connection, made: Made, caps: Caps) -> float:
    """Write a report down and return the nats it adds; BudgetError if it would pass a cap."""
    loss, added = price(db, made, caps)
    keep_params(db, made.report.params, made.params)
    db.execute(
        "INSERT INTO pattern VALUES (?, ?, ?, 1, ?) ON CONFLICT (key) DO UPDATE "
        "SET reports = reports + 1, nats = excluded.nats",
        (made.pattern, made.report.metric, made.epoch, loss),
    )
    db.execute(
        "INSERT INTO charge VALUES (?, ?, 1) ON CONFLICT (pattern, params) DO UPDATE "
        "SET reports = reports + 1",
        (made.pattern, made.report.params),
    )
    return added


def price(db: sqlite3.Connection, made: Made, caps: Caps) -> tuple[float, float]:
    """Return the pattern's loss after one more report and what that adds, in nats.

    Raises BudgetError if it would pass a cap.
    """
    before, loss, is_new = _losses(db, made)
    added = loss - before if before < math.inf else 0.0
    name = made.report.metric
    query = "SELECT COUNT(*), TOTAL(nats) FROM pattern WHERE metric = ?"
    patterns, nats = db.execute(query, (name,)).fetchone()
    if patterns + is_new > caps.patterns:
        raise BudgetError(f"metric {name!r} must have at most {caps.patterns:g} distinct patterns")
    if nats + added > caps.epsilon:
        raise BudgetError(f"metric {name!r} must spend at most {caps.epsilon:g} nats")
    if total(db) + added > caps.lifetime:
        raise BudgetError(f"the device must spend at most {caps.lifetime:g} nats in its life")
    return loss, added


def total(db: sqlite3.Connection) -> float:
    """Return the nats spent in all, earlier consents included."""
    (nats,) = db.execute("SELECT TOTAL(nats) FROM pattern").fetchone()
    return float(nats) + carried(db)


def carried(db: sqlite3.Connection) -> float:
    """Return the nats that had been spent when consent was last withdrawn."""
    return float(fact(db, _CARRIED) or 0.0)


def carry(db: sqlite3.Connection, nats: float) -> None:
    """Keep the nats of a ledger that is erased."""
    set_fact(db, _CARRIED, nats)


def spent(db: sqlite3.Connection) -> Spent:
    """Return what was spent, metric by metric."""
    query = (
        "SELECT metric, TOTAL(nats), COUNT(*), SUM(reports), MIN(epoch) FROM pattern "
        "GROUP BY metric ORDER BY metric"
    )
    metrics = {
        name: MetricSpent(
            nats=nats,
            patterns=patterns,
            reports=reports,
            promise=BY_EPOCH if least_epoch else FOR_LIFE,
        )
        for name, nats, patterns, reports, least_epoch in db.execute(query)
    }
    return Spent(nats=total(db), carried=carried(db), metrics=metrics)


def _losses(db: sqlite3.Connection, made: Made) -> tuple[float, float, bool]:
    """Return a pattern's loss before and after one more report, and whether it is new."""
    query = "SELECT params, reports FROM charge WHERE pattern = ?"
    rows = db.execute(query, (made.pattern,)).fetchall()
    reports = {kept_params(db, fingerprint): n for fingerprint, n in rows}
    before = epsilon_reports(reports) if reports else 0.0
    reports[made.params] = reports.get(made.params, 0) + 1
    return before, epsilon_reports(reports), not rows
