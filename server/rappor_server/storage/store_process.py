"""A store whose commits run in a process of their own.

Reading requests and writing the database would otherwise take turns: after every statement the
writer's thread waits until the event loop lets go of the interpreter.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Sequence
from typing import Any

from rappor_server import logs, processes
from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.store import Refusals, Store


class StoreProcess:
    """What a `Writer` needs of a store, done by another process; for one thread."""

    def __init__(self, database: str) -> None:
        """Start the process; it opens the database when it is asked for the first time."""
        self._database = database
        self._process, self._link = processes.start(_serve, database)

    def commit(
        self, submissions: Sequence[Submission], refusals: Refusals, *, today: datetime.date
    ) -> list[bytes | ConflictError]:
        """Store a group of uploads as `Store.commit` does.

        If the process ends meanwhile, another one stores the group again: what was stored before
        is not counted twice.
        """
        answer: list[bytes | ConflictError] = self._ask("commit", submissions, refusals, today)
        return answer

    def erase_traces(self) -> bool:
        """Empty the log of what was committed, as `Store.erase_traces` does."""
        return bool(self._ask("erase_traces"))

    def close(self) -> None:
        """End the process; what it does is done first."""
        self._link.close()
        self._process.join()

    def _ask(self, *question: Any) -> Any:
        try:
            answer = self._exchange(question)
        except (EOFError, OSError):
            self._start_again()
            try:
                answer = self._exchange(question)
            except (EOFError, OSError):
                raise StoreError("the process that writes the database has ended") from None
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _exchange(self, question: tuple[Any, ...]) -> Any:
        self._link.send(question)
        return self._link.recv()

    def _start_again(self) -> None:
        self.close()
        code = self._process.exitcode
        logs.event("writer ended", level=logging.ERROR, exit_code=code)
        self._process, self._link = processes.start(_serve, self._database)


def _serve(link: processes.Link, database: str) -> None:
    """Do what is asked until the parent process is gone."""
    processes.begin("rappor-writer")
    store: Store | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = link.recv()
            try:
                store = store or Store.open(database)
                answer = _answer(store, *question)
            except StoreError as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - its text may hold what was sent
                kind = type(error).__name__
                logs.event("commit failed", level=logging.ERROR, kind=kind)
                answer = StoreError(f"the store failed: {kind}")
            link.send(answer)
    if store is not None:
        store.close()


def _answer(store: Store, kind: str, *arguments: Any) -> Any:
    if kind == "erase_traces":
        return store.erase_traces()
    submissions, refusals, today = arguments
    return store.commit(submissions, refusals, today=today)
