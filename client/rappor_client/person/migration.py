"""Takes over a folder of the version before: secret, latches, reservations and waiting reports.

That version kept three files: the secret, a copy of the budget, and a database. The new folder is
made beside them under another name. It counts from the moment on at which the budget's file is of
this version, which silences the old one; from there a killed migration is finished, before that it
begins anew. The database's lock keeps an old process out meanwhile, and afterwards the secret that
it looks for is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rappor.protocol.closing import Answered
from rappor.protocol.loss import epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.protocol.wire import Report, Upload
from rappor_client.budget import remainder
from rappor_client.budget.admission import Offered, follow
from rappor_client.budget.identity import build, spool_name
from rappor_client.budget.prepared import PATTERN_BYTES
from rappor_client.budget.remainder import DamagedRemainderError
from rappor_client.budget.reservation import Lost, Reserved
from rappor_client.budget.scopes import Scope
from rappor_client.budget.state import State, mark_of
from rappor_client.budget.terms import Terms, unbounded_price
from rappor_client.folder import spool
from rappor_client.folder.copies import Sealed
from rappor_client.folder.own_folder import BUSY_SECONDS, NAME, BusyError
from rappor_client.folder.store import Store
from rappor_client.folder.wiping import wipe
from rappor_client.periods import after_day, interval_seconds

DRAFT: Final = "device.migrating"
SECRET: Final = "identity"  # noqa: S105 - a file's name
DATABASE: Final = "telemetry.sqlite3"
_MAGIC: Final = b"rappor identity 1\n"
_CHECK_BYTES: Final = 8
_VERSION: Final = 3
_SIGNED: Final = 1 << 63
_MOST_EVENTS: Final = 10_000
_UNREADABLE: Final = (
    sqlite3.Error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def names_of_before(host: Path) -> list[Path]:
    """Return the files there are of the version before, but for its budget, the secret first."""
    patterns = (SECRET, ".identity.*.tmp", f"{DATABASE}*", "damaged.sqlite3*", ".budget.*.tmp")
    found = [path for pattern in patterns for path in sorted(host.glob(pattern))]
    return [*found, *host.glob("withdrawing")]


def migrate(host: Path, year: int) -> None:
    """Take over a folder of the version before, or finish it; nothing happens to any other.

    Nobody else begins or ends an identity meanwhile.
    Raises OSError where the system does not allow it, and BusyError where an old process keeps
    its database locked.
    """
    try:
        document = remainder.read_document(host)
    except DamagedRemainderError:
        document = None
    if remainder.is_ours(document):
        if (host / DRAFT).is_dir() and not (host / NAME).exists():
            (host / DRAFT).rename(host / NAME)
        if not remainder.is_clean(document):
            remainder.write(host, remainder.years_of(document))
        _remove_files(host)
        return
    if (host / NAME).exists() or not (document or names_of_before(host)):
        return
    with _locked(host / DATABASE) as db:
        state, years = _read(host, db, year)
        if state is not None:
            _build(host / DRAFT, state, db)
            years = remainder.greater(years, state.reserved.by_year())  # should it be erased now
        remainder.write(host, years)
        (host / SECRET).unlink(missing_ok=True)
        if state is not None:
            (host / DRAFT).rename(host / NAME)
    _remove_files(host)


def _remove_files(host: Path) -> None:
    """Remove the files of the version before, also those that it has written since."""
    for path in names_of_before(host):
        wipe(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Keep old processes out of their database; None if there is none that can be read."""
    db: sqlite3.Connection | None = None
    try:
        if path.exists():
            db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != _VERSION or db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                db.close()
                db = None
    except sqlite3.Error as error:
        if db is not None:
            db.close()
            db = None
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise BusyError from None
    try:
        yield db
    finally:
        if db is not None:
            db.close()


def _read(
    host: Path, db: sqlite3.Connection | None, year: int
) -> tuple[State | None, dict[int, float]]:
    """Return the state that secret, database and copy agree on, and the line for all others.

    A secret that is damaged, gone, or another device's, and one of which neither tells anything,
    becomes a new device that is silent for as long as it may have spent something.
    """
    secret = _secret(host / SECRET)
    mark = b"" if secret is None else mark_of(secret.bytes)
    is_damaged = False
    try:
        copy = remainder.read_document(host)
    except DamagedRemainderError:
        copy, is_damaged = None, True
    known = [each for each in (_of_database(db), copy) if each is not None]
    own = [each for each in known if mark and each["mark"] == mark.hex()]
    others = [each for each in known if each not in own and each["mark"] != ""]
    nobody = [each for each in known if each["mark"] == "" and each is copy]
    years: dict[int, float] = {}
    for each in (*others, *nobody):
        years = remainder.greater(years, _years(each))
    has_answered = any(each["scopes"] for each in others) or is_damaged
    if secret is None and not has_answered and not others:
        return None, years  # consent was withdrawn, or the device never began
    try:
        if own and secret is not None:
            return _merged(secret, own, years), years
    except _UNREADABLE:
        pass
    if nobody and not others:
        return None, years
    for each in own:
        years = remainder.greater(years, _years(each))
    return (
        State.fresh(Reserved.of_earlier({**years, year: math.inf}, is_for_life=True)),
        {**years, year: math.inf},
    )


