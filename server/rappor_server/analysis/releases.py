"""What analysts may read: counts of whole days, never of fewer reports than a metric's minimum.

Under a minimum a day's counts advance in steps: what was released of it stays the answer until
as many reports again have come. So neither a small day, nor the difference between two
ranges, nor that between two answers for the same day shows fewer reports than the minimum.
"""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkInsert
from rappor_server.storage.database import failing_as_store_error, writing
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import Tally

_SUM: Final = np.dtype("<i8")
_RELEASES: Final = BulkInsert(schema.release, returning="metric")

_Key = tuple[datetime.date, str]
"""A day and a fingerprint."""


@dataclass(frozen=True, slots=True)
class DayCounts:
    """One day's sums under one parameter set: ones (m, k) int64, reports (m,) int64."""

    day: datetime.date
    params: Params
    ones: NDArray[np.int64]
    reports: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Reports in all cohorts."""
        return int(self.reports.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is released of a range: sums by parameter set, and which days are in it.

    `days` are (day, reports released); `withheld` are days that stay below the minimum.
    """

    metric: str
    first: datetime.date
    last: datetime.date
    collections: tuple[DayCounts, ...]
    days: tuple[tuple[datetime.date, int], ...]
    withheld: tuple[datetime.date, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer of the counts endpoint."""
        return {
            "metric": self.metric,
            "from": self.first.isoformat(),
            "to": self.last.isoformat(),
            "reports": sum(counts.total for counts in self.collections),
            "collections": [
                {
                    "fingerprint": counts.params.fingerprint,
                    "params": json.loads(counts.params.to_json()),
                    "reports": counts.reports.tolist(),
                    "ones": counts.ones.tolist(),
                }
                for counts in self.collections
            ],
            "days": [{"day": day.isoformat(), "reports": n} for day, n in self.days],
            "withheld": [day.isoformat() for day in self.withheld],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Release:
        """Read what `to_json` wrote."""
        first, last = (datetime.date.fromisoformat(document[key]) for key in ("from", "to"))
        return cls(
            metric=document["metric"],
            first=first,
            last=last,
            collections=tuple(
                DayCounts(
                    last,
                    Params.from_json(json.dumps(entry["params"])),
                    np.array(entry["ones"], dtype=np.int64),
                    np.array(entry["reports"], dtype=np.int64),
                )
                for entry in document["collections"]
            ),
            days=tuple(
                (datetime.date.fromisoformat(entry["day"]), entry["reports"])
                for entry in document["days"]
            ),
            withheld=tuple(datetime.date.fromisoformat(day) for day in document["withheld"]),
        )


def release(store: Store, metric: Metric, first: datetime.date, last: datetime.date) -> Release:
    """Return what may be read of a metric on the days from first to last, both included."""
    with failing_as_store_error(), store.engine.connect() as db:
        current = _current(db, metric.name, first, last)
        before = _released(db, metric.name, first, last) if metric.min_reports else {}
    if metric.min_reports:
        current = [_advance(store, metric, counts, before) for counts in current]
    shown = [counts for counts in current if counts.total >= max(metric.min_reports, 1)]
    days = sorted({counts.day for counts in shown})
    return Release(
        metric=metric.name,
        first=first,
        last=last,
        collections=tuple(_sum_by_params(shown)),
        days=tuple((day, sum(c.total for c in shown if c.day == day)) for day in days),
        withheld=tuple(sorted({counts.day for counts in current} - set(days))),
    )


def totals(store: Store, metric: Metric) -> list[dict[str, Any]]:
    """Return how many reports a metric has by day and parameters, as far as its minimum allows."""
    columns = schema.tally.c
    query = select(func.min(columns.day), func.max(columns.day)).where(
        columns.metric == metric.name
    )
    with failing_as_store_error(), store.engine.connect() as db:
        first, last = db.execute(query).one()
    if first is None:
        return []
    released = release(store, metric, first, last)
    return [{"day": day.isoformat(), "reports": n} for day, n in released.days]


def cohort_excess(counts: DayCounts) -> list[dict[str, Any]]:
    """Return the cohorts that have more reports than chance gives, once in 1e9, by Hoeffding."""
    n, m = counts.total, counts.params.m
    margin = np.sqrt(n * np.log(m * 1e9) / 2)
    over = np.flatnonzero(counts.reports > n / m + margin)  # none where m = 1
    return [{"cohort": int(j), "reports": int(counts.reports[j])} for j in over]


def refusals(store: Store) -> list[dict[str, Any]]:
    """Return how much was refused, by day, metric and reason."""
    columns = schema.refusal.c
    keys = (columns.day, columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).group_by(*keys).order_by(*keys)
    with failing_as_store_error(), store.engine.connect() as db:
        return [
            {"day": day.isoformat(), "metric": metric, "reason": reason, "number": int(number)}
            for day, metric, reason, number in db.execute(query)
        ]


def apart(store: Store, metric: str) -> int:
    """Return how many suspicious reports of a metric were set apart."""
    columns = schema.tally.c
    query = select(func.coalesce(func.sum(columns.reports), 0)).where(
        columns.metric == metric, columns.apart
    )
    with failing_as_store_error(), store.engine.connect() as db:
        return int(db.execute(query).scalar_one())


def freeze(store: Store, released: Release, *, today: datetime.date) -> str:
    """Keep released counts under a name, so that what was published can be made again."""
    name = secrets.token_hex(8)
    row = {
        "id": name,
        "metric": released.metric,
        "first": released.first,
        "last": released.last,
        "made": today,
        "contents": json.dumps(released.to_json()).encode(),
    }
    with writing(store.engine) as db:
        db.execute(schema.freeze.insert(), row)
    return name


def frozen(store: Store, metric: str, name: str) -> Release | None:
    """Return a frozen range of a metric, None if there is none of the name."""
    columns = schema.freeze.c
    query = select(columns.contents).where(columns.id == name, columns.metric == metric)
    with failing_as_store_error(), store.engine.connect() as db:
        contents = db.execute(query).scalar_one_or_none()
    return None if contents is None else Release.from_json(json.loads(bytes(contents)))


def _current(
    db: Connection, metric: str, first: datetime.date, last: datetime.date
) -> list[DayCounts]:
    """Return all sums of the days, shards added, suspicious reports left out."""
    columns = schema.tally.c
    query = (
        select(
            columns.day,
            columns.params,
            columns.cohort,
            columns.reports,
            columns.ones,
            schema.params.c.document,
        )
        .join(schema.params, schema.params.c.fingerprint == columns.params)
        .where(columns.metric == metric, columns.day >= first, columns.day <= last, ~columns.apart)
        .order_by(columns.day, columns.params)
    )
    found: dict[tuple[datetime.date, str], DayCounts] = {}
    for day, fingerprint, cohort, reports, ones, document in db.execute(query):
        counts = found.get((day, fingerprint))
        if counts is None:
            params = Params.from_json(document)
            counts = DayCounts(
                day, params, np.zeros((params.m, params.k), np.int64), np.zeros(params.m, np.int64)
            )
            found[day, fingerprint] = counts
        tally = Tally.from_bytes(reports, bytes(ones))
        counts.ones[cohort] += tally.ones
        counts.reports[cohort] += tally.reports
    return list(found.values())


def _released(
    db: Connection, metric: str, first: datetime.date, last: datetime.date
) -> dict[_Key, Any]:
    """Return what was released of the days so far."""
    columns = schema.release.c
    query = select(schema.release).where(
        columns.metric == metric, columns.day >= first, columns.day <= last
    )
    return {(row.day, row.params): row for row in db.execute(query)}


def _advance(
    store: Store, metric: Metric, counts: DayCounts, before: Mapping[_Key, Any]
) -> DayCounts:
    """Return what is released of a day, a step further where enough reports have come."""
    row = before.get((counts.day, counts.params.fingerprint))
    if counts.total - (row.total if row else 0) >= metric.min_reports:
        return _step(store, metric.name, counts, row)
    return _read(row, counts.params) if row else counts  # below the minimum: withheld


def _step(store: Store, metric: str, counts: DayCounts, row: Any) -> DayCounts:
    """Release a day's counts, unless somebody else has made this step: then those are released.

    Two readers at once may have seen different counts; only one of them may be answered, or
    their difference would be fewer reports than the minimum. The transaction begins with its
    write, so it waits for others instead of failing because of them.
    """
    columns = schema.release.c
    day = [
        columns.metric == metric,
        columns.params == counts.params.fingerprint,
        columns.day == counts.day,
    ]
    values = {
        "total": counts.total,
        "reports": counts.reports.astype(_SUM).tobytes(),
        "ones": counts.ones.astype(_SUM).tobytes(),
    }
    with writing(store.engine) as db:
        if row is None:
            key = (metric, counts.params.fingerprint, counts.day)
            won = bool(_RELEASES.run(db, [(*key, *values.values())]))
        else:
            same = columns.total == row.total
            won = bool(
                db.execute(schema.release.update().where(*day, same).values(values)).rowcount
            )
        if won:
            return counts
        return _read(db.execute(select(schema.release).where(*day)).one(), counts.params)


def _read(row: Any, params: Params) -> DayCounts:
    ones = np.frombuffer(bytes(row.ones), dtype=_SUM).reshape(params.m, params.k)
    return DayCounts(row.day, params, ones, np.frombuffer(bytes(row.reports), dtype=_SUM))


def _sum_by_params(days: Iterable[DayCounts]) -> list[DayCounts]:
    sums: dict[str, DayCounts] = {}
    for counts in days:
        key = counts.params.fingerprint
        if key in sums:
            so_far = sums[key]
            counts = DayCounts(  # noqa: PLW2901 - the sum takes its place
                counts.day,
                counts.params,
                so_far.ones + counts.ones,
                so_far.reports + counts.reports,
            )
        sums[key] = counts
    return [sums[key] for key in sorted(sums)]
