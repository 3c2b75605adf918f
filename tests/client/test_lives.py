"""Random histories of a device whose folder is used by two programs while everything else fails.

Hypothesis draws the steps of a history from the rules of the state machine `Lives`: processes are
killed, forked and started again, files are damaged, lost and restored from backups, clocks jump,
and people withdraw and give consent again. After every step, the invariants check the promises:

    check_reserved     reserved nats never decrease
    check_spent        the spent nats are at most the reserved nats
    check_delivered    a scope shows one permanent response, in as many reports as its cost allows
    check_intervals    an interval has at most one report
    check_secrecy      no file, log line or repr contains a value, and only the state the secret

The coins of the clients make each report equal to its permanent response, so the tests recognise
the value of a report. The first program is `programs[0]`, the second program is `programs[1]`.
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
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from devices import (
    build_metric,
    compute_response,
    get_identity_folder,
    open_device,
    read_device_state,
    read_secret,
    remove_spool,
    write_events,
)
from forks import end_folder_threads, run_in_child
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rappor_client import Client, FlushReason, Outcome, TransportResponse
from rappor_client.budget.identity import read_state
from rappor_client.folder import copies
from rappor_client.folder.spool import read_report
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins, peek
from registries import build_registry

from rappor import Params
from rappor.base.errors import FileError
from rappor.registry.budget import most_reports

NOISY = Params(k=128, h=2, m=4, f=0.4, g=0.1, p=0.05, q=0.8)
"""Parameters whose 128 bits differ in practice between the permanent responses of the values."""
REVEALING_COINS = constant_coins(2**31)
"""These coins are between the thresholds of p and q, so a report equals its permanent response."""
METRICS = {
    metric.name: metric
    for metric in (
        build_metric("event", NOISY),
        build_metric("quarterly", NOISY, epoch="quarter"),
        build_metric("daily", NOISY, epoch="month", interval="day"),
        build_metric("once", NOISY, epoch="month", interval="epoch"),
        build_metric("durable", NOISY, epoch="year", interval="day", durable=True),
    )
}
"""Metrics by name. They differ in epoch and interval. `event` has the default epoch, the life."""
REGISTRY = build_registry(*METRICS.values())
OTHER_NOISE = dataclasses.replace(NOISY, p=0.01, q=0.9)
REGISTRIES = (
    REGISTRY,
    build_registry(
        *(dataclasses.replace(metric, params=OTHER_NOISE) for metric in METRICS.values())
    ),
)
"""Contains two registries. The second one has other p and q, which count at once for a metric for
life, and from the next epoch on for other metrics."""
VALUES = ("telltale one", "telltale two", "telltale three")
HOUR, DAY = 3600, 86_400
JUMPS = (60, HOUR, HOUR, DAY, DAY, 8 * DAY, 40 * DAY, -HOUR, -2 * DAY, -40 * DAY)
"""Contains the seconds by which the clock jumps. A jump of 8 days passes the end of a week, and a
jump of 40 days passes the end of a month."""
PROGRAMS = st.integers(0, 1)
"""Contains the strategy that draws the index of a program."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - where it exists
"""The folder of the tests is in memory where possible, so they run faster. None is the default."""
COPIES = st.sampled_from(copies.NAMES)
"""This strategy draws the name of one of the two files that contain the state."""


