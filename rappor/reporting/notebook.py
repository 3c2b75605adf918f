"""What notebooks show of each record: HTML without scripts and style sheets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from rappor.base.display import DisplayedRecord
from rappor.base.sentence_numbers import format_count
from rappor.comparison.comparison import Comparison
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import report
from rappor.planning.plans import Plan
from rappor.privacy.assessment import PrivacyReport
from rappor.protocol.params import NOISE, Params
from rappor.reporting.comparison_page import change_columns
from rappor.reporting.contrast_table import contrasts_table
from rappor.reporting.footnotes import list_comparison_footnotes, list_footnotes
from rappor.reporting.markup import Markup, tag
from rappor.reporting.numbers import (
    format_largest_belief,
    format_nats,
    format_percent,
    format_short_percent,
)
from rappor.reporting.page import candidates_table
from rappor.reporting.plots import sorted_rows
from rappor.reporting.tables import listing, pairs, table

_TOP: Final = 20
"""Rows in a notebook, of the detected ones and of the others together."""


def estimates_html(estimates: Estimates) -> str:
    """Return the chart and the table of the first rows, and what belongs to them."""
    found = report(estimates)
    first = dataclasses.replace(found, rows=found.rows[:_TOP])
    together = contrasts_table(
        estimates.contrasts, format_short_percent(estimates.error_control.confidence)
    )
    return _shown(estimates, [candidates_table(first), *together], list_footnotes(estimates))


def panel_html(panel: Comparison) -> str:
    """Return the chart, the first changes as a table, and what belongs to them."""
    rows = sorted_rows(panel)
    rows = ([row for row in rows if row["changed"]] or rows)[:_TOP]
    shown = listing("Changes, or the nearest to one", change_columns(panel), rows)
    return _shown(panel, shown, list_comparison_footnotes(panel))


def _shown(record: DisplayedRecord, tables: Iterable[Markup], sentences: Iterable[str]) -> str:
    """Return a record's chart, its tables and its sentences."""
    return tag("div", record.plot().inline(), *tables, *(tag("p", text) for text in sentences))


def plan_html(plan: Plan) -> str:
    """Return the parameters, what they promise, and what they find."""
    share = "none" if plan.share is None else format_percent(plan.share, 3)
    power = format_short_percent(plan.question.power)
    return tag(
        "div",
        pairs(
            f"Plan for {format_count(plan.reports, 'report')}",
            (
                *_letters(plan.params),
                (
                    "epsilon_1, epsilon_inf",
                    f"{format_nats(plan.epsilon_1)}, {format_nats(plan.epsilon_inf)}",
                ),
                (f"smallest share detected with {power} probability", share),
                ("candidates found, in the mean", f"{plan.prediction.found:,.1f}"),
                ("variance of a rare string, over the optimum", f"{plan.excess:.3g}"),
                ("largest part of the error", plan.binding),
            ),
        ),
        table(
            "Other designs of the same privacy",
            ("design", "parameters", "variance over the optimum", "smallest share"),
            (
                (
                    other.name,
                    f"h = {other.params.h}, f = {other.params.f:.4g}, g = {other.params.g:.4g}, "
                    f"p = {other.params.p:.4g}, q = {other.params.q:.4g}",
                    f"{other.excess:.3g}",
                    "none" if other.share is None else format_percent(other.share, 3),
                )
                for other in plan.alternatives
            ),
            left=2,
        ),
    )


def privacy_html(found: PrivacyReport) -> str:
    """Return the promise, and what reports of one value make of an observer's belief."""
    priors = [belief.prior for belief in found.losses[0].beliefs]
    return tag(
        "div",
        tag("p", found.promise or "Parameters without a metric: epochs are unknown."),
        table(
            "The most that an observer can believe after reports of one value",
            ("reports", "epsilon", *(f"from {format_short_percent(prior)}" for prior in priors)),
            (
                (
                    "any number" if loss.reports is None else f"{loss.reports:,}",
                    format_nats(loss.epsilon),
                    *(format_largest_belief(belief.most, loss.epsilon) for belief in loss.beliefs),
                )
                for loss in found.losses
            ),
        ),
        pairs("Parameters", _letters(found.params)),
    )


def audit_html(audit: Any) -> str:
    """Return the verdict, every check, and what was not examined."""
    n = len(audit.faults)
    verdict = f"{n} of {len(audit.checks)} checks found a fault" if n else "No check found a fault"
    return tag(
        "div",
        tag(
            "p",
            tag(
                "strong",
                f"{verdict} in {format_count(audit.trials, 'trial')} of {audit.metric.name}.",
            ),
        ),
        table(
            "Checks",
            ("check", "verdict", "what was measured"),
            ((check.name, check.verdict, check.detail) for check in audit.checks),
            left=3,
        ),
        tag("p", "Not examined:"),
        tag("ul", *(tag("li", sentence) for sentence in audit.not_examined)),
    )


def _letters(params: Params) -> tuple[tuple[str, str], ...]:
    return (
        ("encoding", params.encoding),
        ("k, h, m", f"{params.k:,}, {params.h}, {params.m:,}"),
        ("f, g, p, q", ", ".join(f"{getattr(params, letter):.6g}" for letter in NOISE)),
        ("fingerprint", params.fingerprint),
    )
