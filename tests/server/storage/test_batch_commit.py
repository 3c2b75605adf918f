"""The writer: it queues uploads and commits them in batches, so many uploads share one commit.

The tests cover batches, limits of the queue, failures of commits, and the end of the writer.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from collectors import PARAMS, TODAY, build_report, build_upload, parse_submission
from programs import wait_in_event_loop
from rappor_server.base.errors import StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage import batch_commit
from rappor_server.storage.batch_commit import Receiver, RulesByMetric, Writer
from rappor_server.storage.database import utc_today
from rappor_server.storage.inbox import Batch

pytestmark = pytest.mark.anyio


class SlowStore:
    """A store in memory whose commits wait for a permit, or fail."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.batches: list[list[Submission]] = []
        self.refusals: list[dict[Any, int]] = []
        self.is_broken = False
        self.error: Exception = StoreError("gone")
        self.n_failures = 0

    async def commit(self, submissions: Sequence[Submission], refusals: Any) -> None:
        """Store a batch after a permit."""
        await self.permits.acquire()
        if self.is_broken:
            self.n_failures += 1
            raise self.error
        self.batches.append(list(submissions))
        self.refusals.append(dict(refusals))

    def permit(self, n: int) -> None:
        """Allow n commits."""
        for _ in range(n):
            self.permits.release()


class Harness:
    """A writer in front of a slow store, and the results that it delivered."""

    def __init__(self, **bounds: int) -> None:
        self.store = SlowStore()
        self.delivered: dict[int, Any] = {}
        self.observed: list[int] = []
        self.writer: Writer[int] = Writer(
            self.store.commit,
            deliver=self.delivered.update,
            observe=lambda _, batch: self.observed.append(len(batch)),
            **bounds,
        )

    def submit(self, *tickets: int) -> None:
        """Queue an upload for each ticket."""
        self.writer.submit([(parse_submission(build_upload()), ticket) for ticket in tickets])

    async def wait_until_taken(self) -> None:
        """Wait until the writer has taken all queued uploads."""
        await wait_in_event_loop(lambda: not len(self.writer))

    async def wait_for_results(self, n: int) -> None:
        """Wait until n results were delivered."""
        await wait_in_event_loop(lambda: len(self.delivered) >= n)


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Yield a writer with the limits of a test, and close it at the end."""
    harness = Harness(**getattr(request, "param", {}))
    yield harness
    harness.store.permit(1000)
    await harness.writer.close()


async def test_uploads_share_a_commit(harness: Harness) -> None:
    """Uploads that come during a commit share the next commit.

    A result is delivered after the commit of its upload, and not before.
    """
    harness.submit(0)
    await harness.wait_until_taken()
    harness.submit(*range(1, 40))
    assert harness.delivered == {}
    harness.store.permit(2)
    await harness.wait_for_results(40)
    assert [len(batch) for batch in harness.store.batches] == [1, 39]
    assert harness.observed == [1, 39]
    assert all(isinstance(response, bytes) for response in harness.delivered.values())


@pytest.mark.parametrize(
    ("harness", "n_uploads", "batches"),
    [({"max_uploads": 8}, 30, [8, 8, 8, 6]), ({"max_reports": 11}, 7, [3, 3, 1])],
    indirect=["harness"],
)
async def test_batches_are_limited(
    harness: Harness, n_uploads: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ends with the upload that reaches the largest number of uploads or of reports.

    Each upload has five reports, so the third upload of a batch reaches 11 reports. The writer does
    not wait between the batches of one queue, because its wait for an upload is an hour here.
    """
    monkeypatch.setattr(batch_commit, "_IDLE_SECONDS", 3600.0)
    body = build_upload(*[build_report()] * 5)
    harness.writer.submit([(parse_submission(body), ticket) for ticket in range(n_uploads)])
    harness.store.permit(100)
    await harness.wait_for_results(n_uploads)
    assert [len(batch) for batch in harness.store.batches] == batches


async def test_dropped_uploads_leave_the_queue(harness: Harness) -> None:
    """A dropped upload is not stored, unless its batch is being committed."""
    harness.submit(0)
    await harness.wait_until_taken()
    harness.submit(1, 2, 3)
    harness.writer.drop(lambda ticket: ticket != 2)
    assert len(harness.writer) == 1
    harness.store.permit(100)
    await harness.wait_for_results(2)
    assert harness.delivered.keys() == {0, 2}


async def test_probe_commits_an_empty_batch(harness: Harness) -> None:
    """A probe commits an empty batch. If the commit succeeds, it is observed like other commits."""
    harness.store.permit(100)
    harness.store.is_broken = True
    harness.writer.probe()
    await wait_in_event_loop(lambda: harness.store.n_failures > 0)
    assert harness.observed == []
    harness.store.is_broken = False
    harness.writer.probe()
    await wait_in_event_loop(lambda: harness.observed == [0])


@pytest.mark.parametrize("harness", [{"max_queued": 5}], indirect=True)
async def test_full_queue_refuses_uploads(harness: Harness) -> None:
    """A full queue raises a retryable error, and keeps the queued uploads."""
    harness.submit(0)
    await harness.wait_until_taken()
    harness.submit(*range(1, 6))
    assert len(harness.writer) == 5
    with pytest.raises(StoreError) as caught:
        harness.submit(6)
    assert caught.value.retryable
    harness.store.permit(100)
    await harness.wait_for_results(6)


