"""HTML of each record in a notebook, without scripts and style sheets.

A notebook such as Jupyter asks a record for its HTML. `rappor.base.display` then calls the function
NAME_html of this module, where NAME is the record's `_renderer`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from rappor.association.association import Association
from rappor.base.display import DisplayedRecord
from rappor.base.sentence_numbers import format_count
from rappor.comparison.comparison import Comparison
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import report
from rappor.planning.plans import Plan
from rappor.privacy.assessment import PrivacyReport
from rappor.protocol.params import Params
from rappor.reporting.association_tables import (
    build_grids,
    describe_association,
    list_association_footnotes,
)
from rappor.reporting.checks_table import checks_table
from rappor.reporting.comparison_tables import changes_table, explain_changes
from rappor.reporting.footnotes import list_comparison_footnotes, list_footnotes
from rappor.reporting.markup import Markup, tag
from rappor.reporting.page import candidates_table, requested_contrasts
from rappor.reporting.plan_tables import alternatives_table, plan_table
from rappor.reporting.plots import sort_changes
from rappor.reporting.privacy_tables import beliefs_table
from rappor.reporting.tables import table_of_pairs

_MAX_ROWS: Final = 20
"""Largest number of rows of a table in a notebook. More rows would push the next cells of the
notebook off the screen."""


def estimates_html(estimates: Estimates) -> str:
    """Return the chart and the table of the first rows, and the footnotes."""
    complete = report(estimates)
    table = candidates_table(dataclasses.replace(complete, rows=complete.rows[:_MAX_ROWS]))
    tables = (table.to_html(), *requested_contrasts(estimates))
    return _build_output(estimates, tables, list_footnotes(estimates))


def comparison_html(comparison: Comparison) -> str:
    """Return the chart, the first changes as a table, and the footnotes."""
    rows = sort_changes(comparison)
    rows = ([row for row in rows if row["changed"]] or rows)[:_MAX_ROWS]
    title, include_names = "Changes, or the nearest to one", len(comparison.primary) > 1
    table = changes_table(comparison, title, rows, include_names=include_names)
    sentences = (*explain_changes(comparison), *list_comparison_footnotes(comparison))
    return _build_output(comparison, (table.to_html(),), sentences)


def association_html(association: Association) -> str:
    """Return the heat map of the cells, the conditional shares as tables, and the footnotes."""
    _, *conditional = build_grids(association)
    tables = [grid.to_table().to_html() for grid in conditional]
    sentences = (describe_association(association), *list_association_footnotes(association))
    return _build_output(association, tables, sentences)


def plan_html(plan: Plan) -> str:
    """Return the summary of a plan, and other designs of the same privacy loss."""
    tables = (plan_table(plan), alternatives_table(plan.alternatives))
    return tag("div", *(table.to_html() for table in tables))


def privacy_html(privacy: PrivacyReport) -> str:
    """Return the promise, and the beliefs of an observer after reports of one value."""
    return tag(
        "div",
        tag("p", privacy.promise or "Parameters without a metric: epochs are unknown."),
        beliefs_table(privacy.losses).to_html(),
        table_of_pairs("Parameters", _list_letters(privacy.params)).to_html(),
    )


def audit_html(audit: Any) -> str:
    """Return the verdict, every check, and what was not examined.

    The parameter has the type `Any`, because only the command line may import `rappor.auditing`.
    """
    n = len(audit.faults)
    verdict = f"{n} of {len(audit.checks)} checks found a fault" if n else "No check found a fault"
    trials = format_count(audit.trials, "trial")
    return tag(
        "div",
        tag("p", tag("strong", f"{verdict} in {trials} of {audit.metric.name}.")),
        checks_table(audit.checks).to_html(),
        tag("p", "Not examined:"),
        tag("ul", *(tag("li", sentence) for sentence in audit.not_examined)),
    )


def _build_output(
    record: DisplayedRecord, tables: Iterable[Markup], sentences: Iterable[str]
) -> str:
    """Return a record's chart, its tables and its sentences."""
    return tag("div", record.plot().inline(), *tables, *(tag("p", text) for text in sentences))


def _list_letters(params: Params) -> tuple[tuple[str, str], ...]:
    """Return the names and values of parameters for a table."""
    dimensions, noise = params.response.dimensions, params.response.probabilities
    return (
        ("encoding", params.encoding),
        (", ".join(dimensions), ", ".join(f"{getattr(params, name):,}" for name in dimensions)),
        (", ".join(noise), ", ".join(f"{getattr(params, name):.6g}" for name in noise)),
        ("fingerprint", params.fingerprint),
    )
