"""The chart of `rappor attack longitudinal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rappor.auditing.observer import Exposure

_WORLDS: Final = {True: "with the permanent response", False: "without it (fresh noise each time)"}


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
