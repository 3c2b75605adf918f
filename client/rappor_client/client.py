"""What a host program embeds: record values, look at what was sent and spent, withdraw."""

from __future__ import annotations

import datetime
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from rappor.encode import takes_part
from rappor.ground.errors import MetricError, ParamsError, ReportError
from rappor.protocol.encodings import encoder
from rappor.protocol.randomizer import Coins, Secret, system_coins
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.budget import budget_copy, ledger, reservation, reservoir, scope_memory
from rappor_client.budget.budget_copy import BudgetCopy
from rappor_client.budget.ledger import Spent
from rappor_client.budget.prepared import Prepared, is_early, prepare
from rappor_client.budget.reservation import Limits
from rappor_client.budget.reservoir import Moment
from rappor_client.budget.scope_memory import Memory, Terms
from rappor_client.errors import IdentityError
from rappor_client.folder import spool
from rappor_client.folder.failures import DamagedError, Failures, warn
from rappor_client.folder.forking import unforked
from rappor_client.folder.private_folder import check_private, place_of
from rappor_client.folder.spool import Sent
from rappor_client.folder.state import count, counters
from rappor_client.folder.store import BUSY_SECONDS, BusyError, Store
from rappor_client.folder.tracebacks import silent
from rappor_client.network.transport import Transport
from rappor_client.outbox.flushed import Flushed, FlushReason, Step, sum_up
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.unstored import Late, Unstored
from rappor_client.outcome import Outcome
from rappor_client.periods import Clock, bounded, day_of
from rappor_client.person.identity import ErasedError, Identity
from rappor_client.person.soundness import damaged_file
from rappor_client.settings import (
    Caps,
    Policy,
    Settings,
    SpoolLimits,
    check_consent,
    read_names,
    read_segment,
)

if TYPE_CHECKING:
    from rappor_client.outbox.background import Sender
    from rappor_client.outbox.uploader import Uploader
    from rappor_client.person.withdrawal import Withdrawal

_Result = TypeVar("_Result")
_PATIENCE: Final = 0.05
"""The seconds that `record` waits for another process's lock."""


class _Sending(NamedTuple):
    """What carries reports away in one process."""

    uploader: Uploader
    sender: Sender


