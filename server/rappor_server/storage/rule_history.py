"""Which rules of blocks were in force, and until when: a registry may be edited while reports wait.

A device that reported each hour under an earlier entry may be many times in a day's block, so the
rule of that entry holds for the days on which it was in force.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from sqlalchemy import Engine, select

from rappor.registry.metric import Metric
from rappor_server.storage import schema
from rappor_server.storage.blocks import Rule
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import failing_as_store_error, writing


def note_rules(engine: Engine, metrics: Iterable[Metric], today: datetime.date) -> None:
    """Note that the rules of metrics are in force today."""
    *own, last = schema.rule.columns
    rows = [(m.name, m.pace, m.min_cohort, today) for m in metrics]
    with failing_as_store_error(), engine.connect() as db:
        known = {tuple(row) for row in db.execute(select(*own).where(last >= today))}
    if new := sorted(row for row in rows if row[:-1] not in known):
        with writing(engine) as db:
            insert_rows(db, schema.rule, new, update="last = excluded.last")


def rule_of(engine: Engine, metric: Metric) -> Rule:
    """Return the rule of a metric, with those that were in force before."""
    columns = schema.rule.c
    query = select(columns.last, columns.pace, columns.min_cohort)
    with failing_as_store_error(), engine.connect() as db:
        earlier = tuple(
            (last, Rule(pace=pace, min_cohort=least))
            for last, pace, least in db.execute(query.where(columns.metric == metric.name))
        )
    return dataclasses.replace(Rule.of(metric), earlier=earlier)
