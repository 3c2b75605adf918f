"""What pages ask: answered once, and from memory until something that it follows from changes."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from collectors import metric_of, put
from rappor_server.analysis import candidate_lists
from rappor_server.analysis.candidate_lists import KeptList
from rappor_server.analysis.page_tasks import Asked, PageAnswer, RankingTask
from rappor_server.analysis.tasks import Range
from rappor_server.storage.store import Store

from rappor import Counts, Params
from rappor.decoding.detection import Detection
from rappor.ground.errors import ParamsError

DAY = datetime.date(2026, 11, 20)
PARAMS = Params(k=8, h=1, m=1, f=0.0, p=0.25, q=0.75)
METRIC = metric_of("page", PARAMS, min_reports=0)
COUNTS = Counts(PARAMS, [[500, 400, 300, 250, 250, 250, 250, 250]], [1000], "page")


def asked_of(**fields: Any) -> Asked:
    """Return a question about a list that is kept."""
    asked: dict[str, Any] = {
        "metric": METRIC,
        "source": KeptList(metric="page", name="own"),
        "detection": Detection(),
    }
    return Asked(**(asked | fields))


def steps(store: Store, **fields: Any) -> list[str]:
    """Answer a ranking of a list that is kept; return the steps that were told."""
    task = RankingTask(
        asked=asked_of(**fields),
        range=Range(first=None, last=None),
        everything=True,
    )
    told: list[str] = []
    assert b"estimates.csv" in task.run(store, told.append)
    return told


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_answer_is_made_once(store: Store) -> None:
    """Another rate, another list under the same name, and more reports are other questions."""
    put(store, COUNTS, DAY)
    candidate_lists.keep(store, "page", "own", b"a\nb", most=10, today=DAY)
    assert "decoding" in steps(store)
    assert steps(store) == ["reading"]
    assert "decoding" in steps(store, detection=Detection(level=0.01))
    candidate_lists.delete(store, "page", "own")
    candidate_lists.keep(store, "page", "own", b"a\nc", most=10, today=DAY)
    assert "decoding" in steps(store)
    put(store, COUNTS, DAY)
    assert "decoding" in steps(store)
    assert steps(store) == ["reading"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_files_are_bounded(store: Store) -> None:
    """One of more than 10 MB is left out, and named."""
    put(store, COUNTS, DAY)
    names = "\n".join(f"{number:>100}" for number in range(45_000))
    candidate_lists.keep(store, "page", "own", names.encode(), most=10**6, today=DAY)
    task = RankingTask(
        asked=asked_of(),
        range=Range(first=None, last=None),
        everything=True,
    )
    found = msgspec.msgpack.decode(task.run(store, lambda _: None), type=PageAnswer)
    assert "report.html" in found.files
    assert found.too_large == ["estimates.json"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_strings_need_candidates(store: Store) -> None:
    """Where neither the registry nor the question names any, the answer says so."""
    put(store, COUNTS, DAY)
    with pytest.raises(ParamsError, match="candidates must be chosen"):
        steps(store, source=None)