FAILURES: tuple[TransportResponse | None, ...] = (
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
"""Contains responses to an upload in place of one that accepts it. None is a failing network."""


class Collector(MemoryTransport):
    """A collector that stores every report with the secret under which it was made."""

    def __init__(self, folder: Path, clock: FixedClock) -> None:
        super().__init__()
        self.folder = folder
        self.bodies_by_id: dict[str, bytes] = {}
        # Metric and bits of each report, by secret and upload id.
        self.seen: dict[tuple[bytes, str], tuple[str, bytes]] = {}
        self.mistakes: list[str] = []
        # Secret, metric and day (number of days since 1970) of each report that was sent.
        self.sent_intervals: set[tuple[bytes, str, int]] = set()
        self.clock = clock

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Check an upload: its id has the same bytes in all attempts, and its cost is on the disk.

        Mistakes are stored, because the client takes an exception for a failing network. The
        invariant `check_delivered` asserts later that there are none.
        """
        upload_id = json.loads(body)["id"]
        if upload_id not in self.bodies_by_id:
            self.check_interval(read_report(body).metric)
        if self.bodies_by_id.setdefault(upload_id, body) != body:
            self.mistakes.append("the same id came with other bytes")
        state, report = read_device_state(self.folder), read_report(body)
        if report.metric not in {scope.metric for scope in state.scopes.values()}:
            self.mistakes.append("a report left before its cost was on the disk")
        self.seen[read_secret(self.folder), upload_id] = (report.metric, report.bits)
        return super().send(body, timeout=timeout)

    def check_interval(self, name: str) -> None:
        """Store a mistake if a second report of a metric leaves on a day.

        All intervals have at least a day, so the check is strict for days, and weak for longer
        intervals.
        """
        key = (read_secret(self.folder), name, int(self.clock.now // DAY))
        if key in self.sent_intervals:
            self.mistakes.append("two reports of a metric left in an interval")
        self.sent_intervals.add(key)


class Log(logging.Handler):
    """A log handler that stores all lines."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line, with its traceback."""
        self.text += self.format(record) + "\n"


@functools.lru_cache(maxsize=10_000)
def compute_responses(secret: bytes, name: str, epoch: str) -> dict[bytes, str]:
    """Return the values by permanent response in a scope, computed without the client."""
    scope: dict[str, Any] = {"name": name, "epoch": epoch, "params": METRICS[name].params}
    return {compute_response(secret, value, **scope): value for value in VALUES}


def wait_for_threads() -> None:
    """Wait until no thread of a client uses a folder.

    On a busy machine a caller times out and goes on, and its job is still running. The connection
    of a dropped client is closed in a thread of its own.
    """
    end_folder_threads()
    for thread in threading.enumerate():
        if thread.name == "rappor-closer":
            thread.join()


def list_open_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that this process has open, where the system lists them."""
    opened = list[Path]()
    for handle in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # the handle of the listing itself
            opened.append(handle.readlink())
    return [path for path in folder.glob(pattern) if path in opened]


class Lives(RuleBasedStateMachine):
    """The state machine: one folder and two programs.

    Attributes
    ----------
    folder : the device's folder in `parent`
    days : all days that the clock has shown
    reserved : largest reserved nats of each year so far, as far as the device knows the year
    events : for each secret and metric, the intervals with an event. An interval is a day and the
        number of the spool, because a lost spool has forgotten which intervals had a report
    n_spools : number of spools so far. It grows when the spool is lost, damaged or restored
    n_copies : next number of the name of a copied folder
    """

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(dir=MEMORY))
        self.folder = self.parent / "device"
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
        """The day of the clock."""
        return datetime.datetime.fromtimestamp(self.clock.now, datetime.UTC).date()

    def open(self, version: int = 0) -> Client:
        """Start a program, which must not be disabled."""
        client = open_device(
            self.folder,
            registry=REGISTRIES[version],
            collector=self.collector,
            clock=self.clock,
            coins=REVEALING_COINS,
            raise_errors=False,
        )
        assert client.disabled_reason == ""
        return client

    def write_and_close(self) -> dict[Path, bytes]:
        """Let both programs write their events and close their spool, before the folder changes.

        Returns the files of the spool before the last close, as killed programs leave them.
        """
        for client in self.programs:
            write_events(client)
        wait_for_threads()
        spool_files = {
            path: path.read_bytes() for path in get_identity_folder(self.folder).glob("spool-*")
        }
        for client in self.programs:
            assert client._writer is not None
            client._writer.store.close()
        # SQLite has mapped the index into memory as long as a connection is open. No disk damages
        # this memory, but a test that overwrote the file would.
        assert list_open_files(get_identity_folder(self.folder), "spool-*") == []
        return spool_files

    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)), value=st.sampled_from(VALUES))
    def record(self, n: int, name: str, value: str) -> None:
        """Record a value."""
        self.store_event(name)
        assert self.programs[n].record(name, value) != Outcome.FAILED
        self.days.add(self.day)

    def store_event(self, name: str) -> None:
        """Store the day of an event, with the number of the spool.

        After its spool is lost, a device may report an interval a second time. Metrics with one
        report in an epoch are an exception: the state, not the spool, contains their finished
        scopes.
        """
        day_number = int(self.clock.now // DAY)
        n_spools = 0 if METRICS[name].interval == "epoch" else self.n_spools
        self.events[read_secret(self.folder), name].add((day_number, n_spools))

    @rule(n=PROGRAMS, name=st.sampled_from([*sorted(METRICS), VALUES[0]]))
    def record_a_mistake(self, n: int, name: str) -> None:
        """A value of the wrong kind, also in place of the name, is skipped."""
        assert self.programs[n].record(name, [*VALUES]) == Outcome.SKIPPED

    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)))
    def refuse(self, n: int, name: str) -> None:
        """Opt out of a metric: its reports are deleted. The next start allows the metric again."""
        self.record(n, name, VALUES[0])
        self.write_and_close()
        self.programs[n].opt_out(name)
        assert self.programs[n].record(name, VALUES[0]) == Outcome.SKIPPED
        for client in self.programs:
            write_events(client)
        with contextlib.suppress(FileError):  # the folder may be damaged
            contents = peek(self.folder)
            assert name not in {report.metric for report in contents.queued_reports}
            assert name not in {report.metric for report in contents.pending_reports}
        self.restart(n)

    @rule(n=PROGRAMS, failures=st.lists(st.sampled_from(FAILURES), max_size=2))
    def flush(self, n: int, failures: list[TransportResponse | None]) -> None:
        """Send while the collector fails. Then send all remaining reports without failures."""
        self.collector.script = failures
        self.programs[n].flush(timeout=1.0)
        self.collector.script = []
        if failures:
            self.clock.now += HOUR  # the longest backoff of an upload is over
            self.programs[n].flush(timeout=30.0)
            while self.programs[n].queued_count():  # late reports leave one by one
                self.pass_time(DAY)
                assert self.programs[n].flush(timeout=30.0).reason is not FlushReason.FAILED

    @rule(
        n=PROGRAMS,
        name=st.sampled_from(sorted(METRICS)),
        value=st.sampled_from(VALUES),
    )
    def set_clock_back(self, n: int, name: str, value: str) -> None:
        """Set the clock back: the same events on the same days lead to no second reports.

        The same nine days pass twice. The collector gets all reports in the first pass.
        """
        now, n_sent = self.clock.now, []
        for client in self.programs:
            write_events(client)
        for _ in range(2):
            self.clock.now = now
            self.collector.sent_intervals.clear()  # the same intervals come again
            self.record(n, name, value)
            for _ in range(9):
                self.pass_time(DAY)
                self.programs[n].flush(timeout=1.0)
            n_sent.append(len(self.collector.bodies_by_id))
        assert n_sent[0] == n_sent[1]

    @rule(seconds=st.sampled_from(JUMPS))
    def pass_time(self, seconds: int) -> None:
        """Move the clock forwards or backwards."""
        self.clock.now += seconds
        self.days.add(self.day)
        if seconds < 0:
            self.collector.sent_intervals.clear()  # its intervals come again

    @rule(n=PROGRAMS, version=st.integers(0, 1))
    def restart(self, n: int, version: int = 0) -> None:
        """End a program and start it again, perhaps with another registry."""
        self.programs[n].close()
        self.programs[n] = self.open(version)

    @rule(n=PROGRAMS)
    def kill(self, n: int) -> None:
        """Lose the events that a program has not written."""
        writer = self.programs[n]._writer
        assert writer is not None
        writer.clear()
        # The system closes the files of a killed process. Here the writer and its thread refer to
        # each other, so the connection would be open until the next collection of garbage.
        wait_for_threads()
        writer.store.close()
        self.programs[n] = self.open()

    @precondition(lambda _: hasattr(os, "fork"))
    @rule(n=PROGRAMS, name=st.sampled_from(sorted(METRICS)), value=st.sampled_from(VALUES))
    def fork(self, n: int, name: str, value: str) -> None:
        """A child drops the events of its parent, records and writes."""
        client = self.programs[n]
        self.store_event(name)

        def record() -> None:
            assert client._writer is not None
            assert not client._writer
            client.record(name, value)
            client.close()

        assert run_in_child(record) == 0

    @rule(name=COPIES, how=st.sampled_from(["truncate", "flip", "remove", "empty", "foreign"]))
    def damage_a_copy(self, name: str, how: str) -> None:
        """Damage one copy of the state. The other copy repairs it."""
        self.write_and_close()
        path = get_identity_folder(self.folder) / name
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
                foreign_folder = self.parent / f"foreign{next(self.n_copies)}"
                with open_device(foreign_folder, registry=REGISTRY, clock=self.clock) as foreign:
                    foreign.record("event", VALUES[0])
                shutil.copy(get_identity_folder(foreign_folder) / name, path)
        if list(get_identity_folder(self.folder).glob("spool-*.sqlite3")) or how != "foreign":
            assert read_device_state(self.folder) == before[0]
        self.restart_both()

    def restart_both(self) -> None:
        """Restart both programs, which repairs the folder."""
        for n in range(len(self.programs)):
            self.restart(n)

    @rule(n=PROGRAMS)
    def restore_an_older_copy(self, n: int) -> None:
        """Restore an older copy of the state. The newer copy wins."""
        self.write_and_close()
        name = copies.NAMES[n]
        path = get_identity_folder(self.folder) / name
        older = path.read_bytes() if path.exists() else b""
        for metric in METRICS:
            self.record(0, metric, VALUES[1])
        self.write_and_close()
        before = read_device_state(self.folder)
        path.write_bytes(older)
        assert read_device_state(self.folder) == before
        self.restart_both()

    @rule()
    def lose_the_spool(self) -> None:
        """Lose the spool. Budget and memoized responses stay."""
        self.write_and_close()
        before = read_device_state(self.folder)
        remove_spool(self.folder)
        self.n_spools += 1
        self.collector.sent_intervals.clear()  # the spool has forgotten sent reports
        assert read_device_state(self.folder) == before

    @rule(part=st.floats(0, 1), is_killed=st.booleans())
    def damage_the_spool(self, part: float, *, is_killed: bool) -> None:
        """Damage the spool, perhaps with the log of killed programs. Budget and responses stay."""
        spool_files = self.write_and_close()
        before = read_device_state(self.folder)
        if not is_killed:
            # The last close has emptied SQLite's log, so only the remaining files are damaged.
            spool_files = {path: path.read_bytes() for path in spool_files if path.exists()}
        for path, content in spool_files.items():
            data = bytearray(content)
            start = int(part * len(data))  # `part` of the file stays before the damage
            data[start : start + 200] = bytes(200)
            path.write_bytes(data)
        self.n_spools += 1
        self.collector.sent_intervals.clear()  # the spool has forgotten sent reports
        assert read_device_state(self.folder) == before

    @rule()
    def restore_an_older_spool(self) -> None:
        """Restore an older spool. Its reports are dropped if the state has changed since."""
        self.write_and_close()
        backup = self.parent / f"spool{next(self.n_copies)}"
        shutil.copytree(get_identity_folder(self.folder), backup)
        for metric in METRICS:
            self.record(1, metric, VALUES[2])
        self.pass_time(DAY)
        self.programs[1].flush()
        self.write_and_close()
        remove_spool(self.folder)
        for path in backup.glob("spool-*"):
            shutil.copy(path, get_identity_folder(self.folder))
        self.n_spools += 1
        self.collector.sent_intervals.clear()  # the spool has forgotten sent reports

    @rule(n=PROGRAMS)
    def withdraw(self, n: int) -> None:
        """Withdraw consent, and give it again.

        After the withdrawal no file contains the secret. The other program notices the withdrawal:
        it sends nothing, and creates no files.
        """
        self.write_and_close()
        state_before = read_state(self.folder)
        assert self.programs[n].withdraw()
        self.check_reserved()
        files = b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())
        if state_before is not None:
            secret = state_before[0].sealed_secret.bytes
            assert secret not in files
            assert secret.hex().encode() not in files
        other_program = self.programs[1 - n]
        other_program.record("event", VALUES[0])
        assert other_program.flush().sent == 0
        assert not list(self.folder.glob("device*"))
        self.programs = [self.open(), self.open()]

    @precondition(lambda self: self.day.year < 2040)
    @rule()
    def lose_the_state(self) -> None:
        """Lose both copies of the state: all metrics are skipped until the year is over.

        Without the state, the device cannot compute how many nats of the year it has reserved.
        """
        self.write_and_close()
        for name in copies.NAMES:
            (get_identity_folder(self.folder) / name).write_bytes(b"")
        self.restart_both()
        assert all(
            client.record(name, VALUES[0]) == Outcome.SKIPPED
            for client in self.programs
            for name in METRICS
        )

    @invariant()
    def check_reserved(self) -> None:
        """Assert that the reserved nats of a year never decrease.

        A year of which the device has lost the number has infinitely many reserved nats.
        """
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
        """Assert that the spent nats are at most the reserved nats."""
        spent = self.programs[0].privacy_spent()
        assert spent.nats <= sum(spent.reserved.values()) + 1e-9

    @invariant()
    def check_delivered(self) -> None:
        """Assert that a scope shows one value, in no more reports than its cost assumes."""
        assert self.collector.mistakes == []
        # Permanent responses differ between values and epochs, so the bits of a report show both.
        values_by_scope: dict[tuple[bytes, str, str], list[str]] = defaultdict(list)
        for (secret, _), (name, bits) in self.collector.seen.items():
            metric = METRICS[name]
            epochs = {metric.epoch_at(day) for day in self.days}
            matches = [
                (epoch, value_by_response[bits])
                for epoch in epochs
                for value_by_response in [compute_responses(secret, metric.name, epoch)]
                if bits in value_by_response
            ]
            ((epoch, value),) = matches
            values_by_scope[secret, metric.name, epoch].append(value)
        for (_, name, _), values in values_by_scope.items():
            assert len(set(values)) == 1
            assert len(values) <= (most_reports(METRICS[name]) or math.inf)

    @invariant()
    def check_intervals(self) -> None:
        """Assert that a metric has at most as many reports as intervals with an event.

        An interval counts again for each spool (`store_event`).
        """
        n_sent = Counter((secret, name) for (secret, _), (name, _) in self.collector.seen.items())
        for (secret, name), events in self.events.items():
            assert n_sent[secret, name] <= len(events)

    @invariant()
    def check_secrecy(self) -> None:
        """Assert that no file, log line or repr contains a value, and only the state the secret."""
        client = self.programs[0]
        texts = (
            self.log.text
            + f"{client!r} {client.privacy_spent()} {client.sent_uploads()} {client.event_counts()}"
        )
        wait_for_threads()  # a draft of the state contains the secret until it is renamed
        files = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        written = b"".join(files.values()) + texts.encode()
        assert not [value for value in VALUES if value.encode() in written]
        if (known := read_state(self.folder)) is not None and known[0].secret is not None:
            secret = known[0].sealed_secret.bytes
            other_files = [
                data for path, data in files.items() if not path.name.startswith("state.")
            ]
            for data in (*other_files, texts.encode()):
                assert secret not in data
                assert secret.hex().encode() not in data

    def teardown(self) -> None:
        """Close both programs, and remove the folder."""
        logging.getLogger("rappor_client").removeHandler(self.log)
        for client in self.programs:
            client.close()
        shutil.rmtree(self.parent)


Lives.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestLives = Lives.TestCase


@pytest.mark.acceptance
# The histories take six minutes of CPU time, and three times as long if other programs run. With a
# shorter time limit, the limit would end a step, and Hypothesis would report that the same steps
# behave differently in a replay.
@pytest.mark.timeout(1800)
class TestManyLives(Lives.TestCase):  # type: ignore[misc,valid-type]
    """Run more and longer histories: 500 of 60 steps instead of 25 of 30 steps."""

    settings = settings(max_examples=500, stateful_step_count=60)