@pytest.mark.parametrize(
    ("error", "message"),
    [(StoreError("gone"), "gone"), (RuntimeError("a bug"), "the store failed: RuntimeError")],
)
async def test_writer_continues_after_a_failed_batch(
    harness: Harness, error: Exception, message: str
) -> None:
    """After a failed commit the writer commits the next batch, with the refusals of both.

    Uploads of the failed batch get a retryable error. If the exception is no StoreError, its text
    may contain a part of an upload, so the error has only the name of its class.
    """
    harness.store.error = error
    harness.store.permit(100)
    harness.store.is_broken = True
    harness.writer.refuse("", "malformed")
    harness.submit(0)
    await harness.wait_for_results(1)
    assert isinstance(harness.delivered[0], StoreError)
    assert harness.delivered[0].retryable
    assert str(harness.delivered[0]) == message
    harness.store.is_broken = False
    harness.submit(1)
    await harness.wait_for_results(2)
    assert isinstance(harness.delivered[1], bytes)
    assert sum(sum(batch.values()) for batch in harness.store.refusals) == 1


@pytest.mark.parametrize("is_broken", [False, True])
async def test_close_commits_queued_uploads(harness: Harness, *, is_broken: bool) -> None:
    """Every result is delivered before `close` returns. Later uploads are refused.

    A writer also closes if its last uploads and numbers of refusals cannot be stored.
    """
    harness.store.is_broken = is_broken
    harness.writer.refuse("", "malformed")
    harness.submit(*range(20))
    harness.store.permit(100)
    await harness.writer.close()
    assert len(harness.delivered) == 20
    kinds = {type(response) for response in harness.delivered.values()}
    assert kinds == {StoreError if is_broken else bytes}
    with pytest.raises(StoreError):
        harness.submit(20)


async def test_refusals_are_written_without_an_upload(harness: Harness) -> None:
    """Numbers of refusals are written, even if no upload comes."""
    harness.store.permit(100)
    harness.writer.refuse("", "malformed")
    harness.writer.refuse("", "malformed")
    await wait_in_event_loop(lambda: bool(harness.store.refusals))
    assert harness.store.refusals[0] == {("", "malformed"): 2}


class FakeInbox:
    """An inbox in memory. A test sets the free space of its disk."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.free = 1e9
        self.day = TODAY

    def append(self, batch: Batch, params: Any, *, through: datetime.date) -> bool:
        """Store a batch, unless the day of the inbox is after `through`."""
        assert set(params) == {PARAMS.fingerprint}
        if self.day <= through:
            self.batches.append(batch)
        return self.day <= through

    def free_bytes(self) -> float:
        """Return the free space in bytes."""
        return self.free

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("field", "value"), [("free", 64e6 + 4000 - 1), ("waiting", 2e9 + 1)])
async def test_uploads_are_refused_before_a_merge_lacks_space(field: str, value: float) -> None:
    """Uploads are refused if the disk has less free space than a merge of the inbox needs.

    A merge needs free space, so a full disk could not be emptied. A merge needs 2000 + 2 * 1000
    bytes here, and 64 MB are kept free. The inbox may have at most 2 GB.
    """
    disk = FakeInbox()
    submissions = [parse_submission(build_upload())]

    receiver = Receiver(
        disk,  # type: ignore[arg-type]
        merge_bytes=lambda n, reports: n + 2 * reports,
        today=lambda: TODAY,
        rules=dict,
        record_rules=lambda _, day: day or TODAY,
    )
    await receiver.commit(submissions, {})
    disk.free, receiver.waiting_bytes = 1e12, 2_000_000_000
    await receiver.commit(submissions, {})
    disk.free, receiver.waiting_bytes, receiver.waiting_reports = 64e6 + 4000, 2000, 1000
    await receiver.commit(submissions, {})
    if field == "free":
        disk.free = value
    else:
        receiver.waiting_bytes = int(value)
    with pytest.raises(StoreError, match="full") as caught:
        await receiver.commit(submissions, {})
    assert caught.value.retryable
    await receiver.close()

    assert len(disk.batches) == 3
    assert {(batch.day, batch.reports) for batch in disk.batches} == {(TODAY, 1)}


async def test_minimums_are_stored_before_the_first_upload_of_a_day_and_of_a_registry() -> None:
    """The minimums are stored before a batch: at first, after a reload, and on each new day.

    A database with a clock of its own decides on which day a batch is received. Midnight passes
    between the record and the batch: nothing is written until the minimums of the new day are
    stored. After a reload, the minimums of the earlier registry hold on this day, too.
    """
    inbox, records = FakeInbox(), list[tuple[int, int]]()
    registries: list[RulesByMetric] = [{"page": {}}, {"sound": {}}]
    in_force, tomorrow = registries[0], utc_today() + datetime.timedelta(days=1)
    # The database has these days when the minimums are stored.
    days = iter([utc_today(), tomorrow, tomorrow, tomorrow])

    def record_rules(rules: RulesByMetric, day: datetime.date | None) -> datetime.date:
        assert day is None
        records.append((registries.index(rules), len(inbox.batches)))
        return next(days)

    receiver = Receiver(
        inbox,  # type: ignore[arg-type]
        merge_bytes=lambda *_: 0,
        today=lambda: None,
        rules=lambda: in_force,
        record_rules=record_rules,
    )
    inbox.day = tomorrow
    for _ in range(2):
        await receiver.commit([parse_submission(build_upload())], {})
    in_force = registries[1]
    for _ in range(2):
        await receiver.commit([parse_submission(build_upload())], {})
    await receiver.close()
    assert records == [(0, 0), (0, 0), (0, 2), (1, 2)]
    assert len(inbox.batches) == 4