def _secret(path: Path) -> Sealed | None:
    """Return the secret of the version before, None if it is not sound."""
    try:
        data = Sealed(path.read_bytes())
    except OSError:
        return None
    secret = Sealed(data.bytes[len(_MAGIC) : len(_MAGIC) + SECRET_BYTES])
    body = _MAGIC + secret.bytes
    is_sound = data.bytes == body + hashlib.sha256(body).digest()[:_CHECK_BYTES]
    return secret if is_sound else None


def _of_database(db: sqlite3.Connection | None) -> dict[str, Any] | None:
    """Return what the database knows as the copy of the budget has it."""
    if db is None:
        return None
    try:
        rows = [
            [x.hex() if isinstance(x, bytes) else x for x in row]
            for row in db.execute("SELECT * FROM scope ORDER BY metric, epoch, response")
        ]
        lost = [_state(db, f"lost_{name}") for name in ("year", "for_life", "year_is_over")]
        charged = (
            "SELECT metric, epoch, SUM(reports) FROM pattern GROUP BY metric, epoch "
            "ORDER BY metric, epoch"
        )
        return {
            "mark": (_state(db, "identity_mark") or b"").hex(),
            "scopes": rows,
            "params": dict(db.execute("SELECT fingerprint, document FROM params").fetchall()),
            "charged": [list(row) for row in db.execute(charged)],
            "reserved": [
                list(r) for r in db.execute("SELECT year, metric, scopes, nats FROM reserved")
            ],
            "lost": lost,
        }
    except _UNREADABLE:
        return None


def _state(db: sqlite3.Connection, name: str) -> Any:
    row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _years(document: Mapping[str, Any]) -> dict[int, float]:
    try:
        return _reserved([document]).by_year()
    except _UNREADABLE:
        return {}


def _reserved(documents: list[dict[str, Any]] | list[Mapping[str, Any]]) -> Reserved:
    """Return the most that any of them says was reserved."""
    nats: dict[tuple[int, str, str], float] = {}
    lost: Lost | None = None
    for document in documents:
        for year, metric, scopes, each in document["reserved"]:
            key = (int(year), str(metric), str(scopes))
            nats[key] = max(float(each), nats.get(key, 0.0))
        year, is_for_life, is_over = document["lost"]
        if year is not None and (lost is None or year >= lost.year):
            lost = Lost(int(year), bool(is_for_life), bool(is_over))
    return Reserved(nats, lost)


def _merged(secret: Sealed, own: list[dict[str, Any]], years: Mapping[int, float]) -> State:
    """Return the state that database and copy tell together: neither is forgotten."""
    params = {name: Params.from_json(text) for each in own for name, text in each["params"].items()}
    charged: dict[tuple[str, str], int] = {}
    scopes: dict[tuple[str, str, str], Scope] = {}
    for document in own:
        for metric, epoch, n in document["charged"]:
            charged[metric, epoch] = max(int(n), charged.get((metric, epoch), 0))
    for document in own:
        for row in document["scopes"]:
            scope = _scope(row, params, charged)
            known = scopes.get(scope.key)
            if known is None or _is_behind(known, scope):
                scopes[scope.key] = scope
    reserved = _reserved(list(own))
    nats = dict(reserved.nats)
    for year, each in years.items():
        if each < math.inf:
            nats[year, "", ""] = max(each, nats.get((year, "", ""), 0.0))
    return State.of(secret, scopes=scopes, reserved=Reserved(nats, reserved.lost))


def _is_behind(known: Scope, other: Scope) -> bool:
    """Return whether another memory of a scope has seen more than the known one."""
    return len(other.names.admitted) > len(known.names.admitted) or (
        other.names.closed and not known.names.closed
    )


