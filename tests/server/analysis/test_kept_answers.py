"""Answers in the database: made once, whoever asks; over when nobody makes them; bounded."""

from __future__ import annotations

import time

import msgspec
import pytest
from collectors import there
from rappor_server.analysis import kept_answers
from rappor_server.analysis.page_tasks import Drawn, PageAnswer
from rappor_server.storage import schema
from rappor_server.storage.database import writing
from sqlalchemy import Engine, func, select, update

PAGE = PageAnswer(title="a", html="<p>a</p>", card="", files=["a.csv"], too_large=[])
DRAWN = Drawn(page=msgspec.msgpack.encode(PAGE), files={"a.csv": b"a" * 1000})


def make(engine: Engine, key: bytes, *, now: float, **bounds: int) -> None:
    assert kept_answers.claim(engine, key, "page", now=now)
    kept_answers.keep(engine, key, DRAWN, now=now, **bounds)


def test_one_process_makes_an_answer_and_all_show_it(engine: Engine) -> None:
    """Others see its step, then the page and the files."""
    assert kept_answers.find(engine, b"k", now=0.0) is None
    assert kept_answers.claim(engine, b"k", "page", now=0.0)
    assert not kept_answers.claim(engine, b"k", "page", now=1.0)
    assert kept_answers.tell(engine, b"k", "decoding", began=0.0, now=2.0)
    running = there(kept_answers.find(engine, b"k", now=3.0))
    assert (running.state, running.step, running.page) == ("running", "decoding", None)
    kept_answers.keep(engine, b"k", DRAWN, now=4.0)
    done = there(kept_answers.find(engine, b"k", now=1e6))
    assert (done.state, done.page) == ("done", PAGE)
    assert kept_answers.files(engine, b"k") == DRAWN.files
    assert not kept_answers.claim(engine, b"k", "page", now=1e6)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_nobody_makes_is_made_again(engine: Engine) -> None:
    """After silence, after a failure for a while, and after a cancellation at once."""
    assert kept_answers.claim(engine, b"k", "page", now=0.0)
    late = kept_answers.SILENT_SECONDS + 1
    assert kept_answers.find(engine, b"k", now=late) is None
    assert kept_answers.claim(engine, b"k", "page", now=late)
    kept_answers.fail(engine, b"k", "no reports", 422, began=late, now=late)
    failed = there(kept_answers.find(engine, b"k", now=late + 1))
    assert (failed.state, failed.step, failed.status) == ("failed", "no reports", 422)
    assert not kept_answers.claim(engine, b"k", "page", now=late + 1)
    assert kept_answers.claim(engine, b"k", "page", now=10 * late)
    kept_answers.cancel(engine, b"k")
    assert not kept_answers.tell(engine, b"k", "decoding", began=10 * late, now=10 * late)
    assert kept_answers.find(engine, b"k", now=10 * late) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_answers_are_bounded(engine: Engine) -> None:
    """Those that nobody looked at for longest go; one that was looked at stays."""
    for number in range(3):
        make(engine, bytes([number]), now=10.0 * number)
    assert kept_answers.find(engine, b"\0", now=1e5) is not None
    make(engine, b"new", now=1e5, most=2 * 1200)
    left = [kept_answers.find(engine, bytes([n]), now=1e5) is not None for n in range(3)]
    assert left == [True, False, False]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_answer_that_is_made_is_not_in_the_way(engine: Engine) -> None:
    """One that takes all the room deletes others, but none that is being made."""
    make(engine, b"old", now=0.0)
    assert kept_answers.claim(engine, b"slow", "page", now=1.0)
    make(engine, b"large", now=2.0, most=10)
    assert kept_answers.find(engine, b"old", now=3.0) is None
    assert kept_answers.tell(engine, b"slow", "decoding", began=1.0, now=3.0)


def test_a_process_that_was_silent_takes_no_answer_away(engine: Engine) -> None:
    """Another one has claimed it meanwhile, and makes it: the first one stops, and may not fail."""
    began = time.time()
    late = began + 100.0
    assert kept_answers.claim(engine, b"k", "page", now=began)
    assert kept_answers.claim(engine, b"k", "page", now=late)
    for state in ("running", "done"):
        assert not kept_answers.tell(engine, b"k", "decoding", began=began, now=late)
        kept_answers.fail(engine, b"k", "no reports", 422, began=began, now=late)
        found = there(kept_answers.find(engine, b"k", now=late))
        assert found.state == state
        assert (state == "done") != kept_answers.tell(engine, b"k", "a", began=late, now=late)
        kept_answers.keep(engine, b"k", DRAWN, now=late)


