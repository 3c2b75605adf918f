"""Results on pages: overview, list of metrics, ranking, complete URLs, progress, problems."""

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

CANDIDATES = "Candidates: detected ones first; the intervals of undetected ones are not adjusted"
"""Caption that the table of a ranking has."""
HOME = "/pages/metrics/home_page"
MAX_PAGE_BYTES = 200_000
"""Limits the size of a page, in bytes. A larger page loads slowly on a phone."""
MARKUP = ("<script>alert", "\u202e", "\x1b", '"><img')
"""Parts of hostile candidates that no page may contain unescaped."""


def extract_text(page: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.replace("<wbr>", "")).replace("\xa0", " ").split())


@contextlib.contextmanager
def block_workers(dashboard: Running) -> Iterator[None]:
    """Stop all decoders (SIGSTOP) while the block runs, so that no query makes progress."""
    decoders = dashboard.children_named("rappor-decoder")
    for number in decoders:
        os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        for number in decoders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


@pytest.mark.slow
def test_overview_page(reader: Visitor) -> None:
    """The overview has a sentence, every detected string, and the changes of each string."""
    page = reader.answer(HOME)
    assert page.url.path == f"{HOME}/overview"
    assert f"to={DAYS[-1]}" in str(page.url)
    text = extract_text(page.text)
    assert f"{NAMES[0]} leads with" in text
    assert f"{NAMES[3]} rose from" in text
    assert "100,000 reports in the last 5 days" in text
    assert len(page.content) < MAX_PAGE_BYTES
    ranking = json.loads(reader.file(page, "ranking.json").text)
    shown = re.findall(r'<li class="[^"]*"><span class="name"><bdi>(.*?)</bdi>', page.text)
    detected = [row["candidate"] for row in ranking["estimates"] if row["detected"]]
    assert [re.sub("<wbr>", "", name) for name in shown][:3] == detected[:3]
    runs = json.loads(reader.file(page, "trend.json").text)
    assert [sample["first"] for sample in runs["samples"] if sample["reports"]] == list(
        map(str, DAYS)
    )
    for text in MARKUP:
        assert text not in page.text
    for name in ("report.html", "trend.csv", "ranking.svg", "trend.png"):
        assert reader.file(page, name).status_code == 200, name


@pytest.mark.slow
def test_list_of_metrics(reader: Visitor) -> None:
    """Each metric has its three most common strings and its state, or a text that says why not."""
    for metric in ("home_page", "theme"):
        reader.answer(f"/pages/metrics/{metric}/overview")
    page = reader.get("/pages/").text
    cards = dict(
        re.findall(r'<section class="card">.*?metrics/([\w.]+)">(.*?)</section>', page, re.S)
    )
    assert set(cards) == {"home_page", "theme", "setup", "other"}
    assert cards["home_page"].count("<li ") == 3
    assert len(drawings(cards["home_page"])) == 6
    assert "leads with" in extract_text(cards["theme"])
    assert 'class="state expired"' in cards["other"]
    assert "Nothing to show yet" in cards["other"]
    assert len(page) < MAX_PAGE_BYTES


@pytest.mark.slow
def test_list_of_many_metrics_has_pages(tmp_path: Path) -> None:
    """Each page has a limited number of metrics, and links to the other pages."""
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
            assert shown == [names[:16], names[16:]]
            assert f'href="/pages/?page=2">from {names[16]}<' in visitor.get("/pages/").text
            assert visitor.get("/pages/?page=3").status_code == 422


def test_health_page(reader: Visitor) -> None:
    """The description is escaped and the days are listed. A missing part has a next step."""
    page = reader.get(f"{HOME}/health").text
    assert "The &lt;b&gt;page&lt;/b&gt; that" in page
    by_day = tables(page)["Released reports, by the day of each release window, newest first"]
    assert by_day[1:] == [[str(day), "20,000"] for day in reversed(DAYS)]
    over = reader.get("/pages/metrics/other/health").text
    assert "other: expired" in over
    assert "on 2026-01-01" in over.lower()
    missing = reader.answer("/pages/metrics/other/overview")
    assert "Add a list" in missing.text
    assert "No candidates yet" in reader.get("/pages/metrics/other/ask").text


def test_ranking_page_and_files(reader: Visitor) -> None:
    """The page, the report, CSV and JSON have equal numbers."""
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


def test_complete_url_shows_the_same_result(reader: Visitor, dashboard: Running) -> None:
    """Missing fields are added, defaults are left out, and the result is computed once."""
    page = reader.answer(f"{HOME}/ranking", list="", to="2026-11-05", level="5", unknown="x")
    assert str(page.url).endswith("/ranking?to=2026-11-05")
    assert "results from 60,000 reports" in page.text
    later = reader.answer(f"{HOME}/ranking", to="2099-01-01")
    assert str(later.url).endswith(f"/ranking?to={DAYS[-1]}")
    # Nothing can be computed now, so the same page is the stored result.
    with block_workers(dashboard):
        assert reader.http.get(page.url).text == page.text


def test_hostile_candidates_are_harmless(reader: Visitor) -> None:
    """No candidate becomes markup, changes the direction of text, or becomes a formula."""
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
        ("home_page/overview", {"to": "0001-01-01"}, "to must be a day of this collection"),
        ("theme/segments", {"dimension": "x"}, "dimension must be one of version"),
        ("theme/association", {}, "an association needs a metric with fields, and theme has none"),
        ("setup/association", {"rows": "x"}, "rows must be one of editor, system"),
        ("setup/association", {"rows": "system", "columns": "system"}, "another field than rows"),
        ("other/ranking", {}, "No candidates yet"),
    ],
)
def test_page_without_result_has_a_reason(
    reader: Visitor, path: str, fields: dict[str, str], sentence: str
) -> None:
    """Invalid fields get a page at once. A failed query gets a page with a whole sentence."""
    response = reader.answer(f"/pages/metrics/{path}", **fields)
    assert response.status_code == (404 if "list" in fields else 422)
    assert sentence.lower() in response.text.lower()
    for alert in re.findall(r'role="alert">([^<]+)<', response.text):
        assert alert[0].isupper()
        assert alert.endswith(".")


def test_query_in_progress(reader: Visitor, dashboard: Running) -> None:
    """A second query links to the first one. Everybody with the URL sees the progress.

    The query can be cancelled.
    """
    reader.answer("/pages/metrics/theme/ranking")
    with block_workers(dashboard):
        running = reader.http.get("/pages/metrics/theme/ranking?level=4", follow_redirects=True)
        (progress_url,) = re.findall(
            r'Being computed: <span [^>]*data-progress="([^"]+)"', running.text
        )
        progress_url = progress_url.replace("&amp;", "&")
        assert json.loads(reader.get(progress_url).text)["is_over"] is False
        for other in ("ranking?level=3", "segments?dimension=version"):
            again = reader.http.get(f"/pages/metrics/theme/{other}", follow_redirects=True)
            assert again.status_code == 429
            assert f'href="{running.url.path}?' in again.text
        query = running.url.query.decode()
        gone = reader.post(f"{running.url.path}/cancel?{query}", at=f"{running.url.path}?{query}")
        assert gone.headers["location"] == "/pages/metrics/theme/ask"
        assert json.loads(reader.get(progress_url).text)["is_over"] is True
