"""The report of one decode as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.decoding.estimates import Estimates
from rappor.decoding.report import LARGE, CollectedReport, EstimatesReport, Origin, report
from rappor.protocol.encodings import encoding_of
from rappor.reporting import figures
from rappor.reporting.document import Content, document, sections
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import most_belief, nats, percent, short_percent
from rappor.reporting.remarks import answer, findings, unallocated
from rappor.reporting.tables import figure, pairs, table

_NAME_COLUMNS: Final = 120
"""Letters of a candidate in a table; longer ones are cut, and say so by an ellipsis."""

_MOST_GRIDS: Final = 3
"""Parameter sets whose residuals are drawn, so that the page stays small."""

_SECTIONS: Final = {
    "estimates": "Estimates",
    "question": "What was asked",
    "diagnostics": "Diagnostics",
    "checklist": "A reviewer's questions",
    "origin": "Where it comes from",
}


def estimates_page(estimates: Estimates, origin: Origin | None = None) -> str:
    """Return the page about these estimates."""
    return page(report(estimates, origin))


def page(found: EstimatesReport) -> str:
    """Return the page about one decode."""
    content = estimates_content(found)
    return document(content.title, *content.parts)


def estimates_content(found: EstimatesReport) -> Content:
    """Return what the page about one decode shows."""
    title = f"{_about(found)}: what {found.estimates.reports:,} reports say"
    parts = (
        _headline(found, title),
        _estimates(found),
        _question(found),
        _diagnostics(found),
        _checklist(found),
        _origin(found),
    )
    return Content(title, parts)


def _about(found: EstimatesReport) -> str:
    names = dict.fromkeys(each.collected.metric for each in found.collected)
    return shorten(", ".join(name for name in names if name), 60) or "Estimates"


def _headline(found: EstimatesReport, title: str) -> Markup:
    estimates = found.estimates
    warnings = [tag("p", text, class_="warning") for text in estimates.warnings]
    return tag(
        "header",
        tag("h1", title),
        tag("p", join(answer(estimates), " ", _first(found)), class_="answer"),
        *(tag("p", text) for text in unallocated(estimates)),
        *warnings,
        sections(_SECTIONS),
    )


def _first(found: EstimatesReport) -> Markup:
    """Say what the largest detected row is."""
    rows = [row for row in found.rows if row["detected"]]
    if not rows:
        return join("")
    row = max(rows, key=lambda each: each["proportion"])
    low, high = figures.interval(row)
    name = tag("bdi", shorten(row["candidate"], _NAME_COLUMNS))
    return join(
        "The largest is \u201c", name, f"\u201d with {percent(row['proportion'], 2)} of the "
        f"reports ({_between(low, high, 2)})."
    )  # fmt: skip


def _estimates(found: EstimatesReport) -> Markup:
    confidence = short_percent(found.estimates.detection.confidence)
    parts = [tag("h2", "Estimates", id="estimates")]
    if found.charted:
        caption = "How large a share of the reports each candidate has."
        parts.append(
            figure(
                caption,
                figures.shares(found.charted, name="shares", caption=caption),
                f"Full dots are detected candidates; their lines are {confidence} intervals that "
                "are adjusted, so that they hold for the detected list as a whole. Hollow dots are "
                "the undetected candidates that came nearest to detection, with the "
                f"{confidence} interval of each alone. The table below has the numbers."
                f"{_uncharted(found)}",
            )
        )
    if found.masses:
        caption = "How much of all reports is detected, and how much is left."
        parts += [
            figure(
                caption,
                figures.masses(found.masses, name="masses", caption=caption),
                f"Lines are {confidence} intervals. The table below has the numbers.",
            ),
            table(
                "Detected, other and unallocated shares of the reports",
                ("part", "share", "std error", f"{confidence} interval"),
                (
                    (mass.name, percent(mass.proportion, 3), percent(mass.std_error, 3),
                     _between(mass.low, mass.high))
                    for mass in found.masses
                ),
            ),
        ]  # fmt: skip
    return tag("section", *parts, _rows(found))


def _uncharted(found: EstimatesReport) -> str:
    left = found.n_detected - sum(row["detected"] for row in found.charted)
    return f" {left:,} more detected candidates are in the table only." if left else ""


def _rows(found: EstimatesReport) -> Markup:
    return join(
        candidates_table(found, name="candidates"),
        tag("p", _unlisted(found)),
        tag(
            "p",
            "Nothing in a report proves that a device sent it. Forged make: if this many of the "
            "reports are forged, nobody may have the string. Forged hide: this many forged reports "
            "more would hide the row, and the same reports may hide others.",
        ),
    )


def candidates_table(found: EstimatesReport, *, name: str = "") -> Markup:
    """Return the table of the rows that are listed; one with a name can be sorted."""
    confidence = short_percent(found.estimates.detection.confidence)
    columns = ["candidate", "detected", "reports", "std error", "share", f"{confidence} interval",
               "p-value", "forged make", "forged hide"]  # fmt: skip
    if found.estimates.share is not None:
        columns += ["distribution", "its error"]
    return table(
        f"Candidates: detected ones by their share, with adjusted {confidence} intervals; then the "
        "others by their p-value, with the interval of each alone",
        columns,
        (tuple(_cells(row)) for row in found.rows),
        left=2,
        name=name,
    )


def _unlisted(found: EstimatesReport) -> str:
    if not found.unlisted_detected and not found.unlisted_undetected:
        return f"All {len(found.rows):,} candidates are listed."
    return (
        f"{len(found.rows):,} of {found.estimates.n_candidates:,} candidates are listed; "
        f"{found.unlisted_detected:,} detected and {found.unlisted_undetected:,} undetected ones "
        "are not."
    )


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    group = f" (group {row['group']})" if "group" in row else ""
    yield join(tag("bdi", shorten(row["candidate"], _NAME_COLUMNS)), group)
    yield "yes" if row["detected"] else "no"
    yield f"{row['count']:,.0f}"
    yield "unknown" if row["std_error"] is None else f"{row['std_error']:,.0f}"
    yield percent(row["proportion"], 3)
    yield _between(*figures.interval(row))
    yield f"{row['p_value']:.2g}"
    for key in ("forged_to_make", "forged_to_hide"):
        number = row.get(key)
        yield "" if key not in row else "none can" if number is None else f"{number:,}"
    if "share" in row:
        yield percent(row["share"], 3)
        error = row["share_std_error"]
        yield "unknown" if error is None else percent(error, 3)


def _between(low: float | None, high: float | None, digits: int = 3) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{percent(low, digits)} .. {percent(high, digits)}"


def _question(found: EstimatesReport) -> Markup:
    estimates = found.estimates
    parts = [
        tag("h2", "What was asked", id="question"),
        pairs(
            "The question",
            (
                ("candidates", f"{estimates.n_candidates:,}"),
                ("error rate of detection", f"{estimates.detection.correction}, "
                 f"{short_percent(estimates.detection.level)}"),
                ("confidence of intervals", short_percent(estimates.detection.confidence)),
                ("reports", f"{estimates.reports:,}"),
                ("devices", estimates.assumed),
                ("days", _days(found)),
            ),
        ),
    ]  # fmt: skip
    parts += [_asked(each) for each in found.collected]
    return tag("section", *parts)


def _days(found: EstimatesReport) -> str:
    told = [f"{file.name}: {file.days}" for file in found.origin.files if file.days]
    return "; ".join(told) or "the counts do not tell"


def _asked(each: CollectedReport) -> Markup:
    collected, params, told = each.collected, each.params, each.told
    return pairs(
        f"Metric {collected.metric or 'without a name'} under parameters {params.fingerprint}",
        (
            ("encoding", f"{params.encoding}, normalizer {params.normalize}"),
            ("bits k, hashes h, cohorts m", f"{params.k:,}, {params.h}, {params.m:,}"),
            ("noise f, p, q", f"{params.f:g}, {params.p:g}, {params.q:g}"),
            ("a bit is 1 with probability", f"p* = {params.p_star:.5g} if its true bit is 0, "
             f"q* = {params.q_star:.5g} if it is 1"),
            ("reports", f"{collected.n_reports:,}"),
            ("counts that were added", f"{collected.repetition.collections:,}"),
            ("epsilon of one report", _loss(told.epsilon_1, told.belief_1)),
            (f"epsilon of {told.reports:,} reports of one value, as many as a device sent",
             f"{nats(told.epsilon_n)} nats"),
            ("epsilon of any number of reports of one value",
             _loss(told.epsilon_inf, told.belief_inf)),
        ),
    )  # fmt: skip


def _loss(epsilon: float, belief: float) -> str:
    return f"{nats(epsilon)} nats; even odds become at most {most_belief(belief, epsilon)}"


def _diagnostics(found: EstimatesReport) -> Markup:
    diagnostics = found.estimates.diagnostics
    parts = [tag("h2", "Diagnostics", id="diagnostics")]
    if sentences := [tag("li", text) for text in findings(diagnostics)]:
        parts.append(tag("ul", *sentences))
    if "goodness_of_fit" in diagnostics:
        parts.append(pairs("How well the candidates explain the bits", _fit(diagnostics)))
    for number, each in enumerate(found.collected):
        parts += _cohorts(each, diagnostics["cohorts"][number], number)
        if each.residuals is not None and number < _MOST_GRIDS:
            parts += _residuals(each, number)
    if len(found.collected) > _MOST_GRIDS:
        parts.append(
            tag("p", f"Residuals are drawn for {_MOST_GRIDS} of {len(found.collected)} parameter "
                "sets.")
        )  # fmt: skip
    if diagnostics.get("unexplained_bits"):
        parts.append(_unexplained(diagnostics))
    if found.groups:
        parts.append(_groups(found))
    return tag("section", *parts)


def _fit(diagnostics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fit = diagnostics["goodness_of_fit"]
    yield (
        "goodness of fit",
        f"{fit['chi2_per_degree']:.4g} for each degree of freedom, p = {fit['p_value']:.3g}; "
        "1 is what the coins alone give",
    )
    yield "collisions, as a part of a row's noise", percent(diagnostics["collision_share"])
    yield "rows with reduced weight", f"{diagnostics['set_aside_rows']:,}"
    yield "least p-value that an absent string can have", f"{diagnostics['least_p_value']:.2g}"
    share = diagnostics["detectable_share"]
    yield (
        "share that is detected with 80 % probability",
        ("none" if share is None or share > 1 else percent(share, 3)),
    )
    for key, what in (
        ("half_detectable_with_reports", "reports of more devices"),
        ("half_detectable_with_reports_per_device", "reports of each of the same devices"),
        ("half_detectable_with_cohorts", "cohorts"),
    ):
        number = diagnostics[key]
        told = "cannot alone" if number is None else f"{number:,}"
        yield f"{what} that would halve that share", told


def _cohorts(each: CollectedReport, balance: Mapping[str, Any], number: int) -> Iterator[Markup]:
    params = each.params
    if params.m > 1:
        caption = "How many reports each cohort has."
        yield figure(
            caption,
            figures.cohort_reports(
                each.cohorts, each.expected_reports, name=f"reports-{number}", caption=caption
            ),
            f"Honest devices spread evenly around the dashed line, {each.expected_reports:,.0f} "
            f"reports. P-value of this spread: {balance['p_value']:.3g}. "
            f"{balance['empty']:,} cohorts are empty.{_ranged(each)}",
        )
    caption = "How many true bits a report of each cohort has in the mean."
    possible = encoding_of(params).true_bits
    if any(cohort.least_bits is not None for cohort in each.cohorts):
        yield figure(
            caption,
            figures.cohort_bits(each.cohorts, name=f"bits-{number}", caption=caption),
            f"Honest reports have {_span(possible[0], possible[-1])}; short strokes mark the least "
            "and the most that they show with probability 1 - 1e-9 at either end. Whoever imitates "
            f"the number of ones of honest reports is not found.{_ranged(each)}",
        )
    yield table(
        "Reports and mean true bits of the cohorts",
        ("cohorts", "least reports", "most reports", "least true bits", "most true bits",
         "honest from", "honest to"),
        (
            (
                f"{cohort.first}" if cohort.first == cohort.last
                else f"{cohort.first} to {cohort.last}",
                f"{cohort.least_reports:,}", f"{cohort.most_reports:,}",
                *("none" if bits is None else f"{bits:.3f}"
                  for bits in (cohort.least_bits, cohort.most_bits, cohort.low, cohort.high)),
            )
            for cohort in each.cohorts
        ),
    )  # fmt: skip


def _span(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _ranged(each: CollectedReport) -> str:
    together = each.cohorts[0].last - each.cohorts[0].first + 1
    if together == 1:
        return ""
    return f" Each mark is of {together} neighbouring cohorts: their least and their most."


def _residuals(each: CollectedReport, number: int) -> Iterator[Markup]:
    grid = each.residuals
    assert grid is not None
    caption = "What the candidates leave unexplained, by cohort and bit."
    together = grid.cohorts * grid.bits
    yield figure(
        caption,
        figures.residuals(grid, name=f"residuals-{number}", caption=caption),
        "A square's area is the residual in standard deviations of its noise, up to 5: full where "
        "there are more ones than the candidates explain, hollow where there are fewer. Noise "
        "alone looks like sand; a column of full squares is a bit of strings that are no "
        "candidates."
        + (f" Each square is the most extreme of {together} neighbours." if together > 1 else ""),
    )
    yield table(
        "Residuals by size, beside those of normal noise",
        ("standard deviations", "bits", "normal noise"),
        (
            (
                f"{step.low:g} to {step.high:g}" if step.high < float("inf")
                else f"{step.low:g} and more",
                f"{step.bits:,}", f"{step.expected:,.1f}",
            )
            for step in grid.steps
        ),
    )  # fmt: skip
    if grid.large:
        yield table(
            f"Residuals beyond {LARGE:g} standard deviations, at most ten",
            ("cohort", "bit", "residual"),
            ((f"{cohort}", f"{bit}", f"{value:+.2f}") for cohort, bit, value in grid.large),
        )


def _unexplained(diagnostics: Mapping[str, Any]) -> Markup:
    return table(
        "Bits that no candidate explains, nor the noise: those of heavy strings that are no "
        "candidates",
        ("parameter set", "cohort", "bit", "share", "std error"),
        (
            (f"{bit['collection']}", f"{bit['cohort']}", f"{bit['bit']}", percent(bit["share"], 3),
             percent(bit["std_error"], 3))
            for bit in diagnostics["unexplained_bits"]
        ),
    )  # fmt: skip


def _groups(found: EstimatesReport) -> Markup:
    return table(
        "Candidates that cannot be told apart: each shows the total of its group",
        ("group", "candidates"),
        (
            (f"{number}", tag("bdi", ", ".join(shorten(name, 40) for name in group[:20])
                              + (f" and {len(group) - 20:,} more" if len(group) > 20 else "")))
            for number, group in enumerate(found.groups, start=1)
        ),
        left=2,
    )  # fmt: skip


def _checklist(found: EstimatesReport) -> Markup:
    return tag(
        "section",
        tag("h2", "A reviewer's questions", id="checklist"),
        table(
            "What the data answer",
            ("question", "verdict", "answer"),
            ((check.question, check.verdict, check.answer) for check in found.checks),
            left=3,
        ),
    )


def _origin(found: EstimatesReport) -> Markup:
    parts = [tag("h2", "Where it comes from", id="origin")]
    if found.origin.command:
        parts.append(tag("pre", tag("code", found.origin.command)))
    streamed = found.estimates.n_candidates > len(found.estimates)
    which = "candidates that have a row" if streamed else "candidates"
    hashes = [
        *((file.name, file.sha256) for file in found.origin.files),
        *(
            (f"counts under {each.params.fingerprint}", each.collected.sha256)
            for each in found.collected
        ),
        (f"{which}, sorted (LC_ALL=C sort -u | sha256sum)", found.candidates_sha256),
    ]
    parts += [
        pairs("SHA-256 of what was read", hashes),
        pairs("Versions", found.versions),
    ]
    return tag("section", *parts)
