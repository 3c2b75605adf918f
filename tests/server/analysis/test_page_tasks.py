"""What pages ask: what an answer follows from, what an overview is about, how large files are."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from collectors import metric_of, put
from rappor_server.analysis import candidate_lists
from rappor_server.analysis.candidate_sources import EntryList, KeptList, candidate_source
from rappor_server.analysis.page_tasks import (
    Asked,
    Drawn,
    OverviewTask,
    PageAnswer,
    RankingTask,
    program_in,
)
from rappor_server.analysis.tasks import Range
from sqlalchemy import Engine

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


def ranking(**fields: Any) -> RankingTask:
    """Return the question how common the candidates of a kept list are."""
    return RankingTask(
        asked=asked_of(**fields), range=Range(first=None, last=None), everything=True
    )


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_key_is_of_all_that_an_answer_follows_from(engine: Engine) -> None:
    """Another rate, another list under the same name, and more reports are other questions."""
    keys = []

    def is_new(**fields: Any) -> bool:
        keys.append(ranking(**fields).key(engine))
        return keys[-1] not in keys[:-1]

    put(engine, COUNTS, DAY)
    candidate_lists.keep(engine, "page", "own", b"a\nb", most=10, today=DAY)
    assert is_new()
    assert not is_new()
    assert is_new(detection=Detection(level=0.01))
    candidate_lists.delete(engine, "page", "own")
    candidate_lists.keep(engine, "page", "own", b"a\nc", most=10, today=DAY)
    assert is_new()
    put(engine, COUNTS, DAY - datetime.timedelta(days=1))
    assert is_new()
    assert not is_new()


def test_another_program_makes_other_answers(tmp_path: Path) -> None:
    """Whatever draws or computes them is in their key, also where it has the same version."""
    (tmp_path / "within").mkdir()
    seen = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("within/b.py", "1"), ("page.css", "c {}")):
        (tmp_path / name).write_text(text)
        seen.add(program_in(tmp_path))
    assert len(seen) == 4
    assert program_in(tmp_path) in seen


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_overview_is_of_days_until_there_are_two_weeks(engine: Engine) -> None:
    """Then the days of an unfinished week are in none."""
    candidate_lists.keep(engine, "page", "own", b"a\nb", most=10, today=DAY)
    task = OverviewTask(asked=asked_of(), through=DAY)
    with pytest.raises(ParamsError, match="No results"):
        task.run(engine, lambda _: None)
    for weeks, told in ((0, "the last day"), (1, "the last 2 days"), (2, "the last 2 weeks")):
        put(engine, COUNTS, DAY - datetime.timedelta(days=7 * weeks))
        drawn = msgspec.msgpack.decode(task.run(engine, lambda _: None), type=Drawn)
        page = msgspec.msgpack.decode(drawn.page, type=PageAnswer)
        assert f"reports in {told}" in page.html
        assert {"report.html", "ranking.csv", "trend.json", "ranking.svg"} <= set(page.files)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_files_are_bounded(engine: Engine) -> None:
    """One of more than 10 MB is left out, and named."""
    put(engine, COUNTS, DAY)
    names = "\n".join(f"{number:>100}" for number in range(45_000))
    candidate_lists.keep(engine, "page", "own", names.encode(), most=10**6, today=DAY)
    found = msgspec.msgpack.decode(ranking().run(engine, lambda _: None), type=Drawn)
    page = msgspec.msgpack.decode(found.page, type=PageAnswer)
    assert list(found.files) == page.files
    assert "report.html" in found.files
    assert page.too_large == ["estimates.json"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_ranking_begins_with_the_list_of_the_entry(engine: Engine) -> None:
    """Whatever list is asked about; a changed list is another question."""
    put(engine, COUNTS, DAY)
    metric = metric_of("page", PARAMS, min_reports=0, candidates=("rare", "also rare"))
    candidate_lists.keep(engine, "page", "own", b"a\nb\nrare\n", most=10, today=DAY)
    task = ranking(metric=metric)
    page = msgspec.msgpack.decode(task.run(engine, lambda _: None), type=Drawn).files
    rows = page["estimates.csv"].decode().split("\n")[1:]
    assert [row.split(",")[0] for row in rows[:2]] == ["rare", "also rare"]
    source = candidate_source(engine, metric, "", registry="metrics.toml")
    assert isinstance(source, EntryList)
    assert source.read(engine, "none").strings == ("rare", "also rare")
    changed = metric_of("page", PARAMS, min_reports=0, candidates=("rare",))
    assert ranking(metric=changed).key(engine) != task.key(engine)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_strings_need_candidates(engine: Engine) -> None:
    """Where neither the registry nor the question names any, the answer says so."""
    put(engine, COUNTS, DAY)
    with pytest.raises(ParamsError, match="candidates must be chosen"):
        ranking(source=None).run(engine, lambda _: None)
