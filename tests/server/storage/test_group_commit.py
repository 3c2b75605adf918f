"""The writer: it groups uploads, bounds its queue, drains it, and recovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from collectors import TODAY, submission_of, total, upload_of
from rappor_server.errors import StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.database import migrate
from rappor_server.storage.group_commit import Writer
from rappor_server.storage.store import Store
from sqlalchemy import text


class Slow:
    """A store in memory whose commits wait for a permit, or fail."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.groups: list[list[Submission]] = []
        self.refusals: list[dict[Any, int]] = []
        self.is_broken = False
        self.n_erased = 0
        self.is_read = False
        self.error: Exception = StoreError("gone")

    def commit(self, submissions: Sequence[Submission], refusals: Any, *, today: Any) -> list[Any]:
        """Store a group."""
        assert today == TODAY
        assert self.permits.acquire(timeout=30)
        if self.is_broken:
            raise self.error
        self.groups.append(list(submissions))
        self.refusals.append(dict(refusals))
        return [submission.answer for submission in submissions]

    def erase_traces(self) -> bool:
        """Say that somebody reads, or that the log is empty."""
        self.n_erased += 1
        return not self.is_read


class Desk:
    """A writer before a slow store, and what it delivered."""

    def __init__(self, **settings: Any) -> None:
        self.store = Slow()
        self.delivered: dict[int, Any] = {}
        self.observed: list[int] = []
        self.writer: Writer[int] = Writer(
            self.store,
            deliver=self.delivered.update,
            today=lambda: TODAY,
            observe=lambda _, group: self.observed.append(len(group)),
            **settings,
        )

    def submit(self, *tickets: int) -> None:
        """Queue an upload for each ticket."""
        self.writer.submit([(submission_of(upload_of()), ticket) for ticket in tickets])

    def wait(self, n: int) -> None:
        """Wait until n tickets were delivered."""
        end = time.monotonic() + 30
        while len(self.delivered) < n:
            assert time.monotonic() < end
            time.sleep(0.002)


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    """Writers that are closed at the end of a test."""
    opened: list[Desk] = []
    yield opened
    for desk in opened:
        desk.store.permits.release(1000)
        desk.writer.close()


def test_uploads_share_a_commit(desks: list[Desk]) -> None:
    """Uploads that come during a commit share the next one; none is delivered before its commit."""
    desks.append(desk := Desk())
    desk.submit(0)
    while len(desk.writer):
        time.sleep(0.001)
    desk.submit(*range(1, 40))
    assert desk.delivered == {}
    desk.store.permits.release(2)
    desk.wait(40)
    assert [len(group) for group in desk.store.groups] == [1, 39]
    assert desk.observed == [1, 39]
    assert all(isinstance(answer, bytes) for answer in desk.delivered.values())


def test_groups_are_bounded(desks: list[Desk]) -> None:
    """No group has more uploads than the bound."""
    desks.append(desk := Desk(max_batch=8))
    desk.submit(*range(30))
    desk.store.permits.release(100)
    desk.wait(30)
    assert max(len(group) for group in desk.store.groups) <= 8


def test_lingering_gathers_a_group(desks: list[Desk]) -> None:
    """A writer that lingers puts uploads of the same moment into one group."""
    desks.append(desk := Desk(linger=0.3))
    desk.store.permits.release(100)
    desk.submit(0)
    time.sleep(0.01)
    desk.submit(1, 2)
    desk.wait(3)
    assert [len(group) for group in desk.store.groups] == [3]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition comes true."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_log_is_emptied_soon_after_a_commit(desks: list[Desk]) -> None:
    """It is emptied once after a commit, without another upload, and again while it is read."""
    desks.append(desk := Desk(trace_seconds=0.01))
    desk.store.permits.release(100)
    desk.store.is_read = True
    desk.submit(0)
    wait_for(lambda: desk.store.n_erased >= 2)
    desk.store.is_read = False
    seen = desk.store.n_erased
    wait_for(lambda: desk.store.n_erased > seen)
    desk.submit(1)
    wait_for(lambda: desk.store.n_erased > seen + 1)


def test_log_of_sqlite_holds_nothing_after_a_moment(tmp_path: Path) -> None:
    """Once the readers of an earlier state have gone, the log is an empty file."""
    url = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
    migrate(url)
    store = Store.open(url)
    log = tmp_path / "counts.sqlite3-wal"
    writer: Writer[int] = Writer(
        store, deliver=lambda _: None, today=lambda: TODAY, trace_seconds=0.01
    )
    with store.engine.connect() as reader:
        reader.execute(text("SELECT COUNT(*) FROM tally"))
        writer.submit([(submission_of(upload_of()), 0)])
        wait_for(lambda: not len(writer) and log.stat().st_size > 0)
    wait_for(lambda: log.stat().st_size == 0)
    assert total(store) == 1
    writer.close()
    store.close()


def test_full_queue_turns_away(desks: list[Desk]) -> None:
    """A full queue raises a retryable error, and keeps the uploads that it has."""
    desks.append(desk := Desk(max_queue=5))
    desk.submit(0)
    while len(desk.writer):
        time.sleep(0.001)
    desk.submit(*range(1, 6))
    assert len(desk.writer) == 5
    with pytest.raises(StoreError) as caught:
        desk.submit(6)
    assert caught.value.retryable
    desk.store.permits.release(100)
    desk.wait(6)


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("a bug")])
def test_failed_group_is_told_and_the_writer_goes_on(desks: list[Desk], error: Exception) -> None:
    """After any failure the writer continues, and has kept the numbers of refusals."""
    desks.append(desk := Desk())
    desk.store.error = error
    desk.store.permits.release(100)
    desk.store.is_broken = True
    desk.writer.refuse("", "malformed")
    desk.submit(0)
    desk.wait(1)
    assert isinstance(desk.delivered[0], StoreError)
    assert desk.delivered[0].retryable
    assert "bug" not in str(desk.delivered[0])
    desk.store.is_broken = False
    desk.submit(1)
    desk.wait(2)
    assert isinstance(desk.delivered[1], bytes)
    assert sum(sum(group.values()) for group in desk.store.refusals) == 1


def test_closing_stores_what_was_taken_and_takes_no_more() -> None:
    """Every ticket is delivered before close() returns, and later uploads are refused."""
    desk = Desk()
    desk.submit(*range(20))
    desk.store.permits.release(100)
    desk.writer.close()
    assert len(desk.delivered) == 20
    with pytest.raises(StoreError):
        desk.submit(20)


def test_refusals_are_written_without_an_upload(desks: list[Desk]) -> None:
    """Numbers of refusals are written within seconds, also when no upload comes."""
    desks.append(desk := Desk())
    desk.store.permits.release(100)
    desk.writer.refuse("", "malformed")
    desk.writer.refuse("", "malformed")
    end = time.monotonic() + 30
    while not desk.store.refusals:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert desk.store.refusals[0] == {("", "malformed"): 2}