class Client:
    """One device's telemetry in one folder; safe to use from threads and after a fork.

    `record` never waits for the network and does at most one small write to the disk, so an
    event loop may call it. It raises for mistakes of the program (an unknown metric, a value of
    the wrong kind) and for nothing else.
    """

    def __init__(self, settings: Settings) -> None:
        """Start from settings that `Client.open` has put together; nothing is read yet."""
        self._settings = settings
        self._store = Store(settings.folder)
        self._failures = Failures(settings.folder)
        self._identity = Identity(
            settings.folder, self._store, settings.on_bad_identity, settings.clock
        )
        self._opted_out = {
            each for name in settings.opted_out for each in settings.registry.refused_with(name)
        }
        self._consent = settings.consent
        self._is_disabled = False
        self._silent: tuple[Registry, int, frozenset[str]] | None = None
        self._stops = Stops(settings.registry.together)
        self._unstored = Unstored()
        self._sendings: dict[int, _Sending] = {}

    @classmethod
    @silent
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        registry: Registry | str | os.PathLike[str],
        consent: bool,
        collector: str | None = None,
        key: str | None = None,
        transport: Transport | None = None,
        opted_out: Collection[str] = (),
        caps: Caps | None = None,
        limits: SpoolLimits | None = None,
        segment: Mapping[str, str] | None = None,
        on_bad_identity: Policy = "error",
        max_delay: float = 900.0,
        background: bool = True,
        clock: Clock = time.time,
        coins: Coins = system_coins,
    ) -> Self:
        """Open a device's folder; it is created at the first use and private to the user.

        `registry`: what the program collects, or the path of its TOML file. `consent`: the
        person's answer; `False` computes, stores and sends nothing and erases what an earlier
        consent left. `collector`: an https address, with the `key` for sending if the collector
        wants one; or a `transport` of the program's own; without either, reports wait on the
        disk. `opted_out`: metrics that this person refuses. `caps`: a lower limit than the
        registry's total. `limits`: how much may wait. `segment`: public properties of this device
        by name, such as its version, for metrics whose entry lists them; they are sent in the
        clear, with "other" for what is not listed. `on_bad_identity`: what to do about a secret
        that is damaged, lost or another device's: "error", "reset" (go on as a new device, counted)
        or "disable" (record nothing). `max_delay`: the longest random wait of the background
        sender, in seconds. `background`: whether there is a background sender; without it only
        `flush` sends. `clock` and `coins` are for tests.

        Raises FileError or MetricError for the registry, IdentityError for the secret and
        ParamsError for any other argument, FileError for a folder that is not the user's alone.
        Anything else that fails is counted, not raised.
        """
        with unforked(wait=True):  # methods find these loaded: a child must load nothing
            import rappor_client.outbox.background  # noqa: PLC0415 - importing the client is quicker
            import rappor_client.outbox.uploader  # noqa: F401, PLC0415 - likewise
            from rappor_client.person import withdrawal  # noqa: PLC0415 - likewise
        clock = bounded(clock)
        place = place_of(folder)
        check_consent(consent)
        refused = read_names("opted_out", opted_out)
        own = read_segment({} if segment is None else segment)
        if consent:
            check_private(place, withdrawal.file_names())
            withdrawal.sweep(place)
        # before anything that may be wrong with the program
        if not consent or withdrawal.was_killed(place):
            _erase(place, clock, Failures(place))
        if collector is not None and transport is not None:
            raise ParamsError("collector must be absent with a transport")
        if collector is not None:
            with unforked(wait=True):
                from rappor_client.network.http_transport import HttpTransport  # noqa: PLC0415 - 60 ms

            transport = HttpTransport(collector, key=key)
        settings = Settings(
            folder=place,
            registry=_read(registry).in_segment(own),
            transport=transport,
            consent=consent,
            opted_out=refused,
            caps=Caps() if caps is None else caps,
            limits=limits or SpoolLimits(),
            on_bad_identity=on_bad_identity,
            max_delay=max_delay,
            background=background,
            clock=clock,
            coins=coins,
        )
        client = cls(settings)
        client._start()
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio  # noqa: PLC0415 - as above

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"Client({str(self._settings.folder)!r})"

    @property
    def registry(self) -> Registry:
        """What is recorded."""
        return self._settings.registry

    @silent
    def record(self, name: str, value: object) -> Outcome:
        """Prepare a noisy report of a value and keep it for sending.

        A metric with `other` has two reports, or none. Raises MetricError for a metric that is not
        in the registry and ReportError for a value that is not of its kind. Neither message nor
        traceback holds anything true: see `rappor_client.folder.tracebacks` for what is guaranteed,
        Ctrl-C included.
        """
        metrics = self._metrics(name)
        if metrics[0].name != name:
            raise MetricError(f"{name} is answered together with {metrics[0].name}: record that")
        me, hurried = threading.get_ident(), self._store.hurried
        hurried.add(me)
        try:
            outcome = self._safely(lambda: self._outcome(metrics, value), Outcome.FAILED)
        except IdentityError:
            self._is_disabled = True
            return Outcome.DISABLED
        finally:
            hurried.discard(me)
        is_new = outcome or self._unstored
        if is_new and self._settings.background and (sending := self._sending()) is not None:
            sending.sender.nudge()
        return outcome

    @silent
    def flush(self, *, timeout: float = 10.0) -> Flushed:
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
        failed = Flushed(reason=FlushReason.FAILED)
        return self._safely(lambda: self._flush(deadline), failed)

    async def aflush(self, *, timeout: float = 10.0) -> Flushed:
        """Flush without holding up the event loop: `flush` runs in a thread."""
        import asyncio  # noqa: PLC0415 - 50 ms, and who awaits has it already

        return await asyncio.to_thread(self.flush, timeout=timeout)

    @silent
    def waiting(self) -> int:
        """Return how many finished reports have no answer yet."""
        return self._look(spool.waiting, 0)

    @silent
    def spent(self) -> Spent:
        """Return the loss so far, in nats: in all and by metric; print it to read it."""
        file = BudgetCopy(self._settings.folder)

        def of_both() -> Spent | None:
            copy = file.read()
            return self._look(lambda db: budget_copy.spent(copy, db), None)

        if (spent := self._safely(of_both, None)) is not None:
            return spent
        return self._safely(lambda: budget_copy.spent(file.read(), None), ledger.NOTHING_SPENT)

    @silent
    def log(self) -> list[Sent]:
        """Return what has left the device, the very bytes, the oldest first."""
        return self._look(spool.log, [])

    @silent
    def counters(self) -> dict[str, int]:
        """Return how many reports were recorded, accepted, dropped or refused, and why."""
        counted: dict[str, int] = self._look(counters, {})
        return counted | ({"failures": self._failures.n} if self._failures.n else {})

    @silent
    def opt_out(self, name: str) -> None:
        """Refuse a metric from now on and drop its waiting reports.

        Of a metric with `other` it refuses both answers, by either name.
        The host program keeps the choice and passes it as `opted_out` when it opens again. Raises
        MetricError for an unknown metric. What cannot be dropped now is dropped before anything
        is sent.
        """
        self._metrics(name)
        self._opted_out.update(self.registry.refused_with(name))
        self._safely(self._drop_opted_out, None)

    @silent
    def withdraw(self) -> Withdrawal:
        """End consent: erase secret, spool, ledger and log, and record nothing from now on.

        Nothing is sent after it returns. The nats already spent stay, and those reserved by year,
        so that consenting again does not renew the device's budget. Returns what was verified,
        also of a disk that does not allow all of it.
        """
        from rappor_client.person.withdrawal import UNDER_WAY  # noqa: PLC0415 - loaded at opening

        self._consent = False
        self._unstored.clear()
        is_silent = self._safely(self._stop_sending, otherwise=False)
        self._safely(self._store.close, None)
        withdrawal = _erase(self._settings.folder, self._settings.clock, self._failures)
        return withdrawal if is_silent else withdrawal.with_left(UNDER_WAY)

    @silent
    def close(self) -> None:
        """End the background sender and close all files; what waits stays on the disk."""
        self._store_rest(time.monotonic() + BUSY_SECONDS)
        self._safely(self._stop_sending, otherwise=False)
        self._safely(self._store.close, None)

    def _metrics(self, name: str) -> tuple[Metric, ...]:
        """Return a metric and what is answered together with it, what programs record first.

        The error does not quote the name, which may be a swapped value.
        """
        if not isinstance(name, str):
            raise MetricError(f"a metric's name must be a text, got {type(name).__name__}")
        if name not in self.registry:
            raise MetricError(f"unknown metric; the registry has {', '.join(self.registry)}")
        registry = self.registry
        return tuple(registry[each] for each in registry.together(name))

    def _stop_sending(self) -> bool:
        """Sever the exchange under way; true if nothing can be sent any more."""
        if (sending := self._sendings.pop(os.getpid(), None)) is None:
            return True
        sending.sender.stop()
        return sending.uploader.close()

    def _start(self) -> None:
        """Bring the folder in line with the person's choices."""
        try:
            self._safely(self._settle, None)
        except IdentityError:
            self._is_disabled = True
            if self._settings.on_bad_identity != "disable":
                raise

    def _settle(self) -> None:
        if self._consent:
            deadline = time.monotonic() + BUSY_SECONDS
            self._identity.secret_soon(patience=BUSY_SECONDS)
            self._silent_in(day_of(self._settings.clock()).year, deadline)
            self._safely(self._drop_opted_out, None)
            self._catch_up()

    def _outcome(self, metrics: tuple[Metric, ...], value: object) -> Outcome:
        deadline = time.monotonic() + _PATIENCE
        try:
            refusal = self._refusal(metrics[0], deadline)
            return self._record(metrics, value, deadline) if refusal is None else refusal
        except ErasedError:  # another process withdrew consent
            self._consent = False
            return Outcome.NO_CONSENT

    def _refusal(self, metric: Metric, deadline: float) -> Outcome | None:
        """Return why a metric is not recorded at all, None if it is."""
        if not self._consent:
            return Outcome.NO_CONSENT
        if self._is_disabled:
            return Outcome.DISABLED
        if metric.name in self._opted_out:
            return Outcome.OPTED_OUT
        today = day_of(self._settings.clock())
        if today > metric.expires:
            return Outcome.EXPIRED
        return Outcome.SILENT if metric.name in self._silent_in(today.year, deadline) else None

    def _silent_in(self, year: int, deadline: float) -> frozenset[str]:
        """Return the metrics that have no room in a year's budget; the first look is logged.

        A registry that does not fit is no error here: it may fit in a later year, and the clock
        may be behind.
        """
        registry = self.registry
        known = self._silent  # another thread may forget it meanwhile
        if known is not None and known[0] is registry and known[1] == year:
            return known[2]
        # a database that is gone is rebuilt before it is read
        self._identity.secret_soon(patience=_left(deadline))
        with self._store.reading(patience=_left(deadline)) as db:
            is_lost = reservation.is_lost(db)
        if is_lost:
            with self._store.transaction(patience=_left(deadline)) as db:
                reservation.follow_clock(db, year)
        with self._store.reading(patience=_left(deadline)) as db:
            silent = reservation.silent_metrics(registry, self._limits(), year, db)
        self._silent = (registry, year, silent)
        if silent:
            names = ", ".join(sorted(silent))
            warn("the budget of %s has no room for %s: nothing is sent", year, names)
        return silent

    def _limits(self) -> Limits:
        return Limits.of(self.registry, self._settings.caps)

    def _record(self, metrics: tuple[Metric, ...], value: object, deadline: float) -> Outcome:
        now = self._settings.clock()
        asked = metrics[0]
        epoch = asked.epoch_at(day_of(now))
        ready = encoder(asked.params)
        value = ready.checked(value)  # before the secret is touched
        while True:
            secret = self._identity.secret_soon(patience=_left(deadline))
            if not (takes_part(secret, asked, epoch) or self._is_begun(asked, now, deadline)):
                return Outcome.SILENT
            answers = tuple(
                (metric, self._prepare(secret, metric, value, epoch, deadline))
                for metric in metrics
            )
            is_drawn = asked.interval == "epoch" and not self._is_begun(asked, now, deadline)
            if is_drawn and is_early(secret, *answers[0], day_of(now)):
                return Outcome.SILENT
            late = Late(secret=secret, answers=answers, now=now, fits=ready.fits(value))
            try:
                if (outcome := self._store_soon(late, deadline)) is not None:
                    return outcome
            except BusyError:
                self._unstored.add(late)
                return Outcome.QUEUED

    def _prepare(
        self, secret: Secret, metric: Metric, value: object, epoch: str, deadline: float
    ) -> Prepared:
        part = self._latched_part(metric, epoch, deadline)
        coins = self._settings.coins
        return prepare(secret, metric, value, epoch=epoch, part=part, coins=coins)

    def _store_soon(self, late: Late, deadline: float) -> Outcome | None:
        """Store a report after those that are late; None if the secret is another one by now."""
        self._store_late(deadline)
        with self._store.transaction(patience=_left(deadline)) as db:
            return self._keep_late(db, late)

    def _store_late(self, deadline: float | None = None) -> None:
        """Store what another process has kept from being stored; BusyError if it still does."""
        if not self._unstored:
            return
        deadline = time.monotonic() + _PATIENCE if deadline is None else deadline
        late = self._unstored.take()
        try:
            wanted = [each for each in late if self._refusal(each.asked, deadline) is None]
            with self._store.transaction(patience=_left(deadline)) as db:
                for each in wanted:
                    self._keep_late(db, each)
                n_dropped, self._unstored.n_dropped = self._unstored.n_dropped, 0
                if n_dropped:
                    count(db, "dropped_full", n_dropped)
        except BaseException:
            self._unstored.put_back(late)
            raise

    def _store_rest(self, deadline: float | None = None) -> None:
        """Store what is late, if that is possible; where the secret is bad, nothing ever is."""
        try:
            self._safely(lambda: self._store_late(deadline), None)
        except IdentityError:
            self._is_disabled = True

    def _keep_late(self, db: sqlite3.Connection, late: Late) -> Outcome | None:
        if self._identity.secret_in(db) != late.secret:
            return None
        if not late.fits:
            count(db, "unfit")
        return self._keep(db, late)

    def _is_begun(self, metric: Metric, now: float, deadline: float) -> bool:
        """Return whether the device is in an epoch that it began as part of the metric's sample."""
        with self._store.reading(patience=_left(deadline)) as db:
            return scope_memory.is_begun(db, metric.name, day_of(now))

    def _latched_part(self, metric: Metric, epoch: str, deadline: float) -> str | None:
        """Return the part that the device has answered for; None if it may choose, or for now."""
        if not metric.parts:
            return None
        try:
            with self._store.reading(patience=_left(deadline)) as db:
                return scope_memory.latched_part(db, metric, epoch)
        except BusyError:  # the scope in force repeats its own response for any other part
            return None

    def _keep(self, db: sqlite3.Connection, late: Late) -> Outcome:
        """Choose, latch, charge and spool, all of it or nothing."""
        day = day_of(late.now)
        registry, limits = self.registry, self._limits()
        metrics = [metric for metric, _ in late.answers]
        if not all(reservation.has_room(db, registry, limits, each, day.year) for each in metrics):
            self._silent = None  # another process has reserved what there was
            return Outcome.SILENT
        self._stops.recall(db)  # another process may have been asked
        if self._stops.is_stopped(metrics[0].name, day):
            return Outcome.SILENT
        # intervals go on while a report waits in memory; a day of an epoch keeps its own events
        now = max(late.now, self._settings.clock())
        moment = Moment(late.now if metrics[0].interval == "epoch" else now, now)
        reservoir.release(db, moment, self._settings.coins)
        outcome = self._admit(db, late.answers, day=day, moment=moment)
        spool.trim(db, self._settings.limits)
        return outcome

    def _admit(
        self,
        db: sqlite3.Connection,
        answers: Sequence[tuple[Metric, Prepared]],
        *,
        day: datetime.date,
        moment: Moment,
    ) -> Outcome:
        """Settle the reports of an event, or let them take part in the choice of their interval."""
        coins = self._settings.coins
        repeats = False
        at_once: list[tuple[Terms, Memory]] = []
        held: list[tuple[Terms, Memory]] = []
        for metric, prepared in answers:
            terms = Terms.of(metric, day)
            memory = scope_memory.answer(db, terms, prepared, coins)
            (at_once if memory.interval == "none" else held).append((terms, memory))
            repeats |= memory.last.pattern != prepared.pattern
        if not reservoir.offer(db, held, moment=moment, coins=coins):
            return Outcome.CLOSED
        for terms, memory in at_once:
            reservoir.settle(db, terms, memory)
        for metric, _ in answers:
            reservation.keep(db, metric, day.year)
        if repeats:
            return Outcome.REPEATED
        return Outcome.HELD if held else Outcome.RECORDED

    def _flush(self, deadline: float) -> Flushed:
        """Make steps until nothing waits or the next one is due after the deadline."""
        steps: list[Step] = []
        if self._consent:
            self._agree()
            self._store_rest()
        while (sending := self._sending()) is not None and self._consent:
            step = sending.uploader.step(
                timeout=deadline - time.monotonic(),
                tried={earlier.upload_id for earlier in steps},
                is_urgent=not any(earlier.is_attempt for earlier in steps),
            )
            steps.append(step)
            pause = math.inf if step.due is None else max(step.due - self._settings.clock(), 0.0)
            is_last = pause > deadline - time.monotonic()
            if is_last or not (step.is_attempt or self.waiting()):
                return sum_up(steps, waiting=self.waiting())
            time.sleep(pause)
        if not (waiting := self.waiting()):
            return Flushed(reason=FlushReason.NOTHING_WAITING)
        absent = FlushReason.NO_COLLECTOR if self._consent else FlushReason.NO_CONSENT
        return Flushed(reason=absent, waiting=waiting)

    def _sending(self) -> _Sending | None:
        """Return what carries reports away, new in a process that was forked."""
        transport = self._settings.transport
        if transport is None:
            return None
        process = os.getpid()
        if (sending := self._sendings.get(process)) is None:
            from rappor_client.outbox.background import Sender  # noqa: PLC0415 - loaded at opening
            from rappor_client.outbox.uploader import Uploader  # noqa: PLC0415 - loaded at opening

            uploader = Uploader(
                self._store,
                transport,
                self._settings,
                self._obstacle,
                self._stops,
            )
            sender = Sender(
                uploader,
                clock=self._settings.clock,
                before_step=self._store_rest,
                on_failure=self._failed,
            )
            # of several threads here, all get the one that came first
            sending = self._sendings.setdefault(process, _Sending(uploader, sender))
        return sending

    def _catch_up(self) -> None:
        """Send what an earlier run has left."""
        if not self._settings.background or (sending := self._sending()) is None:
            return
        with self._store.reading() as db:
            n_waiting, is_held = spool.waiting(db), reservoir.next_end(db) is not None
        if n_waiting or is_held:
            sending.sender.catch_up(n_waiting)

    def _drop_opted_out(self) -> None:
        if self._opted_out and self._store.exists():
            with self._store.transaction() as db:
                self._drop_opted_out_in(db)

    def _drop_opted_out_in(self, db: sqlite3.Connection) -> None:
        names = self._opted_out.copy()  # another thread may refuse one more meanwhile
        if names:
            spool.opt_out(db, names)
        for name in names:
            reservoir.forget(db, name)

    def _obstacle(self, db: sqlite3.Connection) -> FlushReason | None:
        """Return why nothing may leave, inside a transaction that sends; None if it may."""
        try:
            self._identity.secret_in(db)
        except ErasedError:
            self._consent = False
        except IdentityError:
            return FlushReason.FAILED
        if not self._consent:
            return FlushReason.NO_CONSENT
        self._drop_opted_out_in(db)
        return None

    def _agree(self) -> None:
        """Notice what others have done to the folder: a new database, or a withdrawal."""
        try:
            self._identity.secret()
        except ErasedError:
            self._consent = False
        except IdentityError:
            self._is_disabled = True

    def _look(
        self, question: Callable[[sqlite3.Connection], _Result], otherwise: _Result
    ) -> _Result:
        """Ask the store; answer with `otherwise` where there is none, or it cannot be read."""

        def ask() -> _Result:
            if not self._store.exists():
                return otherwise
            with self._store.reading() as db:
                return question(db)

        return self._safely(ask, otherwise)

    def _safely(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Run an action; whatever fails but the program itself is counted and answered.

        A damaged database is set apart, and the action gets a second try without it.
        """
        for is_last in (False, True):
            try:
                return action()
            except (MetricError, ReportError, IdentityError):  # mistakes and a choice of the host
                raise
            except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
                self._failed(error)
                if is_last or not isinstance(error, DamagedError):
                    break
        return otherwise

    def _failed(self, error: Exception) -> None:
        """Count a failure; set a damaged database apart, so that the next use begins anew."""
        self._failures.note(error)
        if self._failures.is_to_mend(error) and (file := damaged_file(self._store)) is not None:
            self._failures.mended()
            try:
                self._store.set_apart(file)
            except OSError as failure:
                self._failures.note(failure)


def _read(registry: Registry | str | os.PathLike[str]) -> Registry:
    """Return a registry; it loads modules that a child of a fork must not wait for."""
    if isinstance(registry, Registry):
        return registry
    with unforked(wait=True):
        return Registry.load(registry, today=datetime.date.max)  # see `_silent_in`


def _left(deadline: float) -> float:
    """Return the seconds that are left until a deadline; a thousandth of one, if none are."""
    return max(deadline - time.monotonic(), 0.001)


def _erase(folder: Path, clock: Clock, failures: Failures) -> Withdrawal:
    """Erase a folder, and say what was verified; nothing is raised."""
    from rappor_client.person.withdrawal import Withdrawal, erase  # noqa: PLC0415 - loaded at opening

    try:
        withdrawal = erase(folder, Store(folder), now=clock())
    except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
        failures.note(error)
        withdrawal = Withdrawal(secret_gone=False, left=(folder.name,))
    if not withdrawal:
        warn("telemetry could not be erased in %s: %s", folder, withdrawal)
    return withdrawal
