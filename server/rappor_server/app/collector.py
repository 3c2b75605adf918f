"""The running collector: opens all parts in order, stores uploads, closes the parts in order.

The endpoints (`http/`, `pages/`) call the methods of one `Collector` object. The object runs in the
event loop of the HTTP server. Everything that may block runs elsewhere:

| work                                   | where                                              |
|----------------------------------------|----------------------------------------------------|
| commits of uploads to the inbox        | thread of `Receiver`                               |
| short queries, such as of a token      | two threads, `look_up`                             |
| probes of the database                 | one thread, `_watch_database`                      |
| merges of the inbox into counters      | merge process, `MergeProcess`                      |
| counts and estimates for analysts      | pools of worker processes, `readers` and `results` |
| closing of blocks after midnight (UTC) | one worker process, `_closer`                      |

Uploads are parsed in the event loop, because passing a small upload to another process costs more
than parsing it.

How to think about an upload. An upload passes through these states:

    new        `enqueue` has returned a future of the HTTP response. The upload waits for the end of
               the current turn of the event loop, which passes all new uploads to the writer in one
               call.
    queued     The writer will write the upload with others as one batch into the inbox. The upload
               has a deadline (`commit_seconds`).
    resolved   The future has a result. The result is the body of the response if the batch is on
               the disk. It is a StoreError if the queue is full, the commit failed, or the deadline
               has passed.

A resolved future never changes. If the deadline passes while the database hangs, the device gets
503 and sends the same upload again. If the hanging commit succeeds later, the upload is in the
inbox twice. The merge then counts the upload once, because both copies have the same key
(`ingest/retry_keys.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Engine

from rappor.base.progress import Progress, no_progress
from rappor.estimator.error_control import ErrorControl
from rappor.registry.metric import Metric
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base import logs
from rappor_server.base.errors import DatabaseFileError, SchemaError, StoreError
from rappor_server.base.request_limits import BodyAllocation, BodyBudget, RateLimit
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.upload_keys import UploadKeys
from rappor_server.ingest.validate import Submission, Suspicious, read_upload
from rappor_server.operations.closing import earlier_of_clocks, keep_closing, select_due
from rappor_server.operations.health import Health
from rappor_server.operations.prometheus import Metrics
from rappor_server.operations.retention import count_overdue_days
from rappor_server.queries.candidate_lists import CandidateLists
from rappor_server.queries.candidate_sources import CandidateSource, find_candidates
from rappor_server.queries.page_queries import OverviewQuery
from rappor_server.queries.query import Subject
from rappor_server.queries.result_files import ResultFiles
from rappor_server.queries.results import Results
from rappor_server.queries.worker import Limits, Pool
from rappor_server.storage.batch_commit import Receiver, Result, Writer
from rappor_server.storage.blocks import Rules, count_due_days, find_last_day, rules_in_force
from rappor_server.storage.database import ping, utc_today
from rappor_server.storage.inbox import open_inbox
from rappor_server.storage.merge_process import MergeProcess, MergeStatus
from rappor_server.storage.release_windows import record_rules
from rappor_server.storage.schema_versions import open_checked

ResponseFuture = asyncio.Future[bytes]
"""Future whose result is the body of the response to one upload."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FIRST_PAUSE_SECONDS: Final = 0.5
"""Seconds between the first two attempts to reach the database at the start. The pause doubles
after each attempt, up to `_MAX_PAUSE`. A larger value sends fewer queries to a database that is
starting, and delays the start of the collector."""
_MAX_PAUSE: Final = 5.0
"""Largest pause between two attempts, in seconds. A larger value delays the start of the collector
after the start of the database."""
_PROBE_SECONDS: Final = 2.0
"""Seconds between two probes of the database. A larger value notices a failure or a recovery
later."""
_QUERY_THREADS: Final = 2
"""Number of threads for short queries, such as the check of a token. More threads serve more
analysts while one query hangs, and use more connections to the database."""
_MAX_WAITING_TASKS: Final = 8
"""Largest number of tasks that wait for a worker process of a pool. Further tasks get 503. Each
task takes at most `decode_seconds`, so with one worker and the default of 60 seconds the last of
eight tasks may wait eight minutes. A larger value makes analysts wait longer before they learn that
the collector is overloaded."""
_TOTALS_SECONDS: Final = 60.0
"""Time between two lines of totals in the log, in seconds. It limits how exactly a thief of the log
learns when devices sent. A shorter time would reveal more."""


