"""The report of one decode as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rappor.base.sentence_numbers import format_count
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import (
    LARGE,
    CollectionReport,
    EstimatesReport,
    Origin,
    ResidualGrid,
    report,
)
from rappor.privacy.assessment import Loss
from rappor.protocol.encodings import encoding_of
from rappor.reporting.cohort_charts import cohort_bits, cohort_reports, residuals
from rappor.reporting.contrast_table import contrasts_table
from rappor.reporting.document import Content, header
from rappor.reporting.footnotes import FORGED, format_detections, format_unallocated, list_findings
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import (
    format_interval,
    format_largest_belief,
    format_nats,
    format_p_value,
    format_percent,
    format_share,
    format_short_percent,
)
from rappor.reporting.plots import error_of, interval, shares_chart
from rappor.reporting.tables import Columns, candidate, folded, listing, pairs, table

_MOST_GRIDS: Final = 3
"""Parameter sets whose residuals are drawn, so that the page stays small."""


def estimates_page(
    estimates: Estimates, origin: Origin | None = None, *, forged: bool = False
) -> str:
    """Return the page about these estimates; with `forged` also what forged reports can do."""
    return estimates_content(report(estimates, origin), forged=forged).page()


def estimates_content(found: EstimatesReport, *, forged: bool = False) -> Content:
    """Return what the page about one decode shows: the answer, and folded what it rests on."""
    estimates = found.estimates
    names = dict.fromkeys(each.summary.metric for each in found.collections)
    about = shorten(", ".join(filter(None, names)), 60) or "Estimates"
    title = f"{about}: results from {format_count(estimates.reports, 'report')}"
    parts = (
        header(
            title,
            join(format_detections(estimates), " ", _first(found)),
            *format_unallocated(estimates),
            warnings=[each.sentence for each in estimates.warnings],
        ),
        _estimates(found, forged=forged),
        *contrasts_table(
            estimates.contrasts, format_short_percent(estimates.error_control.confidence)
        ),
        *_masses(found),
        _question(found),
        _diagnostics(found),
        _checklist(found),
        _origin(found),
    )
    return Content(title, parts)


def _first(found: EstimatesReport) -> Markup:
    """Say what the largest detected row is."""
    rows = [row for row in found.rows if row["detected"]]
    if not rows:
        return join("")
    row = max(rows, key=lambda each: each["share"])
    error = error_of(row, found.estimates.reports)
    return join(
        "The largest is \u201c", tag("bdi", shorten(row["candidate"], 60)),
        f"\u201d with {format_share(min(row['share'], 1.0), error)} of the reports "
        f"({format_interval(*interval(row), error)}).",
    )  # fmt: skip


def _estimates(found: EstimatesReport, *, forged: bool) -> Markup:
    confidence = format_short_percent(found.estimates.error_control.confidence)
    parts = []
    if found.charted:
        chart = shares_chart(
            "How large a share of the reports each candidate has.",
            found.charted,
            found.estimates.reports,
        )
        more = found.n_detected - sum(row["detected"] for row in found.charted)
        told = [
            f"Bars over the dots are {confidence} intervals, adjusted so that they hold for all "
            "detected candidates together."
        ]
        if not all(row["detected"] for row in found.charted):
            which = (
                "undetected ones of the list, and those"
                if found.estimates.listed
                else ("the undetected candidates")
            )
            told.append(
                f"Hollow dots are {which} that came nearest, with the interval of each alone."
            )
        if more:
            told.append(f"{more:,} more detected candidates are in the table only.")
        parts.append(chart.figure(" ".join(told)))
    parts += [candidates_table(found, name="candidates", forged=forged), tag("p", _unlisted(found))]
    if forged:
        parts.append(tag("p", FORGED))
    return tag("section", *parts, id="estimates")


def _masses(found: EstimatesReport) -> Iterator[Markup]:
    if found.masses:
        confidence = format_short_percent(found.estimates.error_control.confidence)
        shares = table(
            "Shares of the reports of several candidates, and of none",
            ("part", "share", "std error", f"{confidence} interval"),
            (
                (mass.name, format_share(mass.estimate, mass.std_error),
                 format_share(mass.std_error, mass.std_error),
                 format_interval(mass.ci_low, mass.ci_high, mass.std_error))
                for mass in found.masses
            ),
        )  # fmt: skip
        yield folded("Detected and unallocated shares", shares, name="masses")


def candidates_table(found: EstimatesReport, *, name: str = "", forged: bool = False) -> Markup:
    """Return the table of the rows that are listed; one with a name can be sorted."""
    confidence = format_short_percent(found.estimates.error_control.confidence)
    reports = found.estimates.reports
    columns: Columns = {
        "candidate": candidate,
        "share": lambda row: format_share(row["share"], error_of(row, reports)),
        f"adjusted {confidence} interval": lambda row: format_interval(
            *interval(row), error_of(row, reports)
        ),
        "detected": lambda row: "yes" if row["detected"] else "no",
        "reports": lambda row: f"{row['count']:,.0f}",
        "std error": lambda row: _reports(row["std_error"]),
        "p-value": lambda row: format_p_value(row["p_value"]),
    }
    for key in ("forged_to_make", "forged_to_hide") if forged else ():
        columns[key.replace("_to", "").replace("_", " ")] = _forged(key)
    if found.estimates.posterior_share is not None:
        columns["distribution"] = lambda row: format_share(
            row["posterior_share"], row["posterior_share_std_error"]
        )
        columns["its error"] = lambda row: format_share(
            row["posterior_share_std_error"], row["posterior_share_std_error"]
        )
    first = (
        "those of the metric's list first, then detected ones"
        if found.estimates.listed
        else ("detected ones first")
    )
    caption = f"Candidates: {first}; undetected ones have the interval of each alone"
    return join(*listing(caption, columns, found.rows, left=1, name=name))


def _reports(number: float | None) -> str:
    return "unknown" if number is None else f"{number:,.0f}"


def _forged(key: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what writes how many forged reports do it; nothing for an undetected row."""
    return lambda row: "" if key not in row else _reports(row[key]).replace("unknown", "none can")


