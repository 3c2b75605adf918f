"""The Altair chart of each record, in the style of `charts`. Needs the extra `charts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import altair as alt

from rappor.decoding.comparison.comparison import Comparison
from rappor.decoding.estimates import Estimates
from rappor.decoding.report import masses
from rappor.decoding.segments.segments import Segments
from rappor.decoding.trends.trend import Trend
from rappor.planning.plans import Plan
from rappor.privacy.report import Loss, PrivacyReport
from rappor.protocol.loss import belief_bound
from rappor.reporting.charts import (
    Axis,
    dot_chart,
    line_chart,
    shared_labels,
    side_by_side,
    time_chart,
)
from rappor.reporting.figures import interval
from rappor.reporting.markup import shorten
from rappor.reporting.numbers import short_percent

_NAME_COLUMNS: Final = 40
_PANELS_IN_A_ROW: Final = 3
_DRAWN: Final = {1: "1 report", 10: "10 reports", None: "any number"}


class _Check(Protocol):
    """What is drawn of a check of an audit."""

    @property
    def name(self) -> str: ...
    @property
    def bound(self) -> float | None: ...
    @property
    def claim(self) -> float | None: ...
    @property
    def reach(self) -> float | None: ...


class _Audit(Protocol):
    """What is drawn of an audit."""

    @property
    def checks(self) -> Sequence[_Check]: ...


class _OtherDemo(Protocol):
    """What is drawn of the demo of `other`: the title and the dots of each panel."""

    def panels(self) -> Iterator[tuple[str, list[dict[str, Any]]]]: ...


def estimates_plot(estimates: Estimates, *, top: int = 20, rest: bool = False) -> alt.LayerChart:
    """Draw the shares of the top detected rows with their adjusted intervals.

    Without any detected row the candidates nearest to detection are drawn. With `rest` two rows
    more say what the other detected ones hold together, if `top` is 10, 20, 50, 100 or 1000, and
    what is unallocated.
    """
    found = list(estimates.rows(detected_only=True))[:top]
    rows = found or sorted(estimates.rows(), key=lambda row: float(row["p_value"]))[:top]
    confidence = short_percent(estimates.detection.confidence)
    kind = f"adjusted {confidence} interval" if found else f"{confidence} interval of each"
    drawn = [
        _entry(number, row["candidate"], row["proportion"], *interval(row), kind)
        for number, row in enumerate(rows, start=1)
    ]
    if rest:
        drawn += [
            _entry(0, mass.name, mass.proportion, mass.low, mass.high, f"{confidence} interval")
            for mass in list(masses(estimates, after=top))[1:]
        ]
    return dot_chart(
        drawn,
        x=Axis(field="share", title="share of the reports", format="%"),
        name="candidate",
        series="interval",
        low="low",
        high="high",
        title=f"{len(found)} of {int(estimates.detected.sum())} detected candidates"
        if found
        else "Nothing is detected; the candidates nearest to it",
    )


def _entry(
    number: int, name: str, share: float, low: float | None, high: float | None, kind: str
) -> dict[str, Any]:
    shown = shorten(name, _NAME_COLUMNS)
    label = f"{number}. {shown}" if number else shown
    return {"candidate": label, "share": share, "low": low, "high": high, "interval": kind}


def other_demo_plot(demo: _OtherDemo) -> alt.ConcatChart:
    """Draw what is found in `other` without a list beside the truth, a panel for each size."""
    panels = list(demo.panels())
    most = max(row["high"] or row["share"] for _, rows in panels for row in rows)
    return side_by_side(
        *(
            dot_chart(
                rows,
                x=Axis(field="share", title="share of other", format="%", domain=(0, most)),
                name="text",
                series="what",
                low="low",
                high="high",
                title=title,
            )
            for title, rows in panels
        )
    )


def comparison_plot(comparison: Comparison, *, top: int = 20) -> alt.LayerChart:
    """Draw the largest changes with their adjusted intervals, of each sample.

    Where nothing changed the candidates with the smallest p-values are drawn.
    """
    found = list(comparison.rows(changed_only=True))
    rows = found or sorted(comparison.rows(), key=lambda row: float(row["p_value"]))
    names = list(dict.fromkeys(row["candidate"] for row in rows))[:top]
    confidence = short_percent(comparison.detection.confidence)
    kind = f"adjusted {confidence} interval" if found else f"{confidence} interval of each"
    suffix = "_adjusted" if found else ""
    return dot_chart(
        [
            {
                "candidate": f"{names.index(row['candidate']) + 1}. "
                f"{shorten(row['candidate'], _NAME_COLUMNS)}",
                "difference": row["difference"],
                "low": row[f"ci_low{suffix}"],
                "high": row[f"ci_high{suffix}"],
                "sample": f"{shorten(row['sample'], _NAME_COLUMNS)}, {kind}",
            }
            for row in rows
            if row["candidate"] in names
        ],
        x=Axis(field="difference", title="difference of shares of the reports", format="+.2%"),
        name="candidate",
        series="sample",
        low="low",
        high="high",
        title=f"{comparison.n_changed} changes from {shorten(comparison.before, 40)}"
        if found
        else "No change is told from noise; the candidates nearest to it",
    )


def trend_plot(trend: Trend, *, top: int = 6) -> alt.ConcatChart:
    """Draw how the shares of the top strings run, a panel each, three in a row."""
    names = trend.candidates[:top]
    if not names:
        return side_by_side(_panel(trend, [], "No candidate is told from nothing"))
    rows = list(trend.rows())
    chart = side_by_side(
        *(_panel(trend, [row for row in rows if row["candidate"] == name], name) for name in names)
    )
    chart.columns = min(_PANELS_IN_A_ROW, len(names))
    return chart


def segments_plot(found: Segments, *, top: int = 6) -> alt.ConcatChart:
    """Draw the shares of the top strings in each segment, a panel each, three in a row."""
    rows = list(found.rows())
    names = found.candidates[:top] or ("No candidate is told from nothing",)
    kind = f"adjusted {short_percent(found.detection.confidence)} interval"
    chart = side_by_side(
        *(
            dot_chart(
                [
                    _entry(
                        0, row["segment"], row["proportion"], row["ci_low"], row["ci_high"], kind
                    )
                    for row in rows
                    if row["candidate"] == name
                ],
                x=Axis(field="share", title="share of the reports", format="~%"),
                name="candidate",
                series="interval",
                low="low",
                high="high",
                title=shorten(name, _NAME_COLUMNS),
            )
            for name in names
        )
    )
    chart.columns = min(_PANELS_IN_A_ROW, len(names))
    return chart


def _panel(trend: Trend, rows: Sequence[Mapping[str, Any]], name: str) -> alt.LayerChart:
    """Draw one string."""
    changed = {each.period for each in trend.params_changes}
    return time_chart(
        [{**row, "day": row["first"]} for row in rows],
        y=Axis(field="proportion", title="share of the reports", format="~%"),
        low="ci_low",
        high="ci_high",
        full="detected",
        line="" if trend.smoothed is None else "smoothed",
        gaps=[str(period.first) for period in trend.missing],
        borders=[str(period.first) for period in trend.periods if period.name in changed],
        title=shorten(name, _NAME_COLUMNS),
    )


def plan_plot(plan: Plan) -> alt.LayerChart:
    """Draw the probability of detection of a string against its share."""
    frequencies, chosen = plan.question.frequencies, plan.prediction.probabilities
    drawn = sorted(
        (float(share), float(probability))
        for share, probability, n in zip(
            frequencies.shares, chosen, frequencies.candidates, strict=True
        )
        if n
    )
    what = f"{plan.reports:,} reports, epsilon_1 = {plan.epsilon_1:.3g}"
    limit = f"detected with probability {plan.question.power:g}"
    return line_chart(
        [{"share": share, "probability": each, "what": what} for share, each in drawn],
        points=[{"share": plan.share, "probability": plan.question.power, "what": limit}],
        x=Axis(field="share", title="share of the reports", log=True, format="~%"),
        y=Axis(field="probability", title="probability of detection", domain=(0, 1), format="%"),
        series="what",
        title="Which strings are found",
    )


def privacy_plot(report: PrivacyReport) -> alt.LayerChart:
    """Draw the least and the most belief after some reports, against the belief before."""
    return losses_plot(report.losses)


def losses_plot(losses: Sequence[Loss]) -> alt.LayerChart:
    """Draw what losses of 1, 10 and any number of reports make of a belief."""
    rows = [row for loss in losses if loss.reports in _DRAWN for row in _curve(loss)]
    labels = shared_labels(rows, value="after", series="reports")
    return line_chart(
        [row | {"reports": labels[row["reports"]]} for row in rows],
        x=Axis(field="prior", title="belief before", domain=(0, 1), format="%"),
        y=Axis(field="after", title="least and most belief after", domain=(0, 1), format="%"),
        series="reports",
        part="end",
        title="What reports of one value can make of a belief",
    )


def _curve(loss: Loss) -> list[dict[str, Any]]:
    label = f"{_DRAWN[loss.reports]}: epsilon = {loss.epsilon:.3g}"
    return [
        {"prior": prior, "after": belief, "end": end, "reports": label}
        for prior in (step / 200 for step in range(201))
        for end, belief in zip(("least", "most"), belief_bound(loss.epsilon, prior), strict=True)
    ]


def audit_plot(audit: _Audit) -> alt.LayerChart:
    """Draw, for each loss that was bounded, the bound, the claim and what could be reached."""
    return dot_chart(
        [row for check in audit.checks for row in _bounds(check)],
        x=Axis(field="nats", title="privacy loss, nats"),
        name="loss",
        series="what",
        title="Losses: what was measured, and what is claimed",
    )


def _bounds(check: _Check) -> Iterator[dict[str, Any]]:
    told = (
        ("measured, at least", check.bound),
        ("claimed, at most", check.claim),
        ("reachable with these trials", check.reach),
    )
    for what, epsilon in told:
        if epsilon is not None and check.bound is not None:
            yield {"loss": check.name, "nats": epsilon, "what": what}
