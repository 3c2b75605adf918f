"""Queries whose results are pages: `RankingQuery` and `OverviewQuery`.

The tests check the key under which a result is stored, the periods of an overview, the size of the
files of a result, and where the candidates come from.
"""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rappor_server
from collectors import build_metric, close_days, store_counts
from databases import ON_BOTH_DATABASES
from rappor_server.queries import query as query_module
from rappor_server.queries.candidate_lists import CandidateLists
from rappor_server.queries.candidate_sources import (
    CandidateSource,
    InlineCandidates,
    UploadedList,
    find_candidates,
    find_registry_candidates,
)
from rappor_server.queries.page_queries import (
    OverviewQuery,
    PageQuery,
    RankingQuery,
    ResultPage,
    read_whole_weeks,
)
from rappor_server.queries.query import QueryResult, Range, Subject, digest_program
from rappor_server.storage.forgetting import forget
from sqlalchemy import Engine

import rappor
from rappor import Counts, Params
from rappor.base.errors import DecodeError, ParamsError
from rappor.candidates.entry_candidates import EntryCandidates
from rappor.estimator.error_control import ErrorControl

DAY = datetime.date(2026, 11, 20)
PARAMS = Params(k=8, h=1, m=1, f=0.0, p=0.25, q=0.75)
"""Parameters with one cohort and little noise, so that expected counts are easy to compute."""
METRIC = build_metric("page", PARAMS, min_reports=0)
"""A metric without a minimum, so every report is released."""
COUNTS = Counts(METRIC.params, [[500, 400, 300, 250, 250, 250, 250, 250]], [1000], "page")
"""Counts of 1,000 reports, in which the first three bits stand out of the noise."""
TWO_CANDIDATES = InlineCandidates(strings=("a", "b"))
"""The candidates in the queries of most tests."""


def build_subject(**fields: Any) -> Subject:
    """Return a subject with two candidates."""
    defaults: dict[str, Any] = {
        "metric": METRIC,
        "source": TWO_CANDIDATES,
        "error_control": ErrorControl(),
    }
    return Subject(**(defaults | fields))


def ranking(**fields: Any) -> RankingQuery:
    """Return a query for the ranking of all days, in which fields of the subject are replaced."""
    days = Range(first=None, last=None)
    return RankingQuery(subject=build_subject(**fields), range=days, include_all=True)


def upload_candidates(folder: Path, text: str) -> CandidateSource:
    """Store a list of candidates as the upload of an analyst does, and return its source."""
    lists = CandidateLists(folder, days=1)
    digest = lists.save("page", text.encode(), max_candidates=10**6)
    source = find_candidates(METRIC, digest, registry="metrics.toml", lists=lists)
    assert isinstance(source, UploadedList)
    return source


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_key_has_everything_on_which_a_result_depends(engine: Engine, tmp_path: Path) -> None:
    """The key of a stored result changes with everything on which the result depends.

    The error rate, the list and the number of reports change the key. The folder of the list does
    not, and a repeated query has the same key.
    """
    keys = []

    def is_new(**fields: Any) -> bool:
        keys.append(ranking(**fields).compute_key(engine))
        return keys[-1] not in keys[:-1]

    store_counts(engine, COUNTS, DAY)
    assert is_new(source=upload_candidates(tmp_path / "one", "a\nb"))
    assert not is_new(source=upload_candidates(tmp_path / "two", "a\nb"))
    assert is_new(source=upload_candidates(tmp_path / "one", "a\nc"))
    assert is_new()
    assert not is_new()
    assert is_new(error_control=ErrorControl(alpha=0.01))
    store_counts(engine, COUNTS, DAY - datetime.timedelta(days=1))
    assert is_new()
    assert not is_new()


def test_the_key_changes_with_the_counts_if_a_metric_has_no_minimum(engine: Engine) -> None:
    """The key depends on the sums of bits, if `min_reports` is 0.

    Deleted reports change the key. So do other reports, even if their number and their day are the
    same. Equal counts give the same key again.

    Bad case: an operator tries the software, deletes all reports, and sends as many others. The
    page showed the result of the deleted reports.
    """
    store_counts(engine, COUNTS, DAY)
    before = ranking().compute_key(engine)
    forget(engine, "page")
    assert ranking().compute_key(engine) != before
    other_counts = Counts(METRIC.params, COUNTS.bit_counts[:, ::-1], COUNTS.cohort_reports, "page")
    store_counts(engine, other_counts, DAY)
    assert ranking().compute_key(engine) != before
    forget(engine, "page")
    store_counts(engine, COUNTS, DAY)
    assert ranking().compute_key(engine) == before