def _scope(
    row: list[Any], params: Mapping[str, Params], charged: Mapping[tuple[str, str], int]
) -> Scope:
    metric, epoch, _, first, last_day, fingerprint, cohort, permanent = row[:8]
    admitted, last, closed, patterns, interval, price, most = row[8:]
    joined = bytes.fromhex(admitted)
    names = [joined[i : i + PATTERN_BYTES] for i in range(0, len(joined), PATTERN_BYTES)]
    own = params[fingerprint]
    is_counted = most is not None and (
        interval == "epoch" or price < unbounded_price(epsilon_inf(own))
    )
    answered = None
    if is_counted:  # no more intervals are left than reports that were not charged
        left = max(0, int(most) - charged.get((metric, epoch), int(most)))
        answered = (after_day(last_day) - left * interval_seconds(interval), -1)
    scope = Scope(
        metric=metric,
        epoch=epoch,
        first_day=first,
        last_day=last_day,
        params=own,
        cohort=cohort,
        permanent=bytes.fromhex(permanent),
        names=Answered(tuple(names), bytes.fromhex(last), bool(closed)),
        patterns=patterns,
        interval=interval,
        price=float(price),
        is_counted=is_counted,
        answered=answered,
    )
    return Scope.from_plain(scope.to_plain(), {own.fingerprint: own})  # checked once more


def _build(place: Path, state: State, db: sqlite3.Connection | None) -> None:
    """Make the folder of the state, with the reports that wait in the database."""
    folder = build(place, state)
    try:
        if db is None or (_state(db, "identity_mark") or b"") != state.mark:
            return
        folder.touch(spool_name(state.mark))
        store = Store(place / spool_name(state.mark))
        try:
            with store.transaction() as new:
                _copy_rows(db, new)
                follow(new, 1)
            store.sync()
        finally:
            store.close()
    finally:
        folder.close()


def _copy_rows(db: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy reports, uploads, what is held, and counters; none where a row is not sound."""
    try:
        new.execute("SAVEPOINT rows")
        for table in ("params", "counter"):
            new.executemany(
                f"INSERT INTO {table} VALUES (?, ?)",  # noqa: S608 - our own names
                db.execute(f"SELECT * FROM {table}").fetchall(),  # noqa: S608 - our own names
            )
        names = ("stopped", "asked_until", "pause_until", "failures_in_a_row")
        values = [(name, _state(db, name)) for name in names]
        new.executemany("INSERT INTO state VALUES (?, ?)", [each for each in values if each[1]])
        query = (
            "SELECT id, body, attempts, first_attempt, claimed_until, backoff_until, reports "
            "FROM upload ORDER BY seq"
        )
        for upload_id, body, *times, notes in db.execute(query).fetchall():
            (note,) = json.loads(notes)
            new.execute(
                "INSERT INTO report (id, metric, body, due, attempts, first_attempt, "
                "claimed_until, backoff_until, status) VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)",
                (upload_id, note["metric"], body, *times, note.get("status")),
            )
        query = "SELECT metric, params, cohort, bits, due FROM report ORDER BY seq"
        for metric, params, cohort, bits, due in db.execute(query).fetchall():
            report = Report(metric=metric, params=params, cohort=cohort, bits=bits)
            spool.add(new, report, Upload.new_id(), due=due)
        for row in db.execute("SELECT * FROM held").fetchall():
            _copy_held(new, row)
        new.execute("RELEASE rows")
    except _UNREADABLE:
        new.execute("ROLLBACK TO rows")
        new.execute("RELEASE rows")


def _copy_held(new: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    """Copy an open interval; its tag is as small as that of the smallest of its events."""
    metric, epoch, ends, seconds, n_events, terms, *report, closed = row
    draws = range(min(max(n_events, 1), _MOST_EVENTS))
    tag = min(int.from_bytes(os.urandom(8), "little") for _ in draws) - _SIGNED
    text = None
    if terms is not None:
        params, cohort, *data = report
        known = (Upload.new_id(), _terms(terms).to_json(), params, cohort)
        text = json.dumps([*known, *(each.hex() for each in data), bool(closed)])
        Offered.from_text(new, metric, epoch, text)  # it is sound
    row = (metric, epoch, ends, seconds, tag, text)
    new.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?)", row)


def _terms(text: str) -> Terms:
    """Read the terms of the version before, which had the number of reports in place of a word."""
    day, first_day, last_day, parts, patterns, interval, price, most, *told = json.loads(text)
    given = [day, first_day, last_day, parts, patterns, interval, price, most is not None]
    return Terms.from_json(json.dumps([*given, told[0] if told else []]))
