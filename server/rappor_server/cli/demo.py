"""`rappor-server demo`: a collector with some weeks of simulated reports of four metrics.

The demo shows the dashboard without real devices. The command runs the collector twice:

1. The first run accepts reports. Its clock goes from the first day to today within a minute.
   Simulated devices send the reports of each day over HTTP (`demo_devices.py`).
2. The blocks of all days are closed. The second run has the true clock and serves the pages.

Each run is an ordinary collector in the main thread, because only the main thread receives Ctrl-C.
A second thread does the work of the demo while the collector runs: it sends the reports in the
first run; in the second run it waits until all overviews are computed, and prints the link to the
pages.
"""

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
from rappor_server.cli.demo_devices import Clock, compute_first_day, send_reports
from rappor_server.cli.demo_metrics import WEEKS, write_registry
from rappor_server.storage.database import utc_today

if TYPE_CHECKING:
    from rappor_server.app.serving import Server

_INTERRUPTED = 130
"""Exit code that means Ctrl-C during the simulation: 128 plus the number of SIGINT."""
_DECODE_SECONDS = 600.0
"""Longest time of one computation, in seconds, ten times the default of a collector. A demo on a
busy machine should be slow and not fail. A larger value lets a hanging computation hang longer."""
_POLL_SECONDS = 0.05
"""Time in seconds between two checks whether the server has started. A larger value delays the
demo."""


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
@option(
    "--weeks",
    click.IntRange(1, WEEKS),
    "Whole weeks of reports. Fewer weeks show the pages sooner.",
    metavar="NUMBER",
    default=WEEKS,
)
@flag("--no-browser", "Print the address of the pages only.")
def demo(*, keep: Path | None, port: int, weeks: int, no_browser: bool) -> int:
    """Show a full dashboard: eight weeks of reports from simulated devices.

    A collector starts on this machine, simulated devices send it about 270,000 reports over HTTP,
    and the pages open in the browser. The four metrics are search engines, one of which becomes
    more frequent; editors, with a new one that no list of candidates contains; a choice of three
    categories in two segments; and sets of plugins. Ctrl-C ends the demo.
    """
    with _open_folder(keep) as folder:
        registry = write_registry(folder)
        settings = Settings(
            registry=str(registry),
            host="127.0.0.1",
            port=0,
            admin=f"127.0.0.1:{port}",
            pages=True,
            decode_seconds=_DECODE_SECONDS,
        )
        if not _simulate_reports(settings, registry, weeks):
            return _INTERRUPTED
        _close_ended_days(settings)
        _serve_pages(settings, open_browser=not no_browser)
        if keep is not None:
            click.echo(
                f"The registry and the database are in {folder}. To show the pages again, run\n"
                f"rappor-server serve {registry} --admin 127.0.0.1:9090 --pages"
            )
    return 0


