"""The client that a host program embeds: it records values, sends reports and ends consent."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from rappor.base.errors import MetricError, ParamsError, ReportError
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.budget import admission
from rappor_client.budget.spent import NOTHING_SPENT, PrivacySpent
from rappor_client.budget.state import State
from rappor_client.folder import spool
from rappor_client.folder.counters import counters
from rappor_client.folder.failures import Failures, name_failure, warn
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.forking import unforked
from rappor_client.folder.own_folder import (
    BUSY_SECONDS,
    BusyError,
    GoneError,
    HungError,
    patience_until,
)
from rappor_client.folder.place import UnusableError, close_to_others, place_of
from rappor_client.folder.spool import SentUpload
from rappor_client.folder.tracebacks import silent
from rappor_client.network.transport import Transport
from rappor_client.outbox.flushed import FlushReason, FlushResult, Step, sum_up
from rappor_client.outbox.lanes import MetricCache, draw_tag, lane_of
from rappor_client.outbox.outcome import FAILED, SKIPPED, Outcome, SkipReason
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Writer
from rappor_client.periods import bounded, day_of
from rappor_client.settings import ClientOptions, Settings, check_consent, read_names

if TYPE_CHECKING:
    from rappor_client.outbox.background import Sender
    from rappor_client.person.withdrawal import Withdrawal

_Result = TypeVar("_Result")
_PATIENCE: Final = 0.05
"""Seconds that a durable `record` waits for the lock of another process."""
_OPEN_SECONDS: Final = BUSY_SECONDS + 0.5
"""Seconds that opening waits for the disk. Longer than for a lock, which gets its own message."""
_JOIN_SECONDS: Final = 1.0
"""Seconds that the end waits for the background sender before it severs the exchange under way."""


class Client:
    """The telemetry of one device in one folder; safe to use from threads and after a fork.

    `record` waits for nothing: it draws a report and appends it to memory, and a thread writes the
    report to the disk within 100 ms. No failure of disk, network or collector reaches the host. No
    method makes a system call on the folder in the caller's thread, because a disk may hang: see
    `rappor_client.folder.folder_thread`.
    """

    def __init__(self, settings: Settings) -> None:
        """Store the settings of `Client.open`; the folder is not read yet."""
        self._settings = settings
        self._clock = settings.options.clock
        self._thread = FolderThread(self._failed)
        self._failures = Failures(settings.folder)
        self._opted_out = set(settings.opted_out)
        self._stops = Stops()
        self._disabled = ""
        self._consent = False
        self._writer: Writer | None = None  # none where it is disabled or there is no consent
        self._lanes: dict[str, MetricCache] = {}
        self._told: tuple[int, frozenset[str]] | None = None
        self._senders: dict[int, Sender] = {}
        self._n_queued = 0  # at the last look, for calls that a disk does not answer

    @classmethod
    @silent
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        registry: Registry | str | os.PathLike[str],
        consent: bool,
        collector: str | Transport | None = None,
        opted_out: Collection[str] = (),
        options: ClientOptions | None = None,
    ) -> Self:
        """Open a device's folder; it is created at the first use and private to the user.

        `registry`: what the program collects, or the path of its TOML file. `consent`: the
        person's answer; `False` computes, stores and sends nothing and erases what an earlier
        consent left. `collector`: an https address, or a transport of the program's own; without
        one the device is local: it collects, people can look, and nothing is sent. `opted_out`:
        metrics that this person refuses. `options`: whatever else may be chosen.

        Raises FileError or MetricError for the registry and ParamsError for any other argument.
        Whatever is wrong with the folder, the disk or the user does not raise: the client is
        `disabled`.
        """
        with unforked(wait=True):  # methods find these loaded: a child must load nothing
            import textwrap  # noqa: F401, PLC0415 - likewise; `PrivacySpent` is printed with it

            import rappor_client.outbox.background  # noqa: PLC0415 - importing the client is quicker
            import rappor_client.outbox.uploader  # noqa: PLC0415 - likewise
            import rappor_client.person.contents  # noqa: PLC0415 - likewise
            import rappor_client.person.opening  # noqa: F401, PLC0415 - likewise
        chosen = ClientOptions() if options is None else options
        chosen = dataclasses.replace(chosen, clock=bounded(chosen.clock))
        place = place_of(folder)
        check_consent(consent)
        refused = read_names("opted_out", opted_out)
        if not consent:  # before anything that may be wrong with the program
            thread = FolderThread(Failures(place).note)
            _erase(thread, place, chosen.clock())
            thread.end(0.0)
        client = cls(
            Settings(
                folder=place,
                registry=_read(registry).in_segment(dict(chosen.segment)),
                transport=_transport(collector, chosen.upload_key),
                opted_out=frozenset(filter(METRIC_NAME.fullmatch, refused)),
                options=chosen,
            )
        )
        client._consent = consent
        if consent:
            client._failures.tell_unknown(refused - frozenset(client.registry))
            client._begin(chosen.obstacle())
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio  # noqa: PLC0415 - as above

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"Client({str(self._settings.folder)!r})"

    @property
    def registry(self) -> Registry:
        """What is recorded."""
        return self._settings.registry

    @property
    def disabled_reason(self) -> str:
        """Why the device is disabled, in words; empty while it works."""
        return self._disabled

    @silent
    def record(self, name: str, value: object) -> Outcome:
        """Prepare a noisy report of a value and keep it for sending.

        Under a strict policy it raises MetricError
        for a metric that is not in the registry and ReportError for a value that is not of its
        kind; else it logs them, without the value, and is silent. Neither message nor traceback
        holds anything true: see `rappor_client.folder.tracebacks` for what is guaranteed, Ctrl-C
        included.
        """
        try:
            return self._record(name, value)
        except (MetricError, ReportError) as error:
            if self._settings.options.raise_errors:
                raise
            self._failures.tell_mistake(error, metric=name)
            is_metric = isinstance(error, MetricError)
            return SKIPPED[SkipReason.UNKNOWN_METRIC if is_metric else SkipReason.WRONG_KIND]
        except HungError:
            return FAILED[SkipReason.DISK]
        except BusyError:
            return FAILED[SkipReason.LOCKED]
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._failed(error)
            return FAILED[SkipReason.DISK] if self._consent else SKIPPED[SkipReason.NO_CONSENT]

    @silent
    def flush(self, *, timeout: float = 10.0) -> FlushResult:
        """Send what waits now, within `timeout` seconds, and say why it ended.

        The first attempt is made at once, even if an earlier failure has set a waiting time; only
        a time that the collector asked for (Retry-After) is kept. After a failure in this call the
        next attempt waits as usual, and the call ends early if that wait is longer than the time
        left. Reports held for their interval stay. Raises ParamsError for a timeout below 0.
        """
        if not timeout >= 0:  # not a number is no timeout either
            raise ParamsError(
                f"timeout must be a number of seconds in [0, infinity], got {timeout}"
            )
        deadline = time.monotonic() + timeout
        flushed = self._safely(
            lambda: self._flush(deadline), FlushResult(reason=FlushReason.FAILED)
        )
        if self._disabled:
            return FlushResult(reason=FlushReason.FAILED, detail=self._disabled)
        return flushed

    async def aflush(self, *, timeout: float = 10.0) -> FlushResult:
        """Flush without holding up the event loop: `flush` runs in a thread."""
        import asyncio  # noqa: PLC0415 - 50 ms, and who awaits has it already

        return await asyncio.to_thread(self.flush, timeout=timeout)

    @silent
    def queued_count(self) -> int:
        """Return the number of finished reports that the collector has not answered.

        Returns the last known number if the disk does not answer within two seconds.
        """
        try:
            return self._count_queued(time.monotonic() + BUSY_SECONDS)
        except HungError as error:
            self._failed(error)
            return self._n_queued

    @silent
    def privacy_spent(self) -> PrivacySpent:
        """Return the privacy loss so far, in nats: the total and by metric; print it to read it.

        Computes the loss from the last state that was read if the disk does not answer within two
        seconds.
        """
        from rappor_client.person.contents import read_spent  # noqa: PLC0415 - loaded at opening

        writer, folder = self._writer, self._settings.folder

        def read() -> PrivacySpent:
            if writer is not None and self._consent:
                self._safely(lambda: writer.commit(patience=BUSY_SECONDS), None)
            return read_spent(folder)

        try:
            return self._thread.ask(read, seconds=BUSY_SECONDS)
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._failed(error)
        if writer is None:
            return NOTHING_SPENT
        state = writer.identity.state  # as the disk had it when it last answered
        return PrivacySpent.of(state.scopes.values(), state.reserved.by_year())

    @silent
    def sent_uploads(self) -> list[SentUpload]:
        """Return the uploads that have left the device with their exact bytes, the oldest first."""
        return self._look(spool.log, [])

    @silent
    def event_counts(self) -> dict[str, int]:
        """Return the numbers of reports that were recorded, accepted, dropped or refused."""
        counted: dict[str, int] = self._look(counters, {})
        return counted | ({"failures": self._failures.n} if self._failures.n else {})

    @silent
    def opt_out(self, name: str) -> None:
        """Refuse a metric from now on and drop its waiting reports.

        The host program keeps the choice and passes it as `opted_out` when it opens again. Raises
        MetricError for an unknown metric. What cannot be dropped now is dropped before anything
        is sent.
        """
        self._metric(name)
        self._opted_out.add(name)
        self._lanes.clear()
        self._safely(self._drop_opted_out, None)

    @silent
    def withdraw(self) -> Withdrawal:
        """End consent: erase secret, state, spool and log, and record nothing from now on.

        Nothing is sent after it returns. The nats reserved by year stay, so that consenting again
        does not renew the device's budget. Returns what was verified. If the disk does not answer
        within five seconds, the result is false and says so, and the erasure is done when the disk
        answers.
        """
        from rappor_client.person.withdrawal import UNDER_WAY  # noqa: PLC0415 - loaded at opening

        self._forget()
        is_silent = self._stop_sending(time.monotonic() + BUSY_SECONDS)
        now = self._clock()
        folder, writer = self._settings.folder, self._writer
        withdrawal = _erase(self._thread, folder, now, writer)
        self._thread.end(0.0)
        return withdrawal if is_silent else withdrawal.with_left(UNDER_WAY)

    @silent
    def close(self) -> None:
        """Write what waits in memory, end the background sender and close all files.

        Returns within two seconds. A disk that has not answered by then gets what waits when it
        answers, if the program still lives.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        if (writer := self._writer) is not None and self._consent:
            self._safely(lambda: writer.commit(patience=BUSY_SECONDS), None)
        self._stop_sending(deadline)
        if writer is not None:
            seconds = max(deadline - time.monotonic(), 0.0)
            self._safely(lambda: writer.close(seconds=seconds), None)
        self._thread.end(deadline - time.monotonic())

    def _record(self, name: str, value: object) -> Outcome:
        if not self._consent:
            return SKIPPED[SkipReason.NO_CONSENT]
        lane = self._lane(name)
        if lane is None or self._disabled:
            return SKIPPED[SkipReason.DISABLED]
        if lane.reason is not None:
            return SKIPPED[lane.reason]
        lane.ready.check_kind(value)  # before the secret is touched
        writer, coins = self._writer, self._settings.options.coins
        assert writer is not None
        if not lane.ready.fits(value):
            writer.count("unfit")
        is_durable = lane.metric.durable
        if not lane.is_quiet:
            tag = draw_tag(coins)
            if lane.wants(tag):
                if not writer.add(lane.event(value, self._clock(), tag, coins)):
                    return FAILED[SkipReason.FULL]
                lane.offered(tag)
        if is_durable:
            writer.commit(patience=_PATIENCE)
        return Outcome.RECORDED

    def _lane(self, name: str) -> MetricCache | None:
        """Return the cache of a metric, None if the device is disabled."""
        writer, now = self._writer, self._clock()
        lane = self._lanes.get(name) if isinstance(name, str) else None
        if (
            lane is not None
            and writer is not None
            and lane.holds(writer.identity.state, now, self._stops.until)
        ):
            return lane
        metric = self._metric(name)
        if writer is None:
            return None
        state = writer.identity.state
        lane = lane_of(metric, state, now, self._stops, self._silent_in)
        if name in self._opted_out:
            lane.reason = SkipReason.OPTED_OUT
        self._lanes[name] = lane
        return lane

    def _metric(self, name: str) -> Metric:
        """Return a metric of the registry.

        The error does not quote the name, which may be a swapped value.
        """
        if not isinstance(name, str):
            raise MetricError(f"a metric's name must be a text, got {type(name).__name__}")
        if name not in self.registry:
            raise MetricError(f"unknown metric; the registry has {', '.join(self.registry)}")
        return self.registry[name]

    def _silent_in(self, state: State, year: int) -> frozenset[str]:
        """Return the metrics that have no room in a year's budget; the first look is logged.

        A registry that does not fit is no error here: it may fit in a later year, and the clock
        may be behind.
        """
        assert self._writer is not None
        silent = self._writer.silent(state.reserved, year)
        if silent and (year, silent) != self._told:
            self._told = (year, silent)
            names = ", ".join(sorted(silent))
            warn("the budget of %s has no room for %s: nothing is sent", year, names)
        return silent

    def _begin(self, obstacle: str) -> None:
        """Open the folder; a failure disables the client."""
        deadline = time.monotonic() + _OPEN_SECONDS
        try:
            if obstacle:
                raise UnusableError(obstacle)
            self._writer = self._thread.ask(self._opened, seconds=_OPEN_SECONDS)
        except (MetricError, ParamsError):
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._disable(error)
            return
        seconds = max(deadline - time.monotonic(), 0.0)
        settle = functools.partial(self._safely, self._settle, None)
        with contextlib.suppress(BusyError):  # it is done as soon as the disk answers
            self._thread.ask(settle, seconds=seconds, lasting=True)

    def _opened(self) -> Writer:
        """Finish an interrupted withdrawal, and open the folder; it runs in the folder's thread."""
        from rappor_client.person.opening import open_identity  # noqa: PLC0415 - loaded at opening

        settings = self._settings
        if not settings.folder.is_dir():  # a disk that hangs lets an existing folder be read
            settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_to_others(settings.folder)
        return Writer(
            open_identity(settings.folder, settings.options.clock),
            settings,
            self._stops,
            self._thread,
            refused=self._opted_out,
            on_commit=self._committed,
        )

    def _settle(self) -> None:
        """Drop refused reports, and schedule those of an earlier run, in the thread."""
        writer = self._writer
        assert writer is not None
        identity = writer.identity
        if identity.n_lost:
            writer.count("identity_lost")
            writer.wake()
            warn("the state in %s is lost: silent for the year", self._settings.folder)
        self._silent_in(identity.state, day_of(self._clock()).year)
        if identity.state.reserved.lost is not None or not identity.is_whole:
            with contextlib.suppress(BusyError):  # the next commit does it
                writer.run(lambda _: None, patience=_PATIENCE)
        if not writer.store.exists():
            return
        self._drop_opted_out()
        with writer.store.reading() as db:
            self._stops.recall(db)
            n_waiting, is_held = spool.waiting(db), admission.next_end(db) is not None
        self._n_queued = n_waiting
        sender = self._sender() if self._settings.options.background else None
        if sender is not None and (n_waiting or is_held):
            sender.catch_up(n_waiting)

    def _committed(self, is_new: bool) -> None:  # noqa: FBT001 - a hook
        """Notify the background sender that reports are on the disk."""
        if is_new and self._settings.options.background and (sender := self._sender()) is not None:
            sender.nudge()

    def _flush(self, deadline: float) -> FlushResult:
        """Make steps until nothing waits or the next one is due after the deadline."""
        steps: list[Step] = []
        try:
            return self._flush_by(deadline, steps)
        except HungError:
            return FlushResult(
                reason=FlushReason.TIMEOUT,
                sent=sum(step.reason is FlushReason.SENT for step in steps),
                waiting=self._n_queued,
                detail="the disk did not answer in time",
            )

    def _flush_by(self, deadline: float, steps: list[Step]) -> FlushResult:
        if self._writer is not None and self._consent:
            seconds = _seconds_until(deadline)
            self._writer.commit(patience=patience_until(deadline), seconds=seconds)
        while self._consent and (sender := self._sender()) is not None:
            step = sender.uploader.step(
                timeout=max(deadline - time.monotonic(), 0.0),
                tried={earlier.upload_id for earlier in steps if earlier.is_attempt},
            )
            steps.append(step)
            if step.reason in (FlushReason.SENT, FlushReason.REFUSED):
                self._n_queued = max(self._n_queued - 1, 0)  # also where the disk does not answer
            if step.reason is FlushReason.NO_CONSENT:
                self._forget()
            pause = math.inf if step.due is None else max(step.due - self._clock(), 0.0)
            is_last = pause > deadline - time.monotonic()
            waiting = self._count_queued(deadline)
            if is_last or not (step.is_attempt or waiting):
                return sum_up(steps, waiting=waiting)
            time.sleep(pause)
        if not (waiting := self._count_queued(deadline)):
            return FlushResult(reason=FlushReason.NOTHING_WAITING)
        absent = FlushReason.NO_COLLECTOR if self._consent else FlushReason.NO_CONSENT
        return FlushResult(reason=absent, waiting=waiting)

    def _count_queued(self, deadline: float) -> int:
        """Return the number of finished reports without an answer; HungError for a hung disk."""
        writer = self._writer
        if writer is None or not self._consent:
            return 0
        try:
            self._n_queued = writer.read(spool.waiting, 0, seconds=_seconds_until(deadline))
        except HungError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._failed(error)
            return 0
        return self._n_queued

    def _sender(self) -> Sender | None:
        """Return the background sender of this process; the child of a fork gets a new one."""
        transport, writer = self._settings.transport, self._writer
        if transport is None or writer is None or self._disabled:
            return None
        process = os.getpid()
        if (sender := self._senders.get(process)) is None:
            from rappor_client.outbox.background import Sender  # noqa: PLC0415 - loaded at opening
            from rappor_client.outbox.uploader import Uploader  # noqa: PLC0415 - loaded at opening

            uploader = Uploader(writer, transport, self._settings, self._obstacle, self._stops)
            own = Sender(uploader, clock=self._clock, on_failure=self._failed)
            # of several threads here, all get the one that came first
            sender = self._senders.setdefault(process, own)
        return sender

    def _stop_sending(self, deadline: float) -> bool:
        """Sever the exchange under way; true if nothing can be sent any more."""

        def stop() -> bool:
            if (sender := self._senders.pop(os.getpid(), None)) is None:
                return True
            sender.stop(seconds=min(deadline - time.monotonic(), _JOIN_SECONDS))
            return sender.uploader.close(seconds=max(deadline - time.monotonic(), 0.0))

        return self._safely(stop, otherwise=False)

    def _drop_opted_out(self) -> None:
        writer = self._writer
        if not self._opted_out or writer is None:
            return

        def drop() -> None:
            if writer or writer.store.exists():
                writer.run(self._drop_opted_out_in, patience=BUSY_SECONDS)

        self._thread.ask(drop, seconds=BUSY_SECONDS, lasting=True)

    def _drop_opted_out_in(self, db: sqlite3.Connection) -> None:
        names = self._opted_out.copy()  # another thread may refuse one more meanwhile
        if names:
            spool.opt_out(db, names)
        for name in names:
            admission.forget(db, name)

    def _obstacle(self, db: sqlite3.Connection) -> FlushReason | None:
        """Return why nothing may leave, under the lock; None if it may."""
        if not self._consent:
            return FlushReason.NO_CONSENT
        self._drop_opted_out_in(db)
        return None

    def _failed(self, error: Exception) -> None:
        """Count a failure, or end consent if another process has withdrawn it."""
        if isinstance(error, GoneError):
            self._forget()
        elif isinstance(error, UnusableError):  # another version has taken the folder meanwhile
            self._disable(error)
        else:
            self._failures.note(error)

    def _disable(self, error: Exception) -> None:
        """Disable the client, drop the events in memory, and log the reason once."""
        reason = _in_words(error)
        if self._writer is not None:
            self._writer.clear()
        if reason != self._disabled:
            self._disabled = reason
            warn("telemetry is disabled in %s: %s", self._settings.folder, reason)

    def _forget(self) -> None:
        """End consent, and drop the events in memory."""
        self._consent = False
        self._n_queued = 0
        if self._writer is not None:
            self._writer.clear()

    def _look(
        self, question: Callable[[sqlite3.Connection], _Result], otherwise: _Result
    ) -> _Result:
        """Read the spool; return `otherwise` if there is no spool or it cannot be read."""
        writer = self._writer
        if writer is None or not self._consent:
            return otherwise
        return self._safely(
            lambda: writer.read(question, otherwise, seconds=BUSY_SECONDS), otherwise
        )

    def _safely(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Run an action; count its failure and return `otherwise`. Mistakes of the host raise."""
        try:
            return action()
        except (MetricError, ReportError):  # mistakes of the host
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._failed(error)
        return otherwise


def _read(registry: Registry | str | os.PathLike[str]) -> Registry:
    """Return a registry; it loads modules that a child of a fork must not wait for."""
    if isinstance(registry, Registry):
        return registry
    with unforked(wait=True):
        return Registry.load(registry, today=datetime.date.max)  # see `_silent_in`


def _transport(collector: str | Transport | None, key: str | None) -> Transport | None:
    """Return what sends; ParamsError for an address that cannot be right."""
    if not isinstance(collector, str):
        if key is not None:
            raise ParamsError("upload_key must be absent without the address of a collector")
        return collector
    with unforked(wait=True):
        from rappor_client.network.http_transport import HttpTransport  # noqa: PLC0415 - 60 ms

    return HttpTransport(collector, key=key)


def _in_words(error: Exception) -> str:
    """Return the reason in words why the folder cannot be used."""
    if isinstance(error, UnusableError):
        return str(error)
    if isinstance(error, HungError):
        return f"the disk did not answer within {_OPEN_SECONDS} seconds"
    if isinstance(error, BusyError):
        return "another process keeps the folder locked"
    return f"the folder cannot be used: {name_failure(error)}"


def _seconds_until(deadline: float) -> float:
    """Return how long a flush waits for the disk: all of its time, as for a lock at least."""
    return max(deadline - time.monotonic(), patience_until(deadline))


def _erase(
    thread: FolderThread,
    folder: Path,
    now: float,
    writer: Writer | None = None,
) -> Withdrawal:
    """Close a folder's files and erase it, and return what was verified; nothing is raised."""
    from rappor_client.person.withdrawal import erase_within  # noqa: PLC0415 - loaded at opening

    def close() -> None:
        if writer is not None:
            writer.close_files()

    withdrawal = erase_within(thread, folder, now=now, close=close)
    if not withdrawal:
        warn("telemetry could not be erased in %s: %s", folder, withdrawal)
    return withdrawal
