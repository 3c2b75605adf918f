"""HTTP server of one collector process: sockets, TLS, signals, notifications to systemd.

`rappor-server serve` creates one `Server` and calls `run`. The life of the process:

    open_sockets    bind the addresses; an address in use ends the command with status 2
    startup         raise the limit of descriptors, open the collector, accept connections,
                    send READY=1 to systemd; a collector that cannot be opened ends the process
                    with status 3. SIGTERM before the collector is open ends the process at
                    once: no upload was accepted yet
    SIGHUP          read the input files again; invalid files change nothing
    SIGTERM         shutdown: accept nothing more, complete the requests in progress, close the
                    collector, which merges all uploads that wait
    hang            a timer kills the process with status 1 if the shutdown takes longer than
                    `commit_seconds` and 20 seconds

The sockets are bound before the collector is opened. A second collector on the same address
therefore starts no worker and no merge process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, cast

import uvicorn

from rappor.base.errors import RapporError
from rappor.base.progress import Progress, no_progress
from rappor_server.app.collector import Collector
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base import logs
from rappor_server.base.errors import ConfigError
from rappor_server.base.processes import start_kill_timer
from rappor_server.base.source_quota import SourceQuota
from rappor_server.http.application import create_application
from rappor_server.http.bounded_protocol import (
    METRICS,
    BoundedProtocol,
    OperatorProtocol,
    SlowReaderMonitor,
)
from rappor_server.http.forwarded import ForwardedHeaders
from rappor_server.http.handshakes import TlsAcceptor
from rappor_server.operations.prometheus import Metrics
from rappor_server.storage.database import utc_today

_BACKLOG: Final = 2048
"""Largest number of connections that the operating system queues until the process accepts them. It
is uvicorn's default. A larger value survives a longer burst of connections."""
_OTHER_DESCRIPTORS: Final = 256
"""Number of file descriptors that a process needs in addition to those of its connections: files,
databases, pipes to other processes. A larger value needs a higher limit of the operating system."""
_GRACE_SECONDS: Final = 20
"""Longest time in seconds for requests in progress after a signal to stop. A larger value lets
longer queries finish, and delays a restart. Uploads finish within `commit_seconds`, 15 by
default."""
_KEEP_ALIVE_SECONDS: Final = 30
"""Time in seconds after which a connection without a request in progress is closed. A larger value
saves TLS handshakes and keeps more connections open."""

_POLL_SECONDS: Final = 0.1
"""Time in seconds between two checks whether the server has ended while overviews are computed. A
larger value delays Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets of a process.

    Attributes
    ----------
    public : socket for devices, and for all other clients if there is no separate admin address
    admin : socket for operators and analysts (setting `admin`), or None
    """

    public: socket.socket
    admin: socket.socket | None

    @property
    def admin_port(self) -> int | None:
        """Port of the admin address, or None. The system has chosen it if the setting was 0."""
        return None if self.admin is None else int(self.admin.getsockname()[1])


@contextlib.contextmanager
def open_sockets(settings: Settings) -> Iterator[Sockets]:
    """Yield the listening sockets of the settings; raise ConfigError if an address is in use."""
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(_bind("host and port", settings.host, settings.port))
        admin = None
        if settings.admin:
            admin = stack.enter_context(_bind("admin", *settings.admin_address))
        yield Sockets(public=public, admin=admin)


def _bind(name: str, host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Parameters
    ----------
    name : name of the settings of the address, for the message
    host : host name, or IPv4 or IPv6 address
    port : port, or 0 to let the system choose

    Raises
    ------
    ConfigError
        The address is in use, or the host name is unknown.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{name} must be an address that is free, got {host}:{port}: {error.strerror}"
        ) from None


