"""The inbox: keys of 16 bytes in place of ids, MACs and answers; counters without shards.

This is the last step that stops the collectors of the version before. From here on a step only
adds what that version does not use, and takes away what it did not use either. This one leads to
the tables of `schema`: a step after it adds only what is not there.
"""

from __future__ import annotations

import functools
import itertools
import json

import sqlalchemy as sa
from alembic import op

from rappor_server.ingest.retry_keys import key_of_report
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.day_tables import PART, UPLOAD, days_of, keep_keys
from rappor_server.storage.tallies import Tally

revision = "0009"
down_revision = "0006"

_CELL = "metric, params, day, quarantine, cohort"


def upgrade() -> None:
    """Make the new tables, add up shards, and turn what is known of uploads into keys."""
    db, some = op.get_bind(), {"yield_per": 1000}
    days = days_of(db, UPLOAD)
    old = ["tally", "refusal", *(f"upload_{day:%Y%m%d}" for day in days)]
    for name in old:
        op.execute(f"CREATE TABLE old_{name} AS SELECT * FROM {name}")  # noqa: S608
        op.drop_table(name)
    schema.metadata.create_all(db)
    op.execute("DELETE FROM day_table WHERE kind = 'upload'")
    for day in reversed(days):
        own = f"FROM old_upload_{day:%Y%m%d} WHERE length(mac) > 0 ORDER BY mac"
        found = db.execute(sa.text(f"SELECT mac, answer {own}"), execution_options=some)
        for rows in found.partitions():
            known: dict[str, list[bytes]] = {UPLOAD: [], PART: []}
            for mac, answer in rows:
                kind, own_keys = _keys(bytes(mac), bytes(answer))
                known[kind] += own_keys
            for kind, own_keys in known.items():
                keep_keys(db, kind, own_keys, day)
    cells = sa.text(f"SELECT {_CELL}, reports, ones FROM old_tally ORDER BY {_CELL}")  # noqa: S608
    found = db.execute(cells, execution_options=some)
    for cell, same in itertools.groupby(found, lambda row: row[:5]):
        total = functools.reduce(Tally.__add__, (Tally.from_bytes(*row[5:]) for row in same))
        insert_rows(db, schema.tally, [(*cell, total.reports, total.to_bytes())])
    op.execute(
        "INSERT INTO refusal SELECT day, metric, reason, CAST(sum(number) AS bigint) "
        "FROM old_refusal GROUP BY day, metric, reason"
    )
    for name in ("shard", *(f"old_{each}" for each in old)):
        op.drop_table(name)


def _keys(mac: bytes, answer: bytes) -> tuple[str, list[bytes]]:
    """Return the key of an upload, the first half of its MAC, or the keys of its reports.

    Of an upload that was refused in part only the keys of its accepted reports are known now, so
    that a retry may have the others accepted. An upload that was stored before there were MACs is
    not known any more.
    """
    if b'"refused"' not in answer:
        return UPLOAD, [mac[:16]]
    reports = enumerate(json.loads(answer)["reports"], 1)
    accepted = [place for place, report in reports if report["status"] == "accepted"]
    return PART, [key_of_report(mac[:16], place) for place in accepted]
