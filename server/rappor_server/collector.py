"""One running collector: its parts, put together and taken down in order."""

from __future__ import annotations

import asyncio
import datetime
import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from rappor.errors import RapporError
from rappor.files import read_text
from rappor.registry.registry import Registry
from rappor_server import logs
from rappor_server.analysis.worker import Analyst
from rappor_server.errors import StoreError
from rappor_server.ingest.accepted_params import Known
from rappor_server.ingest.validate import Submission, Suspicion, read_upload
from rappor_server.prometheus import Metrics
from rappor_server.request_limits import RateLimit
from rappor_server.settings import Settings
from rappor_server.storage.group_commit import Result, Writer
from rappor_server.storage.store import Store

Answer = asyncio.Future[bytes]


def utc_today() -> datetime.date:
    """Return the day (UTC)."""
    return datetime.datetime.now(datetime.UTC).date()


class Collector:
    """Everything that the endpoints share; made inside the event loop that it serves."""

    def __init__(
        self, settings: Settings, *, today: Callable[[], datetime.date] = utc_today
    ) -> None:
        """Open the registry and the database, and start the writer."""
        self.settings = settings
        self.today = today
        self.known = load_known(settings)
        self.suspicion = Suspicion(settings.suspicious)
        self.rate = RateLimit(settings.rate)
        self.analyst = Analyst(seconds=settings.decode_seconds)
        self._key = settings.upload_key()
        self._loop = asyncio.get_running_loop()
        self._fresh: list[tuple[Submission, Answer]] = []
        self._waiting: dict[Answer, float] = {}
        self._impatience = self._loop.create_task(self._give_up_late())
        self.store = Store.open(settings.database)
        self.metrics = Metrics(lambda: len(self._writer))
        self._writer: Writer[Answer] = Writer(
            self.store,
            deliver=self._deliver,
            today=today,
            observe=self.metrics.observe_group,
            max_queue=settings.max_queue,
        )

    def close(self) -> None:
        """Commit what was taken, then let go of everything."""
        self._impatience.cancel()
        self._writer.close()
        self.analyst.close()
        self.store.close()

    def reload(self) -> None:
        """Read the registry again; one that is wrong leaves the old one in force."""
        try:
            self.known = load_known(self.settings)
        except RapporError as error:
            logs.event("registry refused", level=logging.ERROR, reason=str(error))
        else:
            logs.event("registry reloaded", metrics=len(self.known.registry))

    def may_send(self, authorization: str) -> bool:
        """Tell whether a request carries the key for sending, if one is needed."""
        if self._key is None:
            return True
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._key}".encode())

    def read(self, body: bytes) -> Submission:
        """Read an upload; ReportError if it is none."""
        return read_upload(
            body,
            self.known,
            today=self.today(),
            max_reports=self.settings.max_reports,
            suspicion=self.suspicion,
        )

    async def store_upload(self, submission: Submission) -> bytes:
        """Return the answer once it is on the disk; StoreError or ConflictError otherwise.

        One that takes too long may still be stored; its retry is then known.
        """
        answer: Answer = self._loop.create_future()
        if not self._fresh:
            self._loop.call_soon(self._hand_over)
        self._fresh.append((submission, answer))
        self._waiting[answer] = self._loop.time() + self.settings.commit_seconds
        return await answer

    def _hand_over(self) -> None:
        """Give the writer what this turn of the loop has read, at once.

        One by one, its thread would wake for the first and contend with the reading of the rest.
        """
        fresh, self._fresh = self._fresh, []
        try:
            self._writer.submit(fresh)
        except StoreError as error:
            self._resolve([(answer, error) for _, answer in fresh])

    async def _give_up_late(self) -> None:
        """Fail the uploads that have waited too long; a timer for each would cost more."""
        while True:
            await asyncio.sleep(self.settings.commit_seconds / 10)
            now = self._loop.time()
            late = [answer for answer, until in self._waiting.items() if until < now]
            self._resolve([(answer, StoreError("the database takes its time")) for answer in late])

    def refuse(self, reason: str) -> None:
        """Count an upload that was sunk whole."""
        self._writer.refuse("", reason)
        self.metrics.refusals.labels(reason).inc()

    def candidates_file(self, name: str) -> str | None:
        """Return the path of a metric's own candidates, None if it names none."""
        named = self.known.registry[name].candidates
        return None if named is None else str(Path(self.settings.registry).parent / named)

    def _deliver(self, results: Sequence[tuple[Answer, Result]]) -> None:
        """Wake the requests of a group, from the writer's thread."""
        self._loop.call_soon_threadsafe(self._resolve, results)

    def _resolve(self, results: Sequence[tuple[Answer, Result]]) -> None:
        for answer, result in results:
            self._waiting.pop(answer, None)
            if answer.done():  # the sender has gone, or was told to come again
                continue
            if isinstance(result, bytes):
                answer.set_result(result)
            else:
                answer.set_exception(result)


def load_known(settings: Settings) -> Known:
    """Read the registry and the older ones."""
    text = read_text(settings.registry)
    current = Registry.loads(text, path=settings.registry)
    return Known(current, [Registry.load(path) for path in settings.older], text=text)
