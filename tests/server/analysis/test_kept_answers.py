"""Answers in the database: made once, whoever asks; over when nobody makes them; bounded."""

from __future__ import annotations

import msgspec
import pytest
from rappor_server.analysis import kept_answers
from rappor_server.analysis.page_tasks import Drawn, PageAnswer
from rappor_server.storage.store import Store

PAGE = PageAnswer(title="a", html="<p>a</p>", card="", files=["a.csv"], too_large=[])
DRAWN = Drawn(page=msgspec.msgpack.encode(PAGE), files={"a.csv": b"a" * 1000})


def make(store: Store, key: bytes, *, now: float, **bounds: int) -> None:
    assert kept_answers.claim(store, key, "page", now=now)
    kept_answers.keep(store, key, DRAWN, now=now, **bounds)


def test_one_process_makes_an_answer_and_all_show_it(store: Store) -> None:
    """Others see its step, then the page and the files."""
    assert kept_answers.find(store, b"k", now=0.0) is None
    assert kept_answers.claim(store, b"k", "page", now=0.0)
    assert not kept_answers.claim(store, b"k", "page", now=1.0)
    assert kept_answers.tell(store, b"k", "decoding", now=2.0)
    running = kept_answers.find(store, b"k", now=3.0)
    assert running is not None
    assert (running.state, running.step, running.page) == ("running", "decoding", None)
    kept_answers.keep(store, b"k", DRAWN, now=4.0)
    done = kept_answers.find(store, b"k", now=1e6)
    assert done is not None
    assert (done.state, done.page) == ("done", PAGE)
    assert kept_answers.files(store, b"k") == DRAWN.files
    assert not kept_answers.claim(store, b"k", "page", now=1e6)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_nobody_makes_is_made_again(store: Store) -> None:
    """After silence, after a failure for a while, and after a cancellation at once."""
    assert kept_answers.claim(store, b"k", "page", now=0.0)
    late = kept_answers.SILENT_SECONDS + 1
    assert kept_answers.find(store, b"k", now=late) is None
    assert kept_answers.claim(store, b"k", "page", now=late)
    kept_answers.fail(store, b"k", "no reports", 422, now=late)
    failed = kept_answers.find(store, b"k", now=late + 1)
    assert failed is not None
    assert (failed.state, failed.step, failed.status) == ("failed", "no reports", 422)
    assert not kept_answers.claim(store, b"k", "page", now=late + 1)
    assert kept_answers.claim(store, b"k", "page", now=10 * late)
    kept_answers.cancel(store, b"k")
    assert not kept_answers.tell(store, b"k", "decoding", now=10 * late)
    assert kept_answers.find(store, b"k", now=10 * late) is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_answers_are_bounded(store: Store) -> None:
    """Those that nobody looked at for longest go; one that was looked at stays."""
    for number in range(3):
        make(store, bytes([number]), now=10.0 * number)
    assert kept_answers.find(store, b"\0", now=1e5) is not None
    make(store, b"new", now=1e5, most=2 * 1200)
    left = [kept_answers.find(store, bytes([n]), now=1e5) is not None for n in range(3)]
    assert left == [True, False, False]
    assert kept_answers.total(store) <= 2 * 1200