@contextlib.contextmanager
def _open_folder(keep: Path | None) -> Iterator[Path]:
    """Yield an empty folder: the folder `keep`, or a temporary one that is deleted afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="rappor-demo-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ConfigError(f"--keep must be an empty folder, got {keep}, which has files in it")
    yield keep


def _simulate_reports(settings: Settings, registry: Path, weeks: int) -> bool:
    """Run a collector while simulated devices report, day by day, from the first day to today.

    Returns
    -------
    True if the devices have reported on every day; False if Ctrl-C ended the collector before.
    """
    last = utc_today()
    clock = Clock(compute_first_day(last, weeks))
    failures: list[BaseException] = []
    noun = "weeks" if weeks > 1 else "week"
    click.echo(f"{weeks} {noun} of reports from simulated devices, day by day:")

    def print_week(week: int) -> None:
        if sys.stdout.isatty():
            # A terminal shows one line, which each week overwrites.
            click.echo(f"\r{week} of {weeks} {noun}", nl=week == weeks)
        else:
            click.echo(f"{week} of {weeks} {noun}")

    def send_all(server: Server, url: str) -> None:
        try:
            send_reports(url, registry, clock, last, weeks, print_week)
        except Exception as error:  # noqa: BLE001 - raised again below, in the main thread
            failures.append(error)
        # The server runs in the main thread. Its loop reads this attribute several times a second.
        server.should_exit = True

    _run_collector(replace(settings, pages=False), clock, send_all)
    if failures:
        raise failures[0]
    return clock.day > last


def _serve_pages(settings: Settings, *, open_browser: bool) -> None:
    """Serve the pages until Ctrl-C; print a link that signs in once, and open it in a browser.

    The link comes after the overviews of all metrics are computed, so the first page that a person
    sees has results.
    """
    secret = _create_sign_in_secret(settings)

    # `url` is the address for devices. The pages are at the admin address.
    def print_link(server: Server, url: str) -> None:  # noqa: ARG001 - argument of the callback
        click.echo("Decoding the reports ...")
        server.prepare_overviews(_print_progress)
        if server.should_exit:
            return
        admin = f"http://127.0.0.1:{server.admin_port}"
        link = f"{admin}/pages/once/{secret}"
        click.echo(f"Open {link} (it signs in once). Ctrl-C ends the demo.")
        if open_browser and _has_desktop():
            webbrowser.open(link)

    _run_collector(settings, utc_today, print_link)


def _print_progress(stage: str, done: int, total: int | None) -> None:
    """Print the number of finished steps to standard error: one line on a terminal.

    Without a terminal, each number has a line of its own, as a log needs it.
    """
    text = f"{done} of {total} {stage}"
    if sys.stderr.isatty():
        click.echo(f"\r{text}", err=True, nl=done == total)
    else:
        click.echo(text, err=True)


def _run_collector(
    settings: Settings,
    today: Callable[[], datetime.date],
    on_start: Callable[[Server, str], None],
) -> None:
    """Run a collector until a signal or `on_start` ends it.

    Parameters
    ----------
    settings : settings of the collector
    today : returns the present day of the collector
    on_start : called in a thread with the server and its URL after the server has started
    """
    from rappor_server.app.input_files import InputFiles
    from rappor_server.app.serving import Server, open_sockets
    from rappor_server.cli.serve import prepare_database

    prepare_database(settings)
    with open_sockets(settings) as sockets:
        inputs = InputFiles.read(settings, today=today())
        server = Server(settings, inputs, sockets, today=today)
        url = f"http://127.0.0.1:{sockets.public.getsockname()[1]}"

        def wait_for_start() -> None:
            while not (server.started or server.should_exit):
                time.sleep(_POLL_SECONDS)
            if server.started:
                on_start(server, url)

        thread = threading.Thread(target=wait_for_start, daemon=True)
        thread.start()
        # After Ctrl-C, uvicorn completes the requests in progress, closes the collector, and then
        # raises KeyboardInterrupt. The demo goes on to clean up.
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        server.should_exit = True
        thread.join()


def _close_ended_days(settings: Settings) -> None:
    """Close the blocks of all ended days.

    The collector of the second run would do the same after its start. Without this call, the first
    pages that a person sees could be empty.
    """
    from rappor_server.app.input_files import read_registries
    from rappor_server.cli.setting_options import open_database
    from rappor_server.operations.closing import close_all
    from rappor_server.storage.blocks import rules_in_force

    with open_database(settings) as engine:
        rules = rules_in_force(read_registries(settings, today=utc_today()))
        close_all(engine, rules, utc_today())


def _create_sign_in_secret(settings: Settings) -> str:
    """Create a token for today, and return the secret of a link that signs in with the token once.

    The link contains this secret in place of the token, because the browser keeps the link in its
    history. The secret is worthless there after its first use, and a token would stay valid.
    """
    from rappor_server.cli.setting_options import open_database
    from rappor_server.storage import tokens, visits

    with open_database(settings) as engine:
        token = tokens.create(engine, metrics=None, expires=utc_today(), today=utc_today())
        # A token is "rappor.NAME.SECRET". The link signs in with the token of this public name.
        _, token_id, _ = token.split(".")
        return visits.begin(engine, token_id, is_link=True)


def _has_desktop() -> bool:
    """Return whether the machine has a desktop.

    Without a desktop, `webbrowser` starts a browser in the terminal, which hides the link.
    """
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(variable) for variable in ("DISPLAY", "WAYLAND_DISPLAY"))
