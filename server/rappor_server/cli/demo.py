"""`rappor-server demo`: a collector with eight weeks of three metrics, in one command."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.commands import Command
from rappor.cli.options import flag, option
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.cli.demo_devices import Clock, first_day, report
from rappor_server.cli.demo_metrics import WEEKS, write_metrics
from rappor_server.storage.database import utc_today

if TYPE_CHECKING:
    from rappor_server.app.serving import Server

_INTERRUPTED = 130
_PATIENCE = 600.0
"""Seconds that an answer may take: this machine may be busy."""


@click.command(
    cls=Command, examples=("rappor-server demo", "rappor-server demo --keep trial --no-browser")
)
@option(
    "--keep",
    click.Path(file_okay=False, path_type=Path),
    "Leave the registry and the database in this FOLDER. Default: the demo leaves nothing.",
    metavar="FOLDER",
)
@option(
    "--port",
    click.IntRange(0, 65535),
    "The port of the pages. With 0, the default, the system chooses one.",
    metavar="NUMBER",
    default=0,
    show_default=False,
)
@flag("--no-browser", "Print the address of the pages only.")
def demo(*, keep: Path | None, port: int, no_browser: bool) -> int:
    """Show a full dashboard: eight weeks of reports from simulated devices.

    A collector starts on this machine, simulated devices send it about 240,000 reports over HTTP,
    and the pages open in the browser. The metrics are a string whose share rises, a new string that
    no category covers, and a question by category in two segments. Ctrl-C ends the demo.
    """
    with _folder(keep) as folder:
        registry = write_metrics(folder)
        settings = Settings(
            registry=str(registry),
            host="127.0.0.1",
            port=0,
            admin=f"127.0.0.1:{port}",
            pages=True,
            decode_seconds=_PATIENCE,
        )
        if not _fill(settings, registry):
            return _INTERRUPTED
        _serve(settings, is_opened=not no_browser)
        if keep is not None:
            click.echo(f"kept: rappor-server serve {registry} --admin 127.0.0.1:9090 --pages")
    return 0


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield an empty folder, which is gone afterwards unless it is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="rappor-demo-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ConfigError(f"--keep must be an empty folder, got {keep}, which has files in it")
    yield keep


def _fill(settings: Settings, registry: Path) -> bool:
    """Run a collector whose days pass as devices report; return whether all of them did."""
    last = utc_today()
    clock = Clock(first_day(last))
    failures: list[BaseException] = []
    click.echo(f"{WEEKS} weeks of reports from simulated devices, day by day:")

    def tell(week: int) -> None:
        begin, end = ("\r", week == WEEKS) if sys.stdout.isatty() else ("", True)
        click.echo(f"{begin}{week} of {WEEKS} weeks", nl=end)

    def send(server: Server, url: str) -> None:
        try:
            report(url, registry, clock, last, tell)
        except Exception as error:  # noqa: BLE001 - for the thread that waits for this one
            failures.append(error)
        server.should_exit = True

    _run(replace(settings, pages=False), clock, send)
    if failures:
        raise failures[0]
    return clock.day > last


def _serve(settings: Settings, *, is_opened: bool) -> None:
    """Serve the pages until Ctrl-C; open them by a link that signs in once."""
    link = _link(settings)

    def show(server: Server, url: str) -> None:  # noqa: ARG001 - as above
        admin = f"http://127.0.0.1:{server.admin_port}"
        click.echo(f"Open {admin}/pages/once/{link} (it signs in once). Ctrl-C ends the demo.")
        if is_opened and _has_windows():
            webbrowser.open(f"{admin}/pages/once/{link}")

    _run(settings, utc_today, show)


def _run(
    settings: Settings,
    day: Callable[[], datetime.date],
    then: Callable[[Server, str], None],
) -> None:
    """Run a collector by a clock until a signal ends it; `then` runs beside it once it listens."""
    from rappor_server.app.input_files import InputFiles
    from rappor_server.app.serving import Server, listening
    from rappor_server.cli.serve import prepare

    prepare(settings)
    with listening(settings) as sockets:
        server = Server(settings, InputFiles.read(settings, today=day()), sockets, today=day)
        url = f"http://127.0.0.1:{sockets.public.getsockname()[1]}"

        def wait() -> None:
            while not (server.started or server.should_exit):
                time.sleep(0.05)
            if server.started:
                then(server, url)

        beside = threading.Thread(target=wait, daemon=True)
        beside.start()
        with contextlib.suppress(KeyboardInterrupt):  # which the server raises again at its end
            server.run()
        server.should_exit = True
        beside.join()


def _link(settings: Settings) -> str:
    """Close the blocks of all days that have ended, and return the secret of a link to sign in."""
    from rappor_server.app.input_files import read_registries
    from rappor_server.cli.options import open_database
    from rappor_server.operations.closing import close_all
    from rappor_server.storage import tokens, visits
    from rappor_server.storage.blocks import rules_in_force

    with open_database(settings) as engine:
        rules = rules_in_force(read_registries(settings, today=utc_today()))
        close_all(engine, rules, utc_today())
        token = tokens.create(engine, metrics=None, expires=utc_today(), today=utc_today())
        return visits.begin(engine, token.split(".")[1], once=True)


def _has_windows() -> bool:
    """Return whether a browser would have a window; in a terminal it would hide the address."""
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(each) for each in names)
