"""From a value of a metric to a report: all steps of a device, in order.

    value -> part -> cohort -> true bits -> permanent response -> report

The functions store nothing. A device program (`rappor_client`) adds the memory: it checks consent,
budget, interval and sampling, and repeats the permanent response of the first value of a scope.
"""

from __future__ import annotations

from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.protocol.encodings import get_encoder, get_encoding
from rappor.protocol.params import Params
from rappor.protocol.parts import choose_part
from rappor.protocol.randomizer import (
    Secret,
    derive_cohort,
    derive_part_coin,
    derive_permanent_response,
    derive_sampling_coin,
    draw_instantaneous_response,
    draw_system_coins,
)
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import compute_threshold
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EncodedValue:
    """A value after each step of the encoding. Only `report` may leave the device.

    Attributes
    ----------
    params : parameter set of the metric, with the part of the device.
    cohort : cohort of the device in the scope.
    bits : packed true bits of the value. They reveal the value.
    permanent : packed permanent response to the true bits.
    report : the report, with instantaneous noise.
    """

    params: Params
    cohort: int
    bits: bytes
    permanent: bytes
    report: Report

    def __repr__(self) -> str:
        # A log must not contain true bits or the permanent response.
        return f"EncodedValue(metric={self.report.metric!r}, params={self.report.params!r})"


def encode_value(
    secret: bytes | Secret,
    metric: Metric,
    value: object,
    *,
    epoch: str = "",
    part: str | None = None,
    coins: Coins = draw_system_coins,
) -> EncodedValue:
    """Encode a value of a metric as a report of a device.

    The function has no memory and checks no rules. The caller decides whether the metric is active,
    whether the device takes part (`is_sampled`) and whether the budget allows a report.

    Parameters
    ----------
    secret : 32 random bytes, always the same for a device.
    metric : the metric of the value.
    value : a str for strings and categories, a bool for yes or no, an int or float for buckets, a
        collection of str for sets. For a metric with fields, a mapping from the name of each field
        to a str.
    epoch : name of the epoch, such as "2026-Q4"; empty for a metric with an epoch for life.
    part : name of the part that the device has reported in this epoch before. If None, the secret
        chooses the part.
    coins : source of the coins of the instantaneous response. The default is the generator of the
        operating system; tests pass fixed coins.

    Returns
    -------
    EncodedValue
        The report, and the intermediate results, which must not leave the device.

    Raises
    ------
    ParamsError
        `metric` is not a Metric, the secret is not 32 bytes, or the parameters of the metric encode
        no value (`get_encoder`).
    MetricError
        The epoch is not an epoch of the metric.
    ReportError
        The value has the wrong type. The message does not contain the value.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric
    >>> metric = Metric(
    ...     name="theme",
    ...     params=Params.profile("balanced", encoding="onehot", categories=("dark", "light")),
    ...     epoch="life",
    ...     interval="day",
    ...     owner="ui@example.com",
    ...     description="colour theme",
    ...     expires=datetime.date(2027, 12, 31),
    ... )
    >>> encoded = encode_value(bytes(range(32)), metric, "light")
    >>> encoded.report.metric, f"{encoded.bits[0]:02b}", f"{encoded.permanent[0]:02b}"
    ('theme', '10', '10')
    """
    if not isinstance(metric, Metric):
        raise ParamsError(
            f"metric must be a Metric, got {type(metric).__name__}; "
            "call encode_value(secret, metric, value)"
        )
    # A wrong epoch would give a permanent response outside the budget of any epoch.
    metric.check_epoch(epoch)
    params = metric.part_params(derive_part(secret, metric, epoch) if part is None else part)
    cohort = derive_cohort(secret, metric.name, epoch, params)
    bits = get_encoder(params).encode(value, cohort)
    # The same value gives the same permanent response in every report of the epoch.
    permanent = derive_permanent_response(secret, metric.name, epoch, params, bits)
    noisy_bits = draw_instantaneous_response(permanent, params, coins)
    report = Report(metric=metric.name, params=params.fingerprint, cohort=cohort, bits=noisy_bits)
    return EncodedValue(params=params, cohort=cohort, bits=bits, permanent=permanent, report=report)


def describe_unrepresentable_value(metric: Metric) -> str:
    """Return a clause: how a metric reports a value that its encoding cannot represent.

    Such a value is outside all categories or buckets, or nothing of its text is left after
    normalizing, or a set has items that the report leaves out (`Encoding.is_representable`). It is
    reported like any other value, because a missing report would reveal it.
    """
    params = metric.params
    encoding = get_encoding(params)
    if encoding.supports_items:
        return "items of this set are left out: it has too many, or one is not Unicode"
    if encoding.is_hashed:
        replaced = "a field of this value" if params.field_names else "this value"
        return f"{metric.name} reports the empty text in place of {replaced}"
    if params.has_other_bucket:
        return f"{metric.name} reports this value in the bucket for all other values"
    return f"{metric.name} has no place for this value: the report contains noise only"


def is_sampled(secret: bytes | Secret, metric: Metric, epoch: str) -> bool:
    """Return whether a device takes part in a metric in an epoch.

    Without a sampling rate, every device takes part. The decision depends on the secret and never
    on a value.
    """
    if metric.sampling_rate == 1:
        return True
    return derive_sampling_coin(secret, metric.name, epoch, metric.params) < compute_threshold(
        metric.sampling_rate
    )


def derive_part(secret: bytes | Secret, metric: Metric, epoch: str) -> str:
    """Return the part that the secret chooses for an epoch; empty for a metric without parts.

    A device that has reported a part in the epoch keeps that part, even if the registry changes
    the shares. The caller remembers it.
    """
    if not metric.parts:
        return ""
    return choose_part(metric.parts, derive_part_coin(secret, metric.name, epoch, metric.params))
