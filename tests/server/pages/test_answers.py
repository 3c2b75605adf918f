"""Rankings: asked by a form, made as jobs, shown, kept as files, answered from the cache."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
from collections.abc import Callable

import pytest
from dashboards import DAYS, HOSTILE, NAMES, Dashboard, Visitor
from pages import tables
from rappor_server.storage import schema
from rappor_server.storage.database import writing
from rappor_server.storage.store import Store
from sqlalchemy import update

CANDIDATES = "Candidates: detected ones first"


def test_metrics_are_listed_with_their_health(reader: Visitor) -> None:
    """Released reports, their newest day, and the day on which each expires."""
    (rows,) = tables(reader.get("/pages/").text).values()
    cells = {row[0].strip(): [" ".join(cell.split()) for cell in row] for row in rows}
    assert cells["home_page"][1:4] == ["0", "100,000", str(DAYS[-1])]
    assert cells["theme"][2] == "20,000"
    assert cells["other"][1:4] == ["0 to 99", "0", "none"]
    assert cells["other"][-1] == "2026-01-01, over"


def test_a_metric_says_how_it_is(reader: Visitor) -> None:
    """Its description is escaped, its days are listed, and expiry is a warning."""
    page = reader.get("/pages/metrics/home_page").text
    assert "The &lt;b&gt;page&lt;/b&gt; that" in page
    by_day = tables(page)["Released reports, by the last day of each block, newest first"]
    assert by_day[1:] == [[str(day), "20,000"] for day in reversed(DAYS)]
    assert "All days are UTC." in page
    over = reader.get("/pages/metrics/other").text
    assert "expired on 2026-01-01" in over
    assert "There are no candidates yet." in over


def test_a_ranking_is_decoded_shown_and_kept(reader: Visitor) -> None:
    """The page, the report, CSV and JSON tell the same numbers."""
    page = reader.answer("/pages/metrics/home_page/ranking")
    assert page.status_code == 200
    shown = {row[0]: row for row in tables(page.text)[CANDIDATES][1:]}
    at = f"{page.url.path}/files"
    table = list(csv.DictReader(io.StringIO(reader.get(f"{at}/estimates.csv").text)))
    document = json.loads(reader.get(f"{at}/estimates.json").text)
    assert document["reports"] == 100_000
    assert [row["candidate"] for row in document["estimates"]] == [
        row["candidate"].removeprefix("'") for row in table
    ]
    for row in document["estimates"]:
        if row["candidate"] in NAMES:
            assert shown[row["candidate"]][4] == f"{row['count']:,.0f}"
    assert {NAMES[0], NAMES[3]} <= {row["candidate"] for row in document["estimates"]}
    report = reader.get(f"{at}/report.html")
    assert report.headers["content-disposition"] == 'attachment; filename="home_page-report.html"'
    assert tables(report.text)[CANDIDATES] == tables(page.text)[CANDIDATES]
    assert reader.get(f"{at}/none.csv").status_code == 404


def test_the_same_question_has_the_same_answer(reader: Visitor) -> None:
    """Another form is another job; other days are another answer."""
    first = reader.answer("/pages/metrics/home_page/ranking", to="2026-11-05")
    again = reader.answer("/pages/metrics/home_page/ranking", to="2026-11-05")
    assert again.url != first.url
    assert tables(again.text) == tables(first.text)
    assert "results from 60,000 reports" in first.text


def test_hostile_candidates_are_harmless(reader: Visitor) -> None:
    """Nothing of them is markup, turns the direction or is a formula."""
    page = reader.answer("/pages/metrics/home_page/ranking", all="yes")
    for text in ("<script>alert", "\u202e", "\x1b", '"><img'):
        assert text not in page.text
    assert "&lt;script&gt;alert(1)&lt;" in page.text
    assert "[U+202E]gpj.exe" in page.text
    table = reader.get(f"{page.url.path}/files/estimates.csv").text
    assert "'=HYPERLINK(1)" in table
    named = json.loads(reader.get(f"{page.url.path}/files/estimates.json").text)["estimates"]
    assert set(HOSTILE) <= {row["candidate"] for row in named}


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"from": "yesterday"}, 422, "from must be a day as 2026-11-30"),
        ({"from": "2026-11-05", "to": "2026-11-01"}, 422, "from must be a day no later than to"),
        ({"level": "0"}, 422, "level must be a number"),
        ({"correction": "none"}, 422, "correction must be one of"),
        ({"from": "2030-01-01"}, 422, "No results for these dates"),
        ({"list": "nobody's"}, 404, "has no list of this name"),
    ],
)
def test_a_question_without_an_answer_says_why(
    reader: Visitor, fields: dict[str, str], status: int, sentence: str
) -> None:
    """At once, or as the answer."""
    path = "/pages/metrics/home_page/ranking"
    answer = reader.post(path, at="/pages/metrics/home_page", **fields)
    if answer.status_code == 303:
        answer = reader.answer(path, **fields)
    assert answer.status_code == status
    assert sentence in answer.text


def test_an_answer_belongs_to_its_token(
    reader: Visitor, new_visitor: Callable[[], Visitor], dashboard_token: Callable[[], str]
) -> None:
    """Nobody else sees it, its progress or its files, and nobody sees one that is not there."""
    page = reader.answer("/pages/metrics/theme/ranking")
    stranger = new_visitor()
    stranger.sign_in(dashboard_token())
    for path in ("", "/progress", "/files/report.html"):
        assert stranger.get(f"{page.url.path}{path}").status_code == 404
    assert reader.get("/pages/answers/0").status_code == 404
    progress = json.loads(reader.get(f"{page.url.path}/progress").text)
    assert progress["is_over"] is True


def test_an_answer_is_for_who_may_read_its_metric(
    dashboard: Dashboard, new_visitor: Callable[[], Visitor], dashboard_token: Callable[[], str]
) -> None:
    """Not any more once the token does not allow it."""
    visitor, token = new_visitor(), dashboard_token()
    visitor.sign_in(token)
    page = visitor.answer("/pages/metrics/theme/ranking")
    columns = schema.token.c
    with contextlib.closing(Store.open(dashboard.database)) as store, writing(store.engine) as db:
        own = columns.id == token.split(".")[1]
        db.execute(update(schema.token).where(own).values(metrics='["home_page"]'))
    assert visitor.get("/pages/").status_code == 200
    for path in ("", "/progress", "/files/report.html"):
        assert visitor.get(f"{page.url.path}{path}").status_code == 404


def test_an_answer_may_be_cancelled(reader: Visitor) -> None:
    """It is gone, and leads back to its metric."""
    page = reader.answer("/pages/metrics/theme/ranking")
    gone = reader.post(f"{page.url.path}/cancel", at="/pages/")
    assert gone.headers["location"] == "/pages/metrics/theme"
    assert reader.get(page.url.path).status_code == 404


def test_an_answer_that_is_being_made_is_found_again(reader: Visitor, dashboard: Dashboard) -> None:
    """Whoever has left its page sees it on those of metrics, and may end it there."""
    reader.answer("/pages/metrics/theme/ranking")
    decoders = dashboard.running.children_named("rappor-decoder")
    for each in decoders:
        os.kill(each, signal.SIGSTOP)
    try:
        asked = reader.post("/pages/metrics/theme/ranking", at="/pages/", level="4")
        place = asked.headers["location"]
        for metric in ("theme", "home_page"):
            (shown,) = re.findall(
                '<a href="([^"]+)">An answer about theme</a>',
                reader.get(f"/pages/metrics/{metric}").text,
            )
            assert shown == place
        again = reader.post("/pages/metrics/theme/ranking", at="/pages/")
        assert again.status_code == 429
        assert reader.post(f"{place}/cancel", at=place).status_code == 303
        assert "An answer about" not in reader.get("/pages/metrics/theme").text
    finally:
        for each in decoders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
