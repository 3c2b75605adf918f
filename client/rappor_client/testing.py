"""Tools for the tests of programs that embed the client: no network, no randomness, no waiting.

    FixedClock       a clock that moves only if the test moves it
    FixedCoins       coins that are the same in every run
    MemoryTransport  a collector in memory, which can fail as the test says
    Device           a device on all three of them
    peek             the contents of a device's folder

The pytest fixture `rappor_device` returns a `Device` in a temporary folder.

Examples
--------
>>> import tempfile
>>> from rappor import Registry
>>> registry = Registry.loads('''
... [budget]
... total = 9
... [metrics.theme]
... description = "Colour theme of the editor."
... owner = "privacy@example.org"
... expires = 2099-12-31
... encoding = "onehot"
... categories = ["dark", "light"]
... profile = "strict"
... epoch = "quarter"
... ''')
>>> with Device(tempfile.mkdtemp()) as device:
...     client = device.open(registry)
...     outcome = client.record("theme", "dark")
...     print(len(device.contents.pending_reports))  # the day is not over
...     device.clock.advance(days=1)
...     print(client.flush())
...     print(device.transport.reports[0].metric)
1
the collector accepted everything
theme
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from rappor.protocol.responses.response import Coins
from rappor.protocol.wire import Report, decode_base64url
from rappor.registry.registry import Registry
from rappor_client.client import Client
from rappor_client.network.transport import TransportResponse, UploadError
from rappor_client.person.contents import Contents, read_contents
from rappor_client.settings import ClientOptions

_ARGUMENTS_OF_OPEN: Final = frozenset({"consent", "collector", "opted_out"})
"""Lists the arguments that `Client.open` takes beside folder and registry. All other settings are
fields of `ClientOptions`."""


class FixedClock:
    """A clock that stands still until a test moves it.

    Parameters
    ----------
    start : str
        The first time, in ISO form; in UTC unless it names another zone.

    Examples
    --------
    >>> clock = FixedClock("1970-01-01T00:01:00")
    >>> clock.advance(hours=1)
    >>> clock()
    3660.0
    """

    def __init__(self, start: str) -> None:
        self.now = _parse_time(start)

    def __call__(self) -> float:
        """Return the time, in seconds since 1970."""
        return self.now

    def advance(self, **duration: float) -> None:
        """Move the clock by a duration, as `datetime.timedelta` takes it: days=1, or hours=-2."""
        self.now += datetime.timedelta(**duration).total_seconds()

    def set(self, time: str) -> None:
        """Set the clock to a time in ISO form."""
        self.now = _parse_time(time)


class FixedCoins:
    """Coins that are the same in every run.

    Coin number i is the first 32 bits of SHA-256 of "SEED:i". The seed is enough to remove the
    noise, so these coins must never be used for real reports.

    Parameters
    ----------
    seed : int
        Any number. Other seeds give other coins.

    Examples
    --------
    >>> FixedCoins(seed=1)(2) == FixedCoins(seed=1)(2)
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._n_drawn = 0

    def __call__(self, n: int) -> Sequence[int]:
        """Return the next n coins, uniform integers of 32 bits."""
        first, self._n_drawn = self._n_drawn, self._n_drawn + n
        texts = (f"{self._seed}:{i}".encode() for i in range(first, self._n_drawn))
        return [int.from_bytes(hashlib.sha256(text).digest()[:4], "little") for text in texts]


