"""Page of a decode: the estimated shares, and in collapsible sections their basis.

`rappor decode --html FILE` and `Estimates.to_html` write the page. The first screen has the number
of detected candidates, the largest share, warnings, a chart and the table of candidates. Sections
that a reader expands follow: sums of shares, parameters and privacy losses, diagnostics of the fit,
the questions of a reviewer, and the hashes of all inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import (
    LARGE_RESIDUAL,
    CollectionReport,
    EstimatesReport,
    Origin,
    ResidualGrid,
    report,
)
from rappor.privacy.assessment import Loss
from rappor.protocol.encodings import get_encoding
from rappor.reporting.cohort_charts import draw_cohort_bits, draw_cohort_reports, draw_residuals
from rappor.reporting.document import Content, collapsible, header
from rappor.reporting.estimates_tables import (
    Row,
    contrasts_table,
    error_of_share,
    estimate_columns,
    format_candidate,
    unexplained_bits_table,
)
from rappor.reporting.footnotes import (
    FORGED,
    RANKED,
    explain_adjusted_intervals,
    format_detections,
    format_unallocated,
    list_findings,
)
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import (
    format_interval,
    format_largest_belief,
    format_nats,
    format_percent,
    format_share,
    format_short_percent,
)
from rappor.reporting.plots import draw_estimates, select_interval
from rappor.reporting.tables import Column, Table, table_of_cells, table_of_pairs

_DIMENSION_NAMES: Final = {
    "k": "bits k",
    "h": "hashes h",
    "m": "cohorts m",
    "items": "own buckets n",
}
"""Name of each whole number of a parameter set. The table of a collection shows the numbers that
the response of the parameter set has.

