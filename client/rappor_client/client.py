"""The client that a host program embeds: it records values, sends reports and ends consent.

A client is in one of these states:

    without consent   `open(consent=False)`, `withdraw()`, or another process has withdrawn consent.
                      Nothing is computed, stored or sent. The state is final for the object
    disabled          consent, but the folder cannot be used (`disabled_reason`). Nothing is stored
    working           consent and an open folder. A client without a collector never sends

Who does what:

    thread of the host      `record` draws a report and appends it to memory
    folder's thread         all system calls on the folder: opening, commits, reads, erasure
    thread rappor-sender    one step of the uploader after the other, if `background` is True
    thread rappor-exchange  one HTTP exchange, for the duration of its timeout

Three promises to the host:

- No method makes a system call on the folder in the caller's thread. A disk that hangs does not
  return from such a call, so it once held the host in `close`, `open` and `flush` without end.
- Only mistakes of the host raise: wrong arguments, a wrong registry, and with `raise_errors`
  unknown metrics and values of the wrong kind. Every other failure is counted and logged
  (`_run_safely`).
- No exception and no log line contains a recorded value or the secret. `hide_frames` removes the
  frames of a method from its exceptions, because frames contain local variables. (A signal at a bad
  time is an exception for values: `folder/tracebacks.py`.) A value is checked before the secret is
  read, so that the frames of a refused value have no secret.

How a value goes through the client:

    `record`             checks the value, draws a noisy report, and appends the report to memory
    folder's thread      commits the report to the spool (`outbox/writer.py`)
    end of the interval  the report is queued (`budget/admission.py`)
    `flush`, or the      sends the queued reports that may leave (`outbox/uploader.py`)
    thread rappor-sender
"""

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
from rappor.base.ranges import check_number
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.budget import pending_reports
from rappor_client.budget.privacy_spent import NOTHING_SPENT, PrivacySpent
from rappor_client.budget.state import State
from rappor_client.folder import spool
from rappor_client.folder.access import UnusableError, resolve_folder, revoke_access
from rappor_client.folder.failures import Failures, name_failure, warn
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.forking import block_forks
from rappor_client.folder.identity_folder import (
    BUSY_SECONDS,
    BusyError,
    GoneError,
    HungError,
    compute_lock_seconds,
)
from rappor_client.folder.spool import SentUpload
from rappor_client.folder.spool_tables import read_counters
from rappor_client.folder.tracebacks import hide_frames
from rappor_client.network.transport import Transport
from rappor_client.outbox.flush_result import FlushReason, FlushResult, Step, summarize_steps
from rappor_client.outbox.metric_cache import MetricCache, build_cache, draw_tag
from rappor_client.outbox.outcome import FAILED, SKIPPED, Outcome, SkipReason
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Writer
from rappor_client.periods import bound_clock, day_of
from rappor_client.settings import ClientOptions, Settings, check_consent, check_names

if TYPE_CHECKING:
    from rappor_client.outbox.background import Sender
    from rappor_client.person.withdrawal import Withdrawal

_Result = TypeVar("_Result")
_LOCK_SECONDS: Final = 0.05
"""Seconds that a durable `record` waits for the lock of another process. A longer wait delays the
host."""
_OPEN_SECONDS: Final = BUSY_SECONDS + 0.5
"""Seconds that opening waits for the disk. Longer than the wait for a lock (`BUSY_SECONDS`): if
another process keeps the lock, the reason is the lock, and not a disk that does not answer."""
_JOIN_SECONDS: Final = 1.0
"""Seconds that `close` and `withdraw` wait for the background sender. Then they sever its exchange
with the collector. A larger value lets more exchanges end, and delays the host."""


