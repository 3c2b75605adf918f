"""A public site of editions: what was found, what is collected, and how to make it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rappor.base.sentence_numbers import format_count
from rappor.comparison.site_edition import EditionSummary, SiteEdition
from rappor.reporting.changes import panel_changes
from rappor.reporting.comparison_page import panel_sections
from rappor.reporting.document import document, header
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.tables import pairs, section, table

_FILES: Final = {
    "counts.json": "the counts: sums of noisy reports, never a report",
    "candidates.txt": "the strings that were looked for",
    "trend.json": "all numbers of this page, and those of the strings that it does not draw",
    "trend.csv": "the rows as a table",
    "edition.json": "what this edition is, with hashes",
}


def edition_page(edition: SiteEdition) -> str:
    """Return the page of one edition, which never changes."""
    entry = edition.entry
    title = f"{entry.metric}, {entry.first} to {entry.last}"
    above = tag("a", f"All editions of {entry.metric}", href="../index.html")
    n = int(edition.trend.detected_overall.sum())
    return document(
        title,
        header(
            title,
            join(
                f"{n:,} of the {len(edition.trend.candidates):,} listed values "
                f"{'was' if n == 1 else 'were'} found in use. ",
                panel_changes(edition.trend),
            ),
            next(list_comparison_footnotes(edition.trend)),
            above=above,
        ),
        *panel_sections(edition.trend),
        _collected(edition.notice),
        _again(edition),
    )


def metric_page(metric: str, notice: Sequence[str], entries: Sequence[EditionSummary]) -> str:
    """Return the list of the editions of one metric, in the given order."""
    editions = table(
        "Editions, the newest days first; none of them ever changes",
        ("days", "by", "reports", "strings shown", "edition"),
        (
            (
                tag("a", f"{each.first} to {each.last}", href=f"{each.id}/index.html"),
                each.by,
                f"{each.reports:,}",
                f"{each.strings:,}",
                each.id,
            )
            for each in entries
        ),
        left=2,
    )
    return document(
        metric,
        header(
            metric,
            "".join(f"{_found(each)}, {each.first} to {each.last}." for each in entries[:1]),
            above=tag("a", "All metrics", href="../index.html"),
        ),
        section("Editions", editions, name="editions"),
        _collected(notice),
    )


def site_page(metrics: Mapping[str, EditionSummary]) -> str:
    """Return the list of all metrics, each with its newest edition."""
    title = "What was found"
    return document(
        title,
        header(title, ""),
        table(
            "Metrics, each with its newest edition",
            ("metric", "found", "newest days", "reports"),
            (
                (
                    tag("a", name, href=f"{name}/index.html"),
                    _found(entry),
                    tag(
                        "a",
                        f"{entry.first} to {entry.last}",
                        href=f"{name}/{entry.id}/index.html",
                    ),
                    f"{entry.reports:,}",
                )
                for name, entry in metrics.items()
            ),
        ),
    )


def _found(entry: EditionSummary) -> str:
    return f"{format_count(entry.strings, 'listed value')} found in use"


def _collected(notice: Iterable[str]) -> Markup:
    lines = (tag("p", line) for line in notice)
    return section("What is collected", *lines, name="collected")


def _again(edition: SiteEdition) -> Markup:
    files = [tag("li", tag("a", name, href=name), f": {_FILES[name]}") for name in edition.files()]
    return section(
        "Make it again",
        tag("p", f"This is edition {edition.id}. Its address stays, and its files never change."),
        tag("ul", *files),
        tag("p", f"Beside these files this prints trend.json (rappor {edition.version}):"),
        tag("pre", tag("code", edition.command)),
        pairs(
            "SHA-256 of what is read",
            ((name, join(digest)) for name, digest in edition.hashes.items()),
        ),
        name="again",
    )
