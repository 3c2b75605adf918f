"""Results on pages: overview, list of metrics, ranking, complete URLs, progress and problems.

`reader.answer` requests a page and waits until its result is computed.
"""

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
from collectors import Running, find_free_port, make_token, run_file_collector
from dashboards import DAYS, HOSTILE, NAMES, TOML, Visitor
from pages import parse_drawings, parse_tables
from rappor_server.pages import page_routes

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
    """The overview has sentences about the largest share and changes, and the detected strings.

    The fourth name triples on the last two days.
    """
    page = reader.request_result(HOME)
    assert page.url.path == f"{HOME}/overview"
    assert f"to={DAYS[-1]}" in str(page.url)
    text = extract_text(page.text)
    assert f"{NAMES[0]} leads with" in text
    assert f"{NAMES[3]} rose from" in text
    assert "100,000 reports in the last 5 days" in text
    assert len(page.content) < MAX_PAGE_BYTES
    ranking = json.loads(reader.file(page, "ranking.json").text)
    listed_names = re.findall(r'<li class="[^"]*"><span class="name"><bdi>(.*?)</bdi>', page.text)
    detected = [row["candidate"] for row in ranking["estimates"] if row["detected"]]
    assert [re.sub("<wbr>", "", name) for name in listed_names][:3] == detected[:3]
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
    """The card of a metric has its three most common strings, or the reason why it has none.

    The cards of expired metrics state it.
    """
    for metric in ("home_page", "theme"):
        reader.request_result(f"/pages/metrics/{metric}/overview")
    page = reader.get("/pages/").text
    cards = dict(
        re.findall(r'<section class="card">.*?metrics/([\w.]+)">(.*?)</section>', page, re.S)
    )
    assert set(cards) == {"home_page", "theme", "setup", "other"}
    assert cards["home_page"].count("<li ") == 3
    assert len(parse_drawings(cards["home_page"])) == 6
    assert "leads with" in extract_text(cards["theme"])
    assert 'class="state expired"' in cards["other"]
    assert "Nothing to show yet" in cards["other"]
    assert len(page) < MAX_PAGE_BYTES


@pytest.mark.slow
def test_list_of_many_metrics_has_pages(tmp_path: Path) -> None:
    """A page lists at most 16 metrics, and links to the other pages. A third page is an error."""
    head, _, entry = TOML.partition("[metrics.other]")
    names = [f"metric_{number:02}_{40 * 'x'}" for number in range(30)]
    registry = tmp_path / "metrics.toml"
    metrics = "".join(f"[metrics.{name}]{entry}" for name in names)
    registry.write_text(head.partition("[metrics")[0] + metrics)
    with run_file_collector(tmp_path, "--pages", admin=find_free_port()) as running:
        visitor = Visitor(running)
        with visitor.http:
            visitor.sign_in(make_token(running.database))
            pages = [visitor.get(f"/pages/?page={number}").text for number in (1, 2)]
            names_of_pages = [re.findall(r'/metrics/(\w+)"', page) for page in pages]
            assert names_of_pages == [names[:16], names[16:]]
            assert f'href="/pages/?page=2">from {names[16]}<' in visitor.get("/pages/").text
            assert visitor.get("/pages/?page=3").status_code == 422


def test_health_page(reader: Visitor) -> None:
    """The health page draws and lists the released reports by day, and escapes the description.

    The pages of a metric without candidates state the next step.
    """
    page = reader.get(f"{HOME}/health").text
    assert "The &lt;b&gt;page&lt;/b&gt; that" in page
    by_day = parse_tables(page)["Released reports, by the day of each release window, newest first"]
    assert by_day[1:] == [[str(day), "20,000"] for day in reversed(DAYS)]
    assert all(f"<title>{day}: 20,000 reports</title>" in page for day in DAYS)
    over = reader.get("/pages/metrics/other/health").text
    assert "other: expired" in over
    assert "on 2026-01-01" in over.lower()
    missing = reader.request_result("/pages/metrics/other/overview")
    assert "Add a list" in missing.text
    assert "No candidates yet" in reader.get("/pages/metrics/other/ask").text


@pytest.mark.parametrize("question", ["ranking", "trend", "comparison"])
def test_ask_page_has_one_form(reader: Visitor, question: str) -> None:
    """The page Ask has the form of the chosen question, and a link to each other question."""
    page = reader.get(f"{HOME}/ask?question={question}").text
    assert re.findall(f'action="{HOME}/([a-z]+)"', page) == [question, "lists"]
    for other in ("ranking", "trend", "comparison"):
        is_chosen = f'{HOME}/ask?question={other}" aria-current="page"' in page
        assert is_chosen == (other == question)


def test_ranking_page_and_files(reader: Visitor) -> None:
    """The page, the report, CSV and JSON of a ranking have equal numbers."""
    page = reader.request_result(f"{HOME}/ranking")
    assert page.status_code == 200
    row_of_candidate = {row[0]: row for row in parse_tables(page.text)[CANDIDATES][1:]}
    table = list(csv.DictReader(io.StringIO(reader.file(page, "estimates.csv").text)))
    document = json.loads(reader.file(page, "estimates.json").text)
    assert document["reports"] == 100_000
    assert [row["candidate"] for row in document["estimates"]] == [
        row["candidate"].removeprefix("'") for row in table
    ]
    for row in document["estimates"]:
        if row["candidate"] in NAMES:
            assert row_of_candidate[row["candidate"]][4] == f"{row['count']:,.0f}"
    assert {NAMES[0], NAMES[3]} <= {row["candidate"] for row in document["estimates"]}
    report = reader.file(page, "report.html")
    assert report.headers["content-disposition"] == 'attachment; filename="home_page-report.html"'
    assert parse_tables(report.text)[CANDIDATES] == parse_tables(page.text)[CANDIDATES]
    assert reader.file(page, "none.csv").status_code == 404
    forged = reader.request_result(f"{HOME}/ranking", forged="yes")
    assert "forged make" in parse_tables(forged.text)[CANDIDATES][0]


