"""Answers of the pages in the database, so that any process of a collector shows them.

A row is an answer, or one that a process is making: that process writes at which step it is every
other second, and a row without news for some seconds is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from sqlalchemy import and_, delete, func, insert, or_, select, update

from rappor_server.analysis.page_tasks import Drawn, PageAnswer
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error, wait_alone, writing
from rappor_server.storage.store import Store

MOST_BYTES: Final = 256_000_000
"""Of all answers together; beyond them those that nobody looked at for longest are deleted."""

SILENT_SECONDS: Final = 15.0
"""After how long without news an answer is not being made any more."""

_FAILED_SECONDS: Final = 30.0
"""How long a failure is shown before the question may be asked again."""

_NOTED_SECONDS: Final = 3600.0
_ANSWER: Final = schema.answer.c

State = Literal["running", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """An answer as it stands: its page once it is done, else its step or the reason it failed."""

    key: bytes
    state: State
    step: str
    status: int
    began: float
    page: PageAnswer | None


def find(store: Store, key: bytes, *, now: float) -> KeptAnswer | None:
    """Return an answer, or the one that is being made; None if there is none that stands."""
    columns = [each for each in _ANSWER if each.name != "files"]
    with failing_as_store_error(), store.engine.connect() as db:
        row = db.execute(select(*columns).where(_ANSWER.key == key)).first()
    if row is None or _is_over(row.state, now - row.seen):
        return None
    if row.state == "done" and now - row.seen > _NOTED_SECONDS:
        with writing(store.engine) as db:
            db.execute(update(schema.answer).where(_ANSWER.key == key).values(seen=now))
    page = None if row.page is None else msgspec.msgpack.decode(row.page, type=PageAnswer)
    return KeptAnswer(
        key=key, state=row.state, step=row.step, status=row.status, began=row.began, page=page
    )


def files(store: Store, key: bytes) -> dict[str, bytes]:
    """Return the files of an answer by their names, none if it is not there."""
    with failing_as_store_error(), store.engine.connect() as db:
        found = db.execute(select(_ANSWER.files).where(_ANSWER.key == key)).scalar_one_or_none()
    return {} if found is None else msgspec.msgpack.decode(found, type=dict[str, bytes])


def claim(store: Store, key: bytes, metric: str, *, now: float) -> bool:
    """Say that this process makes an answer; False if one is there, or another process does."""
    row = {
        "key": key, "metric": metric, "state": "running", "step": "waiting for a process",
        "status": 200, "began": now, "seen": now, "size": 0,
    }  # fmt: skip
    over = or_(
        and_(_ANSWER.state == "running", _ANSWER.seen < now - SILENT_SECONDS),
        and_(_ANSWER.state == "failed", _ANSWER.seen < now - _FAILED_SECONDS),
    )
    with writing(store.engine) as db:
        wait_alone(db)
        db.execute(delete(schema.answer).where(_ANSWER.key == key, over))
        if db.execute(select(_ANSWER.key).where(_ANSWER.key == key)).first() is not None:
            return False
        db.execute(insert(schema.answer), row)
    return True


def tell(store: Store, key: bytes, step: str, *, now: float) -> bool:
    """Write at which step an answer is; False if it was cancelled meanwhile."""
    own = and_(_ANSWER.key == key, _ANSWER.state == "running")
    with writing(store.engine) as db:
        values = {"step": step, "seen": now}
        return bool(db.execute(update(schema.answer).where(own).values(values)).rowcount)


def keep(store: Store, key: bytes, drawn: Drawn, *, now: float, most: int = MOST_BYTES) -> None:
    """Keep what was made, and delete what nobody looked at for longest beyond some bytes."""
    contents = msgspec.msgpack.encode(drawn.files)
    values = {
        "state": "done", "seen": now, "page": drawn.page, "files": contents,
        "size": len(drawn.page) + len(contents),
    }  # fmt: skip
    with writing(store.engine) as db:
        db.execute(update(schema.answer).where(_ANSWER.key == key).values(values))
        query = select(_ANSWER.key, _ANSWER.size).order_by(_ANSWER.seen.desc())
        left = most
        for other, size in db.execute(query).all():
            left -= size
            if left < 0 and other != key:
                db.execute(delete(schema.answer).where(_ANSWER.key == other))


def fail(store: Store, key: bytes, reason: str, status: int, *, now: float) -> None:
    """Write why an answer could not be made."""
    values = {"state": "failed", "step": reason, "status": status, "seen": now}
    with writing(store.engine) as db:
        db.execute(update(schema.answer).where(_ANSWER.key == key).values(values))


def cancel(store: Store, key: bytes) -> None:
    """Forget an answer that is being made; whoever makes it stops."""
    own = and_(_ANSWER.key == key, _ANSWER.state == "running")
    with writing(store.engine) as db:
        db.execute(delete(schema.answer).where(own))


def total(store: Store) -> int:
    """Return the bytes of all answers."""
    with failing_as_store_error(), store.engine.connect() as db:
        return int(db.execute(select(func.coalesce(func.sum(_ANSWER.size), 0))).scalar_one())


def _is_over(state: str, seconds: float) -> bool:
    limits = {"running": SILENT_SECONDS, "failed": _FAILED_SECONDS}
    return state in limits and seconds > limits[state]
