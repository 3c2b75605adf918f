"""The same question about the same counts is answered once; whatever differs is asked anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from collectors import ACCEPTED, commit, report_of, upload_of
from rappor_server.analysis.answer_cache import AnswerCache, key_of
from rappor_server.analysis.candidate_sources import CandidatesFile
from rappor_server.analysis.tasks import CSV, JSON, EstimatesTask
from sqlalchemy import Engine


def test_as_many_answers_are_kept_as_fit() -> None:
    """Those that were looked for longest ago go first; one that is too large is not kept."""
    answers = AnswerCache(10)
    answers.keep(b"a", bytes(4))
    answers.keep(b"b", bytes(4))
    assert answers.find(b"a") == bytes(4)
    answers.keep(b"c", bytes(4))
    assert [answers.find(key) for key in (b"a", b"b", b"c")] == [bytes(4), None, bytes(4)]
    answers.keep(b"a", bytes(6))
    assert [answers.find(key) for key in (b"a", b"c")] == [bytes(6), bytes(4)]
    answers.keep(b"d", bytes(11))
    assert [answers.find(key) for key in (b"a", b"c", b"d")] == [None, None, None]
    answers.keep(b"e", bytes(10))
    assert answers.find(b"e") == bytes(10)


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    """What moves from one part to the next makes another key."""
    assert key_of([b"ab", b"c"]) == key_of([b"ab", b"c"])
    assert key_of([b"ab", b"c"]) != key_of([b"a", b"bc"])


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_only_the_same_question_is_answered_at_once(engine: Engine, tmp_path: Path) -> None:
    """Other counts, candidates, media types and arguments are decoded; nothing else is."""
    commit(engine, upload_of(*[report_of(cohort=i % 4, bits=i * 77) for i in range(200)]))
    listed = tmp_path / "pages.txt"
    listed.write_text("a\nb\n")
    task = task_of(listed)
    first, steps = run(engine, task)
    assert steps == ["reading", "hashing candidates", "decoding", "writing"]
    assert run(engine, task) == (first, ["reading"])
    for other in (
        dataclasses.replace(task, media_type=CSV),
        dataclasses.replace(task, body=b'{"all": true, "level": 0.1}'),
        dataclasses.replace(task, body=b'{"all": true, "candidates": ["a"]}'),
        dataclasses.replace(task, body=b'{"all": true, "confidence": 0.9}'),
    ):
        assert "decoding" in run(engine, other)[1]
    listed.write_text("a\nc\n")
    changed, steps = run(engine, task)
    assert "decoding" in steps
    assert {row["candidate"] for row in json.loads(changed)["estimates"]} == {"a", "c"}
    commit(engine, upload_of())
    assert "decoding" in run(engine, task)[1]


def task_of(listed: Path) -> EstimatesTask:
    """Ask for the estimates of all candidates in a file."""
    return EstimatesTask(
        metric=ACCEPTED.registry["page"],
        body=b'{"all": true}',
        beside=None,
        media_type=JSON,
        file=CandidatesFile(metric="page", name=listed.name, path=listed),
        max_candidates=1000,
    )


def run(engine: Engine, task: EstimatesTask) -> tuple[bytes, list[str]]:
    """Return the answer to a question, and the steps that it took."""
    steps: list[str] = []
    return task.run(engine, steps.append), steps