def test_unknown_and_repeated_query_parameters_are_refused(reader: Visitor) -> None:
    """Every page refuses a query parameter that it does not know, and one that occurs twice.

    `form` is a mistyped `from`. Without the refusal, the page would show another result than the
    URL asks for. Each kind of result knows its own parameters only.
    """
    kinds = ("overview", "ranking", "trend", "comparison", "segments", "association")
    paths = {
        f"/pages{route.path}".format(name="theme", kind=kind, file="a.csv", secret="x")  # noqa: S106
        for route in page_routes.ROUTES
        for kind in kinds
        if "GET" in (route.methods or ())
    }
    assert f"{HOME}/health".replace("home_page", "theme") in paths
    for path in (*sorted(paths), "/pages"):
        page = reader.http.get(f"{path}?form=2026-11-21")
        assert (page.status_code, "unknown query parameter" in page.text.lower()) == (422, True), (
            path
        )
    for query in ("to=2026-11-05&to=", "smooth=2", "rows=editor"):
        assert reader.http.get(f"{HOME}/ranking?{query}").status_code == 422
    assert "did you mean from?" in reader.http.get(f"{HOME}/ranking?form=2026-11-21").text


def test_complete_url_shows_the_same_result(reader: Visitor, dashboard: Running) -> None:
    """The URL gets the last day of its range and loses default options, so its result is fixed.

    The result is computed once. The same URL shows it while no decoder runs.
    """
    page = reader.request_result(f"{HOME}/ranking", list="", to="2026-11-05", level="5")
    assert str(page.url).endswith("/ranking?to=2026-11-05")
    assert "results from 60,000 reports" in page.text
    later = reader.request_result(f"{HOME}/ranking", to="2099-01-01")
    assert str(later.url).endswith(f"/ranking?to={DAYS[-1]}")
    # No decoder runs, so an equal page is the stored result.
    with block_workers(dashboard):
        assert reader.http.get(page.url).text == page.text


def test_hostile_candidates_are_harmless(reader: Visitor) -> None:
    """A candidate is escaped on pages, and cannot become a formula in a spreadsheet."""
    page = reader.request_result(f"{HOME}/ranking", all="yes")
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
        ("home_page/comparison", {"from_after": "tomorrow"}, "from_after must be a day as"),
        ("home_page/comparison", {}, "the days before and after must not overlap"),
        ("home_page/comparison", {"to": "2020-01-01", "from_after": "2026-01-01"}, "No results"),
        ("home_page/overview", {"to": "0001-01-01"}, "to must be a day of this collection"),
        ("theme/segments", {"dimension": "x"}, "dimension must be one of version"),
        ("home_page/segments", {"dimension": "x"}, "needs a metric with segments"),
        ("theme/association", {}, "an association needs a metric with fields, and theme has none"),
        ("setup/association", {"rows": "x"}, "rows must be one of editor, system"),
        ("setup/association", {"rows": "system", "columns": "system"}, "another field than rows"),
        ("other/ranking", {}, "No candidates yet"),
    ],
)
def test_page_without_result_has_a_reason(
    reader: Visitor, path: str, fields: dict[str, str], sentence: str
) -> None:
    """Invalid fields and failed queries get a page with a sentence that states the reason."""
    response = reader.request_result(f"/pages/metrics/{path}", **fields)
    assert response.status_code == (404 if "list" in fields else 422)
    assert sentence.lower() in response.text.lower()
    for alert in re.findall(r'role="alert">([^<]+)<', response.text):
        assert alert[0].isupper()
        assert alert.endswith(".")


def test_query_in_progress(reader: Visitor, dashboard: Running) -> None:
    """While a query of a visitor runs, a second query gets 429 and a link to the first query.

    The page of a running query has the URL of its progress, and a button that cancels the query.
    """
    reader.request_result("/pages/metrics/theme/ranking")
    with block_workers(dashboard):
        running = reader.http.get("/pages/metrics/theme/ranking?level=4", follow_redirects=True)
        (progress_url,) = re.findall(
            r'Being computed: <span [^>]*data-progress="([^"]+)"', running.text
        )
        progress_url = progress_url.replace("&amp;", "&")
        assert json.loads(reader.get(progress_url).text)["is_over"] is False
        for address in ("ranking?level=3", "segments?dimension=version"):
            second = reader.http.get(f"/pages/metrics/theme/{address}", follow_redirects=True)
            assert second.status_code == 429
            assert f'href="{running.url.path}?' in second.text
        query = running.url.query.decode()
        cancelled = reader.post(
            f"{running.url.path}/cancel?{query}", at=f"{running.url.path}?{query}"
        )
        assert cancelled.headers["location"] == "/pages/metrics/theme/ask"
        assert json.loads(reader.get(progress_url).text)["is_over"] is True
