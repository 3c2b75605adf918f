"""Questions of analysts' programs that take their time: kept where any process finds them."""

from __future__ import annotations

import time
from http import HTTPStatus

from rappor_server.analysis import kept_answers
from rappor_server.analysis.answer_cache import key_of
from rappor_server.analysis.jobs import Job
from rappor_server.analysis.kept_answers import KeptAnswer
from rappor_server.analysis.making import Making
from rappor_server.errors import StoreError


class Analyses:
    """The analyses of all programs, each by its id and for the token that has started it."""

    def __init__(self, making: Making) -> None:
        """Make answers as others of this process are made."""
        self._making = making

    async def hand_over(self, job: Job) -> KeptAnswer:
        """Let every process see a job from now on; its request does not wait any more."""
        key, now = _key(job.id, job.owner), time.time()
        try:
            await self._making.ask(
                kept_answers.claim, key, job.metric, began=job.began, is_programs=True
            )
        except StoreError:
            self._making.jobs.cancel(job)
            raise
        self._making.follow(key, job)
        return KeptAnswer(
            key=key, metric=job.metric, state="running", step=job.step, status=HTTPStatus.OK,
            began=job.began, seen=now, page=None,
        )  # fmt: skip

    async def find(self, job_id: str, owner: str) -> KeptAnswer | None:
        """Return how far an owner's analysis is, None if there is none of this id any more."""
        found: KeptAnswer | None = await self._making.ask(
            kept_answers.find_asked, _key(job_id, owner)
        )
        return found

    async def result(self, found: KeptAnswer) -> dict[str, bytes]:
        """Return the result of an analysis by its media type, nothing if it is gone."""
        files: dict[str, bytes] = await self._making.store(kept_answers.files, found.key)
        return files

    async def delete(self, found: KeptAnswer) -> None:
        """Forget an analysis; whichever process makes it stops."""
        self._making.stop(found.key)
        await self._making.store(kept_answers.forget, found.key)


def _key(job_id: str, owner: str) -> bytes:
    return key_of([b"analysis", job_id.encode(), owner.encode()])
