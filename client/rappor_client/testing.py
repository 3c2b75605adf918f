"""For the tests of programs that embed the client: no network, no randomness, no waiting.

with Device(folder) as device:          # or the fixture `rappor_device` of pytest
    client = device.open(registry)
    client.record("theme", "dark")
    assert len(device.contents.pending_reports) == 1  # until the day is over
    device.clock.advance(days=1)
    assert client.flush()
    assert device.transport.reports[0].metric == "theme"
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report, decode_base64url
from rappor.registry.registry import Registry
from rappor_client.client import Client
from rappor_client.network.transport import TransportResponse, UploadError
from rappor_client.person.contents import Contents, read_contents
from rappor_client.settings import ClientOptions

_OF_OPEN: Final = frozenset({"consent", "collector", "opted_out"})
"""What `Client.open` takes beside the folder and the registry; all else is of the policy."""


class FixedClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, moment: str) -> None:
        """Start at a moment in ISO form, in UTC unless it names another zone."""
        self.now = _seconds(moment)

    def __call__(self) -> float:
        """Return seconds since 1970."""
        return self.now

    def advance(self, **spans: float) -> None:
        """Move by what `datetime.timedelta` takes, as days=1 or hours=-2."""
        self.now += datetime.timedelta(**spans).total_seconds()

    def set(self, moment: str) -> None:
        """Jump to a moment in ISO form."""
        self.now = _seconds(moment)


class FixedCoins:
    """Coins that fall the same way in each run, by SHA-256 of a seed; never for real reports."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def __call__(self, n: int) -> Sequence[int]:
        """Return the next n coins."""
        first, self._drawn = self._drawn, self._drawn + n
        texts = (f"{self._seed}:{i}".encode() for i in range(first, self._drawn))
        return [int.from_bytes(hashlib.sha256(text).digest()[:4], "little") for text in texts]


class MemoryTransport:
    """A collector in memory: it accepts every report, unless it was told what to answer.

    `script` holds what the next uploads meet, in order: an Answer, or None for a network that
    fails. `bodies` holds every upload that came; `reports` holds the accepted reports, those of a
    repeated upload once.
    """

    def __init__(self, script: Iterable[TransportResponse | None] = ()) -> None:
        self.script = list(script)
        self.bodies: list[bytes] = []
        self.reports: list[Report] = []
        self._ids: set[str] = set()

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Accept an upload, or fail as the script says."""
        del timeout  # memory does not wait
        self.bodies.append(body)
        if self.script:
            answer = self.script.pop(0)
            if answer is None:
                raise UploadError("the network failed, as the script says")
            return answer
        document = json.loads(body)
        if document["id"] not in self._ids:
            self._ids.add(document["id"])
            self.reports += [_report(entry) for entry in document["reports"]]
        statuses = [{"status": "accepted"} for _ in document["reports"]]
        return TransportResponse(status=200, body=json.dumps({"reports": statuses}).encode())

    def close(self) -> None:
        """Do nothing: memory has no connections to close."""


class Device:
    """One device in a folder, with what surrounds it: a clock, coins and a collector in memory."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Name the folder; the clock stands at a Saturday's noon."""
        self.folder = Path(folder)
        self.clock = FixedClock("2026-11-21T12:00:00")
        self.coins = FixedCoins(seed=1)
        self.transport = MemoryTransport()
        self._clients: list[Client] = []

    def open(self, registry: Registry | str | os.PathLike[str], **settings: Any) -> Client:
        """Open the device as a new run of the program.

        Settings are those of `Client.open` and of `ClientOptions`. Unless they say otherwise the
        person has agreed, only `flush` sends, and mistakes of the program raise.
        """
        surroundings: dict[str, Any] = {"consent": True, "collector": self.transport}
        habits: dict[str, Any] = {
            "clock": self.clock,
            "coins": self.coins,
            "background": False,
            "raise_errors": True,
        }
        own = {name: settings.pop(name) for name in _OF_OPEN & settings.keys()}
        policy = ClientOptions(**habits | settings)
        client = Client.open(self.folder, registry=registry, **surroundings | own, options=policy)
        self._clients.append(client)
        return client

    @property
    def contents(self) -> Contents:
        """What the folder holds, as `peek` tells it, with all that was recorded."""
        for client in self._clients:
            client.queued_count()  # which writes what waits in memory
        return peek(self.folder)

    def close(self) -> None:
        """Close every client that was opened."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peek(folder: str | os.PathLike[str]) -> Contents:
    """Return what a device's folder holds now: reports, scopes, log, counters, and no secret.

    It may be called while a client is open on the folder, which writes what was recorded within
    100 ms. A folder that does not exist has empty contents; one that cannot be read raises
    FileError.
    """
    return read_contents(folder)


def constant_coins(u: int) -> Coins:
    """Return coins that all fall on the same 32-bit integer."""
    return lambda n: [u] * n


def _report(entry: dict[str, object]) -> Report:
    return Report(
        metric=str(entry["metric"]),
        params=str(entry["params"]),
        cohort=int(str(entry["cohort"])),
        bits=decode_base64url("bits", entry["bits"]),
    )


def _seconds(moment: str) -> float:
    read = datetime.datetime.fromisoformat(moment)
    return (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)).timestamp()