class Client:
    '''The telemetry of one device in one folder. Threads may share it, also after a fork.

    Use `Client.open` to create a client.

    `record` waits for nothing: it draws a noisy report and appends it to memory. A thread writes
    the report to the disk within 100 ms. No failure of disk, network or collector reaches the host.

    Parameters
    ----------
    settings : Settings
        Checked arguments of `Client.open`.

    Examples
    --------
    >>> import tempfile
    >>> from rappor import Registry
    >>> from rappor_client import Client
    >>> registry = Registry.loads("""
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
    ... """)
    >>> client = Client.open(tempfile.mkdtemp(), registry=registry, consent=True)
    >>> print(client.record("theme", "dark"))
    recorded

    The report is pending until the day is over, so nothing is queued yet:

    >>> client.flush().reason
    <FlushReason.NOTHING_WAITING: 'nothing was waiting'>

    The person can withdraw consent at any time:

    >>> print(client.withdraw())
    The secret is gone; everything else is erased.
    '''

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = settings.options.clock
        self._thread = FolderThread(self._note_failure)
        self._failures = Failures(settings.folder)
        self._opted_out = set(settings.opted_out)
        self._stops = Stops()
        self._disabled = ""
        self._consent = False
        self._writer: Writer | None = None  # None while the client is disabled or has no consent
        self._caches: dict[str, MetricCache] = {}  # by name of the metric
        # Year and metrics of the last log line about metrics that do not fit into the budget.
        self._logged_skips: tuple[int, frozenset[str]] | None = None
        # By process id: the child of a fork creates a sender of its own.
        self._senders: dict[int, Sender] = {}
        # Number of queued reports when the disk last answered. Methods return it if the disk hangs.
        self._n_queued = 0

    @classmethod
    @hide_frames
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
        """Open the device in a folder.

        A problem of the folder, the disk or the user does not raise: the client is disabled, and
        `disabled_reason` has the reason. The call returns within 2.5 seconds, also on a disk that
        hangs; with `consent=False` within 5 seconds.

        Parameters
        ----------
        folder : path
            Folder of the device. It is created at the first use, private to the user.
        registry : Registry or path
            Metrics that the program collects, or the path of their TOML file.
        consent : bool
            Consent of the person. With False nothing is computed, stored or sent, and everything
            that an earlier consent has left is erased.
        collector : str or Transport, optional
            An https address, or a transport of the host. Without a collector the device is local:
            it collects, people can look at the reports, and nothing is sent.
        opted_out : collection of str
            Metrics that this person refuses.
        options : ClientOptions, optional
            All further options.

        Returns
        -------
        Client
            The open client. Close it, or use it in a `with` block.

        Raises
        ------
        FileError
            The registry cannot be read.
        MetricError
            The registry is wrong.
        ParamsError
            Another argument is wrong.
        """
        # The methods import these modules late, so that importing the client is quick. They are
        # loaded here while no thread forks: the child of a fork waits without end for a module that
        # another thread of its parent was importing.
        with block_forks(wait=True):
            import textwrap  # noqa: F401, PLC0415 - `PrivacySpent` is printed with it

            import rappor_client.outbox.background  # noqa: PLC0415 - see above
            import rappor_client.outbox.uploader  # noqa: PLC0415 - likewise
            import rappor_client.person.contents  # noqa: PLC0415 - likewise
            import rappor_client.person.opening  # noqa: F401, PLC0415 - likewise
        options = ClientOptions() if options is None else options
        options = dataclasses.replace(options, clock=bound_clock(options.clock))
        path = resolve_folder(folder)
        check_consent(consent)
        refused = check_names("opted_out", opted_out)
        # The erasure comes before the registry and the collector are looked at. A program with a
        # wrong registry must not keep the data of a person who has withdrawn consent.
        if not consent:
            thread = FolderThread(Failures(path).note)
            _erase(thread, path, options.clock())
            thread.end(0.0)
        client = cls(
            Settings(
                folder=path,
                registry=_load_registry(registry).in_segment(dict(options.segment)),
                transport=_make_transport(collector, options.upload_key),
                opted_out=frozenset(filter(METRIC_NAME.fullmatch, refused)),
                options=options,
            )
        )
        client._consent = consent
        if consent:
            client._failures.log_unknown_names(refused - frozenset(client.registry))
            client._begin(options.find_obstacle())
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio  # noqa: PLC0415 - 50 ms, and a caller that awaits has loaded it

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"Client({str(self._settings.folder)!r})"

    @property
    def registry(self) -> Registry:
        """The metrics that the client records."""
        return self._settings.registry

    @property
    def disabled_reason(self) -> str:
        """The reason why the device is disabled, as a sentence; empty while it works."""
        return self._disabled

    @hide_frames
    def record(self, name: str, value: object) -> Outcome:
        """Draw a noisy report of a value, and store it for sending.

        The value itself is not stored. The call takes some 10 microseconds and does not wait for
        the disk, unless the metric is durable.

        Parameters
        ----------
        name : str
            Name of the metric.
        value : object
            The value, of the kind that the metric's encoding takes.

        Returns
        -------
        Outcome
            Whether the value was recorded, skipped or lost, and why.

        Raises
        ------
        MetricError
            The registry has no such metric. Raised only with `ClientOptions(raise_errors=True)`,
            for development; otherwise the mistake is logged without the value.
        ReportError
            The value is of the wrong kind. Raised under the same condition.
        """
        try:
            return self._record(name, value)
        except (MetricError, ReportError) as error:
            if self._settings.options.raise_errors:
                raise
            self._failures.log_mistake(error, metric=name)
            is_metric = isinstance(error, MetricError)
            return SKIPPED[SkipReason.UNKNOWN_METRIC if is_metric else SkipReason.WRONG_KIND]
        except HungError:
            return FAILED[SkipReason.DISK]
        except BusyError:
            return FAILED[SkipReason.LOCKED]
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
            return FAILED[SkipReason.DISK] if self._consent else SKIPPED[SkipReason.NO_CONSENT]

    @hide_frames
    def flush(self, *, timeout: float = 10.0) -> FlushResult:
        """Send the queued reports within a timeout.

        The first attempt is made at once, even if an earlier failure has set a pause; a time that
        the collector asked for (Retry-After) is kept. After a failure in this call the next attempt
        waits as usual, and the call ends early if the wait is longer than the rest of the timeout.
        Pending reports of open intervals are not sent.

        Parameters
        ----------
        timeout : float
            Longest duration of the call, in seconds. With 0 the call makes one attempt.

        Returns
        -------
        FlushResult
            The reason why the flush ended; true if no report is queued any more.

        Raises
        ------
        ParamsError
            `timeout` is not a number of at least 0.
        """
        check_number("timeout", timeout, "[0, infinity]")
        deadline = time.monotonic() + timeout
        failed = FlushResult(reason=FlushReason.FAILED)
        result = self._run_safely(lambda: self._flush(deadline), failed)
        if self._disabled:
            return FlushResult(reason=FlushReason.FAILED, detail=self._disabled)
        return result

    async def aflush(self, *, timeout: float = 10.0) -> FlushResult:
        """Send the queued reports as `flush` does, in a thread, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - as above

        return await asyncio.to_thread(self.flush, timeout=timeout)

    @hide_frames
    def queued_count(self) -> int:
        """Return the number of finished reports without a result from the collector.

        Returns the last known number if the disk does not answer within two seconds.
        """
        try:
            return self._count_queued(time.monotonic() + BUSY_SECONDS)
        except HungError as error:
            self._note_failure(error)
            return self._n_queued

    @hide_frames
    def privacy_spent(self) -> PrivacySpent:
        """Return the privacy loss so far, in nats: the total and the loss of each metric.

        Print the result to read it as sentences. If the disk does not answer within two seconds,
        the result is computed from the last state that was read.
        """
        from rappor_client.person.contents import read_spent  # noqa: PLC0415 - loaded at opening

        writer, folder = self._writer, self._settings.folder

        def read() -> PrivacySpent:
            if writer is not None and self._consent:
                self._run_safely(lambda: writer.commit(lock_seconds=BUSY_SECONDS), None)
            return read_spent(folder)

        try:
            return self._thread.run_within(read, seconds=BUSY_SECONDS)
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
        if writer is None:
            return NOTHING_SPENT
        state = writer.identity.state  # as the disk had it when it last answered
        return PrivacySpent.of(state.scopes.values(), state.reservations.sum_by_year())

    @hide_frames
    def sent_uploads(self) -> list[SentUpload]:
        """Return the uploads that have left the device, byte by byte, the oldest first."""
        return self._read_spool(spool.list_sent_uploads, [])

    @hide_frames
    def event_counts(self) -> dict[str, int]:
        """Return the numbers of reports that were recorded, accepted, dropped or refused, by name.

        `failures` is the number of failures of disk, network and collector in this client.
        """
        counts: dict[str, int] = self._read_spool(read_counters, {})
        return counts | ({"failures": self._failures.n} if self._failures.n else {})

    @hide_frames
    def opt_out(self, name: str) -> None:
        """Refuse a metric from now on, and drop its queued reports.

        The host program stores the choice, and passes it as `opted_out` when it opens again. If the
        disk does not answer, the reports are dropped before anything is sent.

        Parameters
        ----------
        name : str
            Name of the metric.

        Raises
        ------
        MetricError
            The registry has no such metric.
        """
        self._find_metric(name)
        self._opted_out.add(name)
        self._caches.clear()
        self._run_safely(self._drop_opted_out, None)

    @hide_frames
    def withdraw(self) -> Withdrawal:
        """End consent: erase secret, state, queued reports and log, and record nothing afterwards.

        Nothing is sent after the call returns. The nats reserved by year stay, so that consent
        given again does not renew the device's budget.

        Returns
        -------
        Withdrawal
            The verified result. If the disk does not answer within five seconds, the result is
            false, and the erasure is done when the disk answers.
        """
        from rappor_client.person.withdrawal import UNDER_WAY  # noqa: PLC0415 - loaded at opening

        self._end_consent()
        has_ended = self._stop_sending(time.monotonic() + BUSY_SECONDS)
        now = self._clock()
        folder, writer = self._settings.folder, self._writer
        withdrawal = _erase(self._thread, folder, now, writer)
        self._thread.end(0.0)
        return withdrawal if has_ended else withdrawal.with_left(UNDER_WAY)

    @hide_frames
    def close(self) -> None:
        """Write the events in memory, end the background sender and close all files.

        Returns within two seconds. If the disk has not answered by then, the events are written
        when the disk answers, if the program still lives.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        if (writer := self._writer) is not None and self._consent:
            self._run_safely(lambda: writer.commit(lock_seconds=BUSY_SECONDS), None)
        self._stop_sending(deadline)
        if writer is not None:
            seconds = max(deadline - time.monotonic(), 0.0)
            self._run_safely(lambda: writer.close(seconds=seconds), None)
        self._thread.end(deadline - time.monotonic())

    def _record(self, name: str, value: object) -> Outcome:
        """Record a value; raises MetricError, ReportError, HungError and BusyError."""
        if not self._consent:
            return SKIPPED[SkipReason.NO_CONSENT]
        cache = self._get_cache(name)
        if cache is None or self._disabled:
            return SKIPPED[SkipReason.DISABLED]
        if cache.skip_reason is not None:
            return SKIPPED[cache.skip_reason]
        # This check comes before the secret is used. A frame of its error contains the value, and
        # must not contain the secret, too.
        cache.encoding.check_value_type(value)
        writer, coins = self._writer, self._settings.options.coins
        assert writer is not None
        # A value that fits nowhere, such as a text that is no category, is reported like any other:
        # a skipped report would reveal it. Only this device counts it.
        if not cache.encoding.is_representable(value):
            writer.count("unfit")
        is_durable = cache.metric.durable
        # Each event draws a random tag, and the event with the smallest tag becomes the report of
        # the interval. So only an event with a smaller tag than all events before goes to memory.
        if not cache.is_complete:
            tag = draw_tag(coins)
            if cache.needs_event(tag):
                if not writer.add(cache.draw_event(value, self._clock(), tag, coins)):
                    return FAILED[SkipReason.FULL]
                cache.note_event(tag)
        # Without a new event, too: an earlier event of this interval may still be in memory.
        if is_durable:
            writer.commit(lock_seconds=_LOCK_SECONDS)
        return Outcome.RECORDED

    def _get_cache(self, name: str) -> MetricCache | None:
        """Return the valid cache of a metric, None if the device is disabled."""
        writer, now = self._writer, self._clock()
        cache = self._caches.get(name) if isinstance(name, str) else None
        if (
            cache is not None
            and writer is not None
            and cache.is_valid(writer.identity.state, now, self._stops.until)
        ):
            return cache
        metric = self._find_metric(name)
        if writer is None:
            return None
        state = writer.identity.state
        cache = build_cache(metric, state, now, self._stops, self._find_unaffordable)
        if name in self._opted_out:
            cache.skip_reason = SkipReason.OPTED_OUT
        self._caches[name] = cache
        return cache

    def _find_metric(self, name: str) -> Metric:
        """Return a metric of the registry.

        The error does not quote the name. In `record(value, name)`, with swapped arguments, the
        name is the value.
        """
        if not isinstance(name, str):
            raise MetricError(f"a metric's name must be a text, got {type(name).__name__}")
        if name not in self.registry:
            raise MetricError(f"unknown metric; the registry has {', '.join(self.registry)}")
        return self.registry[name]

    def _find_unaffordable(self, state: State, year: int) -> frozenset[str]:
        """Return the metrics that do not fit into a year's budget, and log them once.

        A registry that does not fit is no error here. It may fit in a later year, and the clock may
        be behind.
        """
        assert self._writer is not None
        metrics = self._writer.find_unaffordable(state.reservations, year)
        if metrics and (year, metrics) != self._logged_skips:
            self._logged_skips = (year, metrics)
            names = ", ".join(sorted(metrics))
            warn("the budget of %s has no room for %s: nothing is sent", year, names)
        return metrics

    def _begin(self, obstacle: str) -> None:
        """Open the folder, or disable the client with the reason.

        `obstacle` is a reason outside of the folder, such as an environment variable, or empty.
        """
        deadline = time.monotonic() + _OPEN_SECONDS
        try:
            if obstacle:
                raise UnusableError(obstacle)
            self._writer = self._thread.run_within(self._open_folder, seconds=_OPEN_SECONDS)
        except (MetricError, ParamsError):
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._disable(error)
            return
        seconds = max(deadline - time.monotonic(), 0.0)
        resume = functools.partial(self._run_safely, self._resume, None)
        with contextlib.suppress(BusyError):  # the job goes on as soon as the disk answers
            self._thread.run_within(resume, seconds=seconds, is_kept_after_timeout=True)

    def _open_folder(self) -> Writer:
        """Finish an interrupted withdrawal, and open the identity; runs in the folder's thread."""
        from rappor_client.person.opening import open_identity  # noqa: PLC0415 - loaded at opening

        settings = self._settings
        # `mkdir` writes to the disk also if the folder exists. On a disk whose writes hang, an
        # existing device then opened no more, although its folder can be read.
        if not settings.folder.is_dir():
            settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        revoke_access(settings.folder)
        return Writer(
            open_identity(settings.folder, settings.options.clock),
            settings,
            self._stops,
            self._thread,
            opted_out=self._opted_out,
            on_commit=self._notify_sender,
        )

    def _resume(self) -> None:
        """Go on with the contents of the folder, in the folder's thread.

        Drops refused reports, repairs a copy of the state, and schedules the reports of an earlier
        run.
        """
        writer = self._writer
        assert writer is not None
        identity = writer.identity
        if identity.n_lost_states:
            writer.count("identity_lost")
            writer.wake()  # stores the count soon, with the next commit
            folder = self._settings.folder
            warn("the state in %s is lost: no metric is recorded until the year is over", folder)
        self._find_unaffordable(identity.state, day_of(self._clock()).year)
        # A commit repairs the copy that is behind, and stores that a lost year is over. If another
        # process has the lock, the next commit does both.
        if identity.state.reservations.lost is not None or not identity.has_equal_copies:
            with contextlib.suppress(BusyError):
                writer.run(lambda _: None, lock_seconds=_LOCK_SECONDS)
        if not writer.store.exists():
            return
        self._drop_opted_out()
        with writer.store.reading() as db:
            self._stops.reload(db)
            n_queued = spool.count_queued(db)
            has_pending = pending_reports.find_next_end(db) is not None
        self._n_queued = n_queued
        sender = self._get_sender() if self._settings.options.background else None
        if sender is not None and (n_queued or has_pending):
            sender.catch_up(n_queued)

    def _notify_sender(self, has_events: bool) -> None:  # noqa: FBT001 - a hook
        """Notify the background sender that reports are on the disk."""
        if has_events and self._settings.options.background:
            sender = self._get_sender()
            if sender is not None:
                sender.nudge()

    def _flush(self, deadline: float) -> FlushResult:
        """Flush until a deadline; a disk that hangs ends the flush with the last known number."""
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
        """Make steps until no report is queued, or the next step would be after the deadline.

        Each step is appended to `steps`, which the caller reads if the disk hangs.
        """
        if self._writer is not None and self._consent:
            seconds = _compute_disk_seconds(deadline)
            self._writer.commit(lock_seconds=compute_lock_seconds(deadline), disk_seconds=seconds)
        while self._consent and (sender := self._get_sender()) is not None:
            step = sender.uploader.step(
                timeout=max(deadline - time.monotonic(), 0.0),
                tried_by_flush={earlier.upload_id for earlier in steps if earlier.is_attempt},
            )
            steps.append(step)
            # Counted here too: the disk may hang before the number can be read.
            if step.reason in (FlushReason.SENT, FlushReason.REFUSED):
                self._n_queued = max(self._n_queued - 1, 0)
            if step.reason is FlushReason.NO_CONSENT:
                self._end_consent()
            pause = math.inf if step.next_at is None else max(step.next_at - self._clock(), 0.0)
            is_last = pause > deadline - time.monotonic()
            n_queued = self._count_queued(deadline)
            if is_last or not (step.is_attempt or n_queued):
                return summarize_steps(steps, waiting=n_queued)
            time.sleep(pause)
        if not (n_queued := self._count_queued(deadline)):
            return FlushResult(reason=FlushReason.NOTHING_WAITING)
        reason = FlushReason.NO_COLLECTOR if self._consent else FlushReason.NO_CONSENT
        return FlushResult(reason=reason, waiting=n_queued)

    def _count_queued(self, deadline: float) -> int:
        """Return the number of finished reports without a result; HungError for a hung disk."""
        writer = self._writer
        if writer is None or not self._consent:
            return 0
        try:
            self._n_queued = writer.read(
                spool.count_queued, 0, disk_seconds=_compute_disk_seconds(deadline)
            )
        except HungError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
            return 0
        return self._n_queued

    def _get_sender(self) -> Sender | None:
        """Return the background sender of this process; None without a collector.

        The child of a fork gets a sender of its own, because the thread of its parent does not
        exist in the child.
        """
        transport, writer = self._settings.transport, self._writer
        if transport is None or writer is None or self._disabled:
            return None
        process = os.getpid()
        if (sender := self._senders.get(process)) is None:
            from rappor_client.outbox.background import Sender  # noqa: PLC0415 - loaded at opening
            from rappor_client.outbox.uploader import Uploader  # noqa: PLC0415 - loaded at opening

            uploader = Uploader(writer, transport, self._settings, self._find_obstacle, self._stops)
            created = Sender(uploader, clock=self._clock, on_failure=self._note_failure)
            # Several threads may be here. `setdefault` gives all of them the first sender, without
            # a lock that a fork could leave locked.
            sender = self._senders.setdefault(process, created)
        return sender

    def _stop_sending(self, deadline: float) -> bool:
        """Sever the exchange under way; return whether nothing can be sent any more."""

        def stop() -> bool:
            if (sender := self._senders.pop(os.getpid(), None)) is None:
                return True
            sender.stop(seconds=min(deadline - time.monotonic(), _JOIN_SECONDS))
            return sender.uploader.close(seconds=max(deadline - time.monotonic(), 0.0))

        return self._run_safely(stop, otherwise=False)

    def _drop_opted_out(self) -> None:
        """Drop the queued and pending reports of refused metrics, as soon as the disk answers."""
        writer = self._writer
        if not self._opted_out or writer is None:
            return

        def drop() -> None:
            # A writer is true if events or counts are in memory. A device without them and without
            # a database has no report to drop, and no database is created for it.
            if writer or writer.store.exists():
                writer.run(self._drop_opted_out_in, lock_seconds=BUSY_SECONDS)

        self._thread.run_within(drop, seconds=BUSY_SECONDS, is_kept_after_timeout=True)

    def _drop_opted_out_in(self, db: sqlite3.Connection) -> None:
        """Drop the reports of refused metrics in an open transaction."""
        names = self._opted_out.copy()  # another thread may add a name during the loop
        if names:
            spool.drop_metrics(db, names)
        for name in names:
            pending_reports.drop_pending(db, name)

    def _find_obstacle(self, db: sqlite3.Connection) -> FlushReason | None:
        """Return the reason why nothing may be sent, None if uploads may be sent.

        The uploader calls this method in the transaction that claims an upload. So a refusal in
        another thread is obeyed until the last moment.
        """
        if not self._consent:
            return FlushReason.NO_CONSENT
        self._drop_opted_out_in(db)
        return None

    def _note_failure(self, error: Exception) -> None:
        """Count a failure, or change the state of the client.

        GoneError means that another process has withdrawn consent. UnusableError means that another
        version of this library has taken the folder.
        """
        if isinstance(error, GoneError):
            self._end_consent()
        elif isinstance(error, UnusableError):
            self._disable(error)
        else:
            self._failures.note(error)

    def _disable(self, error: Exception) -> None:
        """Disable the client, drop the events in memory, and log the reason once."""
        reason = _describe_obstacle(error)
        if self._writer is not None:
            self._writer.clear()
        if reason != self._disabled:
            self._disabled = reason
            warn("telemetry is disabled in %s: %s", self._settings.folder, reason)

    def _end_consent(self) -> None:
        """Record and send nothing from now on, and drop the events in memory."""
        self._consent = False
        self._n_queued = 0
        if self._writer is not None:
            self._writer.clear()

    def _read_spool(
        self, action: Callable[[sqlite3.Connection], _Result], otherwise: _Result
    ) -> _Result:
        """Read the spool by an action; return `otherwise` without a spool, or if it fails."""
        writer = self._writer
        if writer is None or not self._consent:
            return otherwise
        return self._run_safely(
            lambda: writer.read(action, otherwise, disk_seconds=BUSY_SECONDS), otherwise
        )

    def _run_safely(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Run an action; count its failure and return `otherwise`. Mistakes of the host raise."""
        try:
            return action()
        except (MetricError, ReportError):  # mistakes of the host
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
        return otherwise


def _load_registry(registry: Registry | str | os.PathLike[str]) -> Registry:
    """Return a registry, read from its file if necessary.

    Reading loads the TOML parser and the list of public suffixes. No thread may fork meanwhile: the
    child would wait without end for a module that another thread was importing.
    """
    if isinstance(registry, Registry):
        return registry
    with block_forks(wait=True):
        # Expired metrics are accepted: an old version of a program must still start.
        return Registry.load(registry, today=datetime.date.max)


def _make_transport(collector: str | Transport | None, key: str | None) -> Transport | None:
    """Return the transport to a collector; ParamsError for an address that cannot be right."""
    if not isinstance(collector, str):
        if key is not None:
            raise ParamsError("upload_key must be absent without the address of a collector")
        return collector
    with block_forks(wait=True):
        from rappor_client.network.http_transport import HttpTransport  # noqa: PLC0415 - 60 ms

    return HttpTransport(collector, key=key)


def _describe_obstacle(error: Exception) -> str:
    """Return the reason why the folder cannot be used, as a clause."""
    if isinstance(error, UnusableError):
        return str(error)
    if isinstance(error, HungError):
        return f"the disk did not answer within {_OPEN_SECONDS} seconds"
    if isinstance(error, BusyError):
        return "another process keeps the folder locked"
    return f"the folder cannot be used: {name_failure(error)}"


def _compute_disk_seconds(deadline: float) -> float:
    """Return the seconds that a flush waits for the disk: until its deadline, and 0.5 or more.

    A flush with the timeout 0 would otherwise fail whenever the client's own thread is writing.
    """
    return max(deadline - time.monotonic(), compute_lock_seconds(deadline))


def _erase(
    thread: FolderThread,
    folder: Path,
    now: float,
    writer: Writer | None = None,
) -> Withdrawal:
    """Close a folder's files and erase it; return the verified result. Raises nothing."""
    from rappor_client.person.erasure import erase_within  # noqa: PLC0415 - loaded at opening

    def close() -> None:
        if writer is not None:
            writer.close_files()

    withdrawal = erase_within(thread, folder, now=now, close=close)
    if not withdrawal:
        warn("telemetry could not be erased in %s: %s", folder, withdrawal)
    return withdrawal
