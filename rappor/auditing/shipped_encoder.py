"""The shipped encoder as an audit sees it: requests in, what a device responds out.

python -m rappor.auditing.shipped_encoder METRIC PARAMETERS [--device SECRET] reads values
from standard input and answers each with a line of JSON. Without a secret each line is a new
device.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rappor.encode import encode_value
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.registry.metric import Metric

SECOND_METRIC: Final = "audit.second"
"""Name under which a device is asked for another metric with the same parameters."""


class Response(NamedTuple):
    """What a device responds, as packed bits; `permanent` only if it can be seen."""

    cohort: int
    report: bytes
    permanent: bytes | None = None


Respond = Callable[[bytes, str, str], Response]
"""(secret, metric name, value as text) -> the response of the device with this secret."""


def shipped_respond(metric: Metric) -> Respond:
    """Return the project's own encoder as a callable; epochs are left out."""
    metrics = {
        name: dataclasses.replace(metric, name=name, epoch="life")
        for name in (metric.name, SECOND_METRIC)
    }
    parse = encoder(metric.params).parse_value

    def respond(secret: bytes, name: str, value: str) -> Response:
        encoded = encode_value(secret, metrics[name], parse(value))
        return Response(encoded.cohort, encoded.report.bits, encoded.permanent)

    return respond


def bit_text(packed: bytes, k: int) -> str:
    """Write packed bits as k characters, bit 0 first."""
    return f"{int.from_bytes(packed, 'little'):0{k}b}"[::-1]


def answer(name: str, params_json: str, device: Sequence[str]) -> None:
    """Answer every line of standard input."""
    params = Params.from_json(params_json)
    metric = Metric(
        name=name,
        params=params,
        description="-",
        owner="-",
        expires=datetime.date.max,
        epoch="life",
    )
    respond = shipped_respond(metric)
    for line in sys.stdin:
        secret = bytes.fromhex(*device) if device else os.urandom(SECRET_BYTES)
        response = respond(secret, name, line.removesuffix("\n"))
        document = {"cohort": response.cohort, "report": bit_text(response.report, params.k)}
        sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    answer(sys.argv[1], sys.argv[2], sys.argv[4:])
