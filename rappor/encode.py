"""A value of a metric on its whole way to a report."""

from __future__ import annotations

from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params, threshold
from rappor.protocol.parts import choose_part
from rappor.protocol.randomizer import (
    Coins,
    Secret,
    cohort,
    instantaneous_response,
    part_coin,
    permanent,
    sample_coin,
    system_coins,
)
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Encoded:
    """A value on its whole way to a report; only `report` may leave the device.

    `params` are those of the device's part, `bits` the packed true bits, `permanent` their
    permanent response.
    """

    params: Params
    cohort: int
    bits: bytes
    permanent: bytes
    report: Report

    def __repr__(self) -> str:
        return f"Encoded(metric={self.report.metric!r}, params={self.report.params!r})"


def encode_value(
    secret: bytes | Secret,
    metric: Metric,
    value: object,
    *,
    epoch: str = "",
    part: str | None = None,
    coins: Coins = system_coins,
) -> Encoded:
    """Make one report of a value, in the epoch of the metric's calendar.

    `part` is the part that a device has answered for before in this epoch; without one the
    secret chooses. It keeps no account: whether the metric is active, may be reported and has the
    device in its sample is the caller's to ask.
    """
    if not isinstance(metric, Metric):
        raise ParamsError(
            f"metric must be a Metric, got {type(metric).__name__}; "
            "call encode_value(secret, metric, value)"
        )
    metric.check_epoch(epoch)
    params = metric.part_params(device_part(secret, metric, epoch) if part is None else part)
    own_cohort = cohort(secret, metric.name, epoch, params)
    bits = encoder(params).encode(value, own_cohort)
    memoised = permanent(secret, metric.name, epoch, params, bits)
    shown = instantaneous_response(memoised, params, coins)
    report = Report(metric=metric.name, params=params.fingerprint, cohort=own_cohort, bits=shown)
    return Encoded(params=params, cohort=own_cohort, bits=bits, permanent=memoised, report=report)


def takes_part(secret: bytes | Secret, metric: Metric, epoch: str) -> bool:
    """Return whether a device is in the metric's sample in an epoch: always, if there is none."""
    if metric.sampling_rate == 1:
        return True
    return sample_coin(secret, metric.name, epoch, metric.params) < threshold(metric.sampling_rate)


def device_part(secret: bytes | Secret, metric: Metric, epoch: str) -> str:
    """Return the part of a metric that a device without one answers for; empty if it has none."""
    if not metric.parts:
        return ""
    return choose_part(metric.parts, part_coin(secret, metric.name, epoch, metric.params))
