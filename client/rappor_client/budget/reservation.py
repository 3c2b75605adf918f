"""What a device reserves of its budget for a calendar year, before anything happens.

Metrics reserve in the registry's order, each the prices of all its scopes that touch the year;
metrics that are answered together reserve together or not at all.
What was reserved before counts first: by other registries, by metrics whose scopes are others
now, and by earlier identities. A metric for which nothing is left is silent all that year,
whatever its values are; later ones may still fit. Nothing that was reserved is ever given back.
"""

from __future__ import annotations

import functools
import math
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rappor.registry.budget import reserve, scope_names
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.folder.state import read_state, write_state
from rappor_client.settings import Caps

_EARLIER: Final = ""
"""In the place of a metric's name: what an identity reserved that is no more."""

_LOST_YEAR: Final = "lost_year"
_LOST_FOR_LIFE: Final = "lost_for_life"
_LOST_YEAR_IS_OVER: Final = "lost_year_is_over"
_LIFE: Final = "life"
_ROUNDING: Final = 1e-9
"""Prices are thousandths of a nat; their sums in binary are off by far less."""

Row = list[Any]
"""A year, a metric, what its scopes depend on, and the nats that it has reserved."""


class Limits(NamedTuple):
    """How many nats there are in a calendar year, and in all years together."""

    year: float
    life: float = math.inf

    @classmethod
    def of(cls, registry: Registry, caps: Caps) -> Limits:
        """Return the registry's total, or the host's where that is lower."""
        if caps.per == _LIFE:
            return cls(registry.total, caps.total)
        return cls(min(registry.total, caps.total))


def silent_metrics(
    registry: Registry, limits: Limits, year: int, db: sqlite3.Connection | None
) -> frozenset[str]:
    """Return the metrics that do not fit into a year.

    Where what was reserved is not known any more, all metrics are silent until that year is over,
    and those for life for good.
    """
    in_year = _reserved(db, "WHERE year = ?", (year,))
    in_all = _reserved(db, "", ())
    had, ever, extra, extra_ever = (dict[str, float]() for _ in range(4))
    for name, metric in registry.items():
        asked, price = registry.together(name)[0], _price(metric, year)
        own = in_year.get((name, _scopes(metric)), 0.0)
        own_ever = in_all.get((name, _scopes(metric)), 0.0)
        more = _above(price, own)
        had[asked] = had.get(asked, 0.0) + own
        ever[asked] = ever.get(asked, 0.0) + own_ever
        extra[asked] = extra.get(asked, 0.0) + more
        more_ever = _above(price, own_ever) if metric.epoch == _LIFE else more
        extra_ever[asked] = extra_ever.get(asked, 0.0) + more_ever
    silent = _without_room(had, extra, limits.year, sum(in_year.values()))
    silent |= _without_room(ever, extra_ever, limits.life, sum(in_all.values()))
    silent |= _forgotten(registry.values(), year, db)
    return frozenset(each for name in silent for each in registry.together(name))


def has_room(
    db: sqlite3.Connection, registry: Registry, limits: Limits, metric: Metric, year: int
) -> bool:
    """Tell, inside the transaction that keeps a report, whether the metric may reserve the year."""
    if _forgotten([metric], year, db):
        return False
    query = "SELECT nats FROM reserved WHERE year = ? AND metric = ? AND scopes = ?"
    row = db.execute(query, (year, metric.name, _scopes(metric))).fetchone()
    if row is not None and row[0] >= _price(metric, year):
        return True
    return metric.name not in silent_metrics(registry, limits, year, db)


def keep(db: sqlite3.Connection, metric: Metric, year: int) -> None:
    """Write down what a metric reserves of a year in which it has a report."""
    _raise_to(db, [[year, metric.name, _scopes(metric), _price(metric, year)]])


def by_year(db: sqlite3.Connection) -> dict[int, float]:
    """Return the nats reserved so far, by calendar year; infinite where that is not known."""
    query = "SELECT year, TOTAL(nats) FROM reserved GROUP BY year ORDER BY year"
    years = {int(year): float(nats) for year, nats in db.execute(query)}
    if (lost := read_state(db, _LOST_YEAR)) is not None:
        years[int(lost)] = math.inf
    return dict(sorted(years.items()))


def end_identity(db: sqlite3.Connection) -> None:
    """Leave one line for each year: a new identity pays anew and goes without what was spent."""
    query = "SELECT year, TOTAL(nats) FROM reserved GROUP BY year"
    rows = [[year, _EARLIER, "", nats] for year, nats in db.execute(query).fetchall()]
    db.execute("DELETE FROM reserved")
    _raise_to(db, rows)
    write_state(db, _LOST_FOR_LIFE, None)


def add_earlier(db: sqlite3.Connection, by_year: Mapping[int, float]) -> None:
    """Reserve what another identity had reserved, beside what this one has."""
    _raise_to(db, [[year, _EARLIER, "", nats] for year, nats in by_year.items() if nats < math.inf])


def lose(db: sqlite3.Connection, year: int) -> None:
    """Note in which year it was found that nothing tells what this identity has reserved."""
    write_state(db, _LOST_YEAR, max(year, read_state(db, _LOST_YEAR) or year))
    write_state(db, _LOST_YEAR_IS_OVER, None)
    write_state(db, _LOST_FOR_LIFE, 1)


