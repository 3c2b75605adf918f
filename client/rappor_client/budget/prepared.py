"""A prepared report: noisy, ready to leave, with what the ledger must know of it."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass, field

from rappor.encode import derive_part, encode_value
from rappor.protocol.params import Params
from rappor.protocol.randomizer import (
    Coins,
    Secret,
    derive_report_day,
    draw_instantaneous_response,
)
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.periods import epoch_days


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A report, its parameters, and the permanent response that it was drawn from."""

    params: Params
    epoch: str
    permanent: bytes = field(repr=False)
    report: Report


def prepare(
    secret: bytes | Secret,
    metric: Metric,
    value: object,
    *,
    epoch: str,
    part: str | None = None,
    coins: Coins,
) -> Prepared:
    """Prepare a report of a value; ReportError if the value is not of the metric's kind.

    `part` is the part that the device has answered for before in the epoch, if any.
    """
    encoded = encode_value(secret, metric, value, epoch=epoch, part=part, coins=coins)
    return Prepared(
        params=encoded.params,
        epoch=epoch,
        permanent=encoded.permanent,
        report=encoded.report,
    )


def own_params(secret: Secret, metric: Metric, epoch: str, part: str | None) -> Params:
    """Return the parameters of the part that a device answers for, if it has answered or not."""
    return metric.part_params(derive_part(secret, metric, epoch) if part is None else part)


def is_early(
    secret: bytes | Secret, metric: Metric, epoch: str, params: Params, day: datetime.date
) -> bool:
    """Tell whether a day is before the one that the device draws in the epoch that holds it."""
    first, last = epoch_days(metric.epoch, day)
    days = (last - first).days + 1
    drawn = derive_report_day(secret, metric.name, epoch, params, days)
    return (day - first).days < drawn


def is_last_day(metric: Metric, day: datetime.date) -> bool:
    """Return whether a day is the last one of the metric's epoch that holds it.

    A report of its events would leave on the next day, in the next epoch.
    """
    return epoch_days(metric.epoch, day)[1] == day


def prepare_again(prepared: Prepared, coins: Coins) -> Prepared:
    """Prepare another report of the same permanent response, with fresh coins."""
    bits = draw_instantaneous_response(prepared.permanent, prepared.params, coins)
    return dataclasses.replace(prepared, report=dataclasses.replace(prepared.report, bits=bits))
