"""The client that a host program embeds: it records values, sends reports and ends consent.

A client is in one of these states:

    without consent   `open(consent=False)`, `withdraw()`, or another process has withdrawn consent.
                      Nothing is computed, stored or sent. The state is final for the object
    disabled          consent, but the folder cannot be used, or the environment disables telemetry
                      (`disabled_reason`). Nothing is stored. If another process kept the folder
                      locked at the opening, `flush` and `record` open it later (`_reopen`)
    working           consent and an open folder. A client without a collector never sends

A report is *pending* until its interval ends, and *queued* from then on until the collector accepts
or refuses it. A metric of which the person wants no report is *opted out*.

Each thread has one task:

    thread of the host      `record` draws a report and appends it to memory
    folder's thread         all system calls on the folder: opening, commits, reads, erasure
    thread rappor-sender    one step of the uploader after the other, if `background` is True
    thread rappor-exchange  one HTTP exchange, for the duration of its timeout

Three promises to the host:

- No method makes a system call on the folder in the caller's thread. A system call on a hanging
  disk does not return. Before this rule, a hanging disk blocked the host in `open`, `flush` and
  `close` without end.
- Only mistakes of the host raise: wrong arguments, a wrong registry, and with `raise_errors`
  unknown metrics and values of the wrong kind. Every other failure is counted and logged
  (`_run_safely`).
- No exception and no log line contains a recorded value or the secret. Frames contain local
  variables, so `record` and the folder's thread remove their frames from their exceptions. The
  other methods use values and secret in the folder's thread only. A value is checked before the
  secret is read, so that the frames of a refused value contain no secret. In two cases a frame may
  contain a value, both by a signal at a certain moment (`folder/tracebacks.py`).

A value becomes an upload in four steps:

    `record`             checks the value, draws a noisy report, and appends the report to memory
    folder's thread      commits the report to the spool (`outbox/writer.py`)
    end of the interval  the report is queued (`budget/admission.py`)
    sending              `flush` or the thread rappor-sender sends queued reports that may leave
                         (`outbox/uploader.py`)
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
from rappor_client.budget.privacy_spent import UNKNOWN_SPENT, PrivacySpent
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
from rappor_client.outbox.next_report import NextReport, find_next_report
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
"""Seconds that opening waits for the disk. The limit is longer than the wait for a lock
(`BUSY_SECONDS`). If another process keeps the lock, the wait for the lock therefore ends first, and
`disabled_reason` names the lock instead of a hanging disk."""
_REOPEN_SECONDS: Final = 10.0
"""Seconds between two attempts of `record` to open a folder that was locked at the opening. A
larger value loses more events, and a smaller value makes more system calls."""
_JOIN_SECONDS: Final = 1.0
"""Seconds that `close` and `withdraw` wait for the thread of the background sender to end. After
them they sever its exchange with the collector. A larger value lets more exchanges end, and delays
the host."""


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
        # True while the client is disabled only because another process kept the folder locked.
        self._is_locked_out = False
        self._reopen_at = 0.0  # time.monotonic() of the next attempt of `record`
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
        hangs. With `consent=False` the call returns within 5 seconds.

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
            An https address, or a transport of the host. Without a collector the device stores
            reports, which people can look at, and sends nothing.
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
        # The methods import these modules late, so that importing the client is quick. The modules
        # are loaded here, while no thread can fork. Bad case: a thread forks while another thread
        # imports a module. The child then waits without end for the import lock of that module.
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
        # The data are erased before any other argument is checked. A program with a wrong registry
        # must not keep the data of a person who has withdrawn consent.
        if not consent:
            thread = FolderThread(Failures(path).note)
            _erase(thread, path, options.clock())
            thread.end(0.0)
        refused = check_names("opted_out", opted_out)
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
        the disk. Exception: the call waits until the report of a durable metric is on the disk.

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
            for development. Otherwise the mistake is logged without the value.
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

    def flush(self, *, timeout: float = 10.0) -> FlushResult:
        """Send the queued reports within a timeout.

        The first attempt ignores the backoff after earlier failures, but waits for a time that the
        collector has set (Retry-After). After a failure in this call, the next attempt waits for
        its backoff. The call ends early if the wait would exceed the timeout. Pending reports are
        not sent.

        Parameters
        ----------
        timeout : float
            Longest duration of the call, in seconds. With 0 the call makes one attempt.

        Returns
        -------
        FlushResult
            The reason why the flush ended. The result is true if no report is queued any more.

        Raises
        ------
        ParamsError
            `timeout` is not a number of at least 0.
        """
        check_number("timeout", timeout, "[0, infinity]")
        deadline = time.monotonic() + timeout
        result = self._flush(deadline)
        if self._disabled:
            return FlushResult(reason=FlushReason.FAILED, detail=self._disabled)
        return result

    async def aflush(self, *, timeout: float = 10.0) -> FlushResult:
        """Send the queued reports as `flush` does, in a thread, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - as above

        return await asyncio.to_thread(self.flush, timeout=timeout)

    def queued_count(self) -> int:
        """Return the number of finished reports without a result from the collector.

        If the disk does not answer within two seconds, the result is the last known number. If the
        disk fails, the result is 0.
        """
        try:
            return self._count_queued(time.monotonic() + BUSY_SECONDS)
        except HungError as error:
            self._note_failure(error)
            return self._n_queued
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
            return 0

    def privacy_spent(self) -> PrivacySpent:
        """Return the privacy loss so far, in nats: the total and the loss of each metric.

        Print the result to read it as sentences. If the disk fails, or does not answer within two
        seconds, the result is computed from the last state that was read. If no state was read, the
        loss is unknown, so the result is infinite.
        """
        from rappor_client.person.contents import read_spent  # noqa: PLC0415 - loaded at opening

        writer, folder = self._writer, self._settings.folder

        def read() -> PrivacySpent:
            if writer is not None and self._consent:
                # Half of the time is left for the reading.
                self._run_safely(lambda: writer.commit(lock_seconds=BUSY_SECONDS / 2), None)
            return read_spent(folder)

        try:
            return self._thread.run_within(read, seconds=BUSY_SECONDS)
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
        # Not 0: an earlier run may have sent reports.
        if writer is None:
            return UNKNOWN_SPENT
        # The state that the last successful read of the disk returned.
        state = writer.identity.state
        return PrivacySpent.of(state.scopes.values(), state.reservations.sum_by_year())

    def find_unaffordable_metrics(self) -> frozenset[str]:
        """Return the names of the metrics for which the budget of the present year has no room.

        They are skipped until the year is over. The result is empty without consent, and if the
        client is disabled, because the client then skips all metrics for another reason.
        """
        writer = self._writer
        if writer is None or not self._consent or self._disabled:
            return frozenset()
        return self._run_safely(
            lambda: self._find_unaffordable(writer.identity.state, day_of(self._clock()).year),
            frozenset(),
        )

    def find_next_reports(self) -> dict[str, NextReport]:
        """Return the first days of the next report of each metric, by its name.

        Queued and pending reports are not considered, because they have been recorded before. A
        metric is missing if it has ended, if it was opted out, or if no day of the next two years
        is found. The result is empty without consent, and if the client is disabled.
        """
        writer = self._writer
        if writer is None or not self._consent or self._disabled:
            return {}

        def find() -> dict[str, NextReport]:
            state, now = writer.identity.state, self._clock()
            next_reports = {
                name: find_next_report(metric, state, now, self._stops, self._find_unaffordable_in)
                for name, metric in self.registry.items()
                if name not in self._opted_out
            }
            return {name: days for name, days in next_reports.items() if days is not None}

        return self._run_safely(find, {})

    def sent_uploads(self) -> list[SentUpload]:
        """Return the uploads that have left the device, byte by byte, the oldest first."""
        return self._read_spool(spool.list_sent_uploads, [])

    def event_counts(self) -> dict[str, int]:
        """Return the numbers of reports that were recorded, accepted, dropped or refused, by name.

        `failures` is the number of failures of disk, network and collector in this client.
        """
        counts: dict[str, int] = self._read_spool(read_counters, {})
        return counts | ({"failures": self._failures.count} if self._failures.count else {})

    def opt_out(self, name: str) -> None:
        """Refuse a metric from now on, and drop its pending and queued reports.

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

    def withdraw(self) -> Withdrawal:
        """End consent: erase secret, state, queued reports and log, and record nothing afterwards.

        Nothing is sent after the call returns. The nats reserved by year stay, so that a
        later consent does not renew the budget of the device.

        Returns
        -------
        Withdrawal
            The verified result. If the disk does not answer within five seconds, the result is
            false, and the data are erased when the disk answers.
        """
        from rappor_client.person.withdrawal import UNDER_WAY  # noqa: PLC0415 - loaded at opening

        self._end_consent()
        has_ended = self._stop_sending(time.monotonic() + BUSY_SECONDS)
        now = self._clock()
        # The folder's thread may just be opening the folder (`_reopen`), so it looks up the writer.
        withdrawal = _erase(self._thread, self._settings.folder, now, lambda: self._writer)
        self._thread.end(0.0)
        return withdrawal if has_ended else withdrawal.with_left(UNDER_WAY)

    def close(self) -> None:
        """Write the events in memory, end the background sender and close all files.

        The call returns within two seconds. If the disk has not answered by then, the events are
        written when the disk answers, if the program still lives.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        self._is_locked_out = False
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
        # The clock is read once. Bad case: the cache was looked up before midnight, and the time of
        # the event was read after midnight. An event of 2026-Q4 then reserved budget of 2027.
        now = self._clock()
        cache = self._get_cache(name, now)
        if cache is None or self._disabled:
            self._reopen_later()
            return SKIPPED[SkipReason.DISABLED]
        if cache.skip_reason is not None:
            return SKIPPED[cache.skip_reason]
        # The value is read before the secret is used. A frame of an error of its class contains the
        # value, and must not contain the secret, too.
        value = cache.encoding.read_value(value)
        writer, coins = self._writer, self._settings.options.coins
        assert writer is not None
        # A value that fits nowhere, such as a text that is no category, is reported like any other
        # value, because a missing report would reveal it. Only this device counts such values.
        if not cache.encoding.is_representable(value):
            writer.count("unfit")
        is_durable = cache.metric.durable
        # Each event draws a random tag, and the event with the smallest tag becomes the report of
        # the interval. So only an event with a smaller tag than all events before goes to memory.
        if not cache.is_complete:
            tag = draw_tag(coins)
            if cache.needs_event(tag):
                if not writer.add(cache.draw_event(value, now, tag, coins)):
                    return FAILED[SkipReason.FULL]
                cache.note_event(tag)
        # Commit even without a new event: an earlier event of the interval may still be in memory.
        if is_durable:
            writer.commit(lock_seconds=_LOCK_SECONDS)
        return Outcome.RECORDED

    def _get_cache(self, name: str, now: float) -> MetricCache | None:
        """Return the cache of a metric, rebuilt if outdated; None without an open folder."""
        writer = self._writer
        cache = self._caches.get(name) if isinstance(name, str) else None
        if (
            cache is not None
            and writer is not None
            and cache.is_valid(writer.identity.state, now, self._stops.last_days)
        ):
            return cache
        metric = self._find_metric(name)
        if writer is None:
            return None
        state = writer.identity.state
        cache = build_cache(metric, state, now, self._stops, self._find_unaffordable)
        # The cache is stored before this check. In another thread `opt_out` adds the name before it
        # clears the caches. So either this check sees the name, or the cache is cleared.
        self._caches[name] = cache
        if name in self._opted_out:
            cache.skip_reason = SkipReason.OPTED_OUT
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
        """Return the metrics that do not fit into a year's budget, and log their names once.

        A registry that exceeds the budget raises no error. It may fit in a later year, and the
        clock may be behind.
        """
        assert self._writer is not None
        metrics = self._writer.find_unaffordable(state.reservations, year)
        if metrics and (year, metrics) != self._logged_skips:
            self._logged_skips = (year, metrics)
            names = ", ".join(sorted(metrics))
            warn("the budget of %s has no room for %s: nothing is sent", year, names)
        return metrics

    def _find_unaffordable_in(self, state: State, year: int) -> frozenset[str]:
        """Return the metrics that do not fit into the budget of a year, without a line in the log.

        The year may be ahead of the clock.
        """
        assert self._writer is not None
        return self._writer.find_unaffordable(state.reservations.advance_to(year), year)

    def _begin(self, obstacle: str) -> None:
        """Open the folder, or disable the client.

        `obstacle` is the reason why the environment disables the client, or an empty text.
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
        # `_resume` may still run when the time is over. The client is then open nevertheless.
        with contextlib.suppress(BusyError):
            self._thread.run_within(resume, seconds=seconds, is_kept_after_timeout=True)

    def _reopen_later(self) -> None:
        """Let the folder's thread open a folder that was locked at the opening, without a wait."""
        now = time.monotonic()
        if self._is_locked_out and now >= self._reopen_at:
            self._reopen_at = now + _REOPEN_SECONDS
            with contextlib.suppress(BusyError):
                self._thread.run_within(self._reopen, seconds=0.0, is_kept_after_timeout=True)

    def _reopen(self) -> None:
        """Open a folder that another process kept locked at the opening, in the folder's thread.

        Only the identity that another process has created is opened. Bad case: that process has
        withdrawn consent meanwhile. A new identity would then ignore the withdrawal.
        """
        # Another thread may have been faster, or has closed the client or withdrawn consent.
        if not (self._is_locked_out and self._consent):
            return
        with contextlib.suppress(BusyError):  # there is no identity yet, or none any more
            self._writer = self._open_folder(may_create=False)
            self._is_locked_out, self._disabled = False, ""
            warn("telemetry in %s works: the folder is not locked any more", self._settings.folder)
            self._resume()

    def _open_folder(self, *, may_create: bool = True) -> Writer:
        """Finish an interrupted withdrawal, and open the identity; runs in the folder's thread.

        With `may_create=False`, only an existing identity is opened, otherwise BusyError is raised.
        """
        from rappor_client.person.opening import open_identity  # noqa: PLC0415 - loaded at opening

        settings = self._settings
        # `mkdir` writes to the disk even if the folder exists. If writes hang, but reads do not, an
        # existing device could therefore no longer be opened.
        if may_create and not settings.folder.is_dir():
            settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        revoke_access(settings.folder)
        return Writer(
            open_identity(settings.folder, settings.options.clock, may_create=may_create),
            settings,
            self._stops,
            self._thread,
            opted_out=self._opted_out,
            on_commit=self._notify_sender,
        )

    def _resume(self) -> None:
        """Resume the work of an earlier run, in the folder's thread.

        Repairs an outdated copy of the state, drops the reports of opted-out metrics, and schedules
        the queued and pending reports of the earlier run.
        """
        writer = self._writer
        assert writer is not None
        identity = writer.identity
        self._find_unaffordable(identity.state, day_of(self._clock()).year)
        # A commit repairs an outdated copy of the state. It also counts a lost state, and stores
        # the end of the year in which the state was lost. If another process has the lock, the next
        # commit does so.
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
        """Notify the background sender after a commit that has stored events."""
        if has_events and self._settings.options.background:
            sender = self._get_sender()
            if sender is not None:
                sender.nudge()

    def _flush(self, deadline: float) -> FlushResult:
        """Flush until a deadline; a disk that hangs or fails ends the flush.

        The result then has the last known number of queued reports.
        """
        steps: list[Step] = []
        try:
            return self._flush_by(deadline, steps)
        except GoneError:  # another process has withdrawn consent: as after a withdrawal here
            self._end_consent()
            return FlushResult(reason=FlushReason.NOTHING_WAITING)
        except HungError:
            reason, detail = FlushReason.TIMEOUT, "the disk did not answer in time"
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
            reason, detail = FlushReason.FAILED, ""
        n_sent = sum(step.reason is FlushReason.SENT for step in steps)
        return FlushResult(reason=reason, sent=n_sent, waiting=self._n_queued, detail=detail)

    def _flush_by(self, deadline: float, steps: list[Step]) -> FlushResult:
        """Commit the events in memory, and send queued reports until a deadline.

        The flush ends if no report is queued, or if the next step would be after the deadline. Each
        step is appended to `steps`. If the disk hangs or fails, the caller counts the sent reports
        there.
        """
        if self._is_locked_out:
            self._thread.run_within(self._reopen, seconds=_compute_disk_seconds(deadline))
        if self._writer is not None and self._consent:
            seconds = _compute_disk_seconds(deadline)
            self._writer.commit(lock_seconds=compute_lock_seconds(deadline), disk_seconds=seconds)
        while self._consent and (sender := self._get_sender()) is not None:
            step = sender.uploader.step(
                timeout=max(deadline - time.monotonic(), 0.0),
                tried_by_flush={earlier.upload_id for earlier in steps if earlier.is_attempt},
            )
            steps.append(step)
            # The disk may hang before the number can be read, so the step is counted here, too.
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
        """Return the number of finished reports without a result; raises as `Writer.read`."""
        writer = self._writer
        if writer is None or not self._consent:
            return 0
        # A failure is raised. Bad case: a flush took a damaged spool for an empty one, and its
        # result was true.
        self._n_queued = writer.read(
            spool.count_queued, 0, disk_seconds=_compute_disk_seconds(deadline)
        )
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
            # Several threads may create a sender at the same time. `setdefault` returns the first
            # sender to all of them. A lock could stay locked in the child of a fork.
            sender = self._senders.setdefault(process, created)
        return sender

    def _stop_sending(self, deadline: float) -> bool:
        """End the background sender and sever its exchange with the collector.

        The result says whether the exchange has ended by the deadline, so that nothing more can be
        sent.
        """

        def stop() -> bool:
            if (sender := self._senders.pop(os.getpid(), None)) is None:
                return True
            sender.stop(seconds=min(deadline - time.monotonic(), _JOIN_SECONDS))
            return sender.uploader.close(seconds=max(deadline - time.monotonic(), 0.0))

        return self._run_safely(stop, otherwise=False)

    def _drop_opted_out(self) -> None:
        """Drop the queued and pending reports of opted-out metrics, when the disk answers."""
        writer = self._writer
        if not self._opted_out or writer is None:
            return

        def drop() -> None:
            # A writer is true if events or counts are in memory. Without them and without a
            # database the device has no report to drop. `run` would create a database.
            if writer or writer.store.exists():
                writer.run(self._drop_opted_out_in, lock_seconds=BUSY_SECONDS)

        self._thread.run_within(drop, seconds=BUSY_SECONDS, is_kept_after_timeout=True)

    def _drop_opted_out_in(self, db: sqlite3.Connection) -> None:
        """Drop the reports of opted-out metrics in an open transaction."""
        names = self._opted_out.copy()  # another thread may add a name during the loop
        if names:
            spool.drop_metrics(db, names)
        for name in names:
            pending_reports.drop_pending(db, name)

    def _find_obstacle(self, db: sqlite3.Connection) -> FlushReason | None:
        """Return the reason why nothing may be sent, None if uploads may be sent.

        The uploader calls this method in the transaction that claims an upload. An upload is
        therefore not claimed after another thread has called `opt_out` or `withdraw`.
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
        # HungError, of a disk that did not answer, is a subclass: its job may still be opening.
        self._is_locked_out = type(error) is BusyError
        if self._writer is not None:
            self._writer.clear()
        if reason != self._disabled:
            self._disabled = reason
            warn("telemetry is disabled in %s: %s", self._settings.folder, reason)

    def _end_consent(self) -> None:
        """Drop the events in memory, and let all methods record and send nothing from now on."""
        self._consent = False
        self._n_queued = 0
        if self._writer is not None:
            self._writer.clear()

    def _read_spool(
        self, action: Callable[[sqlite3.Connection], _Result], otherwise: _Result
    ) -> _Result:
        """Call `action` with the spool's database and return its result.

        The result is `otherwise` without consent, without an open folder, and after a failure.
        """
        writer = self._writer
        if writer is None or not self._consent:
            return otherwise
        return self._run_safely(
            lambda: writer.read(action, otherwise, disk_seconds=BUSY_SECONDS), otherwise
        )

    def _run_safely(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Call `action` and return its result; count a failure and return `otherwise`.

        Mistakes of the host (MetricError, ReportError) are raised again.
        """
        try:
            return action()
        except (MetricError, ReportError):
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            self._note_failure(error)
        return otherwise


