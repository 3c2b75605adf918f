"""Lists of candidates that people keep for a metric under a name."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Engine, select
from sqlalchemy import delete as delete_rows

from rappor.ground.errors import ParamsError
from rappor.ground.lines import filled_lines
from rappor_server.errors import LimitError
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error, wait_alone, writing

MOST_LISTS: Final = 20
"""Lists of one metric."""

MOST_BYTES: Final = 5_000_000
"""Of one list."""

_MOST_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A list without its candidates."""

    name: str
    candidates: int
    created: datetime.date


def keep(
    engine: Engine, metric: str, name: str, text: bytes, *, most: int, today: datetime.date
) -> None:
    """Keep a list of at most `most` candidates, one a line, under a name that is free.

    Raises ParamsError for what is no list or no name, LimitError if the metric has many lists.
    """
    if not _is_name(name):
        raise ParamsError(f"the name must have 1 to {_MOST_NAME} visible characters")
    lines = lines_of(text)
    if not 0 < len(lines) <= most:
        raise ParamsError(f"a list must have 1 to {most:,} candidates, got {len(lines):,}")
    row = {
        "metric": metric,
        "name": name,
        "created": today,
        "candidates": len(lines),
        "contents": "".join(f"{line}\n" for line in lines).encode(),
    }
    columns = schema.candidate_list.c
    with writing(engine) as db:
        wait_alone(db)
        names = db.execute(select(columns.name).where(columns.metric == metric)).scalars().all()
        if name in names:
            raise ParamsError("the name must be new, but a list has it: delete that list first")
        if len(names) >= MOST_LISTS:
            raise LimitError(f"a metric must have at most {MOST_LISTS} lists: delete one first")
        db.execute(schema.candidate_list.insert(), row)


def list_all(engine: Engine, metric: str) -> list[CandidateList]:
    """Return the lists of a metric by their names."""
    columns = schema.candidate_list.c
    query = (
        select(columns.name, columns.candidates, columns.created)
        .where(columns.metric == metric)
        .order_by(columns.name)
    )
    with failing_as_store_error(), engine.connect() as db:
        return [CandidateList(*row) for row in db.execute(query)]


def newest(engine: Engine, metric: str) -> str | None:
    """Return the name of the list that was kept last, None if the metric has none."""
    columns = schema.candidate_list.c
    order = (columns.created.desc(), columns.name)
    query = select(columns.name).where(columns.metric == metric).order_by(*order).limit(1)
    with failing_as_store_error(), engine.connect() as db:
        return db.execute(query).scalar_one_or_none()


def find(engine: Engine, metric: str, name: str) -> bytes | None:
    """Return a list as UTF-8, one candidate a line; None if the metric has none of this name."""
    if not _is_name(name):
        return None
    columns = schema.candidate_list.c
    query = select(columns.contents).where(columns.metric == metric, columns.name == name)
    with failing_as_store_error(), engine.connect() as db:
        contents = db.execute(query).scalar_one_or_none()
    return None if contents is None else bytes(contents)


def delete(engine: Engine, metric: str, name: str) -> bool:
    """Delete a list; False if the metric has none of this name."""
    if not _is_name(name):
        return False
    columns = schema.candidate_list.c
    gone = delete_rows(schema.candidate_list).where(columns.metric == metric, columns.name == name)
    with writing(engine) as db:
        return bool(db.execute(gone).rowcount)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME and text.isprintable()


def lines_of(text: bytes) -> list[str]:
    """Return the lines of a list that are not blank; ParamsError unless it is UTF-8."""
    try:
        return filled_lines(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ParamsError("a list must be UTF-8") from None
