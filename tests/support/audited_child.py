"""A small client under audit with one fault, which its argument names; correct without a fault.

Run as `python audited_child.py FAULT`. The client speaks the lines that
`rappor.auditing.device_histories` describes. It stores one JSON file for each device:

    secret     hexadecimal
    memoized   value of each epoch, written backwards so that the file does not contain the value
    waiting    finished reports
    events     [time, value backwards] of the interval that has not ended
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
"""Bytes that a client with the fault "forgets" uses instead of half of its secret."""

STARTED: list[str] = []
"""Reports that this process has made: empty for the first report."""

SEEDED = random.Random(7)  # noqa: S311  (the planted fault)
"""Generator that starts with the same seed in each process."""


def seeded_coins(n: int) -> list[int]:
    """Return coins that each process draws anew from one seed."""
    return [SEEDED.getrandbits(32) for _ in range(n)]


load = functools.cache(Registry.load)


def main() -> None:
    """Process every line of standard input, one run of a device each."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_device(**json.loads(line))) + "\n")


def run_device(
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
    spent = 0.1 if FAULT == "cheap" else len(state["memoized"]) * epsilon_inf(declared.params)
    return {"waiting": state["waiting"], "spent": spent if state["memoized"] else 0.0}


def is_odd(value: str) -> bool:
    """Return whether a value is in the half of the values that some faults treat differently."""
    return bool(hashlib.sha256(value.encode()).digest()[0] & 1)


def new_state() -> dict[str, Any]:
    """Return the state of a new device."""
    secret = bytes(32) if FAULT == "one secret" else os.urandom(32)
    return {"secret": secret.hex(), "memoized": {}, "waiting": [], "events": []}


def record(state: dict[str, Any], metric: Metric, moment: float, value: str) -> None:
    """Store an event. If it begins a new day, report a random event of the day before."""
    if FAULT == "silent":
        return
    if FAULT == "odd values dropped in the evening" and is_odd(value) and moment % 86_400 > 72_000:
        return
    if FAULT == "no interval":
        report(state, metric, moment, value)
        return
    events = state["events"]
    if events and moment // 86_400 != events[0][0] // 86_400:
        index = 0 if FAULT == "first event" else (draw_system_coins(1)[0] * len(events)) >> 32
        chosen = max(events, key=lambda event: event[1]) if FAULT == "last value" else events[index]
        state["events"] = events = []
        report(state, metric, chosen[0], chosen[1][::-1])
    events.append((moment, value[::-1]))


def report(state: dict[str, Any], metric: Metric, moment: float, value: str) -> None:
    """Make the report of an event, and add it to the finished reports."""
    epoch = epoch_of(metric, moment)
    secret = secret_of(state, metric, epoch, value)
    memoized = state["memoized"].get(epoch, value[::-1])
    if FAULT == "silent once changed" and memoized != value[::-1]:
        return
    if FAULT == "odd values dropped" and is_odd(value) and draw_system_coins(1)[0] % 3 == 0:
        return
    is_repeat = epoch in state["memoized"]
    if FAULT == "ended epochs forgotten" and not is_repeat:
        state["memoized"] = {}
    state["memoized"][epoch] = memoized
    reported = value if FAULT == "not memoized" else memoized[::-1]
    encoded = encode_value(secret, metric, parse_value(metric.params, reported), epoch=epoch)
    due = draw_system_coins(1)[0] % 1000 + 1000 * (FAULT == "late" and is_odd(value))
    bits = choose_bits(encoded, reported, len(state["waiting"]) + 1, is_repeat=is_repeat)
    finished = {
        "params": encoded.report.params,
        "cohort": encoded.cohort,
        "bits": encode_base64url(bits[:-1] if FAULT == "short" and is_odd(value) else bits),
        "due": moment + due,
    }
    is_twice = FAULT == "odd values twice" and is_odd(value)
    state["waiting"] += [finished, finished] if is_twice else [finished]
    if FAULT == "each 100th report is the one before" and len(state["waiting"]) % 100 == 0:
        finished["bits"] = state["waiting"][-2]["bits"]
    if FAULT == "redraws waiting":
        state["waiting"][0] = finished


def epoch_of(metric: Metric, moment: float) -> str:
    """Return the epoch of a time."""
    day = datetime.datetime.fromtimestamp(moment, datetime.UTC).date()
    return metric.epoch_at(datetime.date(2000, 1, 1) if FAULT == "one epoch" else day)


def secret_of(state: dict[str, Any], metric: Metric, epoch: str, value: str) -> bytes:
    """Return the secret from which the coins of an epoch are derived."""
    secret = bytes.fromhex(state["secret"])
    if FAULT == "forgets":
        return secret[:16] + SALT
    if FAULT == "back" and epoch in state["memoized"] and epoch != max(state["memoized"]):
        return bytes(reversed(secret))
    while FAULT == "cohort by value" and not state["memoized"]:
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
    return str(state["memoized"].get(epoch, value[::-1]))[::-1]


def choose_bits(encoded: EncodedValue, value: str, number: int, *, is_repeat: bool) -> bytes:
    """Return the bits of a report. `number` counts the reports of the device from 1."""
    is_first = not STARTED
    STARTED.append(encoded.report.params)
    is_without_fresh_noise = {
        "no fresh coins": True,
        "each 1,000th report without fresh coins": number % 1000 == 0,
        "each 100th report without fresh coins": number % 100 == 0,
        "fresh coins left out at times": is_repeat and draw_system_coins(1)[0] % 5 == 0,
    }
    if is_without_fresh_noise.get(FAULT):
        return encoded.permanent
    if FAULT == "empty text without permanent noise" and not value:
        return draw_instantaneous_response(encoded.bits, encoded.params)
    if FAULT == "fresh coins repeated by each run":
        return draw_instantaneous_response(encoded.permanent, encoded.params, seeded_coins)
    is_noiseless = {"first report in the clear": is_first, "empty text in the clear": not value}
    return encoded.bits if is_noiseless.get(FAULT) else encoded.report.bits


if __name__ == "__main__":
    main()
