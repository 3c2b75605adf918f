"""A small client under audit, correct but for the fault that its argument names.

It keeps one JSON file a device and reports every event. Run as `python audited_child.py FAULT`.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from rappor import Registry, encode_value
from rappor.encode import Encoded
from rappor.protocol.encodings import parse_value
from rappor.protocol.loss import epsilon_inf
from rappor.protocol.wire import encode_base64url

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SALT = os.urandom(16)

load = functools.cache(Registry.load)


def main() -> None:
    """Answer every line of standard input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")


def answer(*, folder: str, registry: str, metric: str, value: str, now: float) -> dict[str, Any]:
    """Record a value and return all reports of the device."""
    file = Path(folder, "device.json")
    Path(folder).mkdir(mode=0o755 if FAULT == "readable" else 0o700, exist_ok=True)
    state = json.loads(file.read_text()) if file.exists() else new_state()
    declared = load(registry).metric(metric)
    epoch = declared.epoch_at(datetime.datetime.fromtimestamp(now, datetime.UTC).date())
    secret = bytes.fromhex(state["secret"])
    if FAULT == "forgets":
        secret = secret[:16] + SALT
    if FAULT == "one epoch":
        epoch = declared.epoch_at(datetime.date(2000, 1, 1))
    if FAULT == "back" and epoch in state["latched"] and epoch != max(state["latched"]):
        secret = bytes(reversed(secret))
    latched = state["latched"].setdefault(epoch, value[::-1])  # backwards: it is on the disk
    kept = value if FAULT == "no latch" else latched[::-1]
    encoded = encode_value(secret, declared, parse_value(declared.params, kept), epoch=epoch)
    state["waiting"].append(report_of(encoded))
    if FAULT == "redraws waiting":
        state["waiting"][0] = report_of(encoded)
    if FAULT == "value on disk":
        state["value"] = value
    state["spent"] = len(state["latched"]) * epsilon_inf(declared.params)
    spent = 0.1 if FAULT == "cheap" else state["spent"]
    file.write_text(json.dumps(state))
    return {"waiting": state["waiting"], "spent": spent}


def new_state() -> dict[str, Any]:
    """Return a new device."""
    secret = bytes(32) if FAULT == "one secret" else os.urandom(32)
    return {"secret": secret.hex(), "latched": {}, "waiting": [], "spent": 0.0}


def report_of(encoded: Encoded) -> dict[str, Any]:
    """Return a report as an answer holds it."""
    bits = encoded.report.bits
    if FAULT == "no fresh coins":
        bits = encoded.permanent
    return {
        "params": encoded.report.params,
        "cohort": encoded.cohort,
        "bits": encode_base64url(bits),
    }


if __name__ == "__main__":
    main()
