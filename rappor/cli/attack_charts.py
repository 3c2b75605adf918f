"""The charts of `rappor attack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rappor.auditing.forger import Moved
    from rappor.auditing.observer import Exposure

_WORLDS: Final = {True: "with the permanent response", False: "without it (fresh noise each time)"}
_STEPS: Final = 40

_LOW, _HIGH = 1e-4, 1e-2
"""Shares of forged reports for which the formula is always drawn: 0.01 % to 1 %."""


def draw_exposure(exposure: Exposure, path: str) -> None:
    """Draw the values and the true bits that an observer learns, against the reports."""
    from rappor.reporting.charts import Panels
    from rappor.reporting.lines import Axis, line_chart

    rows = (*exposure.memoised, *exposure.redrawn)
    x = Axis(field="n", title="reports of one device", log=True)
    values = line_chart(
        [{"n": row.n, "share": row.bound, "world": _WORLDS[row.memoised]} for row in rows],
        points=[{"n": row.n, "share": row.values, "world": _WORLDS[row.memoised]} for row in rows],
        x=x,
        y=Axis(field="share", title="share", domain=(0, 1), percent=True),
        series="world",
        title="Values named (dots), and at most (lines)",
    )
    bits = line_chart(
        [{"n": row.n, "share": row.true_bits, "world": _WORLDS[row.memoised]} for row in rows],
        x=x,
        y=Axis(field="share", title="share", domain=(0.5, 1), percent=True),
        series="world",
        title="True bits recovered",
    )
    Panels(title="What an observer of one device learns", charts=[values, bits]).save(path)


def draw_moved(rows: tuple[Moved, ...], path: str) -> None:
    """Draw how far forged reports move the estimate, against their share."""
    from rappor.reporting.lines import Axis, line_chart

    low = min(_LOW, *(row.share for row in rows))
    high = max(_HIGH, *(row.share for row in rows))
    steps = [low * (high / low) ** (step / _STEPS) for step in range(_STEPS + 1)]
    slope = rows[0].formula / rows[0].share
    chart = line_chart(
        [{"share": share, "reports": share * slope, "what": "formula"} for share in steps],
        points=[
            {"share": row.share, "reports": row.decoded, "what": f"{row.forgery}, decoded"}
            for row in rows
            if row.checked
        ],
        x=Axis(field="share", title="forged reports, share of all", log=True, percent=True),
        y=Axis(field="reports", title="the estimate moves by, reports"),
        series="what",
        title="What forged reports move, behind the check",
    )
    chart.save(path)
