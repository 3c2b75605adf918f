"""One running collector: its parts, opened and closed in order."""

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

from rappor.estimator.error_control import ErrorControl
from rappor.registry.metric import Metric
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base import logs
from rappor_server.base.errors import SchemaError, StoreError
from rappor_server.base.request_limits import AddressShare, BodyBudget, RateLimit
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.upload_keys import UploadKeys
from rappor_server.ingest.validate import Submission, Suspicious, read_upload
from rappor_server.operations.activity import TICK_SECONDS, Activity
from rappor_server.operations.closing import earlier_of_clocks, keep_closing, select_due
from rappor_server.operations.health import Health
from rappor_server.operations.prometheus import Metrics
from rappor_server.queries.candidate_lists import CandidateLists
from rappor_server.queries.candidate_sources import CandidateSource, find_candidates
from rappor_server.queries.page_queries import OverviewQuery
from rappor_server.queries.query import Subject
from rappor_server.queries.result_files import ResultFiles
from rappor_server.queries.results import Results
from rappor_server.queries.worker import Limits, Pool
from rappor_server.storage.batch_commit import Receiver, Result, Writer
from rappor_server.storage.blocks import Rules, find_last_day, rules_in_force
from rappor_server.storage.database import open_checked, ping, utc_today
from rappor_server.storage.inbox import open_inbox
from rappor_server.storage.merge_process import MergeProcess, MergeStatus

Answer = asyncio.Future[bytes]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
_PROBE_SECONDS: Final = 2.0
_LOOK_UPS: Final = 2
_MOST_WAITING: Final = 8
"""Questions that wait for a process of their kind, before others are turned away."""


