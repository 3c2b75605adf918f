"""The reference encoder: the project's own encoder in the forms that an audit can call.

A white-box audit compares an encoder with the outputs of this encoder. A black-box audit can test
this encoder like any other. The encoder exists as a function (`create_reference_function`), as a
function of all inputs including the coins (`compute_reference_outputs`), and as a command:
`python -m rappor.auditing.reference_encoder` reads device inputs from standard input, one JSON
object a line, and writes the outputs, one JSON object a line. README.md describes the format.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from rappor.base.errors import ParamsError
from rappor.encode import encode_value
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import draw_system_coins
from rappor.registry.metric import Metric

SECOND_METRIC: Final = "audit.second"
"""The audit requests reports of a second metric with this name and the same parameters, and tests
that two metrics use different coins."""


class Response(NamedTuple):
    """Response of a device: its cohort, and its report as packed bits, bit 0 first.

    `permanent` is the packed permanent response, or None if the encoder does not reveal it.
    """

    cohort: int
    report: bytes
    permanent: bytes | None = None


Respond = Callable[[bytes, str, str], Response]
"""An encoder as a function: it takes (secret, metric name, value as text) and returns the response
of the device that has this secret.
"""


def check_separate_bits(metric: Metric) -> None:
    """Raise ParamsError for reports of one bucket, which a black-box audit cannot test.

    The statistical tests assume that each bit of a report has noise of its own. In a report of one
    bucket (generalized randomized response) exactly one bit is 1, so the bits exclude each other.
    """
    if metric.params.response.is_exclusive:
        raise ParamsError(
            f"metric {metric.name!r} reports one bucket and must be audited bit by bit: "
            "rappor audit --exact --command"
        )


def create_reference_function(metric: Metric) -> Respond:
    """Return the reference encoder as a function from secret, metric name and value to a response.

    The epoch of the metric is replaced by "life", so that a permanent response depends on no date.
    Two metric names are known: the metric's own, and `SECOND_METRIC` with the same parameters.

    Parameters
    ----------
    metric : Metric
        The metric whose parameters the encoder uses.

    Returns
    -------
    callable
        Takes (secret, metric name, value as text) and returns a `Response`.

    Raises
    ------
    ParamsError
        If reports of the metric name one bucket: `check_separate_bits`.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric, Params
    >>> from rappor.auditing import create_reference_function
    >>> metric = Metric(
    ...     name="page",
    ...     params=Params.profile("balanced"),
    ...     description="Home page",
    ...     owner="a@example.org",
    ...     expires=datetime.date(2030, 1, 1),
    ...     epoch="year",
    ... )
    >>> respond = create_reference_function(metric)
    >>> len(respond(bytes(32), "page", "example.org").report)
    16
    """
    check_separate_bits(metric)
    metrics = {
        name: dataclasses.replace(metric, name=name, epoch="life")
        for name in (metric.name, SECOND_METRIC)
    }
    parse = get_encoder(metric.params).parse_value

    def respond(secret: bytes, name: str, value: str) -> Response:
        encoded = encode_value(secret, metrics[name], parse(value))
        return Response(encoded.cohort, encoded.report.bits, encoded.permanent)

    return respond


def format_bits(packed: bytes, k: int) -> str:
    """Format packed bits as k characters 0 and 1, bit 0 first."""
    return f"{int.from_bytes(packed, 'little'):0{k}b}"[::-1]


class DeviceInputs(NamedTuple):
    """All inputs of one report. With `coins`, the protocol determines the outputs bit for bit.

    `secret` has 32 bytes. `epoch` is the epoch of the scope, such as "2026-Q4", or "" for an epoch
    that never ends. `value` is a text as `rappor encode` reads it. `coins` are k integers below
    2^32, one for each bit of the report; if None, the encoder draws fresh coins. A report of one
    bucket uses none of them, because all of its coins follow from the secret.
    """

    secret: bytes
    metric: str
    epoch: str
    value: str
    params: Params
    coins: tuple[int, ...] | None = None


class DeviceOutputs(NamedTuple):
    """All stages of one report: cohort, and packed true bits, permanent response and report.

    The names of the fields are the keys of a command's JSON lines.
    """

    cohort: int
    bits: bytes
    permanent: bytes
    report: bytes


def compute_reference_outputs(inputs: DeviceInputs) -> DeviceOutputs:
    """Compute the outputs that the protocol prescribes, with the project's own encoder.

    Parameters
    ----------
    inputs : DeviceInputs
        Secret, metric, epoch, value, parameters and coins.

    Returns
    -------
    DeviceOutputs
        Cohort, and packed true bits, permanent response and report.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import compute_reference_outputs
    >>> from rappor.auditing.reference_encoder import DeviceInputs
    >>> params = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    >>> inputs = DeviceInputs(bytes(32), "member", "2026", "true", params, coins=(1 << 30,))
    >>> compute_reference_outputs(inputs).report.hex()  # the coin is below t(q) = 3 * 2^30
    '01'
    """
    secret, name, epoch, value, params, fixed_coins = inputs
    encoded = encode_value(
        secret,
        _create_metric(name, _determine_epoch_kind(epoch), params),
        get_encoder(params).parse_value(value),
        epoch=epoch,
        coins=draw_system_coins if fixed_coins is None else lambda n: fixed_coins[:n],
    )
    return DeviceOutputs(encoded.cohort, encoded.bits, encoded.permanent, encoded.report.bits)


def _determine_epoch_kind(epoch: str) -> str:
    """Return the kind of epoch that is written in the form of `epoch`, such as "2026-Q4"."""
    if not epoch:
        return "life"
    if "-" not in epoch:
        return "year"
    return "quarter" if "Q" in epoch else "month"


@functools.lru_cache(maxsize=256)
def _create_metric(name: str, epoch: str, params: Params) -> Metric:
    """Return a metric with these parameters that never expires.

    Creating a metric validates it, which takes time. Many inputs have the same parameters, so the
    metrics are cached.
    """
    return Metric(
        name=name,
        params=params,
        description="-",
        owner="-",
        expires=datetime.date.max,
        epoch=epoch,
        interval="epoch" if params.response.needs_interval_epoch else "day",
    )


def format_inputs(inputs: DeviceInputs) -> str:
    """Format device inputs as one line of JSON."""
    secret, metric, epoch, value, params, coins = inputs
    document: dict[str, object] = {
        "secret": secret.hex(),
        "metric": metric,
        "epoch": epoch,
        "value": value,
        "params": json.loads(params.to_json()),
    }
    if coins is not None:
        document["coins"] = coins
    return json.dumps(document)


def parse_inputs(line: str) -> DeviceInputs:
    """Parse a line that `format_inputs` wrote."""
    document = json.loads(line)
    coins = document.get("coins")
    return DeviceInputs(
        bytes.fromhex(document["secret"]),
        document["metric"],
        document["epoch"],
        document["value"],
        _parse_params(json.dumps(document["params"])),
        None if coins is None else tuple(coins),
    )


_parse_params = functools.lru_cache(maxsize=256)(Params.from_json)
"""Parses parameters from JSON, and keeps them, because many lines have the same parameters."""


def process_lines() -> None:
    """Write the outputs for every line of standard input."""
    for line in sys.stdin:
        inputs = parse_inputs(line)
        cohort, *patterns = compute_reference_outputs(inputs)
        texts = (format_bits(pattern, inputs.params.k) for pattern in patterns)
        document = {
            "cohort": cohort,
            **dict(zip(DeviceOutputs._fields[1:], texts, strict=True)),
        }
        sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    process_lines()
