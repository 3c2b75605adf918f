"""One running collector: its parts, opened and closed in order."""

from __future__ import annotations

import asyncio
import datetime
import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from rappor.errors import RapporError
from rappor.files import read_text
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server import logs
from rappor_server.activity import TICK_SECONDS, Activity
from rappor_server.analysis.request import CandidatesFile
from rappor_server.analysis.worker import Analyst
from rappor_server.errors import StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.validate import Submission, Suspicious, read_upload
from rappor_server.prometheus import Metrics
from rappor_server.request_limits import Budget, RateLimit
from rappor_server.settings import Settings
from rappor_server.storage.group_commit import Result, Writer
from rappor_server.storage.store import Store

Answer = asyncio.Future[bytes]


def utc_today() -> datetime.date:
    """Return the day (UTC)."""
    return datetime.datetime.now(datetime.UTC).date()


class Collector:
    """Everything that the endpoints share; it is created inside the event loop that it serves."""

    def __init__(
        self, settings: Settings, *, today: Callable[[], datetime.date] = utc_today
    ) -> None:
        """Open the registry and the database, and start the writer."""
        self.settings = settings
        self.today = today
        self.accepted_params = load_accepted_params(settings, today=today())
        self.suspicious = Suspicious(settings.suspicious)
        self.rate = RateLimit(settings.rate)
        self.bodies = Budget(settings.max_bodies)
        self.analyst = Analyst(seconds=settings.decode_seconds)
        self._key = settings.upload_key()
        self._loop = asyncio.get_running_loop()
        self._fresh: list[tuple[Submission, Answer]] = []
        self._waiting: dict[Answer, float] = {}
        self.store = Store.open(settings.database)
        self.metrics = Metrics(lambda: len(self._writer))
        self._activity = Activity()
        self._writer: Writer[Answer] = Writer(
            self.store,
            deliver=self._deliver,
            today=today,
            observe=self._observe,
            max_queue=settings.max_queue,
        )
        self._tasks = [
            self._loop.create_task(self._give_up_late()),
            self._loop.create_task(self._tell_activity()),
        ]

    def close(self) -> None:
        """Commit the uploads that wait, then close every part."""
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        self._activity.tell()
        self.analyst.close()
        self.store.close()

    def reload(self) -> None:
        """Read the registry again; if it is wrong, the old one stays in force."""
        try:
            self.accepted_params = load_accepted_params(self.settings, today=self.today())
        except RapporError as error:
            logs.event("registry refused", level=logging.ERROR, reason=str(error))
        else:
            logs.event("registry reloaded", metrics=len(self.accepted_params.registry))

    def may_send(self, authorization: str) -> bool:
        """Tell whether a request carries the key for sending, or none is needed."""
        if self._key is None:
            return True
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._key}".encode())

    def read(self, body: bytes) -> Submission:
        """Read an upload; ReportError for bytes that are none."""
        return read_upload(
            body,
            self.accepted_params,
            today=self.today(),
            max_reports=self.settings.max_reports,
            suspicious=self.suspicious,
        )

    async def store_upload(self, submission: Submission) -> bytes:
        """Return the answer once the upload is on the disk; StoreError or ConflictError otherwise.

        An upload that takes too long may still be stored; its retry then gets the stored answer.
        """
        answer: Answer = self._loop.create_future()
        if not self._fresh:
            self._loop.call_soon(self._hand_over)
        self._fresh.append((submission, answer))
        self._waiting[answer] = self._loop.time() + self.settings.commit_seconds
        return await answer

    def _hand_over(self) -> None:
        """Give the writer all uploads that this turn of the loop has read, at once.

        One by one, its thread would wake for the first and contend with the reading of the rest.
        """
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
            self._resolve([(answer, _too_late(self.settings.commit_seconds)) for answer in late])

    async def _tell_activity(self) -> None:
        """Write what has arrived to the log, once a minute."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._activity.tell()

    def _observe(self, seconds: float, submissions: Sequence[Submission]) -> None:
        """Count a group commit, from the writer's thread."""
        self.metrics.observe_group(seconds, submissions)
        self._activity.count(submissions)

    def refuse(self, reason: str) -> None:
        """Count an upload that was refused whole."""
        self._writer.refuse("", reason)
        self._activity.count_refused()
        self.metrics.refusals.labels(reason).inc()

    def candidates_file(self, metric: Metric) -> CandidatesFile | None:
        """Return the file of candidates that a metric names, None if it names none."""
        if metric.candidates is None:
            return None
        path = Path(self.settings.registry).parent / metric.candidates
        return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)

    def _deliver(self, results: Sequence[tuple[Answer, Result]]) -> None:
        """Wake the requests of a group, from the writer's thread."""
        self._loop.call_soon_threadsafe(self._resolve, results)

    def _resolve(self, results: Sequence[tuple[Answer, Result]]) -> None:
        for answer, result in results:
            self._waiting.pop(answer, None)
            if answer.done():  # the sender has gone, or was told to retry
                continue
            if isinstance(result, bytes):
                answer.set_result(result)
            else:
                answer.set_exception(result)


def _too_late(seconds: float) -> StoreError:
    return StoreError(f"the database did not commit within {seconds:g} seconds: retry")


def load_accepted_params(settings: Settings, *, today: datetime.date) -> AcceptedParams:
    """Read the registry and the older ones; what has expired before this year costs nothing."""
    text = read_text(settings.registry)
    current = Registry.loads(text, path=settings.registry, today=today)
    older = [Registry.load(path, today=today) for path in settings.older]
    return AcceptedParams(current, older, text=text)