Only generalized randomized response has own buckets: the buckets of a device's value, which the
device pads or cuts to n buckets.
"""

_MAX_GRIDS: Final = 3
"""Largest number of parameter sets whose residuals are drawn. Each grid has up to 64 x 64 squares,
so more grids make a larger file."""

_MAX_NAMES_OF_GROUP: Final = 20
"""Largest number of names in a cell of an identifiability group: candidates with the same bits in
every cohort. Further names are counted."""


def estimates_page(
    estimates: Estimates, origin: Origin | None = None, *, forged: bool = False
) -> str:
    """Return the page about estimates.

    Parameters
    ----------
    estimates : the estimates.
    origin : the command and the files of the estimates, or None.
    forged : True for two more columns of the table: the number of forged reports that would suffice
        for the row although no device has the string, and the number that would hide the row.
    """
    return estimates_content(report(estimates, origin), forged=forged).page()


def estimates_content(result: EstimatesReport, *, forged: bool = False) -> Content:
    """Return the content of the page about one decode, for a page of its own or a part of one."""
    estimates = result.estimates
    names = dict.fromkeys(part.summary.metric for part in result.collections)
    subject = shorten(", ".join(filter(None, names)), 60) or "Estimates"
    title = f"{subject}: results from {format_count(estimates.reports, 'report')}"
    parts = (
        header(
            title,
            join(format_detections(estimates), " ", _describe_largest(result)),
            *format_unallocated(estimates),
            warnings=[warning.sentence for warning in estimates.warnings],
        ),
        _build_estimates(result, forged=forged),
        *requested_contrasts(estimates),
        *_list_joint_shares(result),
        _build_question(result),
        _build_diagnostics(result),
        _build_checklist(result),
        _build_origin(result),
    )
    return Content(title, parts)


def requested_contrasts(estimates: Estimates) -> Iterator[Markup]:
    """Yield the table of the requested contrasts: sums and differences of rows.

    Yields nothing without contrasts.
    """
    if estimates.contrasts:
        confidence = estimates.error_control.confidence
        yield contrasts_table(estimates.contrasts, confidence).to_html()


def candidates_table(result: EstimatesReport, *, forged: bool = False) -> Table[Row]:
    """Return the table of the candidates that a page lists."""
    estimates = result.estimates
    confidence = format_short_percent(estimates.error_control.confidence)
    columns = estimate_columns(estimates, select_interval, f"adjusted {confidence} interval")
    columns["detected"] = Column("detected", lambda row: "yes" if row["detected"] else "no")
    keys = ["share", "interval", "detected", "reports", "std_error", "p_value", "weight"]
    keys += ["forged_to_make", "forged_to_hide"] if forged else []
    keys += ["distribution", "distribution_error"]
    first = "detected ones first"
    if estimates.listed:
        first = "those of the metric's list first, then detected ones"
    return Table(
        title=f"Candidates: {first}; the intervals of undetected ones are not adjusted",
        columns=[
            Column("candidate", format_candidate, "name"),
            *(columns[key] for key in keys if key in columns),
        ],
        rows=result.rows,
    )


def _describe_largest(result: EstimatesReport) -> Markup:
    """Return a sentence about the detected row with the largest share, or nothing."""
    rows = [row for row in result.rows if row["detected"]]
    if not rows:
        return join("")
    row = max(rows, key=lambda row: row["share"])
    error, unit = error_of_share(row, result.estimates.reports), result.estimates.share_unit
    return join(
        "The largest is \u201c", tag("bdi", shorten(row["candidate"], 60)),
        f"\u201d with {format_share(min(row['share'], 1.0), error)} of the {unit} "
        f"({format_interval(*select_interval(row), error)}).",
    )  # fmt: skip


def _build_estimates(result: EstimatesReport, *, forged: bool) -> Markup:
    """Return the section with the chart and the table of candidates."""
    parts = [_draw_estimates(result)] if result.charted else []
    table = candidates_table(result, forged=forged)
    parts += [table.to_html(name="candidates"), tag("p", _count_unlisted(result))]
    if result.estimates.error_control.ranked:
        parts.append(tag("p", RANKED))
    if forged:
        parts.append(tag("p", FORGED))
    return tag("section", *parts, id="estimates")


def _draw_estimates(result: EstimatesReport) -> Markup:
    """Return the figure of the first candidates, with a description."""
    estimates, charted = result.estimates, result.charted
    confidence = estimates.error_control.confidence
    title = f"How large a share of the {estimates.share_unit} each candidate has."
    axis = f"share of the {estimates.share_unit}"
    chart = draw_estimates(title, charted, estimates.reports, axis=axis)
    sentences = [
        f"Bars over the dots are adjusted {format_short_percent(confidence)} intervals.",
        explain_adjusted_intervals(confidence, "detected candidates"),
    ]
    if not all(row["detected"] for row in charted):
        undetected = "the undetected candidates with the smallest p-values"
        if estimates.listed:
            values = format_plural(estimates.value_noun)
            undetected = f"undetected {values} of the metric's list, and {undetected}"
        sentences.append(f"Hollow dots are {undetected}. Their intervals are not adjusted.")
    n_more = result.n_detected - sum(row["detected"] for row in charted)
    if n_more:
        sentences.append(f"{n_more:,} more detected candidates are in the table only.")
    return chart.figure(" ".join(sentences))


def _count_unlisted(result: EstimatesReport) -> str:
    """Return a sentence about the candidates that the table omits."""
    if not result.unlisted_detected and not result.unlisted_undetected:
        return f"All {len(result.rows):,} candidates are listed."
    return (
        f"{len(result.rows):,} of {result.estimates.n_candidates:,} candidates are listed; "
        f"{result.unlisted_detected:,} detected and {result.unlisted_undetected:,} undetected ones "
        "are not."
    )


def _list_joint_shares(result: EstimatesReport) -> Iterator[Markup]:
    """Yield the table of the shares of several candidates together; nothing without such shares."""
    if result.joint_shares:
        confidence = format_short_percent(result.estimates.error_control.confidence)
        shares = table_of_cells(
            "Shares of the reports that belong to several candidates together, or to no candidate",
            ("part", "share", "std error", f"{confidence} interval"),
            (
                (joint.name, format_share(joint.estimate, joint.std_error),
                 format_share(joint.std_error, joint.std_error),
                 format_interval(joint.ci_low, joint.ci_high, joint.std_error))
                for joint in result.joint_shares
            ),
        )  # fmt: skip
        yield collapsible("Detected and unallocated shares", shares.to_html(), name="masses")


def _build_question(result: EstimatesReport) -> Markup:
    """Return the section about the question, the parameters and the privacy losses."""
    estimates = result.estimates
    control = estimates.error_control
    days = [f"{file.name}: {file.days}" for file in result.origin.files if file.days]
    question = table_of_pairs(
        "The question",
        (
            ("candidates", f"{estimates.n_candidates:,}"),
            ("error rate of detection", f"{control.method}, {format_short_percent(control.alpha)}"),
            ("weights of the tests", "by rank in the list" if control.ranked else "equal"),
            ("confidence of intervals", format_short_percent(control.confidence)),
            ("reports", f"{estimates.reports:,}"),
            ("devices", estimates.assumptions),
            ("days", "; ".join(days) or "unknown"),
        ),
    )
    tables = (question, *map(_params_table, result.collections))
    return collapsible(
        "The question, and its cost in privacy",
        *(table.to_html() for table in tables),
        name="question",
    )


def _params_table(part: CollectionReport) -> Table[Any]:
    """Return the table of one parameter set and its privacy losses."""
    summary, params = part.summary, part.params
    dimensions, noise = params.response.dimensions, params.response.probabilities
    one_report, sent_reports, any_number = part.losses
    n_repeated = format_count(sent_reports.reports or 0, "report")
    return table_of_pairs(
        f"Metric {summary.metric or 'without a name'} under parameters {params.fingerprint}",
        (
            ("encoding", f"{params.encoding}, normalizer {params.normalize}"),
            (", ".join(_DIMENSION_NAMES[letter] for letter in dimensions),
             ", ".join(f"{getattr(params, letter):,}" for letter in dimensions)),
            (f"noise {', '.join(noise)}",
             ", ".join(f"{getattr(params, letter):g}" for letter in noise)),
            ("a bit is 1 with probability", f"p* = {params.p_star:.5g} if its true bit is 0, "
             f"q* = {params.q_star:.5g} if it is 1"),
            ("reports", f"{summary.n_reports:,}"),
            ("collections added up", f"{summary.repetition.collections:,}"),
            ("epsilon of one report", _format_loss(one_report)),
            (f"epsilon of as many reports of one value as one device sent ({n_repeated})",
             f"{format_nats(sent_reports.epsilon)} nats"),
            ("epsilon of all reports of one value", _format_loss(any_number)),
        ),
    )  # fmt: skip


def _format_loss(loss: Loss) -> str:
    """Format a loss in nats, and the largest belief that an observer can reach.

    A belief is the probability that the observer gives to a value of the device. It is 50 % before
    the reports.
    """
    belief = format_largest_belief(loss.of_half, loss.epsilon)
    return f"{format_nats(loss.epsilon)} nats; a belief of 50 % in a value becomes at most {belief}"


def _build_diagnostics(result: EstimatesReport) -> Markup:
    """Return the section of diagnostics."""
    diagnostics, noun = result.estimates.diagnostics, result.estimates.value_noun
    parts = []
    if findings := [tag("li", text) for text in list_findings(diagnostics)]:
        parts.append(tag("ul", *findings))
    if "goodness_of_fit" in diagnostics:
        fit = table_of_pairs(
            "How well the candidates explain the bits", _list_fit(diagnostics, noun)
        )
        parts.append(fit.to_html())
    for number, part in enumerate(result.collections):
        parts += _draw_cohorts(part, diagnostics["cohorts"][number])
        if part.residuals is not None and number < _MAX_GRIDS:
            parts += _draw_residuals(part.residuals, noun)
    if len(result.collections) > _MAX_GRIDS:
        words = f"Residuals are drawn for {_MAX_GRIDS} of {len(result.collections)} parameter sets."
        parts.append(tag("p", words))
    if diagnostics.get("unexplained_bits"):
        title = (
            "Bits that neither candidates nor noise explain: signs of frequent "
            f"{format_plural(noun)} that are no candidates"
        )
        parts.append(unexplained_bits_table(title, diagnostics["unexplained_bits"]).to_html())
    if result.groups:
        parts.append(_groups_table(result).to_html())
    return collapsible("Diagnostics", *parts, name="diagnostics")


def _list_fit(diagnostics: Mapping[str, Any], value_noun: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of a description and a formatted number of the fit.

    `value_noun` is the noun for a candidate.
    """
    fit = diagnostics["goodness_of_fit"]
    yield (
        "goodness of fit",
        f"{fit['chi2_per_degree']:.4g} for each degree of freedom (noise alone gives 1), "
        f"p = {fit['p_value']:.3g}",
    )
    collision_share = format_percent(diagnostics["collision_share"])
    yield "part of the variance of a cohort's bit that collisions cause", collision_share
    # A bit that the candidates do not explain has a reduced weight in the fit, as an outlier.
    yield "bits of cohorts with reduced weight", f"{diagnostics['set_aside_rows']:,}"
    # Counts cannot tell an absent string from a present string with the same bits. So no p-value is
    # smaller than the probability that an absent string has such bits.
    yield (
        f"least p-value: the probability that an absent {value_noun} has the bits of a present "
        f"{value_noun}",
        f"{diagnostics['least_p_value']:.2g}",
    )


