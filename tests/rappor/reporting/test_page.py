"""Page of a decode: complete, small, safe, and equal to its record."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
from pages import drawings, tables, tags

from rappor import Estimates, Params, Population, decode, simulate_counts
from rappor.decoding.estimates_report import InputFile, Origin
from rappor.privacy import posterior_bound
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.reporting.footnotes import format_detections
from rappor.reporting.numbers import format_interval, format_p_value, format_percent, format_share
from rappor.reporting.page import estimates_page

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "&lt;b&gt;",
    "\u202egpj.exe\u2066",
    "=HYPERLINK(1)",
    "nul\x00bell\x07escape\x1b[31m",
    "x" * 10_000,
    "z\u0335" * 500,
    "]]><!-- -->",
)


@pytest.fixture(scope="module")
def page(estimates: Estimates) -> str:
    return estimates_page(estimates)


def rows_of(page: str) -> list[list[str]]:
    """Return the rows of the table of candidates."""
    (candidate_rows,) = [
        rows for caption, rows in tables(page).items() if caption.startswith("Candidates:")
    ]
    return candidate_rows[1:]


def test_every_number_of_the_table_is_the_record_s(estimates: Estimates, page: str) -> None:
    """Each row of the table has the numbers of the record, forged reports included."""
    rows = rows_of(page)
    expected = sorted(
        estimates.rows(),
        key=lambda row: (not row["detected"], 0 if row["detected"] else row["p_value"]),
    )
    assert len(rows) == len(expected) == 150
    for row, cells in zip(expected, rows, strict=True):
        suffix = "_adjusted" if row["detected"] else ""
        low, high = row[f"ci_low{suffix}"], row[f"ci_high{suffix}"]
        low = max(low, 0.0) if row["detected"] else low  # no share is below 0
        error = row["std_error"] / estimates.reports
        assert cells == [
            row["candidate"],
            format_share(row["share"], error),
            format_interval(low, high, error),
            "yes" if row["detected"] else "no",
            f"{row['count']:,.0f}",
            f"{row['std_error']:,.0f}",
            format_p_value(row["p_value"]),
        ]


def test_forged_reports_are_told_on_request(estimates: Estimates, tmp_path: Path) -> None:
    """With `forged`, detected rows have two more columns, which a sentence explains."""
    page = estimates.to_html(tmp_path / "report.html", forged=True)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    for row, cells in zip(estimates.rows(detected_only=True), rows_of(page), strict=False):
        assert cells[-2:] == [f"{row['forged_to_make']:,}", f"{row['forged_to_hide']:,}"]
    assert "Nothing in a report proves that a device sent it." in page
    assert "forged make" not in estimates.to_html()


def test_the_answer_comes_first_and_the_rest_is_folded(estimates: Estimates, page: str) -> None:
    """Sentence, chart and table come first, and five sections follow that open without a script.

    Intervals of the table are called adjusted, and tables of words have a class of their own.
    """
    assert ">adjusted 95 % interval<" in page
    assert page.count('class="words"') == 6
    row = estimates.row(0)
    error = row["std_error"] / estimates.reports
    largest = f"\u201c<bdi>{row['candidate']}</bdi>\u201d with {format_share(row['share'], error)}"
    places = [
        page.index(part)
        for part in (format_detections(estimates), largest, "<svg ", 'id="candidates"', "<details ")
    ]
    assert places == sorted(places)
    assert page.count("<details ") == page.count("<summary>") == 5


def test_what_was_asked_is_told_with_its_price(estimates: Estimates, page: str) -> None:
    """The page has metric, parameters, both losses, and the largest beliefs from 50 %."""
    (collected,) = estimates.collections
    params = collected.params
    (options,) = [
        {row[0]: row[1] for row in rows}
        for caption, rows in tables(page).items()
        if caption.startswith("Metric home page")
    ]
    assert options["bits k, hashes h, cohorts m"] == f"{params.k}, {params.h}, {params.m}"
    for name, loss in (
        ("epsilon of one report", epsilon_1(params)),
        ("epsilon of all reports of one value", epsilon_inf(params)),
    ):
        assert options[name].startswith(f"{loss:.4f} nats; a belief of 50 % becomes at most ")
        cost = float(options[name].split()[-2])
        assert cost / 100 >= posterior_bound(loss, 0.5)[1] > cost / 100 - 1e-3


def test_diagnostics_are_the_record_s(estimates: Estimates, page: str) -> None:
    """The page has the goodness of fit and the limits of detection of the record."""
    page_tables = tables(page)
    fit = {row[0]: row[1] for row in page_tables["How well the candidates explain the bits"]}
    diagnostics = estimates.diagnostics
    assert fit["goodness of fit"].startswith(
        f"{diagnostics['goodness_of_fit']['chi2_per_degree']:.4g} "
    )
    detectable = format_percent(diagnostics["detectable_share"], 2)
    assert f"A share of {detectable} is detected with 80 % probability." in page
    assert "A full column means that one bit is set in every cohort, as in forged reports." in page


def test_page_needs_nothing_but_itself(page: str) -> None:
    """The page has no address, file, handler or style attribute, one style sheet and one script."""
    page_tags = tags(page)
    names = [name for name, _ in page_tags]
    assert names.count("style") == names.count("script") == 1
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    for name, attributes in page_tags:
        for key, value in attributes.items():
            assert key != "style"
            assert not key.startswith("on")
            assert key not in ("src", "srcset", "action", "xlink:href"), name
            assert key != "href" or str(value).startswith("#")
    ids = [attributes["id"] for _, attributes in page_tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for name, a in page_tags if name == "a"} <= set(ids)
    assert "url(" not in page
    assert "@import" not in page


def test_page_allows_its_own_style_and_script_only(page: str) -> None:
    """The policy of the page allows its style sheet and its script by their hashes."""
    (policy,) = [a["content"] for _, a in tags(page) if a.get("http-equiv")]
    assert str(policy).startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)


def test_every_drawing_has_a_caption_and_a_table(page: str) -> None:
    """Each drawing is a figure with a sentence, and tables follow."""
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == len(drawings(page)) == 4
    assert all(re.search(r"<figcaption><strong>[^<]+\.</strong>", figure) for figure in figures)
    after = page.rsplit("</figure>", maxsplit=1)[-1]
    assert "<table" in after
    assert page.count("<table") >= 5


def test_a_streamed_table_counts_candidates_without_rows(estimates: Estimates) -> None:
    """Candidates without a row count as undetected, and the hash is of the rows."""
    streamed = dataclasses.replace(estimates, n_candidates=10_000_000)
    page = estimates_page(streamed)
    others = 10_000_000 - len(estimates)
    assert f"of 10,000,000 candidates are listed; 0 detected and {others:,} undetected" in page
    assert "candidates that have a row, sorted" in page


def test_a_large_table_is_counted_beyond_a_thousand_rows(many: Estimates) -> None:
    """1,000 of 100,000 candidates have rows, the others are counted, in less than 5 MB."""
    page = estimates_page(many)
    assert len(page.encode()) < 5_000_000
    assert len(rows_of(page)) == 1000
    assert (
        "1,000 of 100,000 candidates are listed; 0 detected and 99,000 undetected ones are not."
        in page
    )
    assert " 990 more detected candidates are in the table only." in page


def test_hostile_strings_are_text(estimates: Estimates) -> None:
    """Candidates, metric, file names and command create no element."""
    candidates = [*HOSTILE, *estimates.candidates[len(HOSTILE) :]]
    (collected,) = estimates.collections
    hostile = dataclasses.replace(
        estimates,
        candidates=tuple(candidates),
        collections=(dataclasses.replace(collected, metric=HOSTILE[0]),),
        diagnostics=estimates.diagnostics | {"groups": [list(HOSTILE)]},
        assumptions=HOSTILE[1],
    )
    origin = Origin(
        command=" ".join(HOSTILE[:7]),
        files=tuple(InputFile(name=text, sha256=text, days=text) for text in HOSTILE),
    )
    page = estimates_page(hostile, origin)
    page_tags, plain = tags(page), tags(estimates_page(estimates, Origin(files=origin.files[3:4])))

    assert [name for name, _ in page_tags].count("script") == 1
    assert {name for name, _ in page_tags} == {name for name, _ in plain} | {"code", "pre", "wbr"}
    assert {key for _, a in page_tags for key in a} == {key for _, a in plain for key in a}
    assert not set(page) & {"\u202e", "\u2066", "\x00", "\x07", "\x1b"}
    assert len(page) < 3_000_000
    assert len(drawings(page)) == 4


def test_the_distribution_stands_with_its_error() -> None:
    """With `distribution`, the last two cells are the share and its error.

    Categories have no residuals.
    """
    params = Params(k=3, encoding="onehot", categories=("a", "b", "c"), f=0.5, p=0.25, q=0.75)
    counts = simulate_counts(Population(["a", "b"], [3, 1]), params, n_reports=10_000, seed=1)
    estimates = decode(counts, distribution=True)
    page = estimates_page(estimates)
    assert len(drawings(page)) == 2
    assert "Each bit is an answer" in page
    rows = {cells[0]: cells[-2:] for cells in rows_of(page)}
    for row in estimates.rows():
        share, error = row["posterior_share"], row["posterior_share_std_error"]
        assert rows[row["candidate"]] == [format_share(share, error), format_share(error, error)]


def test_nothing_detected_is_a_page_too() -> None:
    """A page without a detection is complete."""
    counts = simulate_counts(
        Population(["x"], [1]), Params.profile("strict"), n_reports=200, seed=3
    )
    estimates = decode(counts, ["a", "b", "c"])
    assert not estimates.detected.any()
    page = estimates_page(estimates)
    assert "Not detected" in page
    assert len(rows_of(page)) == 3


def test_origin_is_on_the_page(estimates: Estimates) -> None:
    """The page has command, hashes of files, counts and candidates, and versions.

    The hash of the candidates equals `LC_ALL=C sort -u FILE | sha256sum`.
    """
    lines = b"".join(sorted(name.encode() + b"\n" for name in estimates.candidates))
    origin = Origin(command="rappor decode w", files=(InputFile(name="w", sha256="ab" * 32),))
    page = estimates_page(estimates, origin)
    assert "<code>rappor decode w</code>" in page
    candidates = hashlib.sha256(lines).hexdigest()
    for digest in ("ab" * 32, estimates.collections[0].sha256, candidates):
        assert digest in page
    versions = {row[0]: row[1] for row in tables(page)["Versions"]}
    assert {"Python", "rappor", "numpy"} <= set(versions)