def _load_registry(registry: Registry | str | os.PathLike[str]) -> Registry:
    """Return a registry, read from its file if necessary.

    Reading a file imports the TOML parser and the list of public suffixes. No thread may fork
    during the import, because the child would wait without end for the import lock of the module.
    """
    if isinstance(registry, Registry):
        return registry
    if not isinstance(registry, str | os.PathLike):
        raise ParamsError(f"registry must be a path or a Registry, got {type(registry).__name__}")
    with block_forks(wait=True):
        # Expired metrics are accepted: an old version of a program must still start.
        return Registry.load(registry, today=datetime.date.max)


def _make_transport(collector: str | Transport | None, key: str | None) -> Transport | None:
    """Return the transport to a collector; ParamsError for an address that cannot be right."""
    if not isinstance(collector, str):
        if key is not None:
            raise ParamsError("upload_key must be absent without the address of a collector")
        # An object that cannot send would fail at the first upload, a day later, in the background.
        if collector is not None and not callable(getattr(collector, "send", None)):
            kind = type(collector).__name__
            raise ParamsError(f"collector must be an address or a Transport, got {kind}")
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
    name = name_failure(error)
    if isinstance(error, OSError) and error.errno is not None:
        # The system's words contain no path: "File exists (EEXIST)".
        name = f"{os.strerror(error.errno)} ({name})"
    return f"the folder cannot be used: {name}"


def _compute_disk_seconds(deadline: float) -> float:
    """Return the seconds that a flush waits for the disk: until its deadline, but at least 0.5.

    A flush with the timeout 0 would otherwise fail while the folder's thread is writing.
    """
    return max(deadline - time.monotonic(), compute_lock_seconds(deadline))


def _erase(
    thread: FolderThread,
    folder: Path,
    now: float,
    find_writer: Callable[[], Writer | None] = lambda: None,
) -> Withdrawal:
    """Close the files of a folder, erase the folder and return the verified result.

    The function raises no exception. A failure is part of the result. The folder's thread calls
    `find_writer`, which returns the writer whose files are open, or None.
    """
    from rappor_client.person.erasure import erase_within  # noqa: PLC0415 - loaded at opening

    def close() -> None:
        if (writer := find_writer()) is not None:
            writer.close_files()

    withdrawal = erase_within(thread, folder, now=now, close=close)
    if not withdrawal:
        warn("telemetry could not be erased in %s: %s", folder, withdrawal)
    return withdrawal
