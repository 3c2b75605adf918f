"""A device lives: two programs record on one folder while everything around them goes wrong.

Processes are killed, forked and started again, files are damaged, lost and brought back from
backups, clocks jump, people withdraw and agree again. After every step the promises hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import logging
import math
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from devices import (
    identity_path,
    metric_of,
    open_device,
    peek,
    read_device_state,
    read_secret,
    remove_spool,
    response_of,
)
from forks import in_child
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rappor_client import Client, FlushReason, Outcome, TransportResponse
from rappor_client.budget.identity import read_state
from rappor_client.folder import copies
from rappor_client.folder.spool import read_report
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins
from registries import registry_of

from rappor import Params
from rappor.base.errors import FileError
from rappor.registry.budget import most_reports

NOISY = Params(k=128, h=2, m=4, f=0.4, g=0.1, p=0.05, q=0.8)
SHOWING = constant_coins(2**31)
"""Between the thresholds of p and q: reports show the permanent response itself."""
METRICS = {
    metric.name: metric
    for metric in (
        metric_of("event", NOISY),
        metric_of("quarterly", NOISY, epoch="quarter"),
        metric_of("daily", NOISY, epoch="month", interval="day"),
        metric_of("once", NOISY, epoch="month", interval="epoch"),
        metric_of("durable", NOISY, epoch="year", interval="day", durable=True),
    )
}
REGISTRY = registry_of(*METRICS.values())
LOUDER = dataclasses.replace(NOISY, p=0.01, q=0.9)
REGISTRIES = (
    REGISTRY,
    registry_of(*(dataclasses.replace(each, params=LOUDER) for each in METRICS.values())),
)
"""The second has other noise: it is followed at once for life, else from the next epoch on."""
VALUES = ("telltale one", "telltale two", "telltale three")
HOUR, DAY = 3600, 86_400
JUMPS = (60, HOUR, HOUR, DAY, DAY, 8 * DAY, 40 * DAY, -HOUR, -2 * DAY, -40 * DAY)
PROGRAMS = st.integers(0, 1)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - where it exists
COPIES = st.sampled_from(copies.NAMES)


MOODS: tuple[TransportResponse | None, ...] = (
    None,
    TransportResponse(status=503),
    TransportResponse(status=429, retry_after=60.0),
    TransportResponse(status=400),
    *(
        TransportResponse(status=200, body=body)
        for body in (b"{", b"[]", b'{"reports":[1]}', b"\xff")
    ),
    TransportResponse(
        status=200, body=b'{"reports": [{"status": "refused", "reason": "unknown"}]}'
    ),
)
"""What may become of an upload in place of an answer that accepts it."""


class Collector(MemoryTransport):
    """Keeps every report that it sees with the secret that it was made under."""

    def __init__(self, folder: Path, clock: FixedClock) -> None:
        super().__init__()
        self.folder = folder
        self.bodies_by_id: dict[str, bytes] = {}
        self.seen: dict[tuple[bytes, str], tuple[str, bytes]] = {}
        self.broken: list[str] = []
        self.left: set[tuple[bytes, str, int]] = set()
        self.clock = clock

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Look at an upload: one id has the same bytes over all attempts, and its price is paid.

        What is wrong is noted: the device would take an error for a failure of the network.
        """
        upload_id = json.loads(body)["id"]
        if upload_id not in self.bodies_by_id:
            self.look_at_interval(read_report(body).metric)
        if self.bodies_by_id.setdefault(upload_id, body) != body:
            self.broken.append("the same id came with other bytes")
        state, report = read_device_state(self.folder), read_report(body)
        if report.metric not in {scope.metric for scope in state.scopes.values()}:
            self.broken.append("a report left before its price was there")
        self.seen[read_secret(self.folder), upload_id] = (report.metric, report.bits)
        return super().send(body, timeout=timeout)

    def look_at_interval(self, name: str) -> None:
        """Note where a second report of a metric leaves in an interval."""
        key = (read_secret(self.folder), name, int(self.clock.now // DAY))
        if key in self.left:
            self.broken.append("two reports of a metric left in an interval")
        self.left.add(key)


class Log(logging.Handler):
    """Keeps what the device says to its host."""

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, with the traceback if there is one."""
        self.said += self.format(record) + "\n"


@functools.lru_cache(maxsize=10_000)
def responses_of(secret: bytes, name: str, epoch: str) -> dict[bytes, str]:
    """Return the value behind each permanent response of a scope, by the protocol alone."""
    where: dict[str, Any] = {"name": name, "epoch": epoch, "params": METRICS[name].params}
    return {response_of(secret, value, **where): value for value in VALUES}


class Lives(RuleBasedStateMachine):
    """One folder, two programs."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=MEMORY))
        self.folder = self.place / "device"
        self.clock = FixedClock("2026-12-29T12:00:00")
        self.days = {self.day}
        self.collector = Collector(self.folder, self.clock)
        self.reserved: dict[int, float] = {}
        self.events: dict[tuple[bytes, str], set[tuple[int, int]]] = defaultdict(set)
        self.n_spools = 1
        self.n_copies = itertools.count()
        self.log = Log()
        logging.getLogger("rappor_client").addHandler(self.log)
        self.programs: list[Client] = [self.open(), self.open()]

    @property
    def day(self) -> datetime.date:
        """The clock's day."""
        return datetime.datetime.fromtimestamp(self.clock.now, datetime.UTC).date()

    def open(self, version: int = 0) -> Client:
        """Start a program; nothing around it keeps it from working."""
        client = open_device(
            self.folder,
            registry=REGISTRIES[version],
            collector=self.collector,
            clock=self.clock,
            coins=SHOWING,
            raise_errors=False,
        )
        assert client.disabled_reason == ""
        return client

    def quiesce(self) -> None:
        """Let both programs write what they have, and hold no file: their folder is changed."""
        for client in self.programs:
            client.queued_count()
            assert client._writer is not None
            client._writer.store.close()

    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)), value=st.sampled_from(VALUES))
    def record(self, n: int, name: str, value: str) -> None:
        """Record a value."""
        self.note(name)
        assert self.programs[n].record(name, value) != Outcome.FAILED
        self.days.add(self.day)

    def note(self, name: str) -> None:
        """Note in which interval a metric has an event.

        A lost spool forgets which intervals were answered; the state remembers what a price counts.
        """
        number = int(self.clock.now // DAY)
        n_spools = 0 if METRICS[name].interval == "epoch" else self.n_spools
        self.events[read_secret(self.folder), name].add((number, n_spools))

    @rule(n=PROGRAMS, name=st.sampled_from([*sorted(METRICS), VALUES[0]]))
    def record_a_mistake(self, n: int, name: str) -> None:
        """A value of the wrong kind, or in place of the name: nothing is kept."""
        assert self.programs[n].record(name, [*VALUES]) == Outcome.SKIPPED

    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)))
    def refuse(self, n: int, name: str) -> None:
        """Nothing of a metric that a person refuses is kept, until the next start agrees to it."""
        self.record(n, name, VALUES[0])
        self.quiesce()
        self.programs[n].opt_out(name)
        assert self.programs[n].record(name, VALUES[0]) == Outcome.SKIPPED
        with contextlib.suppress(FileError):  # it may be damaged
            contents = peek(self.folder)
            assert name not in {each.metric for each in contents.queued_reports}
            assert name not in {each.metric for each in contents.pending_reports}
        self.restart(n)

    @rule(n=PROGRAMS, moods=st.lists(st.sampled_from(MOODS), max_size=2))
    def flush(self, n: int, moods: list[TransportResponse | None]) -> None:
        """Send what may go, to a collector that may have its moods; then the next run sends all."""
        self.collector.script = moods
        self.programs[n].flush(timeout=1.0)
        self.collector.script = []
        if moods:
            self.clock.now += HOUR
            self.programs[n].flush(timeout=30.0)
            while self.programs[n].queued_count():  # they follow one by one
                self.pass_time(DAY)
                assert self.programs[n].flush(timeout=30.0).reason is not FlushReason.FAILED

    @rule(
        n=PROGRAMS,
        name=st.sampled_from(sorted(METRICS)),
        value=st.sampled_from(VALUES),
    )
    def come_back_to_an_interval(self, n: int, name: str, value: str) -> None:
        """A clock that is set back reopens no interval that has had its report."""
        now, n_sent = self.clock.now, []
        for client in self.programs:
            client.queued_count()
        for _ in range(2):
            self.clock.now = now
            self.collector.left.clear()  # its intervals come again
            self.record(n, name, value)
            for _ in range(9):
                self.pass_time(DAY)
                self.programs[n].flush(timeout=1.0)
            n_sent.append(len(self.collector.bodies_by_id))
        assert n_sent[0] == n_sent[1]

    @rule(seconds=st.sampled_from(JUMPS))
    def pass_time(self, seconds: int) -> None:
        """Go on, or let the clock jump."""
        self.clock.now += seconds
        self.days.add(self.day)
        if seconds < 0:
            self.collector.left.clear()  # its intervals come again

    @rule(n=PROGRAMS, version=st.integers(0, 1))
    def restart(self, n: int, version: int = 0) -> None:
        """End a program and start it again, perhaps after an update."""
        self.programs[n].close()
        self.programs[n] = self.open(version)

    @rule(n=PROGRAMS)
    def kill(self, n: int) -> None:
        """Lose what a program has not written."""
        writer = self.programs[n]._writer
        assert writer is not None
        writer.clear()
        self.programs[n] = self.open()

    @precondition(lambda _: hasattr(os, "fork"))
    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)), value=st.sampled_from(VALUES))
    def fork(self, n: int, name: str, value: str) -> None:
        """A child drops what its parent has not written, records and writes."""
        client = self.programs[n]
        self.note(name)

        def record() -> None:
            assert client._writer is not None
            assert not client._writer
            client.record(name, value)
            client.close()

        assert in_child(record) == 0

    @rule(name=COPIES, how=st.sampled_from(["truncate", "flip", "remove", "empty", "foreign"]))
    def damage_a_copy(self, name: str, how: str) -> None:
        """Damage one of the two copies: the other one mends it."""
        self.quiesce()
        path = identity_path(self.folder) / name
        before = read_state(self.folder)
        if before is None:
            return
        data = path.read_bytes()
        match how:
            case "truncate":
                path.write_bytes(data[: len(data) // 2])
            case "flip":
                path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
            case "remove":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case _:
                other = self.place / f"other{next(self.n_copies)}"
                with open_device(other, registry=REGISTRY, clock=self.clock) as foreign:
                    foreign.record("event", VALUES[0])
                shutil.copy(identity_path(other) / name, path)
        if list(identity_path(self.folder).glob("spool-*.sqlite3")) or how != "foreign":
            assert read_device_state(self.folder) == before[0]
        self.mend()

    def mend(self) -> None:
        """Let both programs start, which look at the folder."""
        for n in range(len(self.programs)):
            self.restart(n)

    @rule(n=PROGRAMS)
    def bring_back_an_older_copy(self, n: int) -> None:
        """Put one copy of an earlier day in its place; the newer one wins."""
        self.quiesce()
        name = copies.NAMES[n]
        path = identity_path(self.folder) / name
        older = path.read_bytes() if path.exists() else b""
        for metric in METRICS:
            self.record(0, metric, VALUES[1])
        self.quiesce()
        before = read_device_state(self.folder)
        path.write_bytes(older)
        assert read_device_state(self.folder) == before
        self.mend()

    @rule()
    def lose_the_spool(self) -> None:
        """It changes no budget and no latch."""
        self.quiesce()
        before = read_device_state(self.folder)
        remove_spool(self.folder)
        self.n_spools += 1
        self.collector.left.clear()  # nor does it know what has left
        assert read_device_state(self.folder) == before

    @rule(part=st.floats(0, 1))
    def damage_the_spool(self, part: float) -> None:
        """It changes no budget and no latch."""
        self.quiesce()
        before = read_device_state(self.folder)
        for path in identity_path(self.folder).glob("spool-*"):
            data = bytearray(path.read_bytes())
            start = int(part * len(data))
            data[start : start + 200] = bytes(200)
            path.write_bytes(data)
        self.n_spools += 1
        self.collector.left.clear()  # nor does it know what has left
        assert read_device_state(self.folder) == before

    @rule()
    def bring_back_an_older_spool(self) -> None:
        """What waits in it may have left: where the state has changed, it is dropped."""
        self.quiesce()
        kept = self.place / f"spool{next(self.n_copies)}"
        shutil.copytree(identity_path(self.folder), kept)
        for metric in METRICS:
            self.record(1, metric, VALUES[2])
        self.pass_time(DAY)
        self.programs[1].flush()
        self.quiesce()
        remove_spool(self.folder)
        for path in kept.glob("spool-*"):
            shutil.copy(path, identity_path(self.folder))
        self.n_spools += 1
        self.collector.left.clear()  # nor does it know what has left

    @rule(n=PROGRAMS)
    def withdraw(self, n: int) -> None:
        """Nothing true is left; the other program notices, and both people agree again."""
        self.quiesce()
        known = read_state(self.folder)
        assert self.programs[n].withdraw()
        self.check_reserved()
        left = b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())
        if known is not None:
            secret = known[0].sealed_secret.bytes
            assert secret not in left
            assert secret.hex().encode() not in left
        other = self.programs[1 - n]
        other.record("event", VALUES[0])
        assert other.flush().sent == 0
        assert not list(self.folder.glob("device*"))
        self.programs = [self.open(), self.open()]

    @precondition(lambda self: self.day.year < 2040)
    @rule()
    def lose_the_state(self) -> None:
        """Both copies are gone: the device is silent until the year is over."""
        self.quiesce()
        for name in copies.NAMES:
            (identity_path(self.folder) / name).write_bytes(b"")
        self.mend()
        assert all(
            client.record(name, VALUES[0]) == Outcome.SKIPPED
            for client in self.programs
            for name in METRICS
        )

    @invariant()
    def check_reserved(self) -> None:
        """What was reserved never becomes less, whatever happens; an unknown year is infinite."""
        reserved = self.programs[0].privacy_spent().reserved
        for year, nats in self.reserved.items():
            assert reserved.get(year, 0.0) >= nats - 1e-9 or math.inf in reserved.values()
        self.reserved = {
            year: max(nats, self.reserved.get(year, 0.0))
            for year, nats in reserved.items()
            if nats < math.inf
        } | {year: nats for year, nats in self.reserved.items() if year not in reserved}

    @invariant()
    def check_spent(self) -> None:
        """What answers can have cost was reserved before."""
        spent = self.programs[0].privacy_spent()
        assert spent.nats <= sum(spent.reserved.values()) + 1e-9

    @invariant()
    def check_delivered(self) -> None:
        """A scope shows what the protocol says, in no more reports than its price counts on."""
        assert self.collector.broken == []
        shown: dict[tuple[bytes, str, str], list[str]] = defaultdict(list)
        for (secret, _), (name, bits) in self.collector.seen.items():
            metric = METRICS[name]
            epochs = {metric.epoch_at(day) for day in self.days}
            found = [
                (epoch, known[bits])
                for epoch in epochs
                for known in [responses_of(secret, metric.name, epoch)]
                if bits in known
            ]
            (scope,) = found
            shown[secret, metric.name, scope[0]].append(scope[1])
        for (_, name, _), values in shown.items():
            assert len(set(values)) == 1
            assert len(values) <= (most_reports(METRICS[name]) or math.inf)

    @invariant()
    def check_intervals(self) -> None:
        """One report at most leaves for each interval that had an event, in each spool."""
        n_sent = Counter((secret, name) for (secret, _), (name, _) in self.collector.seen.items())
        for (secret, name), events in self.events.items():
            assert n_sent[secret, name] <= len(events)

    @invariant()
    def check_secrecy(self) -> None:
        """No value is in a file, in a line of the log or in what is shown; no secret in a spool."""
        client = self.programs[0]
        said = (
            self.log.said
            + f"{client!r} {client.privacy_spent()} {client.sent_uploads()} {client.event_counts()}"
        )
        files = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        written = b"".join(files.values()) + said.encode()
        assert not [value for value in VALUES if value.encode() in written]
        if (known := read_state(self.folder)) is not None and known[0].secret is not None:
            secret = known[0].sealed_secret.bytes
            beside = [data for path, data in files.items() if not path.name.startswith("state.")]
            for data in (*beside, said.encode()):
                assert secret not in data
                assert secret.hex().encode() not in data

    def teardown(self) -> None:
        """End both programs."""
        logging.getLogger("rappor_client").removeHandler(self.log)
        for client in self.programs:
            client.close()
        shutil.rmtree(self.place)


Lives.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestLives = Lives.TestCase


@pytest.mark.acceptance
# The lives take six minutes of CPU time, and three times as long beside other work. Without it, the
# time limit would end a step, and Hypothesis would report steps that differ in a replay.
@pytest.mark.timeout(1800)
class TestManyLives(Lives.TestCase):  # type: ignore[misc,valid-type]
    """Longer lives, and more of them."""

    settings = settings(max_examples=500, stateful_step_count=60)