class Server(uvicorn.Server):
    """The HTTP server of a collector: uvicorn's server with further tasks and signals.

    uvicorn accepts the connections of the public socket without TLS. `TlsAcceptor` accepts them
    with TLS, because uvicorn does not limit handshakes. The admin socket never has TLS.
    """

    def __init__(
        self,
        settings: Settings,
        inputs: InputFiles,
        sockets: Sockets,
        *,
        today: Callable[[], datetime.date] = utc_today,
    ) -> None:
        """Prepare the server; `run` opens the collector. The input files are checked already.

        Parameters
        ----------
        settings : settings of the collector
        inputs : contents of the files that the settings name
        sockets : listening sockets
        today : returns the present day (UTC)
        """
        self._settings = settings
        self._sockets = sockets
        self._has_collector = False
        self._app = create_application(
            settings,
            open_collector=lambda settings: self._open_collector(settings, inputs, today),
            admin_port=sockets.admin_port,
        )
        super().__init__(
            uvicorn.Config(
                # Starlette declares scope and messages more widely than uvicorn's types do.
                ForwardedHeaders(cast("Any", self._app), settings.proxies),
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,  # `logs.configure` has set up the loggers of uvicorn
                access_log=False,  # an access log would contain addresses of devices
                server_header=False,
                date_header=False,
                proxy_headers=False,  # `ForwardedHeaders` reads them, and `Forwarded`, too
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self.config.load()
        self._tls: ssl.SSLContext | None = None
        if settings.tls_certificate:
            # CLIENT_AUTH is Python's name of a context for servers. Nobody checks certificates of
            # clients.
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            inputs.load_certificate(self._tls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._kill_timer: threading.Timer | None = None

    @property
    def admin_port(self) -> int | None:
        """Port of the admin address, or None."""
        return self._sockets.admin_port

    def prepare_overviews(self, progress: Progress = no_progress) -> None:
        """Compute the overview pages of all metrics; return when the pages show them.

        Another thread than the thread of the server calls this method, after the start. It also
        returns when the server ends, without the remaining pages. The thread of the server calls
        `progress` with the number of computed pages.
        """
        if self._loop is None:
            raise RuntimeError("the server must have started")
        collector: Collector = self._app.state.collector
        computation = asyncio.run_coroutine_threadsafe(
            collector.prepare_overviews(progress), self._loop
        )
        while not self.should_exit:
            if concurrent.futures.wait([computation], timeout=_POLL_SECONDS).done:
                return
        computation.cancel()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve requests until SIGTERM or SIGINT; return after the collector is closed."""
        try:
            super().run(sockets)
        finally:
            # The shutdown was in time. The timer would otherwise kill a program that has embedded
            # the server, such as a test or the demo.
            if self._kill_timer is not None:
                self._kill_timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown after SIGTERM or SIGINT. uvicorn installs this handler.

        While the collector is being opened, the process ends at once. Opening may wait for the
        database, up to a minute, and blocks the event loop, so uvicorn would end only afterwards.
        No upload was accepted yet, so nothing is to be stored.
        """
        if not self._has_collector:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)

    def _open_collector(
        self, settings: Settings, inputs: InputFiles, today: Callable[[], datetime.date]
    ) -> Collector:
        """Return the collector; from then on, signals close it (`handle_exit`)."""
        collector = Collector(settings, inputs=inputs, today=today)
        self._has_collector = True
        return collector

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the collector, accept connections, and report readiness to systemd.

        uvicorn calls this method. The sockets of the argument are ignored: `Sockets` has them.
        """
        self._loop = loop = asyncio.get_running_loop()
        logs.log_loop_errors(loop)
        _raise_descriptor_limit(self._settings.max_connections + _OTHER_DESCRIPTORS)
        # uvicorn runs the lifespan of the application, which opens the collector. If that fails,
        # uvicorn exits with status 3 here. With TLS it gets no socket, so that `TlsAcceptor` alone
        # accepts connections.
        with _silence_uvicorn():
            await super().startup([] if self._tls else [self._sockets.public])
        if self._tls:
            acceptor = self._make_tls_acceptor(self._tls)
            self._tasks.append(loop.create_task(acceptor.keep_accepting()))
        if self._sockets.admin is not None:
            # uvicorn closes all of its `servers` at the shutdown.
            self.servers.append(
                await loop.create_server(
                    lambda: self._make_protocol(OperatorProtocol), sock=self._sockets.admin
                )
            )
        # Every `body_seconds`, the monitor resets the connections whose clients have read fewer
        # than 1,000 bytes of their response per second.
        monitor = SlowReaderMonitor(
            self.server_state.connections, seconds=self._settings.body_seconds
        )
        self._tasks.append(loop.create_task(monitor.keep_resetting_slow_readers()))
        # A reload needs an open collector. `rappor-server serve` ignores a SIGHUP that arrives
        # before this line (`cli/__init__.py`): it has just read the files.
        loop.add_signal_handler(signal.SIGHUP, self._reload_files)
        # systemd starts dependent services only now, when connections are accepted.
        notify_systemd("READY=1")
        logs.log_event("collector listening", **self._format_addresses())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Complete the requests in progress, and close the collector. uvicorn calls this method.

        If the database hangs, the close hangs, too. A timer then kills the process. No acknowledged
        upload is lost: it is in the inbox, and the next start merges it.
        """
        # Commits in progress may take `commit_seconds` beyond the grace period.
        self._kill_timer = start_kill_timer(_GRACE_SECONDS + self._settings.commit_seconds)
        notify_systemd("STOPPING=1")
        for task in self._tasks:  # the acceptor of TLS and the monitor of slow readers
            task.cancel()
        await super().shutdown(sockets)

    def _make_protocol(self, protocol_class: type[BoundedProtocol]) -> BoundedProtocol:
        """Return the protocol of a new connection that uvicorn itself does not accept."""
        return protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _make_tls_acceptor(self, context: ssl.SSLContext) -> TlsAcceptor:
        """Return the acceptor of TLS connections, with limits from the settings.

        A handshake of TLS may take as long as the head of a request, `body_seconds`.
        """
        metrics: Metrics = self.lifespan.state[METRICS]
        return TlsAcceptor(
            self._sockets.public,
            context,
            make_protocol=lambda: self._make_protocol(BoundedProtocol),
            protocols=self.server_state.connections,
            max_connections=self._settings.max_connections,
            quota=SourceQuota(
                self._settings.max_source_connections, proxies=self._settings.proxies
            ),
            seconds=self._settings.body_seconds,
            on_refusal=lambda limit: metrics.refused_connections.labels(limit).inc(),
        )

    def _format_addresses(self) -> dict[str, Any]:
        """Return the URLs of the sockets as fields of the log line `collector listening`.

        The keys are `address`, and `admin` if there is a separate admin address.
        """
        scheme = "http" if self._tls is None else "https"
        fields: dict[str, Any] = {"address": f"{scheme}://{_format_address(self._sockets.public)}"}
        if self._sockets.admin is not None:
            fields["admin"] = f"http://{_format_address(self._sockets.admin)}"
        return fields

    def _reload_files(self) -> None:
        """Read all input files again and put them in force (SIGHUP).

        If a file is invalid, the collector goes on with the contents that it has, and the log says
        which file is wrong. An operator's typing error must not stop a running collection.
        """
        collector: Collector = self._app.state.collector
        try:
            today = collector.today()
            inputs = InputFiles.read(self._settings, today=today)
            inputs.check_candidate_files(self._settings, today=today)
            # The certificate is loaded first, because loading may fail, and a failed reload must
            # change nothing. `adopt` checks the files again, and seldom fails, because
            # `read` has just found no fault. Case: a new year begins between the two checks, and
            # the metrics of the new year exceed the budget of a device.
            if self._tls is not None:
                inputs.load_certificate(self._tls)
            collector.adopt(inputs)
        except RapporError as error:
            logs.log_refused_reload(error)


@contextlib.contextmanager
def _silence_uvicorn() -> Iterator[None]:
    """Write no errors of uvicorn during a start.

    uvicorn writes two errors without a reason about an application that does not start. The
    application has written the reason already (`start failed`).
    """
    logger = logging.getLogger("uvicorn.error")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _raise_descriptor_limit(number: int) -> None:
    """Raise the limit of open files to `number`, or to the largest value that the system allows.

    Many systems start processes with 1,024 descriptors, fewer than `max_connections`. Without free
    descriptors a collector could accept no connection and start no merge process. If the hard limit
    is too small, the log has `few descriptors`, and the collector goes on.
    """
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < number:
        logs.log_event("few descriptors", level=logging.WARNING, wanted=number, allowed=allowed)


def _format_address(listener: socket.socket) -> str:
    """Return HOST:PORT of a socket, with brackets around an IPv6 address."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def notify_systemd(state: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as READY=1 to systemd, for a service of Type=notify.

    Without a service manager the function does nothing: NOTIFY_SOCKET is not set, or no process
    listens at its address.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        # Linux writes an abstract socket address, which has no file, with @ in place of the NUL.
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)