def _draw_cohorts(part: CollectionReport, balance: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the figures of the reports and of the true bits of each cohort.

    Forged reports are often uneven over cohorts, or have an unusual number of ones.
    """
    if part.params.m > 1:
        expected = part.expected_reports
        chart = draw_cohort_reports("How many reports each cohort has.", part.cohorts, expected)
        yield chart.figure(
            f"Honest devices spread evenly around the dashed line, {expected:,.0f} reports. "
            f"P-value of this spread: {balance['p_value']:.3g}. {balance['empty']:,} cohorts are "
            f"empty.{_describe_neighbours(part)}",
        )
    if any(cohort.least_bits is not None for cohort in part.cohorts):
        true_bit_counts = get_encoding(part.params).true_bit_counts
        smallest, largest = true_bit_counts[0], true_bit_counts[-1]
        numbers = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        chart = draw_cohort_bits("How many true bits a report of each cohort has.", part.cohorts)
        yield chart.figure(
            f"Honest reports have {numbers} in the mean. Short strokes mark the limits for honest "
            "devices: the probability that any cohort exceeds its upper limit is at most 1e-9, and "
            "so is the probability that any falls below its lower limit. Forged reports with an "
            f"honest number of ones are not found.{_describe_neighbours(part)}",
        )


def _describe_neighbours(part: CollectionReport) -> str:
    """Return a sentence about marks of several cohorts; an empty text if a mark is one cohort."""
    cohorts_per_mark = part.cohorts[0].last - part.cohorts[0].first + 1
    if cohorts_per_mark == 1:
        return ""
    return f" Each mark shows the least and the most of {cohorts_per_mark} neighbouring cohorts."


def _draw_residuals(grid: ResidualGrid, value_noun: str) -> Iterator[Markup]:
    """Yield the figure of the residuals, and the table of the largest residuals.

    `value_noun` is the noun for a candidate.
    """
    chart = draw_residuals("Residuals by cohort and bit: what the candidates do not explain.", grid)
    cells_per_square = grid.cohorts * grid.bits
    yield chart.figure(
        "A square's area is the residual in standard deviations of its noise, up to 5: full where "
        "there are more ones than the candidates explain, hollow where there are fewer. Noise "
        f"alone looks random. A frequent {value_noun} that is not a candidate gives full squares "
        "in most rows (cohorts), each at another bit. A full column means that one bit is set in "
        "every cohort, as in forged reports."
        + (
            f" Each square is the most extreme of {cells_per_square} neighbours."
            if cells_per_square > 1
            else ""
        ),
    )
    if grid.large:
        yield table_of_cells(
            f"Residuals beyond {LARGE_RESIDUAL:g} standard deviations, at most ten",
            ("cohort", "bit", "residual"),
            ((f"{cohort}", f"{bit}", f"{value:+.2f}") for cohort, bit, value in grid.large),
        ).to_html()


def _groups_table(result: EstimatesReport) -> Table[Any]:
    """Return the table of identifiability groups."""
    return table_of_cells(
        "Candidates that cannot be distinguished: each shows the total of its group",
        ("group", "candidates"),
        (
            (f"{number}", tag("bdi", _format_group(group)))
            for number, group in enumerate(result.groups, start=1)
        ),
        n_texts=2,
    )


def _format_group(group: tuple[str, ...]) -> str:
    """Format the names of a group of candidates, and count the names that are left out."""
    names = ", ".join(shorten(name, 40) for name in group[:_MAX_NAMES_OF_GROUP])
    n_more = len(group) - _MAX_NAMES_OF_GROUP
    return f"{names} and {n_more:,} more" if n_more > 0 else names


def _build_checklist(result: EstimatesReport) -> Markup:
    """Return the section with the questions of a reviewer."""
    check_table = table_of_cells(
        "What the data answer",
        ("question", "verdict", "answer"),
        ((check.question, check.verdict, check.answer) for check in result.checks),
        n_texts=3,
    )
    return collapsible("A reviewer's questions", check_table.to_html(), name="checklist")


def _build_origin(result: EstimatesReport) -> Markup:
    """Return the section with the command, the hashes of all inputs, and the versions."""
    origin = result.origin
    command = [tag("pre", tag("code", origin.command))] if origin.command else []
    # Case: streamed candidates. Only candidates with a row are in memory, so only they are hashed.
    is_streamed = result.estimates.n_candidates > len(result.estimates)
    hashed_candidates = "candidates that have a row" if is_streamed else "candidates"
    hashes = table_of_pairs(
        "SHA-256 of what was read",
        (
            *((file.name, file.sha256) for file in origin.files),
            *(
                (f"counts under {part.params.fingerprint}", part.summary.sha256)
                for part in result.collections
            ),
            (
                f"{hashed_candidates}, sorted (LC_ALL=C sort -u | sha256sum)",
                result.candidates_sha256,
            ),
        ),
    )
    versions = table_of_pairs("Versions", result.versions)
    return collapsible(
        "Source and versions", *command, hashes.to_html(), versions.to_html(), name="origin"
    )