@pytest.mark.slow
def test_failures_are_forgotten_with_time(engine: Engine) -> None:
    """A year without an answer leaves a few rows; one whose process is slow is not taken away."""
    for day in range(365):
        assert kept_answers.claim(engine, f"failed {day}".encode(), "page", now=day * 86400.0)
        now = day * 86400.0
        kept_answers.fail(engine, f"failed {day}".encode(), "none", 422, began=now, now=now)
        assert kept_answers.claim(engine, f"left {day}".encode(), "page", now=now)
    assert kept_answers.claim(engine, b"slow", "page", now=1e9)
    assert kept_answers.claim(engine, b"other", "page", now=1e9 + 2 * kept_answers.SILENT_SECONDS)
    assert kept_answers.tell(engine, b"slow", "decoding", began=1e9, now=1e9 + 60)
    with engine.connect() as db:
        n_rows = db.execute(select(func.count()).select_from(schema.answer)).scalar_one()
    assert n_rows <= 4


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["page", "files"])
def test_an_answer_that_cannot_be_read_is_made_again(engine: Engine, column: str) -> None:
    """Damaged, or of another version: nobody sees it, and whoever asks next makes it."""
    make(engine, b"k", now=0.0)
    with writing(engine) as db:
        db.execute(update(schema.answer).values({column: b"\xc1"}))
    if column == "page":
        assert kept_answers.find(engine, b"k", now=1.0) is None
    else:
        assert kept_answers.files(engine, b"k") == {}
    make(engine, b"k", now=1.0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_clock_that_was_set_back_holds_nothing_up(engine: Engine) -> None:
    """What a process left on a day that has not come yet is made again today."""
    tomorrow = 86400.0
    assert kept_answers.claim(engine, b"left", "page", now=tomorrow)
    assert kept_answers.claim(engine, b"failed", "page", now=tomorrow)
    kept_answers.fail(engine, b"failed", "no reports", 422, began=tomorrow, now=tomorrow)
    assert kept_answers.claim(engine, b"asked", "page", now=tomorrow, is_programs=True)
    for key in (b"left", b"failed"):
        assert kept_answers.find(engine, key, now=0.0) is None
        assert kept_answers.claim(engine, key, "page", now=0.0)
    assert kept_answers.find_asked(engine, b"asked", now=0.0) is None
    assert not kept_answers.tell(engine, b"asked", "decoding", began=tomorrow, now=0.0)


def test_a_programs_answer_is_kept_while_it_asks(engine: Engine) -> None:
    """One that is made stops after five minutes without a request, a result goes after ten."""
    result = Drawn(page=b"", files={"text/csv": b"a"})
    for key in (b"asked", b"forgotten", b"done"):
        assert kept_answers.claim(engine, key, "page", now=0.0, is_programs=True)
    kept_answers.keep(engine, b"done", result, now=2.0)
    assert kept_answers.find_asked(engine, b"asked", now=200.0) is not None
    for key, told in ((b"asked", True), (b"forgotten", False)):
        assert kept_answers.tell(engine, key, "a", began=0.0, now=301.0) == told
    done = there(kept_answers.find_asked(engine, b"done", now=590.0))
    assert (done.state, done.began, done.seen) == ("done", 0.0, 2.0)
    assert kept_answers.find_asked(engine, b"done", now=1180.0) is not None
    assert kept_answers.files(engine, b"done") == result.files
    assert kept_answers.find_asked(engine, b"done", now=1800.0) is None


def test_a_killed_process_leaves_no_running_job(engine: Engine) -> None:
    """Its row says soon after that it has failed, and why."""
    assert kept_answers.claim(engine, b"k", "page", now=0.0, is_programs=True)
    assert kept_answers.tell(engine, b"k", "decoding", began=0.0, now=1.0)
    late = 2.0 + kept_answers.SILENT_SECONDS
    found = there(kept_answers.find_asked(engine, b"k", now=late))
    assert (found.state, found.status) == ("failed", 503)
    assert "ask again" in found.step