class Collector:
    """Everything that the endpoints share; it is created inside the event loop that it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        inputs: InputFiles | None = None,
        today: Callable[[], datetime.date] = utc_today,
    ) -> None:
        """Open the database and start the writer; without inputs, read the files first."""
        self.settings = settings
        self.today = today
        self.suspicious = Suspicious(settings.suspicious)
        self.rate = RateLimit(settings.rate)
        self.bodies = BodyBudget(settings.max_bodies, proxies=settings.proxies)
        self.health = Health()
        self.readers = _pool(
            settings, "rappor-reader", settings.readers, module="rappor_server.queries.counts"
        )
        self._closer = _pool(settings, "rappor-closer", 1)
        folder = Path(settings.analysis_folder)
        self.lists = CandidateLists(folder / "lists", days=settings.list_days)
        self.results = Results(
            _pool(settings, "rappor-decoder", settings.decoders, module="rappor.decoding.decoder"),
            self.look_up,
            ResultFiles(folder / "results"),
            per_owner=settings.queries_per_token,
        )
        self._look_ups = ThreadPoolExecutor(_LOOK_UPS, thread_name_prefix="rappor-look-up")
        self._probe = ThreadPoolExecutor(1, thread_name_prefix="rappor-probe")
        self._loop = asyncio.get_running_loop()
        self._fresh: list[tuple[Submission, Answer]] = []
        self._waiting: dict[Answer, float] = {}
        self.metrics = Metrics(lambda: len(self._writer))
        self.accepted_params: AcceptedParams
        self._keys: UploadKeys | None
        self.adopt(inputs or InputFiles.read(settings, today=today()))
        wait = functools.partial(wait_for_database, seconds=settings.database_seconds)
        self.engine = wait(lambda: open_checked(settings.database))
        self._receiver = Receiver(
            wait(lambda: open_inbox(self.engine)),
            merge_bytes=lambda *n: self.accepted_params.merge_bytes(*n),  # noqa: PLW0108 - may be others
            today=self._day_of_receipt,
        )
        self._n_unreadable = 0
        self._merge_process = MergeProcess(settings.database, self._handle_merge_status)
        self._activity = Activity()
        self._writer: Writer[Answer] = Writer(
            self._receiver.commit,
            deliver=self._deliver,
            observe=self._observe,
            max_queued=settings.max_queue,
        )
        self._tasks = [
            self._loop.create_task(self._give_up_late()),
            self._loop.create_task(self._tell_activity()),
            self._loop.create_task(self._watch_database()),
            self._loop.create_task(
                keep_closing(
                    self._closer.run,
                    self._closer.stop_idle,
                    self._find_due,
                    today,
                    then=self._prepare_overviews if settings.pages else None,
                )
            ),
        ]

    async def close(self) -> None:
        """Commit the uploads that wait, then close every part."""
        for task in self._tasks:
            task.cancel()
        await self.results.close()
        await self._writer.close()
        await self._receiver.close()
        await self._merge_process.close()
        self._activity.log_totals()
        await asyncio.to_thread(self._close_readers)

    def _day_of_receipt(self) -> datetime.date | None:
        """Return today; None on PostgreSQL, whose clock all hosts share."""
        return None if self.engine.dialect.name == "postgresql" else self.today()

    def _close_readers(self) -> None:
        for threads in (self._look_ups, self._probe):
            threads.shutdown(wait=True, cancel_futures=True)
        self.readers.close()
        self._closer.close()
        self.engine.dispose()

    def adopt(self, inputs: InputFiles) -> None:
        """Let inputs be in force from now on; if they are wrong, those before stay."""
        known = inputs.accepted_params(self.settings, today=self.today())
        self._keys = inputs.upload_keys(self.settings)
        self.accepted_params = known
        self._rules = rules_in_force((known.registry, *known.older))
        self.metrics.show_registry(known.digest, known.registry)
        logs.event("registry in force", metrics=len(known.registry), fingerprint=known.digest)

    async def look_up(
        self, ask: Callable[Concatenate[Engine, _P], _T], *arguments: _P.args, **more: _P.kwargs
    ) -> _T:
        """Ask the database something quick, in a thread for such questions only."""
        asked = functools.partial(ask, self.engine, *arguments, **more)
        return await self._loop.run_in_executor(self._look_ups, asked)

    async def _find_due(self) -> dict[str, Rules]:
        """Return the rules of the metrics that have days whose blocks are to be closed."""
        today = await self.look_up(earlier_of_clocks, self.today())
        return await self.look_up(select_due, self._rules, today)

    async def find_candidates(self, metric: Metric, digest: str = "") -> CandidateSource | None:
        """Return the list of a digest; else the registry's candidates, else the newest list."""
        return await asyncio.to_thread(
            find_candidates, metric, digest, registry=self.settings.registry, lists=self.lists
        )

    async def overview(self, metric: Metric) -> OverviewQuery:
        """Return the query of a metric's page."""
        through = await self.look_up(find_last_day, metric, today=self.today())
        source = await self.find_candidates(metric)
        subject = Subject(metric=metric, source=source, detection=ErrorControl())
        return OverviewQuery(subject=subject, through=through)

    async def _prepare_overviews(self) -> None:
        """Compute the overviews of metrics whose blocks were closed since; delete unused lists."""
        await asyncio.to_thread(self.lists.delete_unused)
        metrics = list(self.accepted_params.registry.values())
        tasks = [await self.overview(each) for each in metrics if each.min_reports]
        await self.results.prepare(each for each in tasks if each.subject.has_candidates)

    def share_of_readers(self) -> AddressShare:
        """Return a share for what people send who read; half of the budget is left to devices."""
        return self.bodies.share(spare=self.settings.max_bodies // 2)

    def sender(self, authorization: str) -> str | None:
        """Return the name of the upload key that a request carries, None if it may not send.

        The name is empty where no key is needed.
        """
        if self._keys is None:
            return ""
        return self._keys.find(authorization, today=self.today())

    def read(self, body: bytes) -> Submission:
        """Read an upload, and store nothing; ReportError for other bytes."""
        return read_upload(
            body,
            self.accepted_params,
            today=self.today(),
            max_reports=self.settings.max_reports,
            suspicious=self.suspicious,
        )

    def enqueue(self, submission: Submission) -> Answer:
        """Return the answer to come: once the upload is on the disk; StoreError.

        An upload that takes too long may still be stored; its retry then counts nothing again.
        """
        answer: Answer = self._loop.create_future()
        if not self._fresh:
            self._loop.call_soon(self._hand_over)
        self._fresh.append((submission, answer))
        self._waiting[answer] = self._loop.time() + self.settings.commit_seconds
        return answer

    def _hand_over(self) -> None:
        """Give the writer all uploads that this turn of the loop has read, at once."""
        fresh, self._fresh = self._fresh, []
        try:
            self._writer.submit(fresh)
        except StoreError as error:
            self._resolve([(answer, error) for _, answer in fresh])

    async def _give_up_late(self) -> None:
        """Fail the uploads that have waited too long; a timer for each one would cost more."""
        while True:
            await asyncio.sleep(self.settings.commit_seconds / 10)
            now = self._loop.time()
            late = [answer for answer, until in self._waiting.items() if until < now]
            if late:
                seconds = f"{self.settings.commit_seconds:g} seconds"
                error = StoreError(f"the database did not commit within {seconds}: retry")
                self.health.record_failure(str(error))
                self._resolve([(answer, error) for answer in late])
                self._writer.drop(asyncio.Future.done)

    async def _watch_database(self) -> None:
        """Ask the database every other second whether it is there; if it fails, try to commit."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            if self.health.is_failing():
                self._writer.probe()
            else:
                with contextlib.suppress(RuntimeError):  # the threads have ended
                    await self._loop.run_in_executor(self._probe, self._look_at_database)
            self.metrics.show_health(is_ready=self.health.failure_reason() is None)

    def _handle_merge_status(self, status: MergeStatus) -> None:
        """Record a status of the merge process."""
        self._receiver.waiting_bytes = status.contents.n_bytes
        self._receiver.waiting_reports = status.contents.reports
        self.metrics.show_inbox(status)
        self.health.record_merge(status.failure, status.oldest_seconds)
        n_unreadable = status.contents.unreadable
        if n_unreadable > self._n_unreadable:
            logs.event(
                "unreadable batches", level=logging.ERROR, batches=status.contents.unreadable
            )
        self._n_unreadable = status.contents.unreadable

    def _look_at_database(self) -> None:
        try:
            ping(self.engine)
            self.health.record_response()
        except StoreError as error:
            self.health.record_failure(str(error))

    async def _tell_activity(self) -> None:
        """Write what has arrived to the log, once a minute."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._activity.log_totals()

    def _observe(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Count a group commit."""
        self.health.record_commit()
        self.metrics.observe_commit(seconds, submissions)
        self._activity.count(submissions)

    def refuse(self, reason: str) -> None:
        """Count an upload that was refused whole."""
        self._writer.refuse("", reason)
        self._activity.count_refused()
        self.metrics.refusals.labels(reason).inc()

    def _deliver(self, results: Sequence[tuple[Answer, Result]]) -> None:
        """Wake the requests of a group."""
        failures = [result for _, result in results if isinstance(result, StoreError)]
        if failures:
            self.health.record_failure(str(failures[0]))
        self._resolve(results)

    def _resolve(self, results: Sequence[tuple[Answer, Result]]) -> None:
        for answer, result in results:
            self._waiting.pop(answer, None)
            if answer.done():  # the sender has gone, or was told to retry
                continue
            if isinstance(result, bytes):
                answer.set_result(result)
            else:
                answer.set_exception(result)


def _pool(settings: Settings, name: str, size: int, *, module: str | None = None) -> Pool:
    limits = Limits(seconds=settings.decode_seconds, n_bytes=settings.decode_bytes)
    return Pool(
        name,
        database=settings.database,
        size=size,
        limits=limits,
        max_waiting=_MOST_WAITING,
        module=module,
    )


def wait_for_database(ask: Callable[[], _T], *, seconds: float) -> _T:
    """Return what the database answers; wait for one that is not up yet, and say so.

    Raises StoreError when the time is over, SchemaError at once.
    """
    until = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return ask()
        except SchemaError:
            raise
        except StoreError as error:
            if time.monotonic() + pause > until:
                raise
            logs.event("waiting for the database", level=logging.WARNING, reason=str(error))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
