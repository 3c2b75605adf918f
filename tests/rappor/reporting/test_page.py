"""Page of a decode: it has the numbers of the estimates, and strings of devices stay text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
from pages import parse_drawings, parse_tables, parse_tags

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
"""Strings that begin an element, end an attribute, look like entities, turn the direction of
writing, are formulas of a spreadsheet, contain control characters, or are very long."""


@pytest.fixture(scope="module")
def page(estimates: Estimates) -> str:
    """Return the page of the estimates."""
    return estimates_page(estimates)


def read_candidate_rows(page: str) -> list[list[str]]:
    """Return the rows of the table of candidates, without the headings."""
    (candidate_rows,) = [
        rows for caption, rows in parse_tables(page).items() if caption.startswith("Candidates:")
    ]
    return candidate_rows[1:]


def test_every_number_of_the_table_equals_the_estimates(estimates: Estimates, page: str) -> None:
    """Each row of the table has the formatted numbers of its row of the estimates.

    Detected candidates come first, and the others follow by p-value. A detected candidate has the
    adjusted interval, cut at a share of 0.
    """
    rows = read_candidate_rows(page)
    expected = sorted(
        estimates.rows(),
        key=lambda row: (not row["detected"], 0 if row["detected"] else row["p_value"]),
    )
    assert len(rows) == len(expected) == 150
    for row, cells in zip(expected, rows, strict=True):
        suffix = "_adjusted" if row["detected"] else ""
        low, high = row[f"ci_low{suffix}"], row[f"ci_high{suffix}"]
        low = max(low, 0.0) if row["detected"] else low
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


def test_numbers_of_forged_reports_are_shown_on_request(
    estimates: Estimates, tmp_path: Path
) -> None:
    """With `forged=True`, the table has two more columns, which a sentence explains.

    They contain the number of forged reports that would make an absent string detected, and the
    number that would hide this candidate. Most readers do not need them.
    """
    page = estimates.to_html(tmp_path / "report.html", forged=True)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    detected_rows = estimates.rows(detected_only=True)
    for row, cells in zip(detected_rows, read_candidate_rows(page), strict=False):
        assert cells[-2:] == [f"{row['forged_to_make']:,}", f"{row['forged_to_hide']:,}"]
    assert "Nothing in a report proves that a device sent it." in page
    assert "forged make" not in estimates.to_html()


def test_results_come_first_and_other_sections_are_closed(estimates: Estimates, page: str) -> None:
    """The page begins with a sentence, a chart and the table; five closed sections follow.

    Most readers need the frequent strings only, and open no section. The element `details` opens
    without a script. Six tables consist of words (class "words"), and are aligned left.
    """
    assert ">adjusted 95 % interval<" in page
    # Adjusted intervals do not promise that all of them contain the truth at once.
    assert "at most 5 % of the adjusted intervals of detected candidates miss the true" in page
    assert "together" not in page.split("</figure>", maxsplit=1)[0]
    assert page.count('class="words"') == 6
    row = estimates.row(0)
    error = row["std_error"] / estimates.reports
    largest = f"\u201c<bdi>{row['candidate']}</bdi>\u201d with {format_share(row['share'], error)}"
    indices = [
        page.index(part)
        for part in (format_detections(estimates), largest, "<svg ", 'id="candidates"', "<details ")
    ]
    assert indices == sorted(indices)
    assert page.count("<details ") == page.count("<summary>") == 5


def test_page_has_the_parameters_and_the_privacy_losses(estimates: Estimates, page: str) -> None:
    """The page has the parameters, the loss of one report and the loss of all reports.

    Each loss is explained by the largest belief that a prior belief of 50 % can become. The belief
    is rounded up to a tenth of a per cent, so that the page never promises too much.
    """
    (collection,) = estimates.collections
    params = collection.params
    (options,) = [
        {row[0]: row[1] for row in rows}
        for caption, rows in parse_tables(page).items()
        if caption.startswith("Metric home page")
    ]
    assert options["bits k, hashes h, cohorts m"] == f"{params.k}, {params.h}, {params.m}"
    for name, loss in (
        ("epsilon of one report", epsilon_1(params)),
        ("epsilon of all reports of one value", epsilon_inf(params)),
    ):
        assert options[name].startswith(
            f"{loss:.4f} nats; a belief of 50 % in a value becomes at most "
        )
        belief = float(options[name].split()[-2]) / 100
        assert belief >= posterior_bound(loss, 0.5)[1] > belief - 1e-3


def test_diagnostics_equal_the_estimates(estimates: Estimates, page: str) -> None:
    """The page has the goodness of fit and the smallest detectable share of the estimates."""
    page_tables = parse_tables(page)
    fit = {row[0]: row[1] for row in page_tables["How well the candidates explain the bits"]}
    diagnostics = estimates.diagnostics
    assert fit["goodness of fit"].startswith(
        f"{diagnostics['goodness_of_fit']['chi2_per_degree']:.4g} "
    )
    detectable = format_percent(diagnostics["detectable_share"], 2)
    assert f"A share of {detectable} is detected with 80 % probability." in page
    assert "A full column means that one bit is set in every cohort, as in forged reports." in page


def test_page_loads_no_other_file(page: str) -> None:
    """The page is one file: it has its own style sheet and script, and refers to nothing outside.

    The server of a loaded file would learn the addresses of readers. Event handlers and style
    attributes would not work under the policy of the page. Links lead to sections of the page.
    """
    page_tags = parse_tags(page)
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
    """The content security policy of the page allows its own style sheet and script by hashes.

    A script that a string of a device might smuggle into the page has another hash, and no browser
    runs it.
    """
    (policy,) = [a["content"] for _, a in parse_tags(page) if a.get("http-equiv")]
    assert str(policy).startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)


def test_every_drawing_has_a_caption_and_a_table(page: str) -> None:
    """Each drawing is a figure with a sentence as its caption, and tables contain its numbers."""
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == len(parse_drawings(page)) == 4
    assert all(re.search(r"<figcaption><strong>[^<]+\.</strong>", figure) for figure in figures)
    after = page.rsplit("</figure>", maxsplit=1)[-1]
    assert "<table" in after
    assert page.count("<table") >= 5


def test_a_streamed_table_counts_candidates_without_rows(estimates: Estimates) -> None:
    """Of candidates from a stream, only some have rows, and the page counts the others.

    A decode of ten million candidates stores the rows near detection only. Candidates without a row
    are undetected. The page has the hash of the candidates with a row.
    """
    streamed = dataclasses.replace(estimates, n_candidates=10_000_000)
    page = estimates_page(streamed)
    n_without_row = 10_000_000 - len(estimates)
    assert (
        f"of 10,000,000 candidates are listed; 0 detected and {n_without_row:,} undetected" in page
    )
    assert "candidates that have a row, sorted" in page


def test_a_large_table_is_counted_beyond_a_thousand_rows(many: Estimates) -> None:
    """The page lists 1,000 of 100,000 candidates, counts the others, and has less than 5 MB.

    A browser takes many seconds for a table of 100,000 rows. The chart draws ten detected
    candidates, so 990 are in the table only.
    """
    page = estimates_page(many)
    assert len(page.encode()) < 5_000_000
    assert len(read_candidate_rows(page)) == 1000
    assert (
        "1,000 of 100,000 candidates are listed; 0 detected and 99,000 undetected ones are not."
        in page
    )
    assert " 990 more detected candidates are in the table only." in page


def test_hostile_strings_are_text(estimates: Estimates) -> None:
    """Hostile candidates, metrics, file names and commands add no element and no attribute.

    The page of hostile strings has the elements of an ordinary page with the same sections, and
    elements for code and line breaks, which come with a command and with long names.
    """
    candidates = [*HOSTILE, *estimates.candidates[len(HOSTILE) :]]
    (collection,) = estimates.collections
    hostile = dataclasses.replace(
        estimates,
        candidates=tuple(candidates),
        collections=(dataclasses.replace(collection, metric=HOSTILE[0]),),
        diagnostics=estimates.diagnostics | {"groups": [list(HOSTILE)]},
        assumptions=HOSTILE[1],
    )
    origin = Origin(
        command=" ".join(HOSTILE[:7]),
        files=tuple(InputFile(name=text, sha256=text, days=text) for text in HOSTILE),
    )
    page = estimates_page(hostile, origin)
    ordinary_page = estimates_page(estimates, Origin(files=origin.files[3:4]))
    page_tags, ordinary_tags = parse_tags(page), parse_tags(ordinary_page)
    assert [name for name, _ in page_tags].count("script") == 1
    ordinary_names = {name for name, _ in ordinary_tags}
    assert {name for name, _ in page_tags} == ordinary_names | {"code", "pre", "wbr"}
    ordinary_keys = {key for _, attributes in ordinary_tags for key in attributes}
    assert {key for _, attributes in page_tags for key in attributes} == ordinary_keys
    assert not set(page) & {"\u202e", "\u2066", "\x00", "\x07", "\x1b"}
    assert len(page) < 3_000_000
    assert len(parse_drawings(page)) == 4


def test_a_distribution_adds_posterior_shares_with_their_errors() -> None:
    """With `distribution=True`, the last two columns are the posterior share and its error.

    Categories are not fitted by regression, so the page has no drawing of residuals and none of the
    bits of each cohort.
    """
    params = Params(k=3, encoding="onehot", categories=("a", "b", "c"), f=0.5, p=0.25, q=0.75)
    counts = simulate_counts(Population(["a", "b"], [3, 1]), params, n_reports=10_000, seed=1)
    estimates = decode(counts, distribution=True)
    page = estimates_page(estimates)
    assert len(parse_drawings(page)) == 2
    assert "Each bit is an answer" in page
    rows = {cells[0]: cells[-2:] for cells in read_candidate_rows(page)}
    for row in estimates.rows():
        share, error = row["posterior_share"], row["posterior_share_std_error"]
        assert rows[row["candidate"]] == [format_share(share, error), format_share(error, error)]


def test_page_without_a_detection_is_complete() -> None:
    """If no candidate is detected, the page states this and lists all candidates with their errors.

    200 reports with strong noise are too few to detect a string of all devices.
    """
    counts = simulate_counts(
        Population(["x"], [1]), Params.profile("strict"), n_reports=200, seed=3
    )
    estimates = decode(counts, ["a", "b", "c"])
    assert not estimates.detected.any()
    page = estimates_page(estimates)
    assert "Not detected" in page
    assert len(read_candidate_rows(page)) == 3


def test_origin_is_on_the_page(estimates: Estimates) -> None:
    """The page names the command, the hashes of all inputs, and the versions of the programs.

    With them a reader can repeat the decode and check its inputs. The hash of the candidates equals
    the output of `LC_ALL=C sort -u FILE | sha256sum`.
    """
    lines = b"".join(sorted(name.encode() + b"\n" for name in estimates.candidates))
    origin = Origin(command="rappor decode w", files=(InputFile(name="w", sha256="ab" * 32),))
    page = estimates_page(estimates, origin)
    assert "<code>rappor decode w</code>" in page
    candidates = hashlib.sha256(lines).hexdigest()
    for digest in ("ab" * 32, estimates.collections[0].sha256, candidates):
        assert digest in page
    versions = {row[0]: row[1] for row in parse_tables(page)["Versions"]}
    assert {"Python", "rappor", "numpy"} <= set(versions)
