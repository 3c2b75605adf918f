"""Questions: made once however many ask, prepared at night, seen and cancelled anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from collectors import metric_of, there
from programs import become
from rappor_server.analysis.answers import NIGHT, Answers
from rappor_server.analysis.jobs import Job, Jobs
from rappor_server.analysis.kept_answers import KeptAnswer
from rappor_server.analysis.page_tasks import Drawn, PageAnswer, PageTask
from rappor_server.analysis.worker import Pool, Task
from sqlalchemy import Engine

from rappor.ground.errors import ParamsError

PAGE = PageAnswer(title="a", html="<p>a</p>", card="", files=["a.csv"], too_large=[])
DRAWN = Drawn(page=msgspec.msgpack.encode(PAGE), files={"a.csv": b"a"})
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


class Question:
    """As much of a task as is asked for."""

    metric = metric_of("page")

    def __init__(self, name: bytes, answer: Callable[[], bytes]) -> None:
        self.name = name
        self.answer = answer

    def key(self, engine: Engine) -> bytes:
        """Return its name."""
        del engine
        return self.name

    def has_key(self, engine: Engine, key: bytes) -> bool:
        """Return whether its name is still the same."""
        return self.key(engine) == key


class Desk:
    """A pool that answers at once, or once it is told to."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def run(self, task: Task, tell: Callable[[str], None]) -> bytes:
        """Answer a question."""
        question = cast("Question", task)
        self.asked.append(question.name)
        tell("decoding")
        await self.may_answer.wait()
        return question.answer()

    def close(self) -> None:
        """End."""


class Process(NamedTuple):
    """What answers questions in a process, and its desk."""

    answers: Answers
    jobs: Jobs
    desk: Desk


