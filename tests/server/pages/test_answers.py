"""Answers: what a metric says on arrival, questions by address, made once, kept as files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors import Running, free_port, make_token, serving_file
from dashboards import DAYS, HOSTILE, NAMES, TOML, Visitor
from pages import drawings, tables

CANDIDATES = "Candidates: detected ones first; undetected ones have the interval of each alone"
HOME = "/pages/metrics/home_page"
MOST_BYTES = 200_000
MARKUP = ("<script>alert", "\u202e", "\x1b", '"><img')
"""What no page may have of hostile candidates."""


def words(page: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.replace("<wbr>", "")).replace("\xa0", " ").split())


@contextlib.contextmanager
def stopped(dashboard: Running) -> Iterator[None]:
    """Let no answer be made while the block runs."""
    decoders = dashboard.children_named("rappor-decoder")
    for each in decoders:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in decoders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


@pytest.mark.slow
def test_a_metric_answers_on_arrival(reader: Visitor) -> None:
    """The first page has the sentence, every detected string, and how each of them moved."""
    page = reader.answer(HOME)
    assert page.url.path == f"{HOME}/overview"
    assert f"to={DAYS[-1]}" in str(page.url)
    told = words(page.text)
    assert f"{NAMES[0]} leads with" in told
    assert f"{NAMES[3]} rose from" in told
    assert "100,000 reports in the last 5 days" in told
    assert len(page.content) < MOST_BYTES
    found = json.loads(reader.file(page, "ranking.json").text)
    shown = re.findall(r'<li class="[^"]*"><span class="name"><bdi>(.*?)</bdi>', page.text)
    detected = [row["candidate"] for row in found["estimates"] if row["detected"]]
    assert [re.sub("<wbr>", "", each) for each in shown][:3] == detected[:3]
    runs = json.loads(reader.file(page, "trend.json").text)
    assert [each["first"] for each in runs["samples"] if each["reports"]] == list(map(str, DAYS))
    for text in MARKUP:
        assert text not in page.text
    for name in ("report.html", "trend.csv", "ranking.svg", "trend.png"):
        assert reader.file(page, name).status_code == 200, name


@pytest.mark.slow
def test_the_list_answers(reader: Visitor) -> None:
    """Each metric has its three most common strings and its state, or says what is missing."""
    for metric in ("home_page", "theme"):
        reader.answer(f"/pages/metrics/{metric}/overview")
    page = reader.get("/pages/").text
    cards = dict(
        re.findall(r'<section class="card">.*?metrics/([\w.]+)">(.*?)</section>', page, re.S)
    )
    assert set(cards) == {"home_page", "theme", "other"}
    assert cards["home_page"].count("<li ") == 3
    assert len(drawings(cards["home_page"])) == 6
    assert "leads with" in words(cards["theme"])
    assert 'class="state expired"' in cards["other"]
    assert "Nothing to show yet" in cards["other"]
    assert len(page) < MOST_BYTES


@pytest.mark.slow
def test_a_long_list_has_pages(tmp_path: Path) -> None:
    """Each has so few metrics that it stays small, and leads to the others."""
    head, _, one = TOML.partition("[metrics.other]")
    names = [f"metric_{number:02}_{40 * 'x'}" for number in range(30)]
    registry = tmp_path / "metrics.toml"
    metrics = "".join(f"[metrics.{name}]{one}" for name in names)
    registry.write_text(head.partition("[metrics")[0] + metrics)
    with serving_file(tmp_path, "--pages", admin=free_port()) as running:
        visitor = Visitor(running)
        with visitor.http:
            visitor.sign_in(make_token(running.database))
            pages = [visitor.get(f"/pages/?page={number}").text for number in (1, 2)]
            shown = [re.findall(r'/metrics/(\w+)"', page) for page in pages]
            assert shown == [names[:24], names[24:]]
            assert f'href="/pages/?page=2">from {names[24]}<' in visitor.get("/pages/").text
            assert visitor.get("/pages/?page=3").status_code == 422


def test_a_metric_says_how_it_is(reader: Visitor) -> None:
    """Its description is escaped, its days are listed, and what is missing has a next step."""
    page = reader.get(f"{HOME}/health").text
    assert "The &lt;b&gt;page&lt;/b&gt; that" in page
    by_day = tables(page)["Released reports, by the last day of each block, newest first"]
    assert by_day[1:] == [[str(day), "20,000"] for day in reversed(DAYS)]
    over = reader.get("/pages/metrics/other/health").text
    assert "other: expired" in over
    assert "on 2026-01-01" in over.lower()
    missing = reader.answer("/pages/metrics/other/overview")
    assert "Add a list" in missing.text
    assert "No candidates yet" in reader.get("/pages/metrics/other/ask").text


def test_a_ranking_is_decoded_shown_and_kept(reader: Visitor) -> None:
    """The page, the report, CSV and JSON tell the same numbers."""
    page = reader.answer(f"{HOME}/ranking")
    assert page.status_code == 200
    shown = {row[0]: row for row in tables(page.text)[CANDIDATES][1:]}
    table = list(csv.DictReader(io.StringIO(reader.file(page, "estimates.csv").text)))
    document = json.loads(reader.file(page, "estimates.json").text)
    assert document["reports"] == 100_000
    assert [row["candidate"] for row in document["estimates"]] == [
        row["candidate"].removeprefix("'") for row in table
    ]
    for row in document["estimates"]:
        if row["candidate"] in NAMES:
            assert shown[row["candidate"]][4] == f"{row['count']:,.0f}"
    assert {NAMES[0], NAMES[3]} <= {row["candidate"] for row in document["estimates"]}
    report = reader.file(page, "report.html")
    assert report.headers["content-disposition"] == 'attachment; filename="home_page-report.html"'
    assert tables(report.text)[CANDIDATES] == tables(page.text)[CANDIDATES]
    assert reader.file(page, "none.csv").status_code == 404
    forged = reader.answer(f"{HOME}/ranking", forged="yes")
    assert "forged make" in tables(forged.text)[CANDIDATES][0]


def test_an_address_is_complete_and_shows_the_same(reader: Visitor, dashboard: Running) -> None:
    """What is left open is filled in, defaults are left out, and no process decodes it again."""
    page = reader.answer(f"{HOME}/ranking", list="", to="2026-11-05", level="5", unknown="x")
    assert str(page.url).endswith("/ranking?to=2026-11-05")
    assert "results from 60,000 reports" in page.text
    later = reader.answer(f"{HOME}/ranking", to="2099-01-01")
    assert str(later.url).endswith(f"/ranking?to={DAYS[-1]}")
    with stopped(dashboard):
        assert reader.http.get(page.url).text == page.text


def test_hostile_candidates_are_harmless(reader: Visitor) -> None:
    """Nothing of them is markup, turns the direction or is a formula."""
    page = reader.answer(f"{HOME}/ranking", all="yes")
    for text in MARKUP:
        assert text not in page.text
    assert "&lt;script&gt;alert(1)&lt;" in page.text
    assert "[U+202E]gpj.exe" in page.text
    table = reader.file(page, "estimates.csv").text
    assert "'=HYPERLINK(1)" in table
    named = json.loads(reader.file(page, "estimates.json").text)["estimates"]
    assert set(HOSTILE) <= {row["candidate"] for row in named}


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        ("home_page/ranking", {"from": "yesterday"}, "from must be a day as 2026-11-30"),
        ("home_page/ranking", {"from": "2026-11-05", "to": "2026-11-01"}, "a day no later than to"),
        ("home_page/ranking", {"level": "0"}, "level must be a number"),
        ("home_page/ranking", {"correction": "none"}, "correction must be one of"),
        ("home_page/ranking", {"to": "2020-01-01"}, "No results for these dates"),
        ("home_page/ranking", {"list": "0" * 64}, "has no list 000000000000: upload it again"),
        ("home_page/trend", {"by": "year"}, "by must be one of day, week, month"),
        ("home_page/trend", {"smooth": "0"}, "smooth must be a whole number"),
        ("home_page/comparison", {}, "the days before and after must not overlap"),
        ("home_page/comparison", {"to": "2020-01-01", "from_after": "2026-01-01"}, "No results"),
        ("theme/segments", {"dimension": "x"}, "dimension must be one of version"),
        ("other/ranking", {}, "No candidates yet"),
    ],
)
def test_a_question_without_an_answer_says_why(
    reader: Visitor, path: str, fields: dict[str, str], sentence: str
) -> None:
    """At once, or as the answer; a page about a problem has a whole sentence."""
    answer = reader.answer(f"/pages/metrics/{path}", **fields)
    assert answer.status_code == (404 if "list" in fields else 422)
    assert sentence.lower() in answer.text.lower()
    for told in re.findall(r'role="alert">([^<]+)<', answer.text):
        assert told[0].isupper()
        assert told.endswith(".")


def test_a_question_in_progress_is_found_again_and_may_be_cancelled(
    reader: Visitor, dashboard: Running
) -> None:
    """A second one leads to it; everybody who asks the same sees how far it is."""
    reader.answer("/pages/metrics/theme/ranking")
    with stopped(dashboard):
        asked = reader.http.get("/pages/metrics/theme/ranking?level=4", follow_redirects=True)
        (place,) = re.findall(r'Being computed: <span [^>]*data-progress="([^"]+)"', asked.text)
        place = place.replace("&amp;", "&")
        assert json.loads(reader.get(place).text)["is_over"] is False
        for other in ("ranking?level=3", "segments?dimension=version"):
            again = reader.http.get(f"/pages/metrics/theme/{other}", follow_redirects=True)
            assert again.status_code == 429
            assert f'href="{asked.url.path}?' in again.text
        query = asked.url.query.decode()
        gone = reader.post(f"{asked.url.path}/cancel?{query}", at=f"{asked.url.path}?{query}")
        assert gone.headers["location"] == "/pages/metrics/theme/ask"
        assert json.loads(reader.get(place).text)["is_over"] is True
