"""Note below a comparison over time whose days all lie in one epoch of the metric."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rappor.comparison.comparison import Comparison
    from rappor.registry.metric import Metric


def add_epoch_note(
    comparison: Comparison, metric: Metric | None, days: Sequence[datetime.date]
) -> Comparison:
    """Return the comparison with a note in its assumptions if all days lie in one epoch.

    A device repeats the value of its first report for a whole epoch. Samples of one epoch therefore
    differ in their devices only. A reader may expect to see changed values, so the note explains
    the limit.

    Parameters
    ----------
    comparison : the comparison.
    metric : the entry of the metric, which contains its epoch. None without a registry.
    days : the first and the last day of each sample. An empty sequence if a sample has no days.
    """
    if metric is None or not comparison.primary or not days:
        return comparison
    epochs = {metric.epoch_at(day) for day in days}
    if len(epochs) > 1:
        return comparison
    # The epoch "life" has an empty name.
    name = epochs.pop() or metric.epoch
    note = (
        f"All days are in one epoch ({name}), in which a device repeats the value of its first "
        "report. So this comparison does not show devices that changed their value."
    )
    return replace(comparison, assumptions=f"{comparison.assumptions} {note}")


def list_days_of_periods(comparison: Comparison) -> list[datetime.date]:
    """List the first and the last day of the periods that have reports."""
    days = [
        day
        for sample in comparison.samples
        if sample.reports
        for day in (sample.first, sample.last)
    ]
    return [day for day in days if day is not None]