class UploadTotals:
    """Numbers of uploads, reports and refusals since the last line of totals in the log.

    The line of the log is {"event": "uploads received", "uploads": 812, "reports": 812,
    "refused": 3}. `refused` is the number of refused reports plus the number of uploads that were
    refused as a whole. A timer writes the lines, and not an upload. No line therefore reveals the
    second in which a device sent an upload.
    """

    def __init__(self, *, write: Callable[..., None] = logs.log_event) -> None:
        """Write lines by `write(event, **fields)`."""
        self._write = write
        self._uploads = self._reports = self._refused = 0

    def count(self, submissions: Sequence[Submission]) -> None:
        """Count the uploads of one commit, their accepted reports and their refused reports."""
        reports = sum(len(submission.accepted) for submission in submissions)
        refused = sum(sum(submission.refusals.values()) for submission in submissions)
        self._uploads += len(submissions)
        self._reports += reports
        self._refused += refused

    def count_refused(self) -> None:
        """Count an upload that was refused as a whole."""
        self._refused += 1

    def write_line(self) -> None:
        """Write a line and set the numbers to 0; write nothing if no upload came."""
        uploads, reports, refused = self._uploads, self._reports, self._refused
        self._uploads = self._reports = self._refused = 0
        if uploads or refused:
            self._write("uploads received", uploads=uploads, reports=reports, refused=refused)