def _unlisted(found: EstimatesReport) -> str:
    if not found.unlisted_detected and not found.unlisted_undetected:
        return f"All {len(found.rows):,} candidates are listed."
    return (
        f"{len(found.rows):,} of {found.estimates.n_candidates:,} candidates are listed; "
        f"{found.unlisted_detected:,} detected and {found.unlisted_undetected:,} undetected ones "
        "are not."
    )


def _question(found: EstimatesReport) -> Markup:
    estimates = found.estimates
    parts = [
        pairs(
            "The question",
            (
                ("candidates", f"{estimates.n_candidates:,}"),
                ("error rate of detection", f"{estimates.error_control.method}, "
                 f"{format_short_percent(estimates.error_control.alpha)}"),
                (
                    "confidence of intervals",
                    format_short_percent(estimates.error_control.confidence),
                ),
                ("reports", f"{estimates.reports:,}"),
                ("devices", estimates.assumptions),
                ("days", _days(found)),
            ),
        ),
    ]  # fmt: skip
    parts += [_asked(each) for each in found.collections]
    return folded("The question, and its cost in privacy", *parts, name="question")


def _days(found: EstimatesReport) -> str:
    told = [f"{file.name}: {file.days}" for file in found.origin.files if file.days]
    return "; ".join(told) or "unknown"


def _asked(each: CollectionReport) -> Markup:
    collected, params = each.summary, each.params
    one, sent, every = each.losses
    return pairs(
        f"Metric {collected.metric or 'without a name'} under parameters {params.fingerprint}",
        (
            ("encoding", f"{params.encoding}, normalizer {params.normalize}"),
            ("bits k, hashes h, cohorts m", f"{params.k:,}, {params.h}, {params.m:,}"),
            ("noise f, g, p, q", f"{params.f:g}, {params.g:g}, {params.p:g}, {params.q:g}"),
            ("a bit is 1 with probability", f"p* = {params.p_star:.5g} if its true bit is 0, "
             f"q* = {params.q_star:.5g} if it is 1"),
            ("reports", f"{collected.n_reports:,}"),
            ("counts added up", f"{collected.repetition.collections:,}"),
            ("epsilon of one report", _loss(one)),
            (f"epsilon of {format_count(sent.reports or 0, 'report')} of one value, as many as one "
             "device sent", f"{format_nats(sent.epsilon)} nats"),
            ("epsilon of all reports of one value", _loss(every)),
        ),
    )  # fmt: skip


def _loss(loss: Loss) -> str:
    most = format_largest_belief(loss.of_half, loss.epsilon)
    return f"{format_nats(loss.epsilon)} nats; a belief of 50 % becomes at most {most}"


def _diagnostics(found: EstimatesReport) -> Markup:
    diagnostics = found.estimates.diagnostics
    parts = []
    if sentences := [tag("li", text) for text in list_findings(diagnostics)]:
        parts.append(tag("ul", *sentences))
    if "goodness_of_fit" in diagnostics:
        parts.append(pairs("How well the candidates explain the bits", _fit(diagnostics)))
    for number, each in enumerate(found.collections):
        parts += _cohorts(each, diagnostics["cohorts"][number])
        if each.residuals is not None and number < _MOST_GRIDS:
            parts += _residuals(each.residuals)
    if len(found.collections) > _MOST_GRIDS:
        words = f"Residuals are drawn for {_MOST_GRIDS} of {len(found.collections)} parameter sets."
        parts.append(tag("p", words))
    if diagnostics.get("unexplained_bits"):
        parts.append(_unexplained(diagnostics))
    if found.groups:
        parts.append(_groups(found))
    return folded("Diagnostics", *parts, name="diagnostics")


