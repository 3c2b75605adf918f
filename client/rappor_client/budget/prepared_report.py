"""Prepared reports: noisy reports with the permanent response from which they were drawn.

Two functions prepare a report:

    prepare_report   from a value: value -> true bits -> permanent response -> report
    redraw_report    from a permanent response: only the instantaneous noise is drawn anew

The second function serves a memoized scope, which repeats the permanent response of its first
value. The value of the event is not used there.

The last two functions are rules of `interval = "epoch"`: a device sends one report in an epoch,
from the first event on or after a day that its secret draws.
"""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass, field

from rappor.encode import derive_part, encode_value
from rappor.protocol.params import Params
from rappor.protocol.randomizer import Secret, derive_report_day, draw_instantaneous_response
from rappor.protocol.responses.response import Coins
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.periods import find_epoch_days


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedReport:
    """A report, and everything that the memory of its scope needs.

    Attributes
    ----------
    params
        Parameters of the report.
    epoch
        Name of the epoch, such as 2026-Q4; empty for a metric for life.
    permanent
        Packed bits of the permanent response from which the report was drawn. The repr does not
        contain them: with many permanent responses, a reader can test guesses of the value.
    report
        The report as it leaves the device.
    """

    params: Params
    epoch: str
    permanent: bytes = field(repr=False)
    report: Report


def prepare_report(
    secret: bytes | Secret,
    metric: Metric,
    value: object,
    *,
    epoch: str,
    part: str | None = None,
    coins: Coins,
) -> PreparedReport:
    """Prepare the report of a value; ReportError for a value of the wrong type.

    `part` is the memoized part of the epoch. If None, the secret chooses the part.
    """
    encoded = encode_value(secret, metric, value, epoch=epoch, part=part, coins=coins)
    # The true bits stay behind here. Nothing that is stored contains them.
    return PreparedReport(
        params=encoded.params,
        epoch=epoch,
        permanent=encoded.permanent,
        report=encoded.report,
    )


def redraw_report(prepared: PreparedReport, coins: Coins) -> PreparedReport:
    """Draw another report of the same permanent response, with fresh instantaneous noise."""
    bits = draw_instantaneous_response(prepared.permanent, prepared.params, coins)
    return dataclasses.replace(prepared, report=dataclasses.replace(prepared.report, bits=bits))


def derive_params(secret: Secret, metric: Metric, epoch: str, part: str | None) -> Params:
    """Return the parameters of a metric's reports in an epoch, with the part of the device.

    `part` is the memoized part. If None, the secret chooses the part.
    """
    return metric.part_params(derive_part(secret, metric, epoch) if part is None else part)


def is_before_drawn_day(
    secret: bytes | Secret, metric: Metric, epoch: str, params: Params, day: datetime.date
) -> bool:
    """Return whether a day is before the day that the secret draws in the day's epoch.

    The drawn day does not depend on a value. So the time of a report reveals nothing about values.
    """
    first, last = find_epoch_days(metric.epoch, day)
    n_days = (last - first).days + 1
    drawn_day = derive_report_day(secret, metric.name, epoch, params, n_days)
    return (day - first).days < drawn_day


def is_last_day_of_epoch(metric: Metric, day: datetime.date) -> bool:
    """Return whether a day is the last day of its epoch.

    A report of this day would leave on the next day, and so in the next epoch.
    """
    return find_epoch_days(metric.epoch, day)[1] == day