class MemoryTransport:
    """A collector in memory, which accepts every report unless the test says otherwise.

    Parameters
    ----------
    script : iterable of TransportResponse or None
        Results of the next uploads, in order. None stands for a network that fails. After the
        script every upload is accepted.

    Attributes
    ----------
    script : list of TransportResponse or None
        The results that are left.
    bodies : list of bytes
        Every upload that arrived, also if the script let it fail.
    reports : list of Report
        Reports of the accepted uploads. A repeated upload counts once, as in a real collector.

    Examples
    --------
    >>> transport = MemoryTransport([TransportResponse(status=503)])
    >>> transport.send(b"{}", timeout=1.0).status
    503
    """

    def __init__(self, script: Iterable[TransportResponse | None] = ()) -> None:
        self.script = list(script)
        self.bodies: list[bytes] = []
        self.reports: list[Report] = []
        self._accepted_ids: set[str] = set()

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Accept an upload, or return or raise the next result of the script."""
        del timeout  # nothing in memory waits
        self.bodies.append(body)
        if self.script:
            response = self.script.pop(0)
            if response is None:
                raise UploadError("the network failed, as the script says")
            return response
        document = json.loads(body)
        if document["id"] not in self._accepted_ids:
            self._accepted_ids.add(document["id"])
            self.reports += [_parse_report(entry) for entry in document["reports"]]
        statuses = [{"status": "accepted"} for _ in document["reports"]]
        return TransportResponse(status=200, body=json.dumps({"reports": statuses}).encode())

    def close(self) -> None:
        """Do nothing: a transport in memory has no connections."""


class Device:
    """One device in a folder, with a clock, coins and a collector in memory.

    Parameters
    ----------
    folder : path
        Folder of the device.

    Attributes
    ----------
    folder : Path
        Folder of the device.
    clock : FixedClock
        Clock of all clients. It begins at noon of Saturday, 2026-11-21.
    coins : FixedCoins
        Coins of all clients.
    transport : MemoryTransport
        Collector of all clients.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.clock = FixedClock("2026-11-21T12:00:00")
        self.coins = FixedCoins(seed=1)
        self.transport = MemoryTransport()
        self._clients: list[Client] = []

    def open(self, registry: Registry | str | os.PathLike[str], **settings: Any) -> Client:
        """Open a client on the device, as a new run of the program does.

        Parameters
        ----------
        registry : Registry or path
            Metrics of the program.
        **settings
            Further arguments of `Client.open` and fields of `ClientOptions`. By default consent is
            given, only `flush` sends, and mistakes of the program raise.

        Returns
        -------
        Client
            The open client. `close` closes it with all others.
        """
        arguments: dict[str, Any] = {"consent": True, "collector": self.transport}
        options: dict[str, Any] = {
            "clock": self.clock,
            "coins": self.coins,
            "background": False,
            "raise_errors": True,
        }
        arguments |= {name: settings.pop(name) for name in _ARGUMENTS_OF_OPEN & settings.keys()}
        client = Client.open(
            self.folder, registry=registry, **arguments, options=ClientOptions(**options | settings)
        )
        self._clients.append(client)
        return client

    @property
    def contents(self) -> Contents:
        """Contents of the folder after all recorded events, as `peek` returns them."""
        for client in self._clients:
            client.queued_count()  # writes the events in memory
        return peek(self.folder)

    def close(self) -> None:
        """Close all clients of the device."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peek(folder: str | os.PathLike[str]) -> Contents:
    """Return the contents of a device's folder: reports, scopes, log and counters, no secret.

    A client may be open on the folder. It writes an event within 100 ms, so a test that peeks at
    once should call a method such as `queued_count` before.

    Parameters
    ----------
    folder : path
        Folder of the device. A folder that does not exist has empty contents.

    Returns
    -------
    Contents
        The contents.

    Raises
    ------
    FileError
        The folder cannot be read.
    """
    return read_contents(folder)


def constant_coins(coin: int) -> Coins:
    """Return coins that all have the same value, an integer of 32 bits.

    Examples
    --------
    >>> constant_coins(0)(3)
    [0, 0, 0]
    """
    return lambda n: [coin] * n


def _parse_report(entry: dict[str, object]) -> Report:
    """Return the report of an entry of an upload."""
    return Report(
        metric=str(entry["metric"]),
        params=str(entry["params"]),
        cohort=int(str(entry["cohort"])),
        bits=decode_base64url("bits", entry["bits"]),
    )


def _parse_time(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO form; a time without a zone is in UTC."""
    time = datetime.datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
