"""A finished report with what the ledger must know of it, on its way to the spool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rappor.encode import encode_value
from rappor.protocol.params import Params
from rappor.protocol.randomizer import Coins, expand, instantaneous_response, scope
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric

_PATTERN_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A report, its parameters, and the permanent response behind it.

    `pattern` names the permanent response by a keyed hash: equal for equal bits of one secret,
    metric, epoch and permanent part of the parameters, and telling nothing without the secret.
    """

    params: Params
    epoch: str
    pattern: bytes = field(repr=False)
    permanent: bytes = field(repr=False)
    report: Report


def make_report(secret: bytes, metric: Metric, value: object, *, epoch: str, coins: Coins) -> Made:
    """Make the report of a value; ReportError if it is not of the metric's kind."""
    encoded = encode_value(secret, metric, value, epoch=epoch, coins=coins)
    head = b"rappor-client/1/pattern\0" + scope(metric.name, epoch, metric.params) + b"\0"
    return Made(
        params=metric.params,
        epoch=epoch,
        pattern=expand(secret, head + encoded.bits, _PATTERN_BYTES),
        permanent=encoded.permanent,
        report=encoded.report,
    )


def make_again(made: Made, coins: Coins) -> Made:
    """Make another report of the same permanent response."""
    shown = instantaneous_response(made.permanent, made.params, coins)
    report = Report(
        metric=made.report.metric,
        params=made.report.params,
        cohort=made.report.cohort,
        bits=shown,
    )
    return Made(
        params=made.params,
        epoch=made.epoch,
        pattern=made.pattern,
        permanent=made.permanent,
        report=report,
    )
