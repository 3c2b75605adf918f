"""Answers in the database, so that any process of a collector shows them.

A row is an answer, or one that a process is making: that process writes at which step it is every
other second, and a row without news for some seconds is nobody's. Whoever claims it next begins it
anew, and the time at which it began says whose it is. Answers of pages stay until
others need the room. An answer to an analyst's program (`asked` is not null) goes a while after
the last request for it. Rows from the future are as good as old ones: the clock was set back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Engine,
    Row,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from rappor_server import logs
from rappor_server.analysis.page_tasks import Drawn, PageAnswer
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error, wait_alone, writing

MOST_BYTES: Final = 256_000_000
"""Of all answers together; beyond them those that nobody looked at for longest are deleted."""

SILENT_SECONDS: Final = 15.0
"""After how long without news an answer is not being made any more."""

FAILED_SECONDS: Final = 30.0
"""How long a failure is shown before the question may be asked again."""

FORGOTTEN_SECONDS: Final = 300.0
"""After how long an answer that a program waits for, and does not ask about, is cancelled."""

KEPT_SECONDS: Final = 600.0
"""How long a program's answer is kept after the last request for it."""

WAITING: Final = ""
"""The step of an answer that no process is making yet."""

KNOWN_SECONDS: Final = 3600.0
"""How long a failure is known to those who would not ask again for it, and a row kept at all."""

_NOTED_SECONDS: Final = 3600.0
_ASKED_SECONDS: Final = 10.0
"""Requests within these times of each other are not noted each."""

_ANSWER: Final = schema.answer.c
_IS_PROGRAMS: Final = _ANSWER.asked.is_not(None)
_LOST: Final = "the process that computed the answer has ended: ask again"

