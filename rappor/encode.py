"""A value of a metric on its whole way to a report."""

from __future__ import annotations

from dataclasses import dataclass

from rappor.errors import ParamsError
from rappor.protocol.encodings import encoder
from rappor.protocol.randomizer import (
    Coins,
    cohort,
    instantaneous_response,
    permanent,
    system_coins,
)
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Encoded:
    """A value on its whole way to a report; only `report` may leave the device.

    `bits` are the packed true bits, `permanent` their permanent response.
    """

    cohort: int
    bits: bytes
    permanent: bytes
    report: Report

    def __repr__(self) -> str:
        return f"Encoded(metric={self.report.metric!r}, params={self.report.params!r})"


def encode_value(
    secret: bytes,
    metric: Metric,
    value: object,
    *,
    epoch: str = "",
    coins: Coins = system_coins,
) -> Encoded:
    """Make one report of a value, in the epoch of the metric's calendar.

    It keeps no account: the caller checks that the metric is active and that the device may
    still report it.
    """
    if not isinstance(metric, Metric):
        raise ParamsError(
            f"metric must be a Metric, got {type(metric).__name__}; "
            "call encode_value(secret, metric, value)"
        )
    metric.check_epoch(epoch)
    params = metric.params
    own_cohort = cohort(secret, metric.name, params.m)
    bits = encoder(params).encode(value, own_cohort)
    memoised = permanent(secret, metric.name, epoch, params, bits)
    shown = instantaneous_response(memoised, params, coins)
    report = Report(metric=metric.name, params=params.fingerprint, cohort=own_cohort, bits=shown)
    return Encoded(cohort=own_cohort, bits=bits, permanent=memoised, report=report)
