"""A web application in which every signed-in person is a device of their own.

    python web_application.py serve 8000     # http://localhost:8000, any name, any password
    python web_application.py send           # from a timer: sends what waits for all people

One `Client` for all visitors would be wrong: the collector would count all visitors as one device
with one noise. So each account has a device, a folder of its own, and each person is asked for
consent. A request only records a value. A separate job sends the reports, so that the time of an
upload says nothing about the time of a visit.

    request of a visitor   `application` records the theme in the folder of the account
    job of a timer         `send_all` sends the queued reports of all accounts with consent
    consent ends           `open_telemetry` with consent=False erases the device of the account

The server sees the true values while it serves the page. The noise protects the values in uploads
and in the database of the collector. A real application must protect the form against forged
requests (CSRF), as its other forms.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

from rappor_client import Client, ClientOptions

REGISTRY = Path(__file__).with_name("metrics.toml")
COLLECTOR = os.environ.get("MYSITE_COLLECTOR", "https://telemetry.example.org")
HOME = Path(os.environ.get("MYSITE_HOME", "mysite"))
THEMES = ("light", "dark", "high contrast")

Environ = dict[str, Any]
Start = Callable[[str, list[tuple[str, str]]], object]


class Account(NamedTuple):
    """A person with an account.

    Attributes
    ----------
    name
        Name with which the person signs in.
    device
        Name of the folder of the account's device.
    consent
        Answer of the person, None before an answer.
    """

    name: str
    device: str
    consent: bool | None


@contextlib.contextmanager
def open_accounts() -> Iterator[sqlite3.Connection]:
    """Open the database of accounts, and create its table if necessary."""
    HOME.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(HOME / "accounts.sqlite3")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS account (name PRIMARY KEY, device, consent)")
        yield db


def load_account(name: str) -> Account:
    """Return the account of a name. The first visit creates the account."""
    with open_accounts() as db:
        db.execute("INSERT OR IGNORE INTO account VALUES (?, ?, NULL)", (name, uuid.uuid4().hex))
        query = "SELECT device, consent FROM account WHERE name = ?"
        device, consent = db.execute(query, (name,)).fetchone()
    return Account(name, device, None if consent is None else bool(consent))


def store_answer(account: Account, *, is_yes: bool) -> Account:
    """Store the answer of a person, and return the changed account.

    Opening the device applies the answer: without consent, the device is erased.
    """
    with open_accounts() as db:
        db.execute("UPDATE account SET consent = ? WHERE name = ?", (is_yes, account.name))
    account = account._replace(consent=is_yes)
    open_telemetry(account).close()
    return account


def open_telemetry(account: Account, collector: str | None = None) -> Client:
    """Open the device of an account. Without a collector, the client sends nothing."""
    # A background thread for each visitor would be too many threads, and `send_all` sends.
    options = ClientOptions(background=False)
    return Client.open(
        HOME / "devices" / account.device,
        registry=REGISTRY,
        consent=account.consent is True,
        collector=collector,
        options=options,
    )


def delete_account(account: Account) -> None:
    """Delete an account and its device."""
    store_answer(account, is_yes=False)
    shutil.rmtree(HOME / "devices" / account.device, ignore_errors=True)
    with open_accounts() as db:
        db.execute("DELETE FROM account WHERE name = ?", (account.name,))


def send_all() -> None:
    """Send the queued reports of all accounts with consent, in random order.

    A fixed order would link the uploads of one account to its position.
    """
    with open_accounts() as db:
        names = [name for (name,) in db.execute("SELECT name FROM account WHERE consent")]
    random.shuffle(names)
    for name in names:
        with open_telemetry(load_account(name), COLLECTOR) as telemetry:
            telemetry.flush(timeout=10.0)


def application(environ: Environ, start: Start) -> Iterable[bytes]:
    """Serve one request of a signed-in person (WSGI)."""
    account = load_account(environ["REMOTE_USER"])
    form = read_form(environ)
    start("200 OK", [("Content-Type", "text/html; charset=utf-8")])
    if "delete" in form:
        delete_account(account)
        return [b"Your account and its telemetry are deleted."]
    if "consent" in form:
        account = store_answer(account, is_yes=form["consent"] == "yes")
    if form.get("theme") in THEMES:
        with open_telemetry(account) as telemetry:
            telemetry.record("theme", form["theme"])
    return [render_page(account).encode()]


def read_form(environ: Environ) -> dict[str, str]:
    """Return the fields of a posted form."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return {key: values[0] for key, values in parse_qs(body.decode()).items()}


def render_page(account: Account) -> str:
    """Return the page: buttons for themes and consent, and the privacy loss of the account."""
    themes = "".join(f"<button name=theme value='{theme}'>{theme}</button>" for theme in THEMES)
    question = (
        "<p>May we count, with noise added, which theme you use? "
        "<button name=consent value=yes>Yes</button> <button name=consent value=no>No</button></p>"
    )
    with open_telemetry(account) as telemetry:
        spent = f"<pre>{telemetry.privacy_spent()}</pre>" if account.consent else ""
    withdraw = "<button name=consent value=no>Stop, and erase all of it</button>"
    consent_buttons = {None: question, True: withdraw, False: ""}[account.consent]
    close = "<button name=delete value=yes>Delete my account</button>"
    form = f"<form method=post>{themes}{consent_buttons}{close}</form>"
    return f"<!doctype html><title>Themes</title>{form}{spent}"


def require_sign_in(application: Callable[[Environ, Start], Iterable[bytes]]) -> Any:
    """Return the application with a sign-in that accepts every name and every password.

    A real application uses its own sign-in in this place.
    """

    def signed_in(environ: Environ, start: Start) -> Iterable[bytes]:
        kind, _, login = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind != "Basic":
            start("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="mysite"')])
            return [b"Sign in."]
        environ["REMOTE_USER"] = base64.b64decode(login).decode().partition(":")[0]
        return application(environ, start)

    return signed_in


if __name__ == "__main__":
    if sys.argv[1:] == ["send"]:
        send_all()
    else:
        port = int(sys.argv[2]) if sys.argv[1:2] == ["serve"] else 8000
        server = make_server("localhost", port, require_sign_in(application))
        print(f"Serving http://localhost:{server.server_port}", flush=True)
        server.serve_forever()