class Collector:
    """All parts of a running collector, which the endpoints share.

    It must be created inside the event loop that uses it, and closed by `close`.

    Attributes
    ----------
    settings : settings of the collector
    today : returns the present day (UTC)
    suspicious : treatment of reports with an impossible popcount
    rate_limit : limit on the uploads of one source
    body_budget : memory for the bodies of requests
    health : results of the last commits, probes and merges
    metrics : counters and gauges for Prometheus
    readers : worker processes that read counts
    results : computes estimates and stores them as files
    lists : uploaded lists of candidates
    accepted_params : registry in force, and parameters under which reports are accepted
    engine : the database
    """

    def __init__(
        self,
        settings: Settings,
        *,
        inputs: InputFiles | None = None,
        today: Callable[[], datetime.date] = utc_today,
    ) -> None:
        """Open the database, and start the worker processes and background tasks.

        The call may block while it waits for the database: up to `database_seconds` for the schema,
        and again for the inbox. No connection is accepted yet, so nothing else waits.

        Parameters
        ----------
        settings : settings of the collector
        inputs : contents of the input files, or None to read the files
        today : returns the present day (UTC)

        Raises
        ------
        RapporError
            An input file is invalid, the database did not respond in time, or its schema is wrong.
        """
        self.settings = settings
        self.today = today
        # These parts check and limit requests.
        self.suspicious = Suspicious(settings.suspicious)
        self.rate_limit = RateLimit(settings.rate)
        self.body_budget = BodyBudget(settings.max_bodies, proxies=settings.proxies)
        self.health = Health()
        # The readers compute answers for analysts. The processes of a pool start with their first
        # tasks.
        self.readers = _create_pool(
            settings, "rappor-reader", settings.readers, module="rappor_server.queries.counts"
        )
        self._closer = _create_pool(settings, "rappor-closer", 1)
        folder = Path(settings.analysis_folder)
        self.lists = CandidateLists(folder / "lists", days=settings.list_days)
        self.results = Results(
            _create_pool(
                settings, "rappor-decoder", settings.decoders, module="rappor.decoding.decoder"
            ),
            self.look_up,
            ResultFiles(folder / "results"),
            per_owner=settings.queries_per_token,
        )
        self._query_threads = ThreadPoolExecutor(
            _QUERY_THREADS, thread_name_prefix="rappor-look-up"
        )
        # Probes have a thread of their own, because queries to a hanging database block the other
        # threads.
        self._probe_thread = ThreadPoolExecutor(1, thread_name_prefix="rappor-probe")
        # The following attributes are the state of uploads.
        self._loop = asyncio.get_running_loop()
        # Uploads of the current turn of the event loop, which the writer does not have yet.
        self._new_uploads: list[tuple[Submission, ResponseFuture]] = []
        # Deadline of each upload that has no result, in seconds of the loop's clock.
        self._deadlines: dict[ResponseFuture, float] = {}
        # The argument is the number of queued uploads. The writer exists later than the metrics.
        self.metrics = Metrics(lambda: len(self._writer))
        # `adopt` sets the next four attributes, now and at each reload. It comes before the
        # database is opened: an invalid file must fail at once, and not after a minute of waiting.
        self.accepted_params: AcceptedParams
        self._keys: UploadKeys | None
        self._rules: dict[str, Rules]
        # Also the rules of metrics with `min_reports` = 0. Case: the minimum and the rate of a
        # metric are raised on one day. The reports that came before then join the first window.
        self._rules_with_rates: dict[str, Rules]
        self.adopt(inputs or InputFiles.read(settings, today=today()))
        wait = functools.partial(wait_for_database, seconds=settings.database_seconds)
        self.engine = wait(lambda: open_checked(settings.database))
        self._receiver = Receiver(
            wait(lambda: open_inbox(self.engine)),
            # A reload replaces `accepted_params`, so the method must be looked up at each call.
            merge_bytes=lambda *sizes: self.accepted_params.merge_bytes(*sizes),  # noqa: PLW0108
            today=self._determine_day_of_receipt,
            # A reload replaces the rules, too.
            rules=lambda: self._rules_with_rates,
            record_rules=functools.partial(record_rules, self.engine),
        )
        # Number of unreadable batches in the last status of the merge process. The log gets a line
        # only if the next status has a larger number.
        self._n_unreadable = 0
        self._merge_process = MergeProcess(settings.database, self._handle_merge_status)
        self._totals = UploadTotals()
        self._writer: Writer[ResponseFuture] = Writer(
            self._receiver.commit,
            deliver=self._deliver,
            observe=self._observe,
            max_queued=settings.max_queue,
        )
        self._tasks = [
            self._loop.create_task(self._fail_late_uploads()),
            self._loop.create_task(self._write_totals()),
            self._loop.create_task(self._watch_database()),
            self._loop.create_task(
                keep_closing(
                    self._closer.run,
                    self._closer.stop_idle,
                    self._find_due,
                    today,
                    after_closing=self.prepare_overviews if settings.pages else None,
                )
            ),
        ]

    async def close(self) -> None:
        """Commit the queued uploads, then close every part.

        The order matters. The computations of analysts end first, because nothing of theirs needs
        to be stored. The writer closes before the receiver that it writes to. The merge process
        closes after both, so that it merges the last batch. If a commit hangs, this method hangs,
        too, and the timer of `app/serving.py` kills the process.
        """
        for task in self._tasks:
            task.cancel()
        await self.results.close()
        await self._writer.close()
        await self._receiver.close()
        await self._merge_process.close()
        self._totals.write_line()
        await asyncio.to_thread(self._close_readers)

    def _determine_day_of_receipt(self) -> datetime.date | None:
        """Return today, or None on PostgreSQL, which inserts the day of its own clock.

        Several hosts may write to one PostgreSQL database. A host whose clock is wrong would
        otherwise count reports of one day on two days.
        """
        return None if self.engine.dialect.name == "postgresql" else self.today()

    def _close_readers(self) -> None:
        """End the threads and processes that read, then close the database."""
        for threads in (self._query_threads, self._probe_thread):
            threads.shutdown(wait=True, cancel_futures=True)
        self.readers.close()
        self._closer.close()
        self.engine.dispose()

    def adopt(self, inputs: InputFiles) -> None:
        """Put the registry, the keys and the stops of input files in force, at start or reload.

        A stop is the decision of the operator that all devices skip a metric until a day.

        An upload that is parsed but not yet committed keeps the decisions of the previous registry.

        Raises
        ------
        RapporError
            A file is invalid. Then nothing has changed.
        """
        accepted_params = inputs.parse_accepted_params(self.settings, today=self.today())
        registry, digest = accepted_params.registry, accepted_params.digest
        registries = (registry, *accepted_params.older)
        rules = rules_in_force(registries)
        rules_with_rates = rules_in_force(registries, include_trials=True)
        # No parameter sets were in force before the start.
        earlier: AcceptedParams | None = getattr(self, "accepted_params", None)
        # Parsing the keys is the last step that can fail, and it comes before the first assignment.
        # The keys and the registry in force therefore never belong to different reloads.
        self._keys = inputs.parse_upload_keys(self.settings)
        self.accepted_params = accepted_params
        self._rules, self._rules_with_rates = rules, rules_with_rates
        self.metrics.show_registry(digest, registry)
        logs.log_event("registry in force", metrics=len(registry), fingerprint=digest)
        # An operator who has written a stop in an emergency sees that all devices get it.
        for name, last_day in accepted_params.stops.list_active(self.today()).items():
            logs.log_event("stop in force", metric=name, until=str(last_day))
        # A name that is mistyped stops nothing, so the operator must see it.
        for name in accepted_params.stops.ignored:
            logs.log_event("stop ignored", level=logging.WARNING, metric=name)
        # Case: the operator has replaced the registry, and the setting `older` does not name the
        # earlier file. This may happen because a reload reads files and no settings. Reports of
        # devices with the earlier registry are then refused. This line of the log tells the
        # operator. Otherwise only the number of refusals would show it.
        for name in accepted_params.list_metrics_with_lost_params(earlier or accepted_params):
            logs.log_event("old parameters refused", level=logging.WARNING, metric=name)

    async def look_up(
        self,
        query: Callable[Concatenate[Engine, _P], _T],
        *arguments: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        """Return the result of `query(engine, *arguments, **options)`, which runs in a thread.

        The query must be short: two threads serve all callers.
        """
        call = functools.partial(query, self.engine, *arguments, **options)
        return await self._loop.run_in_executor(self._query_threads, call)

    async def _find_due(self) -> dict[str, Rules]:
        """Return the rules of blocks, by metric name, of the metrics with days to close.

        The call also stores the sampling rates and minimums of the registry in force.

        A day is to close if it has ended and has reports that are in no block.
        """
        # `due_days` are days that were not moved into blocks. `overdue_days` is how many days too
        # long deduplication keys have been stored. The gauges are set before the clocks are
        # checked. If this check fails, nothing is closed, and the gauges show it.
        due_days = await self.look_up(count_due_days, self._rules.keys(), today=self.today())
        overdue_days = await self.look_up(count_overdue_days, self.today())
        self.metrics.show_maintenance(max(due_days.values(), default=0), overdue_days)
        # A clock that is a day ahead would close today's blocks before their last reports came. The
        # earlier day of this host's clock and the database's clock is therefore used.
        today = await self.look_up(earlier_of_clocks, self.today())
        # Each call stores them, because another host may have another registry (`record_rules`),
        # and this host may have no upload today. The receiver stores them before the first upload.
        await self.look_up(record_rules, self._rules_with_rates, today)
        return await self.look_up(select_due, self._rules, today)

    async def find_candidates(self, metric: Metric, digest: str = "") -> CandidateSource | None:
        """Return the list of candidates of a query for a metric, or None if there is no list.

        Parameters
        ----------
        metric : the metric
        digest : digest of an uploaded list. If it is empty, the candidates of the registry are
            used, or the newest uploaded list if the registry has none.
        """
        return await asyncio.to_thread(
            find_candidates, metric, digest, registry=self.settings.registry, lists=self.lists
        )

    def counts_installations(self, metric: Metric) -> bool:
        """Return whether the registry counts the reports of a metric as active installations."""
        return self.accepted_params.registry.installations == metric.name

    async def make_overview_query(self, metric: Metric) -> OverviewQuery:
        """Return the query whose result the overview page of a metric shows."""
        through = await self.look_up(find_last_day, metric, today=self.today())
        source = await self.find_candidates(metric)
        subject = Subject(
            metric=metric,
            source=source,
            error_control=ErrorControl(),
            counts_installations=self.counts_installations(metric),
        )
        return OverviewQuery(subject=subject, through=through)

    async def prepare_overviews(self, progress: Progress = no_progress) -> None:
        """Compute the overviews of all metrics that are not computed yet; delete unused lists.

        The collector calls this method after blocks were closed, because new blocks change the
        overviews. Without it, the first reader of a day would wait for each overview. A metric
        without `min_reports` (a trial) is left out, because its counts change with every report.

        `progress` is called on the event loop with the number of computed overviews.
        """
        await asyncio.to_thread(self.lists.delete_unused)
        metrics = list(self.accepted_params.registry.values())
        queries = [
            await self.make_overview_query(metric) for metric in metrics if metric.min_reports
        ]
        queries = [query for query in queries if query.subject.has_candidates]
        for number, query in enumerate(queries):
            progress("results", number, len(queries))
            await self.results.prepare(query)
        progress("results", len(queries), len(queries))

    def allocate_for_analyst(self) -> BodyAllocation:
        """Return an allocation for the body of an analyst's request.

        The allocation leaves half of the memory for bodies free, for uploads. When it left nothing
        free, two queries of 64 MB filled the budget, and every upload got 503 until the queries
        ended.
        """
        return self.body_budget.allocate(min_free=self.settings.max_bodies // 2)

    def find_upload_key(self, authorization: str) -> str | None:
        """Return the name of the upload key in an Authorization header such as "Bearer KEY".

        Returns
        -------
        The name of the key; an empty name if the collector needs no key; None if the collector
        needs a key and the header has no valid key.
        """
        if self._keys is None:
            return ""
        return self._keys.find(authorization, today=self.today())

    def parse_upload(self, body: bytes) -> Submission:
        """Parse an upload, and accept or refuse each of its reports.

        Raises
        ------
        ReportError
            The bytes are not an upload, for example truncated JSON.
        """
        return read_upload(
            body,
            self.accepted_params,
            today=self.today(),
            max_reports=self.settings.max_reports,
            suspicious=self.suspicious,
        )

    def enqueue(self, submission: Submission) -> ResponseFuture:
        """Queue an upload, and return a future of the body of the response.

        The future raises StoreError if the upload was not stored, or not in time. A late upload may
        still be stored after the error. The device then retries, and the upload counts once.
        """
        response: ResponseFuture = self._loop.create_future()
        # The first new upload of a turn of the event loop schedules the call for all of them.
        if not self._new_uploads:
            self._loop.call_soon(self._submit_new_uploads)
        self._new_uploads.append((submission, response))
        self._deadlines[response] = self._loop.time() + self.settings.commit_seconds
        return response

    def _submit_new_uploads(self) -> None:
        """Pass all uploads that arrived in this turn of the event loop to the writer in one call.

        One call for each upload would wake the task of the writer each time.
        """
        uploads, self._new_uploads = self._new_uploads, []
        try:
            self._writer.submit(uploads)
        except StoreError as error:
            # The queue is full (`max_queue`), or the collector is closing: 503 for all of them.
            self._resolve([(response, error) for _, response in uploads])

    async def _fail_late_uploads(self) -> None:
        """Fail the uploads whose deadlines have passed, ten times in each `commit_seconds`.

        An upload is therefore failed at most a tenth of `commit_seconds` after its deadline. One
        scan of all uploads costs less than a timer for each upload.
        """
        while True:
            await asyncio.sleep(self.settings.commit_seconds / 10)
            now = self._loop.time()
            overdue = [response for response, until in self._deadlines.items() if until < now]
            if overdue:
                # The database hangs: a failing database would have failed the commit already.
                seconds = f"{self.settings.commit_seconds:g} seconds"
                error = StoreError(f"the database did not commit within {seconds}: retry")
                self.health.record_failure(str(error))
                self._resolve([(response, error) for response in overdue])
                # The devices of these uploads have their 503. If the uploads stayed in the queue,
                # they would fill the queue while the database hangs.
                self._writer.drop(asyncio.Future.done)

    async def _watch_database(self) -> None:
        """Probe the database every two seconds, and show readiness to Prometheus.

        Without a failure the probe is a query, which notices a database that is away although no
        upload comes. After a failure the probe is a commit, because only a commit proves that
        uploads can be stored again: a full disk can still be read.
        """
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            if self.health.is_failing():
                self._writer.probe()
            else:
                with contextlib.suppress(RuntimeError):  # `close` has ended the thread
                    await self._loop.run_in_executor(self._probe_thread, self._ping_database)
            self.metrics.show_health(is_ready=self.health.failure_reason() is None)

    def _handle_merge_status(self, status: MergeStatus) -> None:
        """Record a status that the merge process has sent; log batches that no merge could read.

        A batch is unreadable if the disk has damaged it, or a later version wrote it. The merge
        process has moved it to a table of its own, so that it does not stop the merges.
        """
        self._receiver.waiting_bytes = status.contents.n_bytes
        self._receiver.waiting_reports = status.contents.reports
        self.metrics.show_inbox(status)
        self.health.record_merge(status.failure, status.oldest_seconds)
        n_unreadable = status.contents.unreadable
        if n_unreadable > self._n_unreadable:
            logs.log_event("unreadable batches", level=logging.ERROR, batches=n_unreadable)
        self._n_unreadable = n_unreadable

    def _ping_database(self) -> None:
        """Query the database, and record the response or the failure. Runs in a thread."""
        try:
            ping(self.engine)
            self.health.record_response()
        except StoreError as error:
            self.health.record_failure(str(error))

    async def _write_totals(self) -> None:
        """Write a line of totals to the log once a minute."""
        while True:
            await asyncio.sleep(_TOTALS_SECONDS)
            self._totals.write_line()

    def _observe(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Count a successful commit and its uploads.

        Parameters
        ----------
        seconds : duration of the commit
        submissions : uploads of the batch; empty for a probe
        """
        self.health.record_commit()
        self.metrics.observe_commit(seconds, submissions)
        self._totals.count(submissions)

    def count_refusal(self, reason: str) -> None:
        """Count an upload that was refused as a whole.

        Parameters
        ----------
        reason : reason in the counts of refusals, for example "no-key" or "too-many"
        """
        # The database counts refusals by (metric, reason). A refused upload has no metric.
        self._writer.refuse("", reason)
        self._totals.count_refused()
        self.metrics.refusals.labels(reason).inc()

    def _deliver(self, results: Sequence[tuple[ResponseFuture, Result]]) -> None:
        """Resolve the uploads of a batch, and record a failure of the commit.

        Parameters
        ----------
        results : future, and body of the response or error, of each upload of the batch
        """
        failures = [result for _, result in results if isinstance(result, StoreError)]
        if failures:  # a commit fails for all its uploads with the same error
            self.health.record_failure(str(failures[0]))
        self._resolve(results)

    def _resolve(self, results: Sequence[tuple[ResponseFuture, Result]]) -> None:
        """Set the result of each future, which wakes the request that waits for it."""
        for response, result in results:
            self._deadlines.pop(response, None)
            # The client has disconnected, which cancels the future, or the upload was late and
            # failed already. A second result would raise InvalidStateError.
            if response.done():
                continue
            if isinstance(result, bytes):
                response.set_result(result)
            else:
                response.set_exception(result)


def _create_pool(settings: Settings, name: str, size: int, *, module: str | None = None) -> Pool:
    """Return a pool of worker processes with the limits of the settings.

    Parameters
    ----------
    settings : settings of the collector
    name : name of the processes for `ps` and `top`
    size : number of processes
    module : module that a process imports before its first task, so that the import of numpy and
        scipy is no part of a task's time limit
    """
    limits = Limits(seconds=settings.decode_seconds, n_bytes=settings.decode_bytes)
    return Pool(
        name,
        database=settings.database,
        size=size,
        limits=limits,
        max_waiting=_MAX_WAITING_TASKS,
        module=module,
    )


def wait_for_database(query: Callable[[], _T], *, seconds: float) -> _T:
    """Return the result of a query; retry while the database does not respond.

    Collector and database may start at the same time, for example after a reboot. Each failed
    attempt writes the line `waiting for the database` with the reason to the log.

    Parameters
    ----------
    query : the query
    seconds : longest time of all attempts and pauses together

    Raises
    ------
    StoreError
        The database did not respond in time.
    SchemaError
        The database has the schema of another version. Waiting does not help, so the first attempt
        raises.
    DatabaseFileError
        The folder of an SQLite file does not exist, or the inbox is missing. Waiting does not help.
    """
    until = time.monotonic() + seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return query()
        except (SchemaError, DatabaseFileError):
            raise
        except StoreError as error:
            if time.monotonic() + pause > until:
                raise
            logs.log_event("waiting for the database", level=logging.WARNING, reason=str(error))
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)
