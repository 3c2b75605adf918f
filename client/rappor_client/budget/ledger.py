"""What the device has spent, in nats: exact for what was reported, and capped.

The loss is a sum over distinct bit patterns. Each term is the loss of one pattern's reports under
its one permanent response. What the sum promises depends on the metric; `Spent` says it in words.
The ledger holds no value: a pattern is named by a keyed hash. The ledger survives a new secret,
which draws new permanent responses and so is charged anew.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rappor.ground.plurals import counted
from rappor.protocol.loss import belief_bound, epsilon_reports
from rappor_client.budget import reservation
from rappor_client.budget.prepared import Prepared
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.state import keep_params, kept_params, read_state, write_state

_CARRIED: Final = "carried_nats"
_EVEN_ODDS: Final = 0.5
_MOST_REPORTS: Final = 1 << 53
"""More than a device can have sent."""

ONE_PATTERN: Final = (
    "Your device keeps repeating the value of its first report, even if your value changes. This "
    "limits everything that your reports reveal about your values, if the number and the times of "
    "the reports do not depend on them."
)
ONE_REPORT: Final = (
    "Your device sends one report at most in each year, quarter or month. This limits everything "
    "that your reports reveal about your values, if the time of a report does not depend on them."
)
SEVERAL_PATTERNS: Final = (
    "This limits what your reports reveal about WHICH values you had. It does not hide WHEN a "
    "value changed or came back, nor that two values share all their bits: over many reports, that "
    "can show."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpent:
    """What one metric has spent: nats, distinct permanent responses, reports, and the promise."""

    nats: float
    patterns: int
    reports: int
    promise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a device has spent: nats in all, by metric, and before consent was last withdrawn.

    `reserved` are the nats that metrics with reports have reserved, by calendar year.
    """

    nats: float
    carried: float
    metrics: Mapping[str, MetricSpent]
    reserved: Mapping[int, float]

    def belief(self, prior: float = _EVEN_ODDS) -> tuple[float, float]:
        """Return the lowest and the highest belief that all reports can make of a prior belief."""
        return belief_bound(self.nats, prior)

    def __str__(self) -> str:
        """Say it in plain words."""
        from rappor.privacy.notice import at_most  # noqa: PLC0415 - for people only

        paragraphs = [
            f"Privacy loss so far: epsilon = {self.nats:.2f} (nats). Somebody who thought it 50 % "
            "likely that this device has some value is at most "
            f"{at_most(self.belief()[1])} sure after all of its reports."
        ]
        for name, spent in self.metrics.items():
            reports = counted(spent.reports, "report")
            patterns = counted(spent.patterns, "bit pattern")
            paragraphs += [
                f"  {name}: epsilon = {spent.nats:.2f}, {reports} of {patterns}.",
                f"    {spent.promise}",
            ]
        for year, nats in self.reserved.items():
            known = f"  Reserved for {year}: epsilon = {nats:.2f} at most."
            lost = f"  Reserved for {year}: unknown, because its records were lost."
            paragraphs.append(lost if nats == math.inf else known)
        if self.carried:
            paragraphs.append(f"  Before consent was withdrawn: epsilon = {self.carried:.2f}.")
        return "\n".join(map(_wrapped, paragraphs))


NOTHING_SPENT: Final = Spent(nats=0.0, carried=0.0, metrics={}, reserved={})


class Pattern(NamedTuple):
    """One permanent response in the ledger, by its keyed name, with its reports and their loss."""

    metric: str
    epoch: str
    name: bytes
    n_reports: int
    nats: float


def _wrapped(text: str) -> str:
    """Wrap a paragraph at 80 columns, all of its lines indented as the first one."""
    import textwrap  # noqa: PLC0415 - for people only

    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(text, 80, subsequent_indent=indent)


def charge(db: sqlite3.Connection, prepared: Prepared) -> float:
    """Charge a report and return the nats that it adds."""
    row = db.execute("SELECT nats FROM pattern WHERE key = ?", (prepared.pattern,)).fetchone()
    before = row[0] if row else 0.0
    after = max(before, _loss_with(db, prepared))
    keep_params(db, prepared.report.params, prepared.params)
    db.execute(
        "INSERT INTO pattern VALUES (?, ?, ?, 1, ?) ON CONFLICT (key) DO UPDATE "
        "SET reports = reports + 1, nats = excluded.nats",
        (prepared.pattern, prepared.report.metric, prepared.epoch, after),
    )
    db.execute(
        "INSERT INTO charge VALUES (?, ?, 1) ON CONFLICT (pattern, params) DO UPDATE "
        "SET reports = reports + 1",
        (prepared.pattern, prepared.report.params),
    )
    return after - before if before < math.inf else 0.0


def take_as_spent(
    db: sqlite3.Connection, metric: str, epoch: str, pattern: bytes, price: float, reports: int
) -> None:
    """Charge a pattern no less than a price and a number of reports."""
    db.execute(
        "INSERT INTO pattern VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
        "SET nats = MAX(nats, excluded.nats), reports = MAX(reports, excluded.reports)",
        (pattern, metric, epoch, reports, price),
    )


