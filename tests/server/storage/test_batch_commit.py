"""The writer: it groups uploads, bounds its queue, drains it, and recovers."""

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


class Slow:
    """A store in memory whose commits wait for a permit, or fail."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.groups: list[list[Submission]] = []
        self.refusals: list[dict[Any, int]] = []
        self.is_broken = False
        self.error: Exception = StoreError("gone")
        self.n_failures = 0

    async def commit(self, submissions: Sequence[Submission], refusals: Any) -> None:
        """Store a group."""
        await self.permits.acquire()
        if self.is_broken:
            self.n_failures += 1
            raise self.error
        self.groups.append(list(submissions))
        self.refusals.append(dict(refusals))

    def permit(self, n: int) -> None:
        """Let n commits go on."""
        for _ in range(n):
            self.permits.release()


class Desk:
    """A writer before a slow store, and what it delivered."""

    def __init__(self, **bounds: int) -> None:
        self.store = Slow()
        self.delivered: dict[int, Any] = {}
        self.observed: list[int] = []
        self.writer: Writer[int] = Writer(
            self.store.commit,
            deliver=self.delivered.update,
            observe=lambda _, group: self.observed.append(len(group)),
            **bounds,
        )

    def submit(self, *tickets: int) -> None:
        """Queue an upload for each ticket."""
        self.writer.submit([(submission_of(upload_of()), ticket) for ticket in tickets])

    async def taken(self) -> None:
        """Wait until the writer has taken what was queued."""
        await become(lambda: not len(self.writer))

    async def wait(self, n: int) -> None:
        """Wait until n tickets were delivered."""
        await become(lambda: len(self.delivered) >= n)


@pytest.fixture
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """A writer with the bounds that a test names, which is closed in the end."""
    made = Desk(**getattr(request, "param", {}))
    yield made
    made.store.permit(1000)
    await made.writer.close()


async def test_uploads_share_a_commit(desk: Desk) -> None:
    """Uploads that come during a commit share the next one; none is delivered before its commit."""
    desk.submit(0)
    await desk.taken()
    desk.submit(*range(1, 40))
    assert desk.delivered == {}
    desk.store.permit(2)
    await desk.wait(40)
    assert [len(group) for group in desk.store.groups] == [1, 39]
    assert desk.observed == [1, 39]
    assert all(isinstance(answer, bytes) for answer in desk.delivered.values())


@pytest.mark.parametrize(
    ("desk", "n_uploads", "groups"),
    [({"max_uploads": 8}, 30, [8, 8, 8, 6]), ({"max_reports": 11}, 7, [3, 3, 1])],
    indirect=["desk"],
)
async def test_groups_are_bounded(desk: Desk, n_uploads: int, groups: list[int]) -> None:
    """A group is complete with the upload that brings it to the bound on uploads or reports."""
    body = upload_of(*[report_of()] * 5)
    desk.writer.submit([(submission_of(body), ticket) for ticket in range(n_uploads)])
    desk.store.permit(100)
    await desk.wait(n_uploads)
    assert [len(group) for group in desk.store.groups] == groups


async def test_dropped_uploads_take_no_room(desk: Desk) -> None:
    """What nobody waits for is neither kept nor stored; the group under way is."""
    desk.submit(0)
    await desk.taken()
    desk.submit(1, 2, 3)
    desk.writer.drop(lambda ticket: ticket != 2)
    assert len(desk.writer) == 1
    desk.store.permit(100)
    await desk.wait(2)
    assert desk.delivered.keys() == {0, 2}


async def test_a_check_commits_although_nothing_waits(desk: Desk) -> None:
    """It is observed as any commit is, and only if it works."""
    desk.store.permit(100)
    desk.store.is_broken = True
    desk.writer.probe()
    await become(lambda: desk.store.n_failures > 0)
    assert desk.observed == []
    desk.store.is_broken = False
    desk.writer.probe()
    await become(lambda: desk.observed == [0])


@pytest.mark.parametrize("desk", [{"max_queued": 5}], indirect=True)
async def test_full_queue_turns_away(desk: Desk) -> None:
    """A full queue raises a retryable error, and keeps the uploads that it has."""
    desk.submit(0)
    await desk.taken()
    desk.submit(*range(1, 6))
    assert len(desk.writer) == 5
    with pytest.raises(StoreError) as caught:
        desk.submit(6)
    assert caught.value.retryable
    desk.store.permit(100)
    await desk.wait(6)


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("a bug")])
async def test_failed_group_is_told_and_the_writer_goes_on(desk: Desk, error: Exception) -> None:
    """After any failure the writer continues, and has kept the numbers of refusals."""
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
    assert sum(sum(group.values()) for group in desk.store.refusals) == 1


@pytest.mark.parametrize("is_broken", [False, True])
async def test_closing_stores_what_was_taken_and_takes_no_more(
    desk: Desk, *, is_broken: bool
) -> None:
    """Every ticket is delivered before close() returns, and later uploads are refused.

    Uploads and numbers of refusals that cannot be stored do not keep a writer from closing.
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


async def test_refusals_are_written_without_an_upload(desk: Desk) -> None:
    """Numbers of refusals are written within seconds, also when no upload comes."""
    desk.store.permit(100)
    desk.writer.refuse("", "malformed")
    desk.writer.refuse("", "malformed")
    await become(lambda: bool(desk.store.refusals))
    assert desk.store.refusals[0] == {("", "malformed"): 2}


class Disk:
    """An inbox in memory, on a disk that gets full."""

    def __init__(self) -> None:
        self.groups: list[Batch] = []
        self.free = 1e9

    def append(self, group: Batch, params: Any) -> None:
        """Keep a group."""
        assert set(params) == {PARAMS.fingerprint}
        self.groups.append(group)

    def free_bytes(self) -> float:
        """Return how much room there is."""
        return self.free

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("field", "value"), [("free", 64e6 + 4000 - 1), ("waiting", 2e9 + 1)])
async def test_uploads_are_turned_away_while_a_fold_still_has_room(
    field: str, value: float
) -> None:
    """A disk that is filled by what waits could not be emptied; when there is room, they are taken.

    Some more is left free; what waits has a bound as well.
    """
    disk = Disk()
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

    assert len(disk.groups) == 3
    assert {(group.day, group.reports) for group in disk.groups} == {(TODAY, 1)}
