"""One process that listens: the application behind its sockets, and the reloads that reach it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from rappor.base.errors import RapporError
from rappor_server.app.collector import Collector
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base import logs, systemd
from rappor_server.base.connection_limits import Sources
from rappor_server.base.errors import ConfigError
from rappor_server.base.processes import end_within
from rappor_server.http import app
from rappor_server.http.handshakes import Handshakes
from rappor_server.http.slow_clients import (
    METRICS,
    OperatorsProtocol,
    PunctualProtocol,
    SlowReaders,
)
from rappor_server.operations.prometheus import Metrics
from rappor_server.storage.database import utc_today

_BACKLOG: Final = 2048
_MORE_DESCRIPTORS: Final = 256
"""Of a process, beside those of its connections: files, databases, other processes."""
_GRACE_SECONDS: Final = 20
"""How long requests under way may take once the process has been told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Where a collector listens: for devices, and for operators where that is another address."""

    public: socket.socket
    admin: socket.socket | None

    @property
    def admin_port(self) -> int | None:
        """The port of the operators' address."""
        return None if self.admin is None else int(self.admin.getsockname()[1])


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[Sockets]:
    """Hold the sockets of the settings while the block runs; ConfigError if one is taken."""
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(_bind("host and port", settings.host, settings.port))
        admin = None
        if settings.admin:
            admin = stack.enter_context(_bind("admin", *settings.admin_address))
        yield Sockets(public=public, admin=admin)


def _bind(name: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{name} must be an address that is free, got {host}:{port}: {error.strerror}"
        ) from None


class Server(uvicorn.Server):
    """The HTTP server of a collector; on SIGHUP it reads the collector's files again."""

    def __init__(
        self,
        settings: Settings,
        inputs: InputFiles,
        sockets: Sockets,
        *,
        today: Callable[[], datetime.date] = utc_today,
    ) -> None:
        """Prepare to listen; nothing is opened yet."""
        self._settings = settings
        self._sockets = sockets
        self._app = app.create(
            settings,
            open_collector=lambda chosen: Collector(chosen, inputs=inputs, today=today),
            admin_port=sockets.admin_port,
        )
        super().__init__(
            uvicorn.Config(
                self._app,
                http=PunctualProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=True,
                forwarded_allow_ips=settings.proxies,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self.config.load()
        self._tls: ssl.SSLContext | None = None
        if inputs.certificate:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            inputs.load_certificate(self._tls)
        self._tasks: list[asyncio.Task[None]] = []
        self._deadline: threading.Timer | None = None

    @property
    def admin_port(self) -> int | None:
        """The port of the operators' address."""
        return self._sockets.admin_port

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen until a signal says to end."""
        try:
            super().run(sockets)
        finally:
            if self._deadline is not None:
                self._deadline.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the collector and listen; then tell that it is ready."""
        loop = asyncio.get_running_loop()
        logs.tell_loop_errors(loop)
        _allow_descriptors(self._settings.max_connections + _MORE_DESCRIPTORS)
        await super().startup([] if self._tls else [self._sockets.public])
        if self._tls:
            self._tasks.append(loop.create_task(self._handshakes(self._tls).keep_accepting()))
        if self._sockets.admin is not None:
            self.servers.append(
                await loop.create_server(
                    lambda: self._protocol(OperatorsProtocol), sock=self._sockets.admin
                )
            )
        readers = SlowReaders(self.server_state.connections, seconds=self._settings.body_seconds)
        self._tasks.append(loop.create_task(readers.keep_ending()))
        loop.add_signal_handler(signal.SIGHUP, self._reload_files)
        systemd.notify("READY=1")
        logs.event("collector listening", **self._addresses())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has begun, and end; in time even if the database hangs."""
        self._deadline = end_within(_GRACE_SECONDS + self._settings.commit_seconds)
        systemd.notify("STOPPING=1")
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _protocol(self, kind: type[PunctualProtocol]) -> PunctualProtocol:
        return kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _handshakes(self, context: ssl.SSLContext) -> Handshakes:
        metrics: Metrics = self.lifespan.state[METRICS]
        return Handshakes(
            self._sockets.public,
            context,
            new_protocol=lambda: self._protocol(PunctualProtocol),
            connections=self.server_state.connections,
            most=self._settings.max_connections,
            sources=Sources(self._settings.max_source_connections, proxies=self._settings.proxies),
            seconds=self._settings.body_seconds,
            refuse=lambda bound: metrics.refused_connections.labels(bound).inc(),
        )

    def _addresses(self) -> dict[str, Any]:
        scheme = "http" if self._tls is None else "https"
        addresses: dict[str, Any] = {"address": f"{scheme}://{_name(self._sockets.public)}"}
        if self._sockets.admin is not None:
            addresses["admin"] = f"http://{_name(self._sockets.admin)}"
        return addresses

    def _reload_files(self) -> None:
        """Read all files again; if one is wrong, the registry and the keys stay as they were."""
        collector: Collector = self._app.state.collector
        try:
            inputs = InputFiles.read(self._settings, today=utc_today())
            if self._tls is not None:
                inputs.load_certificate(self._tls)
            collector.adopt(inputs)
        except RapporError as error:
            logs.refused_reload(error)


def _allow_descriptors(number: int) -> None:
    """Raise the process's limit of open files to a number, as far as the system lets it."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < number:
        logs.event("few descriptors", level=logging.WARNING, wanted=number, allowed=most)


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