State = Literal["running", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """An answer as it stands: its page once it is done, else its step or the reason it failed.

    Times are seconds since 1970; `seen` is that of the last change, or use of a page, `asked` that
    of a program's last request.
    """

    key: bytes
    metric: str
    state: State
    step: str
    status: int
    began: float
    seen: float
    asked: float | None
    page: PageAnswer | None


def find(
    engine: Engine, key: bytes, *, now: float, failed_seconds: float = FAILED_SECONDS
) -> KeptAnswer | None:
    """Return a page's answer, or the one that is being made; None if there is none that stands.

    One that cannot be read is deleted: another version wrote it, or it is damaged.
    """
    if (row := _row(engine, key)) is None:
        return None
    limits = {"running": SILENT_SECONDS, "failed": failed_seconds}
    if row.state in limits and abs(now - row.seen) > limits[row.state]:
        return None
    if row.state == "done" and abs(now - row.seen) > _NOTED_SECONDS:
        _note(engine, key, seen=now)
    try:
        page = msgspec.msgpack.decode(row.page, type=PageAnswer) if row.page else None
    except msgspec.DecodeError:
        logs.event("answer deleted", level=logging.WARNING, reason="it cannot be read")
        forget(engine, key)
        return None
    return KeptAnswer(**row._asdict() | {"page": page})


def find_asked(engine: Engine, key: bytes, *, now: float) -> KeptAnswer | None:
    """Return an answer that a program waits for, which counts as asked about."""
    row = _row(engine, key)
    if row is None or abs(now - row.asked) > KEPT_SECONDS:
        return None
    if abs(now - row.asked) > _ASKED_SECONDS:
        _note(engine, key, asked=now)
    found = KeptAnswer(**row._asdict() | {"page": None})
    if row.state == "running" and abs(now - row.seen) > SILENT_SECONDS:
        return replace(found, state="failed", step=_LOST, status=503)
    return found


def files(engine: Engine, key: bytes) -> dict[str, bytes]:
    """Return the files of an answer by their names, none if it is not there."""
    with failing_as_store_error(), engine.connect() as db:
        found = db.execute(select(_ANSWER.files).where(_ANSWER.key == key)).scalar_one_or_none()
    try:
        return {} if found is None else msgspec.msgpack.decode(found, type=dict[str, bytes])
    except msgspec.DecodeError:
        forget(engine, key)
        return {}


def claim(
    engine: Engine,
    key: bytes,
    metric: str,
    *,
    now: float,
    began: float | None = None,
    is_programs: bool = False,
) -> bool:
    """Say that this process makes an answer; False if one is there, or another process does."""
    row = {
        "key": key, "metric": metric, "state": "running", "step": WAITING, "status": 200,
        "began": now if began is None else began, "seen": now, "size": 0,
        "asked": now if is_programs else None,
    }  # fmt: skip
    own = and_(
        _ANSWER.key == key,
        or_(
            and_(_ANSWER.state == "running", _is_older(now, SILENT_SECONDS)),
            and_(_ANSWER.state == "failed", _is_older(now, FAILED_SECONDS)),
        ),
    )
    with writing(engine) as db:
        wait_alone(db)
        db.execute(delete(schema.answer).where(or_(own, _is_over(now))))
        if db.execute(select(_ANSWER.key).where(_ANSWER.key == key)).first() is not None:
            return False
        db.execute(insert(schema.answer), row)
    return True


def tell(engine: Engine, key: bytes, step: str, *, began: float, now: float) -> bool:
    """Write at which step an answer is; False if it was cancelled, or nobody asks about it.

    So it is if another process has claimed it after this one was silent.
    """
    forgotten = func.abs(literal(now) - _ANSWER.asked) > FORGOTTEN_SECONDS
    own = _is_made(key, began)
    with writing(engine) as db:
        db.execute(delete(schema.answer).where(own, _IS_PROGRAMS, forgotten))
        values = {"step": step, "seen": now}
        return bool(db.execute(update(schema.answer).where(own).values(values)).rowcount)


def keep(engine: Engine, key: bytes, drawn: Drawn, *, now: float, most: int = MOST_BYTES) -> None:
    """Keep what was made, and delete what nobody looked at for longest beyond some bytes."""
    contents = msgspec.msgpack.encode(drawn.files)
    values = {
        "state": "done", "seen": now, "page": drawn.page, "files": contents,
        "size": len(drawn.page) + len(contents),
    }  # fmt: skip
    with writing(engine) as db:
        db.execute(update(schema.answer).where(_ANSWER.key == key).values(values))
        query = select(_ANSWER.key, _ANSWER.size).where(_ANSWER.state == "done")
        query, left = query.order_by(_ANSWER.seen.desc()), most
        for other, size in db.execute(query).all():
            left -= size
            if left < 0 and other != key:
                db.execute(delete(schema.answer).where(_ANSWER.key == other))


def fail(engine: Engine, key: bytes, reason: str, status: int, *, began: float, now: float) -> None:
    """Write why an answer could not be made, unless another process has claimed it meanwhile."""
    own = _is_made(key, began)
    values = {"state": "failed", "step": reason, "status": status, "seen": now}
    with writing(engine) as db:
        db.execute(update(schema.answer).where(own).values(values))


def cancel(engine: Engine, key: bytes) -> None:
    """Forget an answer that is being made; whoever makes it stops."""
    forget(engine, key, _ANSWER.state == "running")


def forget(engine: Engine, key: bytes, *conditions: ColumnElement[bool]) -> None:
    """Delete an answer, if some conditions hold."""
    with writing(engine) as db:
        db.execute(delete(schema.answer).where(_ANSWER.key == key, *conditions))


def _row(engine: Engine, key: bytes) -> Row[Any] | None:
    columns = [_ANSWER[each.name] for each in fields(KeptAnswer)]
    with failing_as_store_error(), engine.connect() as db:
        return db.execute(select(*columns).where(_ANSWER.key == key)).first()


def _note(engine: Engine, key: bytes, **values: object) -> None:
    with writing(engine) as db:
        db.execute(update(schema.answer).where(_ANSWER.key == key).values(values))


def _is_made(key: bytes, began: float) -> ColumnElement[bool]:
    """Return which row is that of an answer under way whose claim began then."""
    return and_(_ANSWER.key == key, _ANSWER.state == "running", _ANSWER.began == began)


def _is_older(now: float, seconds: float) -> ColumnElement[bool]:
    return func.abs(literal(now) - _ANSWER.seen) > seconds


def _is_over(now: float) -> ColumnElement[bool]:
    """Return which rows nobody will read any more."""
    return or_(
        and_(_IS_PROGRAMS, func.abs(literal(now) - _ANSWER.asked) > KEPT_SECONDS),
        and_(~_IS_PROGRAMS, _ANSWER.state != "done", _is_older(now, KNOWN_SECONDS)),
    )
