"""What a device reserves of its budget for a calendar year, before anything happens.

Metrics reserve in the registry's order, each the prices of all its scopes that touch the year.
What earlier identities reserved in the same year counts first, and what metrics reserved whose
scopes are others now: their losses add. A metric for which nothing is left is silent all that
year, whatever its values are; later ones may still fit.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from rappor.registry.budget import reserve
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_EARLIER: Final = ""
"""In the place of a metric's name: what an identity reserved that is no more."""

_ROUNDING: Final = 1e-9
"""Prices are thousandths of a nat; their sums in binary are off by far less."""


def silent_metrics(
    registry: Registry, total: float, year: int, db: sqlite3.Connection | None
) -> frozenset[str]:
    """Return the metrics that do not fit into the `total` nats of a year.

    A metric that costs less than it did keeps what it has reserved: that may be spent.
    """
    query = "SELECT metric, scopes, nats FROM reserved WHERE year = ?"
    rows = db.execute(query, (year,)) if db else ()
    kept = {(str(name), str(scopes)): float(nats) for name, scopes, nats in rows}
    here = {each.name: kept.pop((each.name, _scopes(each)), 0.0) for each in registry.values()}
    room = total - sum(kept.values())
    silent = set()
    for metric in registry.values():
        needed = max(reserve(metric, year=year).total, here[metric.name])
        if not needed <= room + _ROUNDING:
            silent.add(metric.name)
        else:
            room -= needed
    return frozenset(silent)


def keep(db: sqlite3.Connection, metric: Metric, year: int) -> None:
    """Write down what a metric reserves of a year in which it has a report."""
    row = (year, metric.name, _scopes(metric), reserve(metric, year=year).total)
    db.execute(
        "INSERT INTO reserved VALUES (?, ?, ?, ?) ON CONFLICT (year, metric, scopes) DO UPDATE "
        "SET nats = MAX(nats, excluded.nats)",
        row,
    )


def by_year(db: sqlite3.Connection) -> dict[int, float]:
    """Return the nats reserved so far, by calendar year."""
    query = "SELECT year, TOTAL(nats) FROM reserved GROUP BY year ORDER BY year"
    return {int(year): float(nats) for year, nats in db.execute(query)}


def end_identity(db: sqlite3.Connection, kept: dict[int, float]) -> None:
    """Leave one line for each year: a new identity pays anew and goes without what was spent."""
    db.execute("DELETE FROM reserved")
    rows = [(year, _EARLIER, "", nats) for year, nats in kept.items()]
    db.executemany("INSERT INTO reserved VALUES (?, ?, ?, ?)", rows)


def _scopes(metric: Metric) -> str:
    """Return what a metric's scopes depend on beyond its name; other scopes cost anew."""
    parts = " ".join(params.permanent_fingerprint for params in metric.accepted.values())
    return f"{metric.epoch} {parts}"
