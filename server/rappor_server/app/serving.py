"""The HTTP server of one collector process: sockets, TLS, signals, notifications to systemd."""

from __future__ import annotations

import asyncio
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
from typing import Any, Final

import uvicorn

from rappor.base.errors import RapporError
from rappor_server.app.collector import Collector
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base import logs
from rappor_server.base.errors import ConfigError
from rappor_server.base.processes import end_within
from rappor_server.base.source_quota import SourceQuota
from rappor_server.http.application import create_application
from rappor_server.http.bounded_protocol import (
    METRICS,
    BoundedProtocol,
    OperatorProtocol,
    SlowReaderMonitor,
)
from rappor_server.http.handshakes import TlsAcceptor
from rappor_server.operations.prometheus import Metrics
from rappor_server.storage.database import utc_today

_BACKLOG: Final = 2048
"""Largest number of connections that the operating system queues until the process accepts them. A
larger value survives a longer burst."""
_OTHER_DESCRIPTORS: Final = 256
"""File descriptors that a process needs beside those of its connections: files, databases, pipes to
other processes. A larger value needs a higher limit of the operating system."""
_GRACE_SECONDS: Final = 20
"""Longest time in seconds for requests in progress after a signal to stop. A larger value lets
longer queries finish, and delays a restart."""
_KEEP_ALIVE_SECONDS: Final = 30
"""Time in seconds after which an idle connection is closed. A larger value saves TLS handshakes and
keeps more connections open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets: for devices, and for operators if they have a separate address."""

    public: socket.socket
    admin: socket.socket | None

    @property
    def admin_port(self) -> int | None:
        """Port of the admin address, or None."""
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
    """Return a listening socket. `name` names the settings in an error message."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{name} must be an address that is free, got {host}:{port}: {error.strerror}"
        ) from None


class Server(uvicorn.Server):
    """The HTTP server of a collector. On SIGHUP it reads the input files again.

    uvicorn accepts connections without TLS. `TlsAcceptor` accepts connections with TLS, because
    uvicorn does not limit handshakes.
    """

    def __init__(
        self,
        settings: Settings,
        inputs: InputFiles,
        sockets: Sockets,
        *,
        today: Callable[[], datetime.date] = utc_today,
    ) -> None:
        """Prepare the server. `run` opens the collector.

        Parameters
        ----------
        settings : settings of the collector
        inputs : contents of the files that the settings name
        sockets : listening sockets
        today : returns the present day (UTC)
        """
        self._settings = settings
        self._sockets = sockets
        self._app = create_application(
            settings,
            open_collector=lambda settings: Collector(settings, inputs=inputs, today=today),
            admin_port=sockets.admin_port,
        )
        super().__init__(
            uvicorn.Config(
                self._app,
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,  # `logs.configure` has set up the loggers of uvicorn
                access_log=False,  # an access log would contain addresses of devices
                server_header=False,
                date_header=False,
                proxy_headers=True,
                forwarded_allow_ips=settings.proxies,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self.config.load()
        self._tls: ssl.SSLContext | None = None
        if inputs.certificate:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            inputs.load_certificate(self._tls)
        self._tasks: list[asyncio.Task[None]] = []
        self._kill_timer: threading.Timer | None = None

    @property
    def admin_port(self) -> int | None:
        """Port of the admin address, or None."""
        return self._sockets.admin_port

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve requests until a signal stops the process."""
        try:
            super().run(sockets)
        finally:
            if self._kill_timer is not None:
                self._kill_timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the collector, accept connections, and report readiness to systemd."""
        loop = asyncio.get_running_loop()
        logs.log_loop_errors(loop)
        _raise_descriptor_limit(self._settings.max_connections + _OTHER_DESCRIPTORS)
        # With TLS, uvicorn opens the collector but accepts nothing: see `TlsAcceptor`.
        await super().startup([] if self._tls else [self._sockets.public])
        if self._tls:
            acceptor = self._make_tls_acceptor(self._tls)
            self._tasks.append(loop.create_task(acceptor.keep_accepting()))
        if self._sockets.admin is not None:
            self.servers.append(
                await loop.create_server(
                    lambda: self._make_protocol(OperatorProtocol), sock=self._sockets.admin
                )
            )
        monitor = SlowReaderMonitor(
            self.server_state.connections, seconds=self._settings.body_seconds
        )
        self._tasks.append(loop.create_task(monitor.keep_resetting()))
        loop.add_signal_handler(signal.SIGHUP, self._reload_files)
        # systemd starts dependent services only now, when connections are accepted.
        notify_systemd("READY=1")
        logs.log_event("collector listening", **self._format_addresses())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Complete the requests in progress, and close the collector.

        If the database hangs, the close hangs, too. A timer then kills the process.
        """
        # Commits in progress may take `commit_seconds` beyond the grace period.
        self._kill_timer = end_within(_GRACE_SECONDS + self._settings.commit_seconds)
        notify_systemd("STOPPING=1")
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _make_protocol(self, protocol_class: type[BoundedProtocol]) -> BoundedProtocol:
        return protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _make_tls_acceptor(self, context: ssl.SSLContext) -> TlsAcceptor:
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
        """Return the URLs of the sockets as fields of a log line."""
        scheme = "http" if self._tls is None else "https"
        fields: dict[str, Any] = {"address": f"{scheme}://{_format_address(self._sockets.public)}"}
        if self._sockets.admin is not None:
            fields["admin"] = f"http://{_format_address(self._sockets.admin)}"
        return fields

    def _reload_files(self) -> None:
        """Read all files again; if one is wrong, the registry and the keys stay as they were."""
        collector: Collector = self._app.state.collector
        try:
            inputs = InputFiles.read(self._settings, today=utc_today())
            if self._tls is not None:
                inputs.load_certificate(self._tls)
            collector.adopt(inputs)
        except RapporError as error:
            logs.log_refused_reload(error)


def _raise_descriptor_limit(number: int) -> None:
    """Raise the limit of open files to `number`, or to the largest value that the system allows.

    Many systems start processes with 1,024 descriptors, fewer than `max_connections`. Without free
    descriptors a collector could accept no connection and start no merge process.
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
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def notify_systemd(state: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as READY=1 to systemd, for a service of Type=notify.

    Without a service manager (NOTIFY_SOCKET is not set, or nothing listens) this does nothing.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        # Linux writes an abstract socket address, which has no file, with @ in place of the NUL.
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)