@contextlib.asynccontextmanager
async def answering(engine: Engine) -> AsyncIterator[Process]:
    """Answer questions of one process."""
    desk = Desk()
    jobs = Jobs(cast("Pool", desk), per_owner=1)

    async def look_up(ask: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return ask(engine, *arguments, **more)

    answers = Answers(jobs, look_up)
    try:
        yield Process(answers, jobs, desk)
    finally:
        await answers.close()
        jobs.close()


def question(name: bytes = b"k", answer: Callable[[], bytes] | None = None) -> PageTask[Any]:
    """Return a question that is answered by a page."""
    return cast("PageTask[Any]", Question(name, answer or (lambda: msgspec.msgpack.encode(DRAWN))))


def fail() -> bytes:
    """Find nothing."""
    raise ParamsError("from must be a day")


async def test_a_question_is_answered_once(engine: Engine) -> None:
    """Whoever asks later, in this process or another one, gets what was kept."""
    async with answering(engine) as (one, _, desk), answering(engine) as (other, _, idle):
        desk.may_answer.clear()
        first = there(await one.ask(question(), owner="a", address="/there"))
        assert (first.state, one.under_way("a"), one.under_way("b")) == (
            "running", ["/there"], [],
        )  # fmt: skip
        again = there(await other.ask(question(), owner="b"))
        assert again.state == "running"
        desk.may_answer.set()
        await one.prepare([question()])
        found = there(await other.ask(question(), owner="b"))
        assert found.page == PAGE
        assert await other.files(found) == DRAWN.files
        assert (desk.asked, idle.asked) == ([b"k"], [])


async def test_answers_are_prepared_one_after_another(engine: Engine) -> None:
    """A failure is kept too, and stops no other one."""
    async with answering(engine) as (answers, _, desk):
        await answers.prepare([question(b"bad", fail), question(b"a"), question(b"b")])
        assert desk.asked == [b"bad", b"a", b"b"]
        await answers.prepare([question(b"bad", fail)])
        assert desk.asked == [b"bad", b"a", b"b"]
        bad = there(await answers.find(question(b"bad")))
        assert (bad.state, bad.step, bad.status) == ("failed", "from must be a day", 422)
        good = there(await answers.ask(question(b"b"), owner=NIGHT))
        assert good.state == "done"


async def test_an_answer_of_other_candidates_is_not_kept(engine: Engine) -> None:
    """They were edited between the key and the answer; whoever asks again gets another one."""
    async with answering(engine) as (answers, _, desk):
        desk.may_answer.clear()
        asked = question()
        await answers.ask(asked, owner="a", address="/there")
        cast("Question", asked).name = b"edited"
        desk.may_answer.set()
        await become(lambda: not answers.under_way("a"))
        assert await answers.find(question()) is None


async def test_an_answer_is_cancelled_in_the_process_that_makes_it(engine: Engine) -> None:
    """Another process takes the row away, and the first one stops."""
    async with answering(engine) as (one, _, desk), answering(engine) as (other, *_):
        desk.may_answer.clear()
        await one.ask(question(), owner="a")
        await other.cancel(question())
        await become(lambda: not one.under_way("a"))
        assert await one.find(question()) is None


async def test_questions_at_the_same_time_are_no_way_around_the_limit(engine: Engine) -> None:
    """Whoever may have one job has one, and what was not begun may be asked again."""
    async with answering(engine) as (answers, jobs, desk):
        desk.may_answer.clear()
        names = [b"a", b"b", b"c"]
        found = await asyncio.gather(*(answers.ask(question(n), owner="a") for n in names))
        assert sorted(each is not None for each in found) == [False, False, True]
        assert (desk.asked, jobs.may_start("a")) == ([b"a"], False)
        assert await answers.find(question(b"b")) is None
        assert await answers.ask(question(b"b"), owner="b") is not None


def start(process: Process, answer: Callable[[], bytes]) -> Job:
    """Start a job of a program."""
    task = question(b"j", answer)
    return process.jobs.start(task, owner="a")


async def hand_over(process: Process, job: Job) -> KeptAnswer:
    """Hand a job over whose result is a table."""
    return await process.answers.hand_over(job, metric="page", media_type="text/csv")


async def test_a_programs_job_is_seen_in_every_process(engine: Engine) -> None:
    """Another process tells its step, then its result, to its owner alone."""
    async with answering(engine) as one, answering(engine) as other:
        one.desk.may_answer.clear()
        good = start(one, lambda: b"found")
        await one.jobs.wait(good, 0.0)
        told = await hand_over(one, good)
        assert (told.state, told.step, told.metric) == ("running", "decoding", "page")
        seen = there(await other.answers.find_job(good.id, "a"))
        assert seen.state == "running"
        assert await other.answers.find_job(good.id, "b") is None
        one.desk.may_answer.set()
        bad = start(one, fail)
        await hand_over(one, bad)
        for job, state, step in ((good, "done", ""), (bad, "failed", "from must be a day")):
            while (seen := there(await other.answers.find_job(job.id, "a"))).state == "running":
                await asyncio.sleep(0.01)
            assert (seen.state, seen.step if state == "failed" else "") == (state, step)
        found = there(await other.answers.find_job(good.id, "a"))
        assert await other.answers.files(found) == {"text/csv": b"found"}
        await one.answers.forget(found)
        assert await other.answers.find_job(good.id, "a") is None


async def test_a_programs_job_is_deleted_in_any_process(engine: Engine) -> None:
    """The process that makes it stops, and has room for another."""
    async with answering(engine) as one, answering(engine) as other:
        one.desk.may_answer.clear()
        job = start(one, lambda: b"found")
        await other.answers.forget(await hand_over(one, job))
        assert await one.answers.find_job(job.id, "a") is None
        await become(lambda: one.jobs.may_start("a"))


async def test_a_job_that_nobody_waits_for_makes_room(engine: Engine) -> None:
    """Who asked and left has no use for it."""
    async with answering(engine) as one:
        one.desk.may_answer.clear()
        waiting = asyncio.create_task(one.jobs.wait(start(one, lambda: b""), None))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert one.jobs.may_start("a")