def follow_clock(db: sqlite3.Connection, year: int) -> None:
    """Move what was lost to the year that the clock shows, unless that only follows on it.

    A clock that jumps over a year was wrong when the loss was found, as one that starts in 1970.
    """
    lost_year = read_state(db, _LOST_YEAR)
    if lost_year is None or year <= lost_year or read_state(db, _LOST_YEAR_IS_OVER):
        return
    if year == lost_year + 1:
        write_state(db, _LOST_YEAR_IS_OVER, 1)
    else:
        write_state(db, _LOST_YEAR, year)


def is_lost(db: sqlite3.Connection) -> bool:
    """Return whether it was ever lost what had been reserved."""
    return read_state(db, _LOST_YEAR) is not None


def dump(db: sqlite3.Connection) -> dict[str, Any]:
    """Return all that was reserved, in a fixed order."""
    rows = db.execute("SELECT year, metric, scopes, nats FROM reserved ORDER BY 1, 2, 3")
    lost = [read_state(db, name) for name in (_LOST_YEAR, _LOST_FOR_LIFE, _LOST_YEAR_IS_OVER)]
    return {"reserved": [list(row) for row in rows], "lost": lost}


def is_sound(dumped: Mapping[str, Any]) -> bool:
    """Return whether this is something that `dump` can have returned."""
    lost = dumped["lost"]
    return (
        all(
            isinstance(year, int)
            and isinstance(name, str)
            and isinstance(scopes, str)
            and nats >= 0
            for year, name, scopes, nats in dumped["reserved"]
        )
        and [type(each) in (int, type(None)) for each in lost] == [True] * 3
    )


def absorb(db: sqlite3.Connection, dumped: Mapping[str, Any]) -> bool:
    """Bring back what `dump` returned once; tell whether the database had forgotten any of it."""
    has_forgotten = _raise_to(db, dumped["reserved"])
    year, for_life, is_over = dumped["lost"]
    known = read_state(db, _LOST_YEAR)
    if year is not None and year >= (known or year):
        if year == known:  # which of the two is older is not known: an end stays one
            is_over = is_over or read_state(db, _LOST_YEAR_IS_OVER)
        write_state(db, _LOST_YEAR, year)
        write_state(db, _LOST_YEAR_IS_OVER, is_over)
        write_state(db, _LOST_FOR_LIFE, for_life or read_state(db, _LOST_FOR_LIFE))
    return has_forgotten


def _without_room(
    had: Mapping[str, float], extra: Mapping[str, float], total: float, reserved: float
) -> set[str]:
    """Return the metrics that a total has no room for, those first that have reserved before."""
    if total == math.inf:
        return set()
    silent = set()
    room = total - (reserved - sum(had.values()))
    for name, nats in had.items():
        if not nats <= room + _ROUNDING:
            silent.add(name)
        else:
            room -= nats
    room = total - reserved
    for name, nats in extra.items():
        if not (nats == 0 or nats <= room + _ROUNDING):
            silent.add(name)
        elif name not in silent:
            room -= nats
    return silent


def _forgotten(metrics: Iterable[Metric], year: int, db: sqlite3.Connection | None) -> set[str]:
    """Return the metrics that are silent because it is lost what was reserved."""
    lost_year = read_state(db, _LOST_YEAR) if db else None
    if db is None or lost_year is None:
        return set()
    for_life = read_state(db, _LOST_FOR_LIFE)
    return {
        metric.name
        for metric in metrics
        if year <= lost_year or (for_life and metric.epoch == _LIFE)
    }


def _reserved(
    db: sqlite3.Connection | None, where: str, values: tuple[int, ...]
) -> dict[tuple[str, str], float]:
    """Return the nats reserved by metric and scopes; a scope for life is one in all years."""
    found: dict[tuple[str, str], float] = {}
    query = f"SELECT metric, scopes, nats FROM reserved {where}"  # noqa: S608 - our own words
    for name, scopes, nats in db.execute(query, values) if db else ():
        before = found.get((name, scopes), 0.0)
        is_for_life = scopes.startswith(f"{_LIFE} ")
        found[name, scopes] = max(before, nats) if is_for_life else before + nats
    return found


def _raise_to(db: sqlite3.Connection, rows: Iterable[Row]) -> bool:
    """Let nothing be reserved below some rows; tell whether anything was."""
    before = db.total_changes
    db.executemany(
        "INSERT INTO reserved VALUES (?, ?, ?, ?) ON CONFLICT (year, metric, scopes) DO UPDATE "
        "SET nats = excluded.nats WHERE excluded.nats > nats",
        rows,
    )
    return db.total_changes > before


def _above(needed: float, had: float) -> float:
    """Return what is needed beyond what there is; both may be infinite."""
    return needed - had if needed > had else 0.0


@functools.lru_cache(maxsize=256)
def _price(metric: Metric, year: int) -> float:
    return reserve(metric, year=year).total


_scopes = functools.lru_cache(maxsize=256)(scope_names)