def total(db: sqlite3.Connection) -> float:
    """Return the nats spent in all, earlier consents included; infinite if that is not known."""
    if reservation.is_lost(db):
        return math.inf
    (nats,) = db.execute("SELECT TOTAL(nats) FROM pattern").fetchone()
    return float(nats) + carried(db)


def carried(db: sqlite3.Connection) -> float:
    """Return the nats that had been spent when consent was last withdrawn."""
    return float(read_state(db, _CARRIED) or 0.0)


def carried_beside(db: sqlite3.Connection, answered: Collection[bytes]) -> float:
    """Return the nats of earlier identities: all but those of the patterns answered for."""
    rows = db.execute("SELECT key, nats FROM pattern ORDER BY key")
    return carried(db) + math.fsum(nats for key, nats in rows if key not in answered)


def dump_charged(db: sqlite3.Connection) -> list[list[Any]]:
    """Return how many reports have been charged, where an interval keeps them few."""
    query = (
        "SELECT metric, epoch, SUM(reports) FROM pattern WHERE (metric, epoch) IN "
        "(SELECT metric, epoch FROM scope WHERE interval <> 'none') "
        "GROUP BY metric, epoch ORDER BY metric, epoch"
    )
    return [list(row) for row in db.execute(query)]


def has_forgotten(db: sqlite3.Connection, charged: Iterable[Sequence[Any]]) -> bool:
    """Return whether the ledger has fewer reports of a scope than `dump_charged` once returned."""
    return any(n > n_charged(db, metric, epoch) for metric, epoch, n in charged)


def is_sound(charged: Iterable[Sequence[Any]]) -> bool:
    """Return whether this is something that `dump_charged` can have returned."""
    return all(
        isinstance(metric, str) and isinstance(epoch, str) and type(n) is int and n >= 0
        for metric, epoch, n in charged
    )


def n_charged(db: sqlite3.Connection, metric: str, epoch: str) -> int:
    """Return how many reports of a metric's epoch have been charged."""
    query = "SELECT TOTAL(reports) FROM pattern WHERE metric = ? AND epoch = ?"
    (n,) = db.execute(query, (metric, epoch)).fetchone()
    return int(n)


def end_identity(db: sqlite3.Connection) -> None:
    """Leave one number: the nats spent so far."""
    carry(db, carried_beside(db, ()))
    db.execute("DELETE FROM pattern")
    db.execute("DELETE FROM charge")


def carry(db: sqlite3.Connection, nats: float) -> None:
    """Keep the nats of a ledger that is erased; they never become fewer."""
    write_state(db, _CARRIED, max(nats, carried(db)))


def spent(db: sqlite3.Connection) -> Spent:
    """Return what was spent, metric by metric; DamagedError for what cannot be."""
    query = (
        "SELECT metric, TOTAL(nats), COUNT(*), SUM(reports), COUNT(*) > COUNT(DISTINCT epoch) "
        "OR metric IN (SELECT metric FROM scope WHERE patterns > 1), "
        "metric IN (SELECT metric FROM scope GROUP BY metric HAVING MAX(interval <> 'epoch') = 0) "
        "FROM pattern GROUP BY metric ORDER BY metric"
    )
    metrics = {
        name: MetricSpent(
            nats=nats,
            patterns=n_patterns,
            reports=n_reports,
            promise=SEVERAL_PATTERNS if several else ONE_REPORT if is_once else ONE_PATTERN,
        )
        for name, nats, n_patterns, n_reports, several, is_once in db.execute(query)
    }
    spent = Spent(
        nats=total(db), carried=carried(db), metrics=metrics, reserved=reservation.by_year(db)
    )
    nats = (spent.nats, spent.carried, *spent.reserved.values())
    nats += tuple(metric.nats for metric in metrics.values())
    if not all(each >= 0 for each in nats) or not all(isinstance(name, str) for name in metrics):
        raise DamagedError("ledger")
    return spent


def patterns(db: sqlite3.Connection) -> list[Pattern]:
    """Return every permanent response that was charged, by metric, epoch and name."""
    query = "SELECT metric, epoch, key, reports, nats FROM pattern ORDER BY metric, epoch, key"
    return [
        Pattern(metric=metric, epoch=epoch, name=name, n_reports=n_reports, nats=nats)
        for metric, epoch, name, n_reports, nats in db.execute(query)
    ]


def check_charges(db: sqlite3.Connection) -> None:
    """Read what every pattern was charged; DamagedError for what cannot be."""
    for fingerprint, n_reports in db.execute("SELECT params, reports FROM charge").fetchall():
        kept_params(db, fingerprint)
        _checked(n_reports)


def _loss_with(db: sqlite3.Connection, prepared: Prepared) -> float:
    """Return a pattern's loss after one more report."""
    query = "SELECT params, reports FROM charge WHERE pattern = ?"
    rows = db.execute(query, (prepared.pattern,)).fetchall()
    reports = {kept_params(db, fingerprint): _checked(n) for fingerprint, n in rows}
    reports[prepared.params] = reports.get(prepared.params, 0) + 1
    return epsilon_reports(reports)


def _checked(n_reports: object) -> int:
    """Return a number of charged reports; DamagedError for one that cannot be."""
    if type(n_reports) is not int or not 0 < n_reports < _MOST_REPORTS:
        raise DamagedError("charge")
    return n_reports
