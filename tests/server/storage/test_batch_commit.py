"""The writer: group commits, limits of its queue, failures, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from collectors import PARAMS, TODAY, report_of, submission_of, upload_of
from programs import become
from rappor_server.base.errors import StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.batch_commit import Receiver, Writer
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
        self.writer.submit([(submission_of(upload_of()), ticket) for ticket in tickets])

    async def wait_until_taken(self) -> None:
        """Wait until the writer has taken all queued uploads."""
        await become(lambda: not len(self.writer))

    async def wait(self, n: int) -> None:
        """Wait until n results were delivered."""
        await become(lambda: len(self.delivered) >= n)


@pytest.fixture
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A writer with the limits of a test. The fixture closes it."""
    made = Harness(**getattr(request, "param", {}))
    yield made
    made.store.permit(1000)
    await made.writer.close()


async def test_uploads_share_a_commit(desk: Harness) -> None:
    """Uploads that come during a commit share the next commit. No result is delivered before."""
    desk.submit(0)
    await desk.wait_until_taken()
    desk.submit(*range(1, 40))
    assert desk.delivered == {}
    desk.store.permit(2)
    await desk.wait(40)
    assert [len(batch) for batch in desk.store.batches] == [1, 39]
    assert desk.observed == [1, 39]
    assert all(isinstance(answer, bytes) for answer in desk.delivered.values())


@pytest.mark.parametrize(
    ("desk", "n_uploads", "batches"),
    [({"max_uploads": 8}, 30, [8, 8, 8, 6]), ({"max_reports": 11}, 7, [3, 3, 1])],
    indirect=["desk"],
)
async def test_batches_are_limited(desk: Harness, n_uploads: int, batches: list[int]) -> None:
    """A batch is complete with the upload that reaches the limit of uploads or of reports."""
    body = upload_of(*[report_of()] * 5)
    desk.writer.submit([(submission_of(body), ticket) for ticket in range(n_uploads)])
    desk.store.permit(100)
    await desk.wait(n_uploads)
    assert [len(batch) for batch in desk.store.batches] == batches


async def test_dropped_uploads_leave_the_queue(desk: Harness) -> None:
    """A dropped upload is not stored, unless its batch is being committed."""
    desk.submit(0)
    await desk.wait_until_taken()
    desk.submit(1, 2, 3)
    desk.writer.drop(lambda ticket: ticket != 2)
    assert len(desk.writer) == 1
    desk.store.permit(100)
    await desk.wait(2)
    assert desk.delivered.keys() == {0, 2}


async def test_probe_commits_an_empty_batch(desk: Harness) -> None:
    """A successful probe is observed like any other commit."""
    desk.store.permit(100)
    desk.store.is_broken = True
    desk.writer.probe()
    await become(lambda: desk.store.n_failures > 0)
    assert desk.observed == []
    desk.store.is_broken = False
    desk.writer.probe()
    await become(lambda: desk.observed == [0])


@pytest.mark.parametrize("desk", [{"max_queued": 5}], indirect=True)
async def test_full_queue_refuses_uploads(desk: Harness) -> None:
    """A full queue raises a retryable error, and keeps the queued uploads."""
    desk.submit(0)
    await desk.wait_until_taken()
    desk.submit(*range(1, 6))
    assert len(desk.writer) == 5
    with pytest.raises(StoreError) as caught:
        desk.submit(6)
    assert caught.value.retryable
    desk.store.permit(100)
    await desk.wait(6)


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("a bug")])
async def test_writer_continues_after_a_failed_batch(desk: Harness, error: Exception) -> None:
    """After a failure the writer continues. It writes the numbers of refusals later."""
    desk.store.error = error
    desk.store.permit(100)
    desk.store.is_broken = True
    desk.writer.refuse("", "malformed")
    desk.submit(0)
    await desk.wait(1)
    assert isinstance(desk.delivered[0], StoreError)
    assert desk.delivered[0].retryable
    assert "bug" not in str(desk.delivered[0])
    desk.store.is_broken = False
    desk.submit(1)
    await desk.wait(2)
    assert isinstance(desk.delivered[1], bytes)
    assert sum(sum(batch.values()) for batch in desk.store.refusals) == 1


@pytest.mark.parametrize("is_broken", [False, True])
async def test_close_commits_queued_uploads(desk: Harness, *, is_broken: bool) -> None:
    """Every result is delivered before `close` returns. Later uploads are refused.

    A writer also closes if its last uploads and numbers of refusals cannot be stored.
    """
    desk.store.is_broken = is_broken
    desk.writer.refuse("", "malformed")
    desk.submit(*range(20))
    desk.store.permit(100)
    await desk.writer.close()
    assert len(desk.delivered) == 20
    kinds = {type(each) for each in desk.delivered.values()}
    assert kinds == {StoreError if is_broken else bytes}
    with pytest.raises(StoreError):
        desk.submit(20)


async def test_refusals_are_written_without_an_upload(desk: Harness) -> None:
    """Numbers of refusals are written within seconds, even if no upload comes."""
    desk.store.permit(100)
    desk.writer.refuse("", "malformed")
    desk.writer.refuse("", "malformed")
    await become(lambda: bool(desk.store.refusals))
    assert desk.store.refusals[0] == {("", "malformed"): 2}


class FakeInbox:
    """An inbox in memory on a disk with a settable free space."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.free = 1e9

    def append(self, batch: Batch, params: Any) -> None:
        """Store a batch."""
        assert set(params) == {PARAMS.fingerprint}
        self.batches.append(batch)

    def free_bytes(self) -> float:
        """Return the free space in bytes."""
        return self.free

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("field", "value"), [("free", 64e6 + 4000 - 1), ("waiting", 2e9 + 1)])
async def test_uploads_are_refused_while_a_merge_has_room(field: str, value: float) -> None:
    """A full disk could not be emptied, because a merge needs space.

    Uploads are accepted again when there is room. The size of the inbox has a limit, too.
    """
    disk = FakeInbox()
    given = [submission_of(upload_of())]

    receiver = Receiver(
        disk,  # type: ignore[arg-type]
        merge_bytes=lambda n, reports: n + 2 * reports,
        today=lambda: TODAY,
    )
    await receiver.commit(given, {})
    disk.free, receiver.waiting_bytes = 1e12, 2_000_000_000
    await receiver.commit(given, {})
    disk.free, receiver.waiting_bytes, receiver.waiting_reports = 64e6 + 4000, 2000, 1000
    await receiver.commit(given, {})
    if field == "free":
        disk.free = value
    else:
        receiver.waiting_bytes = int(value)
    with pytest.raises(StoreError, match="full") as caught:
        await receiver.commit(given, {})
    assert caught.value.retryable
    await receiver.close()

    assert len(disk.batches) == 3
    assert {(batch.day, batch.reports) for batch in disk.batches} == {(TODAY, 1)}
