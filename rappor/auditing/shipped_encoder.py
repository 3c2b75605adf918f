"""The shipped encoder as an audit sees it: requests in, what a device responds out.

python -m rappor.auditing.shipped_encoder reads questions, a line of JSON each, from standard
input and answers each with a line of JSON, as README.md describes it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from rappor.encode import encode_value
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import system_coins
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


class DeviceInputs(NamedTuple):
    """All that decides on one report: with the coins given, the protocol leaves one answer.

    `value` is a text as `rappor encode` takes it. Without `coins` they are drawn afresh.
    """

    secret: bytes
    metric: str
    epoch: str
    value: str
    params: Params
    coins: tuple[int, ...] | None = None


class DeviceOutputs(NamedTuple):
    """A value on its whole way: cohort, and packed true bits, permanent response and report."""

    cohort: int
    bits: bytes
    permanent: bytes
    report: bytes


def shipped_answer(question: DeviceInputs) -> DeviceOutputs:
    """Answer as the project's own encoder does."""
    secret, name, epoch, value, params, drawn = question
    encoded = encode_value(
        secret,
        _metric(name, _kind(epoch), params),
        encoder(params).parse_value(value),
        epoch=epoch,
        coins=system_coins if drawn is None else lambda n: drawn[:n],
    )
    return DeviceOutputs(encoded.cohort, encoded.bits, encoded.permanent, encoded.report.bits)


def _kind(epoch: str) -> str:
    """Return which epochs are written like this one."""
    if not epoch:
        return "life"
    return "year" if "-" not in epoch else "quarter" if "Q" in epoch else "month"


@functools.lru_cache(maxsize=256)
def _metric(name: str, epoch: str, params: Params) -> Metric:
    return Metric(
        name=name,
        params=params,
        description="-",
        owner="-",
        expires=datetime.date.max,
        epoch=epoch,
    )


def question_line(question: DeviceInputs) -> str:
    """Write a question as one line of JSON."""
    secret, metric, epoch, value, params, coins = question
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


def read_question(line: str) -> DeviceInputs:
    """Read what `question_line` wrote."""
    document = json.loads(line)
    coins = document.get("coins")
    return DeviceInputs(
        bytes.fromhex(document["secret"]),
        document["metric"],
        document["epoch"],
        document["value"],
        _params(json.dumps(document["params"])),
        None if coins is None else tuple(coins),
    )


_params = functools.lru_cache(maxsize=256)(Params.from_json)


def answer_lines() -> None:
    """Answer every line of standard input."""
    for line in sys.stdin:
        question = read_question(line)
        own_cohort, *patterns = shipped_answer(question)
        texts = (bit_text(pattern, question.params.k) for pattern in patterns)
        document = {
            "cohort": own_cohort,
            **dict(zip(DeviceOutputs._fields[1:], texts, strict=True)),
        }
        sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    answer_lines()
