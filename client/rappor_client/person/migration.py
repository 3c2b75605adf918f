"""Takes over a folder of the version before: secret, latches, reservations and waiting reports.

That version kept three files: the secret, a copy of the budget, and a database. The new folder is
made beside them under another name. It counts from the moment on at which the budget's file is of
this version, which silences the old one; from there a killed migration is finished, before that it
begins anew. The database's lock keeps an old process out meanwhile, and afterwards the secret that
it looks for is gone.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rappor.protocol.loss import epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.protocol.wire import Report, Upload
from rappor_client.budget import remainder
from rappor_client.budget.admission import Offered, follow
from rappor_client.budget.identity import build, spool_name
from rappor_client.budget.prepared import PATTERN_BYTES
from rappor_client.budget.reservation import Reserved, Row
from rappor_client.budget.scopes import Key, Scope
from rappor_client.budget.state import State, mark_of
from rappor_client.budget.terms import Terms, unbounded_price
from rappor_client.folder import spool
from rappor_client.folder.copies import Sealed
from rappor_client.folder.counters import read_state
from rappor_client.folder.failures import DamagedError, is_busy
from rappor_client.folder.own_folder import BUSY_SECONDS, NAME, BusyError
from rappor_client.folder.store import Store
from rappor_client.folder.system import read_file
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
    except DamagedError:
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
    with contextlib.ExitStack() as stack:
        try:
            if path.exists():
                opened = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
                stack.callback(opened.close)
                opened.execute("BEGIN IMMEDIATE")
                (version,) = opened.execute("PRAGMA user_version").fetchone()
                is_sound = opened.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
                db = opened if version == _VERSION and is_sound else None
        except sqlite3.Error as error:
            if is_busy(error):
                raise BusyError from None
        yield db


def _read(
    host: Path, db: sqlite3.Connection | None, year: int
) -> tuple[State | None, dict[int, float]]:
    """Return the state that secret, database and copy agree on, and the line for all others.

    A secret that is damaged, gone, or another device's, and one of which neither tells anything,
    becomes a new device that is silent for as long as it may have spent something.
    """
    secret = _secret(host / SECRET)
    mark = None if secret is None else mark_of(secret.bytes).hex()
    is_damaged = False
    try:
        copy = remainder.read_document(host)
    except DamagedError:
        copy, is_damaged = None, True
    known = [each for each in (_of_database(db), copy) if each is not None]
    own = [each for each in known if each["mark"] == mark]
    is_withdrawn = secret is None or (copy is not None and copy["mark"] == "")
    years: dict[int, float] = {}
    for each in known:
        if each not in own and (each["mark"] or each is copy):
            years = remainder.greater(years, _years(each))
    if secret is not None and own:
        with contextlib.suppress(*_UNREADABLE):
            return _merged(secret, own, years), years
    elif is_withdrawn and not is_damaged and not any(each["mark"] for each in known):
        return None, years  # consent was withdrawn, or the device never began
    for each in own:
        years = remainder.greater(years, _years(each))
    years[year] = math.inf
    return State.fresh(Reserved.of_earlier(years, is_for_life=True)), years


def _secret(path: Path) -> Sealed | None:
    """Return the secret of the version before, None if it is not sound."""
    try:
        data = Sealed(read_file(path))
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
    charged = "SELECT metric, epoch, SUM(reports) FROM pattern GROUP BY metric, epoch"
    try:
        return {
            "mark": (read_state(db, "identity_mark") or b"").hex(),
            "scopes": [
                [each.hex() if isinstance(each, bytes) else each for each in row]
                for row in db.execute("SELECT * FROM scope ORDER BY metric, epoch, response")
            ],
            "params": dict(db.execute("SELECT fingerprint, document FROM params").fetchall()),
            "charged": db.execute(charged).fetchall(),
            "reserved": db.execute("SELECT year, metric, scopes, nats FROM reserved").fetchall(),
            "lost": [
                read_state(db, f"lost_{each}") for each in ("year", "for_life", "year_is_over")
            ],
        }
    except _UNREADABLE:
        return None


def _reserved(document: Mapping[str, Any]) -> Reserved:
    lost = document["lost"]
    return Reserved.from_plain({**document, "lost": None if lost[0] is None else lost})


def _years(document: Mapping[str, Any]) -> dict[int, float]:
    try:
        return _reserved(document).by_year()
    except _UNREADABLE:
        return {}


def _merged(secret: Sealed, own: list[dict[str, Any]], years: Mapping[int, float]) -> State:
    """Return the state that database and copy tell together: neither is forgotten."""
    params = {name: Params.from_json(text) for each in own for name, text in each["params"].items()}
    charged = collections.Counter[tuple[str, str]]()
    for each in own:
        charged |= collections.Counter({(name, epoch): n for name, epoch, n in each["charged"]})
    scopes: dict[Key, Scope] = {}
    for row in (row for each in own for row in each["scopes"]):
        scope = _scope(row, params, charged)
        known = scopes.get(scope.key, scope)
        scopes[scope.key] = max(known, scope, key=_has_seen)
    memories = [_reserved(each) for each in own]
    lost = max((each.lost for each in memories if each.lost is not None), default=None)
    nats: dict[Row, float] = {}
    for memory in (*memories, Reserved.of_earlier(years)):
        nats |= {row: max(each, nats.get(row, 0.0)) for row, each in memory.nats.items()}
    return State.of(secret, scopes=scopes, reserved=Reserved(nats, lost))


def _has_seen(scope: Scope) -> tuple[bool, int]:
    """Return what grows with the values that a memory of a scope has seen."""
    return scope.names.closed, len(scope.names.admitted)


def _scope(
    row: list[Any], params: Mapping[str, Params], charged: Mapping[tuple[str, str], int]
) -> Scope:
    metric, epoch, _, first_day, last_day, fingerprint, cohort, permanent = row[:8]
    admitted, last, closed, patterns, interval, price, most = row[8:]
    digits = 2 * PATTERN_BYTES
    names = [admitted[i : i + digits] for i in range(0, len(admitted), digits)]
    is_counted = most is not None and (
        interval == "epoch" or price < unbounded_price(epsilon_inf(params[fingerprint]))
    )
    answered = None
    if is_counted:  # no more intervals are left than reports that were not charged
        left = max(0, int(most) - charged.get((metric, epoch), int(most)))
        answered = (after_day(last_day) - left * interval_seconds(interval), -1)
    plain = {
        "metric": metric,
        "epoch": epoch,
        "first_day": first_day,
        "last_day": last_day,
        "params": fingerprint,
        "cohort": cohort,
        "permanent": permanent,
        "names": [names, last, closed],
        "patterns": patterns,
        "interval": interval,
        "price": float(price),
        "is_counted": is_counted,
        "answered": answered,
    }
    return Scope.from_plain(plain, params)


def _build(place: Path, state: State, db: sqlite3.Connection | None) -> None:
    """Make the folder of the state, with the reports that wait in the database."""
    folder = build(place, state)
    try:
        if db is None or (read_state(db, "identity_mark") or b"") != state.mark:
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
        values = [(name, read_state(db, name)) for name in names]
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
