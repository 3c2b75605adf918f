"""Pages of a public site: results of metrics, their privacy notices, and how to compute them again.

An edition is a published trend whose files and address never change. `site_files` writes the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.comparison.comparison import Comparison
from rappor.comparison.overview import find_leader, rank_last_period
from rappor.comparison.site_edition import EditionSummary, SiteEdition
from rappor.reporting.changes import describe_changes
from rappor.reporting.comparison_page import comparison_sections
from rappor.reporting.document import document, header, section
from rappor.reporting.footnotes import summarize_changes
from rappor.reporting.installations import build_installations
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import format_days, format_share
from rappor.reporting.overview import name_leader
from rappor.reporting.tables import table_of_cells, table_of_pairs

_FILES: Final = {
    "counts.json": "the counts: sums of noisy reports, never a report",
    "candidates.txt": "the {values} that were looked for",
    "trend.json": "all numbers of this page, and those of the {values} that it does not draw",
    "trend.csv": "the rows as a table",
    "edition.json": "what this edition is, with hashes",
}
"""Descriptions of the files of an edition. The page of the edition lists them.

"{values}" stands for the noun of the values, such as "strings" or "categories".
"""


def edition_page(edition: SiteEdition) -> str:
    """Return the page of one edition. The page never changes."""
    entry, trend = edition.entry, edition.trend
    days = format_days(entry.first, entry.last)
    title = f"{_join_names(edition.program, entry.metric)}, {days}"
    link = tag("a", f"All editions of {entry.metric}", href="../index.html")
    n = int(trend.detected_overall.sum())
    verb = "was" if n == 1 else "were"
    detection_sentence = (
        f"{n:,} of the {len(trend.candidates):,} listed values {verb} found in use. "
    )
    promise = join(
        "Every report was scrambled on its device before it was sent. ",
        tag("a", "What is collected, and what is promised", href="#collected"),
    )
    # The first line of the notice is the name of the metric and its description, which names the
    # program that reports.
    return document(
        title,
        header(
            title,
            join(*_describe_leader(trend), detection_sentence, describe_changes(trend)),
            edition.notice[0],
            summarize_changes(trend),
            promise,
            above=link,
            lead=build_installations(trend.installations),
        ),
        *comparison_sections(trend, include_ranking=True),
        _build_notice(edition.notice),
        _build_instructions(edition),
    )


def _describe_leader(trend: Comparison) -> Iterator[Markup]:
    """Yield a sentence about the largest share of the last period.

    Yields nothing if the last period detects no string.
    """
    ranking, leader = rank_last_period(trend), find_leader(trend)
    if ranking and leader:
        period = format_days(ranking[0].first, ranking[0].last)
        yield join(name_leader([leader], trend, period=period), ". ")


def metric_page(
    metric: str, notice: Sequence[str], entries: Sequence[EditionSummary], *, program: str = ""
) -> str:
    """Return the list of the editions of one metric.

    Parameters
    ----------
    metric : name of the metric.
    notice : sentences about what is collected.
    entries : summaries of the editions, the newest first.
    program : name of the program that the metric is about; empty without a name.
    """
    # All editions are of one metric. Without an edition, the table is empty.
    values = format_plural(entries[0].value_noun) if entries else "values"
    editions = table_of_cells(
        "Editions, the newest days first; none of them ever changes",
        ("days", "by", "reports", f"{values} found", "edition"),
        (
            (
                tag("a", format_days(entry.first, entry.last), href=f"{entry.id}/index.html"),
                entry.by,
                f"{entry.reports:,}",
                f"{entry.strings:,}",
                entry.id,
            )
            for entry in entries
        ),
        n_texts=2,
    )
    newest = " ".join(
        sentence
        for entry in entries[:1]
        for sentence in (
            f"{_format_leader(entry)} in the last {entry.by}." if entry.leader else "",
            f"{_format_result(entry)}, {format_days(entry.first, entry.last)}.",
        )
        if sentence
    )
    title = _join_names(program, metric)
    return document(
        title,
        header(title, newest, above=tag("a", "All metrics", href="../index.html")),
        section("Editions", editions.to_html(), name="editions"),
        _build_notice(notice),
    )


def site_page(metrics: Mapping[str, EditionSummary], *, program: str = "") -> str:
    """Return the list of all metrics, each with its newest edition.

    Parameters
    ----------
    metrics : summary of the newest edition of each metric, by name.
    program : name of the program that the metrics are about; empty without a name.
    """
    title = _join_names(program, "what was found") if program else "What was found"
    table = table_of_cells(
        "Metrics, each with its newest edition",
        ("metric", "largest share of the last period", "newest days", "values found", "reports"),
        (
            (
                tag("a", name, href=f"{name}/index.html"),
                _format_leader(entry),
                tag(
                    "a", format_days(entry.first, entry.last), href=f"{name}/{entry.id}/index.html"
                ),
                f"{entry.strings:,}",
                f"{entry.reports:,}",
            )
            for name, entry in metrics.items()
        ),
        n_texts=3,
    )
    return document(title, header(title, ""), table.to_html())


def _join_names(program: str, name: str) -> str:
    """Return the name of a program and the name of a metric, such as "Sketch: editor"."""
    return f"{program}: {name}" if program else name


def _format_leader(entry: EditionSummary) -> str:
    """Name the string with the largest share of the last period; "none" without such a string."""
    if not entry.leader:
        return "none"
    # A no-break space keeps the number and its unit in one line.
    share = format_share(entry.leader_share, entry.leader_std_error).replace(" ", "\u00a0")
    return f"{shorten(entry.leader, 60)}: {share} of the {entry.share_unit}"


def _format_result(entry: EditionSummary) -> str:
    """Return the number of the strings that were detected."""
    return f"{format_count(entry.strings, 'listed value')} found in use"


def _build_notice(notice: Iterable[str]) -> Markup:
    """Return the section about what is collected."""
    paragraphs = (tag("p", line) for line in notice)
    return section("What is collected", *paragraphs, name="collected")


def _build_instructions(edition: SiteEdition) -> Markup:
    """Return the section about computing the numbers of an edition again."""
    values = format_plural(edition.trend.value_noun)
    files = [
        tag("li", tag("a", name, href=name), f": {_FILES[name].format(values=values)}")
        for name in edition.files()
    ]
    hashes = ((name, join(digest)) for name, digest in edition.hashes.items())
    return section(
        "Make it again",
        tag("p", f"This is edition {edition.id}. Its address stays, and its files never change."),
        tag("ul", *files),
        tag("p", f"Beside these files this prints trend.json (rappor {edition.version}):"),
        tag("pre", tag("code", edition.command)),
        table_of_pairs("SHA-256 of what is read", hashes).to_html(),
        name="again",
    )