@ON_BOTH_DATABASES
def test_the_key_covers_the_collector_and_the_library(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The key changes with the code of the collector, and with the code of the library.

    The test computes the key with the installed code, with an empty folder in place of the library,
    and with an empty folder in place of the collector. The three keys differ.
    """
    keys = set()
    for package in (None, rappor, rappor_server):
        with monkeypatch.context() as patch:
            if package is not None:
                patch.setattr(package, "__path__", [str(tmp_path)])
            query_module._digest_installed_program.cache_clear()
            keys.add(ranking(source=upload_candidates(tmp_path / "one", "a")).compute_key(engine))
    query_module._digest_installed_program.cache_clear()
    assert len(keys) == 3


def test_another_program_makes_other_results(tmp_path: Path) -> None:
    """The digest of the program changes with its Python code and style sheets.

    A program with the same version and different code may compute different results.
    """
    (tmp_path / "within").mkdir()
    digests = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("within/b.py", "1"), ("page.css", "c {}")):
        (tmp_path / name).write_text(text)
        digests.add(digest_program(tmp_path))
    assert len(digests) == 4
    assert digest_program(tmp_path) in digests


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_overview_is_of_days_until_there_are_two_weeks(engine: Engine) -> None:
    """An overview has the days with reports until two whole weeks have reports.

    Then it has the whole weeks, and leaves out the days of the unfinished week.
    """
    task = OverviewQuery(subject=build_subject(), through=DAY)
    with pytest.raises(ParamsError, match="No results"):
        task.run(engine, lambda _: None)
    # `DAY` is a Friday, so its week is unfinished. Each step adds the Friday of an earlier week.
    # After the second step, two days have reports, but only one whole week. After the third
    # step, two whole weeks have reports.
    for weeks_ago, heading in (
        (0, "the last day"),
        (1, "the last 2 days"),
        (2, "the last 2 weeks"),
    ):
        store_counts(engine, COUNTS, DAY - datetime.timedelta(days=7 * weeks_ago))
        drawn = msgspec.msgpack.decode(task.run(engine, lambda _: None), type=QueryResult)
        page = msgspec.msgpack.decode(drawn.page, type=ResultPage)
        assert f"reports in {heading}" in page.html
        assert {"report.html", "ranking.csv", "trend.json", "ranking.svg"} <= set(page.files)


def test_a_week_without_its_deleted_days_is_no_whole_week(engine: Engine) -> None:
    """`forget` deletes Monday of the first week. The week is left out of the trend.

    The second week stays if its Monday is the first day that is kept.
    """
    metric = dataclasses.replace(METRIC, min_reports=100)
    first, second = (datetime.date(2026, 11, monday) for monday in (2, 9))
    wednesday = datetime.date(2026, 11, 4)
    for on in (first, wednesday, second):
        store_counts(engine, COUNTS, on)
    close_days(engine, metric, DAY)

    def list_weeks() -> list[datetime.date]:
        periods = read_whole_weeks(engine, build_subject(metric=metric), DAY).periods
        return [period.first for period in periods]

    assert list_weeks() == [first, second]
    for before in (wednesday, second):
        forget(engine, "page", before=before)
        assert list_weeks() == [second]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_files_are_bounded(engine: Engine, tmp_path: Path) -> None:
    """A file of more than 10 MB is left out, and the page names it."""
    store_counts(engine, COUNTS, DAY)
    # 36,000 candidates of 100 characters make the JSON of the estimates longer than 10 MB. All
    # other files stay below the limit, because they have fewer characters for each candidate.
    candidates = "\n".join(f"{number:>100}" for number in range(36_000))
    query = ranking(source=upload_candidates(tmp_path, candidates))
    result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
    page = msgspec.msgpack.decode(result.page, type=ResultPage)
    assert list(result.files) == page.files
    assert "report.html" in result.files
    assert page.too_large == ["estimates.json"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_ranking_begins_with_the_candidates_of_the_registry(
    engine: Engine, tmp_path: Path
) -> None:
    """The candidates in the registry's entry of a metric come first, also in an uploaded list.

    They change the key of the result. A query without an uploaded list has these candidates only.
    """
    store_counts(engine, COUNTS, DAY)
    metric = build_metric("page", PARAMS, min_reports=0, candidates=("rare", "also rare"))
    source = upload_candidates(tmp_path, "a\nb\nrare\n")
    task = ranking(metric=metric, source=source)
    files = msgspec.msgpack.decode(task.run(engine, lambda _: None), type=QueryResult).files
    rows = files["estimates.csv"].decode().split("\n")[1:]
    assert [row.split(",")[0] for row in rows[:2]] == ["rare", "also rare"]
    lists = CandidateLists(tmp_path, days=1)
    candidates_of_registry = find_candidates(metric, "", registry="metrics.toml", lists=lists)
    assert isinstance(candidates_of_registry, InlineCandidates)
    assert candidates_of_registry.read(Params.profile("balanced")).strings == ("rare", "also rare")
    changed = build_metric("page", PARAMS, min_reports=0, candidates=("rare",))
    assert ranking(metric=changed, source=source).compute_key(engine) != task.compute_key(engine)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_metric_of_strings_needs_candidates(engine: Engine) -> None:
    """Without candidates in the registry and in the query, the error asks for them."""
    store_counts(engine, COUNTS, DAY)
    with pytest.raises(ParamsError, match="candidates must be given"):
        ranking(source=None).run(engine, lambda _: None)


TUPLE_PARAMS = Params.profile("balanced", field_names=("site", "country"))
"""Parameters of tuples with two fields."""
SITES_IN_A_FILE: EntryCandidates = {"site": "sites.txt", "country": ("de", "fr")}
"""Candidates of the fields in a registry: the sites are in a file, the countries in a list."""


def build_tuple_source(folder: Path, candidates: EntryCandidates) -> CandidateSource:
    """Return the source of the candidates of a metric of tuples, whose registry is in a folder."""
    metric = build_metric("pair", TUPLE_PARAMS, candidates=candidates)
    source = find_registry_candidates(metric, registry=str(folder / "metrics.toml"))
    assert source is not None
    return source


def test_candidates_of_a_tuple_are_the_combinations_of_its_fields(tmp_path: Path) -> None:
    r"""Each candidate of one field is combined with each candidate of the other field.

    The candidates of a field are in a file or in a list. If both fields have lists, the source is
    the combinations themselves. `\x1f` separates the fields of a combination.
    """
    (tmp_path / "sites.txt").write_text("a.org\nb.org\n")
    from_file = build_tuple_source(tmp_path, SITES_IN_A_FILE)
    expected = ("a.org\x1fde", "a.org\x1ffr", "b.org\x1fde", "b.org\x1ffr")
    assert from_file.read(TUPLE_PARAMS).strings == expected
    from_lists = build_tuple_source(tmp_path, {"site": ("a",), "country": ("de", "fr")})
    assert from_lists == InlineCandidates(strings=("a\x1fde", "a\x1ffr"))
    # 9,999 sites in 2 countries are 19,998 combinations. The registry lists at most 10,000, so the
    # source combines the lists when it is read.
    sites = tuple(map(str, range(9_999)))
    from_long_lists = build_tuple_source(tmp_path, {"site": sites, "country": ("de", "fr")})
    assert len(from_long_lists.read(TUPLE_PARAMS)) == 19_998


def test_the_key_changes_with_the_candidates_of_each_field(tmp_path: Path) -> None:
    """The bytes for the key change with a file of a field, a list of a field, and their form."""
    (tmp_path / "sites.txt").write_text("a.org\nb.org\n")
    contents = {build_tuple_source(tmp_path, SITES_IN_A_FILE).read_contents()}
    (tmp_path / "sites.txt").write_text("a.org\nc.org\n")
    changed: tuple[EntryCandidates, ...] = (
        SITES_IN_A_FILE,
        {"site": "sites.txt", "country": ("de", "es")},
        "sites.txt",  # one file of whole combinations
    )
    for candidates in changed:
        contents.add(build_tuple_source(tmp_path, candidates).read_contents())
    assert len(contents) == 4


def test_an_error_names_the_file_of_a_field_without_its_folder(tmp_path: Path) -> None:
    """A missing file, a line with a wrong number of fields and an empty file are errors.

    Analysts read the errors, so no error contains the folder of the server. The bytes for the key
    of a missing file are empty.
    """
    source = build_tuple_source(tmp_path, SITES_IN_A_FILE)
    with pytest.raises(DecodeError) as missing:
        source.read(TUPLE_PARAMS)
    assert str(missing.value).startswith("pair: its candidates file sites.txt cannot be read")
    assert str(tmp_path) not in str(missing.value)
    assert source.read_contents() == b""
    (tmp_path / "sites.txt").write_text("a.org\nc.org\n")
    with pytest.raises(DecodeError, match=r"sites.txt cannot be read: line 1: it must have 2 fiel"):
        build_tuple_source(tmp_path, "sites.txt").read(TUPLE_PARAMS)
    (tmp_path / "sites.txt").write_text("")
    with pytest.raises(DecodeError, match="pair: candidates of field site must not be empty"):
        source.read(TUPLE_PARAMS)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_only_candidates_of_the_registry_are_ranked(engine: Engine, tmp_path: Path) -> None:
    """Ranking and overview use the order of the registry's candidates as prior knowledge.

    They do not use the order of an uploaded list, because nobody states where it comes from. The
    error control `adaptive` is refused for ranked candidates.
    """
    store_counts(engine, COUNTS, DAY)
    metric = build_metric("page", PARAMS, min_reports=0, candidates=("a", "b"), ranked=True)
    candidates_of_registry = find_candidates(
        metric, "", registry="", lists=CandidateLists(tmp_path, days=1)
    )
    for source, is_ranked in (
        (candidates_of_registry, True),
        (upload_candidates(tmp_path, "a\nb\n"), False),
    ):
        query_subject = build_subject(metric=metric, source=source)
        queries: dict[str, PageQuery[Any]] = {
            "estimates.csv": ranking(metric=metric, source=source),
            "ranking.csv": OverviewQuery(subject=query_subject, through=DAY),
        }
        for name, query in queries.items():
            result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
            assert (b",weight," in result.files[name]) == is_ranked
            page = msgspec.msgpack.decode(result.page, type=ResultPage)
            assert ("The list is ranked" in page.html) == is_ranked
    adaptive = ranking(
        metric=metric, source=candidates_of_registry, error_control=ErrorControl(method="adaptive")
    )
    with pytest.raises(ParamsError, match="method must be bh or bonferroni for a ranked list"):
        adaptive.run(engine, lambda _: None)
