"""What a host program embeds: record values, look at what was sent and spent, withdraw."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from rappor.errors import FileError, ParamsError
from rappor.protocol.randomizer import Coins, system_coins
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client import epoch_memory, ledger, reservoir, spool
from rappor_client.background import Sender
from rappor_client.errors import BudgetError, IdentityError
from rappor_client.identity import Device, Policy
from rappor_client.ledger import Caps, Spent
from rappor_client.outcome import Outcome
from rappor_client.periods import Clock, day_of, interval_end
from rappor_client.prepared import Made, make_report
from rappor_client.remote_params import OfferCap, Offers
from rappor_client.spool import Sent, SpoolLimits
from rappor_client.state import count, counters
from rappor_client.store import Store, failing_as_file_error, name_failure
from rappor_client.transport import Transport
from rappor_client.uploader import Delivery

_LOG: Final = logging.getLogger("rappor_client")


class _Sending(NamedTuple):
    """What carries reports away, in the process that it belongs to."""

    delivery: Delivery
    sender: Sender
    process: int


class Client:
    """One device's telemetry in one folder; safe to use from threads and after a fork.

    `record` never waits for the network and does at most one small write to the disk, so an
    event loop may call it. It raises for mistakes of the program (an unknown metric, a value of
    the wrong kind) and for nothing else.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        registry: Registry,
        transport: Transport | None,
        opted_out: Collection[str] = (),
        caps: Caps,
        limits: SpoolLimits,
        offers: OfferCap | None,
        on_bad_identity: Policy,
        max_delay: float,
        clock: Clock,
        coins: Coins,
    ) -> None:
        """Take everything as it is; `Client.open` has the defaults."""
        if not 0 <= max_delay < math.inf:
            raise ParamsError(f"max_delay must be a number in [0, infinity), got {max_delay!r}")
        self._folder = Path(folder).expanduser()
        self._store = Store(self._folder)
        self._device = Device(self._folder, self._store, on_bad_identity)
        self._shipped = registry
        self._transport = transport
        self._policy = on_bad_identity
        self._opted_out = set(opted_out)
        self._caps = caps
        self._limits = limits
        self._max_delay = max_delay
        self._clock = clock
        self._coins = coins
        self._consent = True
        self._is_disabled = False
        self._failures = 0
        self._offers = (
            Offers(self._store, transport, shipped=registry, cap=offers, clock=clock)
            if transport is not None and offers is not None
            else None
        )
        for name in self._opted_out:
            registry.metric(name)
        self._current: _Sending | None = None

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        registry: Registry | str | os.PathLike[str],
        collector: str | None = None,
        key: str | None = None,
        transport: Transport | None = None,
        consent: bool = True,
        opted_out: Collection[str] = (),
        caps: Caps | None = None,
        limits: SpoolLimits | None = None,
        offers: OfferCap | None = None,
        on_bad_identity: Policy = "error",
        max_delay: float = 900.0,
        clock: Clock = time.time,
        coins: Coins = system_coins,
    ) -> Self:
        """Open a folder, made at the first use and private to the user.

        `registry`: what the program collects, or the path of its TOML. `collector`: an https
        address, with the `key` for sending if it wants one; or a `transport` of one's own;
        without either, reports wait. `consent=False` computes, stores and sends nothing and
        erases what an earlier consent left. `opted_out`: metrics that this person refuses.
        `caps`: the loss that is never passed. `limits`: how much may wait. `offers`: admits the
        collector's changes of parameters inside a cap. `on_bad_identity`: what to do about a
        secret that is truncated, foreign or lost: "error", "reset" (go on as a new device,
        counted) or "disable" (record nothing). `max_delay`: the longest random wait, in seconds,
        of the background sender. `clock` and `coins` are for tests.

        Raises FileError or MetricError for the registry, IdentityError for the secret,
        ParamsError for the rest; a disk that cannot be written is counted, not raised.
        """
        if collector is not None and transport is not None:
            raise ParamsError("collector must be absent beside a transport")
        if collector is not None:
            from rappor_client.http_transport import HttpTransport  # noqa: PLC0415 - 60 ms

            transport = HttpTransport(collector, key=key)
        client = cls(
            folder,
            registry=registry if isinstance(registry, Registry) else Registry.load(registry),
            transport=transport,
            opted_out=opted_out,
            caps=caps or Caps(),
            limits=limits or SpoolLimits(),
            offers=offers,
            on_bad_identity=on_bad_identity,
            max_delay=max_delay,
            clock=clock,
            coins=coins,
        )
        client._start(consent=consent)
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

    def __repr__(self) -> str:
        return f"Client({str(self._folder)!r})"

    @property
    def registry(self) -> Registry:
        """What is recorded, with what was taken over from the collector."""
        return self._shipped if self._offers is None else self._offers.registry

    def record(self, name: str, value: object) -> Outcome:
        """Make a noisy report of a value and put it by for sending.

        Raises MetricError for a metric that is not in the registry and ReportError for a value
        that is not of its kind; the message never holds the value.
        """
        metric = self.registry.metric(name)
        refusal = self._refusal(metric)
        if refusal is not None:
            return refusal
        try:
            outcome = self._record(metric, value)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return Outcome.FAILED
        except IdentityError:
            self._is_disabled = True
            return Outcome.DISABLED
        if outcome and (sending := self._sending()) is not None:
            sending.sender.nudge()
        return outcome

    def flush(self, *, timeout: float = 10.0) -> bool:
        """Send what waits now, within so many seconds; True if nothing waits any more.

        Reports held for their interval stay. Waiting times that the collector asked for, or
        that follow a failure, are kept: if they are longer than the time given, it ends at once.
        """
        deadline = time.monotonic() + timeout
        try:
            while (sending := self._sending()) is not None and self._consent:
                remaining = deadline - time.monotonic()
                due = sending.delivery.step(timeout=remaining)
                if not self.waiting():
                    return True
                pause = math.inf if due is None else max(due - self._clock(), 0.0)
                if pause > deadline - time.monotonic():
                    return False
                time.sleep(pause)
            return not self.waiting()
        except (sqlite3.Error, OSError, FileError) as error:
            self._failed(error)
            return False

    def waiting(self) -> int:
        """Return how many finished reports have no answer yet."""
        with self._looking() as db:
            return spool.waiting(db) if db else 0

    def spent(self) -> Spent:
        """Return the loss so far, in nats: in all and by metric; print it to read it."""
        with self._looking() as db:
            return ledger.spent(db) if db else Spent(nats=0.0, carried=0.0, metrics={})

    def log(self) -> list[Sent]:
        """Return what has left the device, the very bytes, the oldest first."""
        with self._looking() as db:
            return spool.log(db) if db else []

    def counters(self) -> dict[str, int]:
        """Return how many reports were recorded, accepted, dropped or refused, and why."""
        with self._looking() as db:
            counted = counters(db) if db else {}
        return counted | ({"storage_failures": self._failures} if self._failures else {})

    def opt_out(self, name: str) -> None:
        """Refuse a metric from now on and drop what waits of it; the host keeps the choice.

        Raises MetricError for an unknown metric and FileError if the disk does not allow it.
        """
        self.registry.metric(name)
        self._opted_out.add(name)
        if self._store.exists():
            self._drop_opted_out()

    def withdraw(self) -> None:
        """End consent: erase secret, spool, ledger and log, and record nothing from now on.

        One number stays, the nats already spent, so that consenting again does not restart the
        lifetime's budget. Raises FileError if the disk does not allow it.
        """
        self._consent = False
        self.close()
        with failing_as_file_error(self._folder):
            if self._device.has_traces():
                self._device.erase()

    def close(self) -> None:
        """End the background sender and let go of all handles; what waits stays on the disk."""
        current, self._current = self._current, None
        if current is not None and current.process == os.getpid():
            current.sender.stop()
            current.delivery.close()
        self._store.close()

    def _start(self, *, consent: bool) -> None:
        """Bring the folder in line with the person's choices."""
        self._consent = consent
        try:
            if not consent:
                self.withdraw()
                return
            self._device.secret()
            self._drop_opted_out()
            if self._offers is not None:
                self._offers.recall()
        except IdentityError:
            self._is_disabled = True
            if self._policy != "disable":
                raise
        except (sqlite3.Error, OSError, FileError) as error:
            self._failed(error)

    def _refusal(self, metric: Metric) -> Outcome | None:
        """Return why a metric is not recorded at all, None if it is."""
        if not self._consent:
            return Outcome.NO_CONSENT
        if self._is_disabled:
            return Outcome.DISABLED
        if metric.name in self._opted_out:
            return Outcome.OPTED_OUT
        if day_of(self._clock()) > metric.expires:
            return Outcome.EXPIRED
        return None

    def _record(self, metric: Metric, value: object) -> Outcome:
        now = self._clock()
        epoch = metric.epoch_at(day_of(now))
        while True:
            secret = self._device.secret()
            made = make_report(secret, metric, value, epoch=epoch, coins=self._coins)
            with self._store.transaction() as db:
                if self._device.is_current():
                    return self._keep(db, metric, made, now)
            self._device.forget()
            if self._device.is_erased():  # another process withdrew consent
                self._consent = False
                return Outcome.NO_CONSENT

    def _keep(self, db: sqlite3.Connection, metric: Metric, made: Made, now: float) -> Outcome:
        """Latch, choose, charge and spool, all of it or nothing."""
        day = day_of(now)
        latched = epoch_memory.latched(db, metric.name, day, self._coins)
        made = latched or made
        try:
            if metric.interval == "none":
                spool.add(db, made.report, ledger.charge(db, made, self._caps))
                outcome = Outcome.RECORDED
            else:
                outcome = self._offer(db, metric.interval, made, now)
        except BudgetError:
            count(db, "over_budget")
            return Outcome.OVER_BUDGET
        if outcome and not latched:
            epoch_memory.latch(db, metric, made, day)
        spool.trim(db, self._limits)
        return outcome

    def _offer(self, db: sqlite3.Connection, interval: str, made: Made, now: float) -> Outcome:
        reservoir.release(db, now, self._caps)
        ledger.price(db, made, self._caps)
        ends = interval_end(interval, now)
        is_held = reservoir.offer(db, made, ends, now=now, coins=self._coins)
        return Outcome.HELD if is_held else Outcome.INTERVAL_OVER

    def _sending(self) -> _Sending | None:
        """Return what carries reports away, new in a process that was forked."""
        if self._transport is None:
            return None
        if self._current is None or self._current.process != os.getpid():
            delivery = Delivery(
                self._store,
                self._transport,
                caps=self._caps,
                limits=self._limits,
                offers=self._offers,
                max_delay=self._max_delay,
                clock=self._clock,
                coins=self._coins,
            )
            sender = Sender(delivery, clock=self._clock, on_failure=self._failed)
            self._current = _Sending(delivery, sender, os.getpid())
        return self._current

    def _drop_opted_out(self) -> None:
        with failing_as_file_error(self._folder), self._store.transaction() as db:
            spool.opt_out(db, self._opted_out)
            for name in self._opted_out:
                reservoir.forget(db, name)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[sqlite3.Connection | None]:
        """Look at the store, None if there is none; FileError where it cannot be read."""
        with failing_as_file_error(self._folder):
            if self._store.exists():
                with self._store.reading() as db:
                    yield db
            else:
                yield None

    def _failed(self, error: Exception) -> None:
        """Count a failure of the disk and tell of it, without a value."""
        self._failures += 1
        _LOG.warning("telemetry could not be stored in %s: %s", self._folder, name_failure(error))
