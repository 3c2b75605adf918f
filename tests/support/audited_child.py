"""A small client under audit, correct but for the fault that its argument names.

It keeps one JSON file a device. Run as `python audited_child.py FAULT`.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import json
import os
import random
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rappor import Metric, Registry, encode_value
from rappor.encode import EncodedValue
from rappor.protocol.encodings import parse_value
from rappor.protocol.loss import epsilon_inf
from rappor.protocol.randomizer import derive_cohort, draw_instantaneous_response, draw_system_coins
from rappor.protocol.wire import encode_base64url

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SALT = os.urandom(16)
STARTED: list[str] = []
SEEDED = random.Random(7)  # noqa: S311  (the planted fault)


def seeded_coins(n: int) -> list[int]:
    """Return coins that each process draws anew from one seed."""
    return [SEEDED.getrandbits(32) for _ in range(n)]


load = functools.cache(Registry.load)


def main() -> None:
    """Answer every line of standard input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")


def answer(
    *, folder: str, registry: str, metric: str, now: float, events: Sequence[tuple[float, str]]
) -> dict[str, Any]:
    """Record values and return all reports of the device."""
    del now
    file = Path(folder, "device.json")
    Path(folder).mkdir(mode=0o755 if FAULT.startswith("readable") else 0o700, exist_ok=True)
    if FAULT == "readable below":
        file = Path(folder, "device", "state", "device.json")
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    state = json.loads(file.read_text()) if file.exists() else new_state()
    declared = load(registry).metric(metric)
    for moment, value in events:
        record(state, declared, moment, value)
    file.write_text(json.dumps(state))
    if FAULT == "value on disk" and events:
        Path(folder, "value").write_text(events[-1][1])
    if FAULT == "value compressed" and events:
        Path(folder, "value").write_bytes(b"head" + zlib.compress(events[-1][1].encode()))
    if FAULT == "value in base64" and events:
        Path(folder, "value").write_bytes(base64.b64encode(b"=" + events[-1][1].encode()))
    spent = 0.1 if FAULT == "cheap" else len(state["latched"]) * epsilon_inf(declared.params)
    return {"waiting": state["waiting"], "spent": spent if state["latched"] else 0.0}


def is_odd(value: str) -> bool:
    """Divide values into two kinds."""
    return bool(hashlib.sha256(value.encode()).digest()[0] & 1)


def new_state() -> dict[str, Any]:
    """Return a new device."""
    secret = bytes(32) if FAULT == "one secret" else os.urandom(32)
    return {"secret": secret.hex(), "latched": {}, "waiting": [], "held": []}


def record(state: dict[str, Any], metric: Metric, moment: float, value: str) -> None:
    """Report an event, or one of those of the day that has ended."""
    if FAULT == "silent":
        return
    if FAULT == "odd values dropped in the evening" and is_odd(value) and moment % 86_400 > 72_000:
        return
    if FAULT == "no interval":
        report(state, metric, moment, value)
        return
    held = state["held"]
    if held and moment // 86_400 != held[0][0] // 86_400:
        place = 0 if FAULT == "first event" else (draw_system_coins(1)[0] * len(held)) >> 32
        chosen = max(held, key=lambda each: each[1]) if FAULT == "last value" else held[place]
        state["held"] = held = []
        report(state, metric, chosen[0], chosen[1][::-1])
    held.append((moment, value[::-1]))  # backwards: it is on the disk


def report(state: dict[str, Any], metric: Metric, moment: float, value: str) -> None:
    """Make a report."""
    epoch = epoch_of(metric, moment)
    secret = secret_of(state, metric, epoch, value)
    latch = state["latched"].get(epoch, value[::-1])
    if FAULT == "silent once changed" and latch != value[::-1]:
        return
    if FAULT == "odd values dropped" and is_odd(value) and draw_system_coins(1)[0] % 3 == 0:
        return
    is_repeat = epoch in state["latched"]
    if FAULT == "ended epochs forgotten" and not is_repeat:
        state["latched"] = {}
    state["latched"][epoch] = latch
    kept = value if FAULT == "no latch" else latch[::-1]
    encoded = encode_value(secret, metric, parse_value(metric.params, kept), epoch=epoch)
    due = draw_system_coins(1)[0] % 1000 + 1000 * (FAULT == "late" and is_odd(value))
    bits = shown(encoded, kept, len(state["waiting"]) + 1, is_repeat=is_repeat)
    made = {
        "params": encoded.report.params,
        "cohort": encoded.cohort,
        "bits": encode_base64url(bits[:-1] if FAULT == "short" and is_odd(value) else bits),
        "due": moment + due,
    }
    twice = FAULT == "odd values twice" and is_odd(value)
    state["waiting"] += [made, made] if twice else [made]
    if FAULT == "each 100th report is the one before" and len(state["waiting"]) % 100 == 0:
        made["bits"] = state["waiting"][-2]["bits"]
    if FAULT == "redraws waiting":
        state["waiting"][0] = made


def epoch_of(metric: Metric, moment: float) -> str:
    """Return the epoch of a moment."""
    day = datetime.datetime.fromtimestamp(moment, datetime.UTC).date()
    return metric.epoch_at(datetime.date(2000, 1, 1) if FAULT == "one epoch" else day)


def secret_of(state: dict[str, Any], metric: Metric, epoch: str, value: str) -> bytes:
    """Return the device's secret."""
    secret = bytes.fromhex(state["secret"])
    if FAULT == "forgets":
        return secret[:16] + SALT
    if FAULT == "back" and epoch in state["latched"] and epoch != max(state["latched"]):
        return bytes(reversed(secret))
    while FAULT == "cohort by value" and not state["latched"]:
        secret = os.urandom(32)
        state["secret"] = secret.hex()
        if derive_cohort(secret, metric.name, epoch, metric.params) % 2 == is_odd(value):
            break
    if FAULT == "cohort by length":
        # The cohort stays uniform: the length of the value only chooses between secrets.
        return hashlib.sha256(
            secret + bytes([len(state_value(state, epoch, value)) % 251])
        ).digest()
    return secret


def state_value(state: dict[str, Any], epoch: str, value: str) -> str:
    """Return the value that the device reports in an epoch."""
    return str(state["latched"].get(epoch, value[::-1]))[::-1]


def shown(encoded: EncodedValue, value: str, number: int, *, is_repeat: bool) -> bytes:
    """Return the bits of a device's first, second, ... report."""
    is_first = not STARTED
    STARTED.append(encoded.report.params)
    without = {
        "no fresh coins": True,
        "each 1,000th report without fresh coins": number % 1000 == 0,
        "each 100th report without fresh coins": number % 100 == 0,
        "fresh coins left out at times": is_repeat and draw_system_coins(1)[0] % 5 == 0,
    }
    if without.get(FAULT):
        return encoded.permanent
    if FAULT == "empty text without permanent noise" and not value:
        return draw_instantaneous_response(encoded.bits, encoded.params)
    if FAULT == "fresh coins repeated by each run":
        return draw_instantaneous_response(encoded.permanent, encoded.params, seeded_coins)
    clear = {"first report in the clear": is_first, "empty text in the clear": not value}
    return encoded.bits if clear.get(FAULT) else encoded.report.bits


if __name__ == "__main__":
    main()