def _fit(diagnostics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fit = diagnostics["goodness_of_fit"]
    yield (
        "goodness of fit",
        f"{fit['chi2_per_degree']:.4g} for each degree of freedom, p = {fit['p_value']:.3g}; "
        "1 is expected from noise alone",
    )
    yield "collisions, as a share of a row's noise", format_percent(diagnostics["collision_share"])
    yield "rows with reduced weight", f"{diagnostics['set_aside_rows']:,}"
    yield "least p-value that an absent string can have", f"{diagnostics['least_p_value']:.2g}"


def _cohorts(each: CollectionReport, balance: Mapping[str, Any]) -> Iterator[Markup]:
    if each.params.m > 1:
        chart = cohort_reports(
            "How many reports each cohort has.", each.cohorts, each.expected_reports
        )
        yield chart.figure(
            f"Honest devices spread evenly around the dashed line, {each.expected_reports:,.0f} "
            f"reports. P-value of this spread: {balance['p_value']:.3g}. "
            f"{balance['empty']:,} cohorts are empty.{_ranged(each)}",
        )
    if any(cohort.least_bits is not None for cohort in each.cohorts):
        possible = encoding_of(each.params).true_bits
        least, most = possible[0], possible[-1]
        chart = cohort_bits("How many true bits a report of each cohort has.", each.cohorts)
        yield chart.figure(
            f"Honest reports have {least if least == most else f'{least} to {most}'} in the mean; "
            "short strokes mark the least and the most that they have with probability 1 - 1e-9 at "
            f"either end. Forged reports with an honest number of ones are not found."
            f"{_ranged(each)}",
        )


def _ranged(each: CollectionReport) -> str:
    together = each.cohorts[0].last - each.cohorts[0].first + 1
    if together == 1:
        return ""
    return f" Each mark shows the least and the most of {together} neighbouring cohorts."


def _residuals(grid: ResidualGrid) -> Iterator[Markup]:
    chart = residuals("Residuals by cohort and bit: what the candidates do not explain.", grid)
    together = grid.cohorts * grid.bits
    yield chart.figure(
        "A square's area is the residual in standard deviations of its noise, up to 5: full where "
        "there are more ones than the candidates explain, hollow where there are fewer. Noise "
        "alone looks random. A frequent string that is not a candidate gives full squares in "
        "most rows (cohorts), each at another bit. A full column means that one bit is set in "
        "every cohort, as in forged reports."
        + (f" Each square is the most extreme of {together} neighbours." if together > 1 else ""),
    )
    if grid.large:
        yield table(
            f"Residuals beyond {LARGE:g} standard deviations, at most ten",
            ("cohort", "bit", "residual"),
            ((f"{cohort}", f"{bit}", f"{value:+.2f}") for cohort, bit, value in grid.large),
        )


def _unexplained(diagnostics: Mapping[str, Any]) -> Markup:
    return table(
        "Bits that neither candidates nor noise explain: heavy strings that are no candidates",
        ("parameter set", "cohort", "bit", "share", "std error"),
        (
            (
                f"{bit['collection']}", f"{bit['cohort']}", f"{bit['bit']}",
                format_share(bit["share"], bit["std_error"]),
                format_share(bit["std_error"], bit["std_error"]),
            )
            for bit in diagnostics["unexplained_bits"]
        ),
    )  # fmt: skip


def _groups(found: EstimatesReport) -> Markup:
    return table(
        "Candidates that cannot be distinguished: each shows the total of its group",
        ("group", "candidates"),
        (
            (f"{number}", tag("bdi", ", ".join(shorten(name, 40) for name in group[:20])
                              + (f" and {len(group) - 20:,} more" if len(group) > 20 else "")))
            for number, group in enumerate(found.groups, start=1)
        ),
        left=2,
    )  # fmt: skip


def _checklist(found: EstimatesReport) -> Markup:
    answers = table(
        "What the data answer",
        ("question", "verdict", "answer"),
        ((check.question, check.verdict, check.answer) for check in found.checks),
        left=3,
    )
    return folded("A reviewer's questions", answers, name="checklist")


def _origin(found: EstimatesReport) -> Markup:
    parts = []
    if found.origin.command:
        parts.append(tag("pre", tag("code", found.origin.command)))
    streamed = found.estimates.n_candidates > len(found.estimates)
    which = "candidates that have a row" if streamed else "candidates"
    hashes = [
        *((file.name, file.sha256) for file in found.origin.files),
        *(
            (f"counts under {each.params.fingerprint}", each.summary.sha256)
            for each in found.collections
        ),
        (f"{which}, sorted (LC_ALL=C sort -u | sha256sum)", found.candidates_sha256),
    ]
    parts += [pairs("SHA-256 of what was read", hashes), pairs("Versions", found.versions)]
    return folded("Source and versions", *parts, name="origin")
