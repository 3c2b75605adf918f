"""A small client for tests of `rappor audit --client`, with planted faults.

Run as `python audited_child.py FAULTS`. The argument is the name of a fault, or several names with
the separator ", ". Without an argument, the client is correct, and the audit must find nothing.
`rappor.auditing.device_histories` describes the lines of JSON that the audit writes to a client and
reads from it. The client stores one JSON file for each device:

    secret     secret of the device, in hexadecimal
    memoized   value that the device reports in each epoch, by the name of the epoch
    waiting    finished reports
    events     [timestamp, value] of each event of the interval that has not ended

The audit searches the folder of a device for its values. So the file contains values backwards,
`value[::-1]`, and only the faults that write a value on purpose are found there.
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

import reference
from set_faults import SET_FAULTS

from rappor import Metric, Params, Registry, encode_value
from rappor.encode import EncodedValue
from rappor.protocol.encodings import get_encoder, parse_value
from rappor.protocol.loss import epsilon_inf
from rappor.protocol.randomizer import derive_cohort, draw_instantaneous_response, draw_system_coins
from rappor.protocol.wire import encode_base64url

FAULTS = frozenset(sys.argv[1].split(", ") if len(sys.argv) > 1 else ())
"""Names of the planted faults. The client is correct without a name."""

SALT = os.urandom(16)
"""Bytes that replace half of the secret under the fault "secret changed by each restart". They
differ in each process, so a device loses its permanent noise when its program restarts."""

MADE_REPORTS: list[str] = []
"""Fingerprints of the reports that this process has made. The list is empty before the first
report, which has no noise under the fault "first report in the clear"."""

SEEDED = random.Random(7)  # noqa: S311  (the planted fault)
"""Generator that starts with the same seed in each process. Under the fault "fresh coins repeated
by each run", two runs of the program draw equal instantaneous noise."""


def draw_seeded_coins(n: int) -> list[int]:
    """Return n coins of the generator with a constant seed."""
    return [SEEDED.getrandbits(32) for _ in range(n)]


load_registry = functools.cache(Registry.load)
"""Registry of a path. The audit passes the path in each line, and the file never changes."""


def main() -> None:
    """Read lines from standard input, each with one run of one device, and print their results."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_device(**json.loads(line))) + "\n")


def run_device(
    *, folder: str, registry: str, metric: str, now: float, events: Sequence[tuple[float, str]]
) -> dict[str, Any]:
    """Record the events of one run of a device, and return its finished reports and its loss.

    The line has the names of the arguments. `spent` of the result is in nats.
    """
    # This client finishes a report when the first event of the next day comes, not by the clock.
    del now
    file = Path(folder, "device.json")
    Path(folder).mkdir(
        mode=0o755 if {"readable", "readable below"} & FAULTS else 0o700, exist_ok=True
    )
    if "readable below" in FAULTS:
        file = Path(folder, "device", "state", "device.json")
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    state = json.loads(file.read_text()) if file.exists() else make_state()
    declared = load_registry(registry).metric(metric)
    for timestamp, value in events:
        record(state, declared, timestamp, value)
    file.write_text(json.dumps(state))
    if "value on disk" in FAULTS and events:
        Path(folder, "value").write_text(events[-1][1])
    if "value compressed" in FAULTS and events:
        Path(folder, "value").write_bytes(b"head" + zlib.compress(events[-1][1].encode()))
    if "value in base64" in FAULTS and events:
        Path(folder, "value").write_bytes(base64.b64encode(b"=" + events[-1][1].encode()))
    spent = len(state["memoized"]) * epsilon_inf(declared.params)
    if "smaller loss in the ledger" in FAULTS:
        spent = min(spent, 0.1)
    return {"waiting": state["waiting"], "spent": spent}


def is_odd(value: str) -> bool:
    """Return whether the hash of a value is odd, as for half of all values.

    Some faults treat odd values differently, so that they reveal whether a value is odd.
    """
    return bool(hashlib.sha256(value.encode()).digest()[0] & 1)


def make_state() -> dict[str, Any]:
    """Return the state of a device that has recorded nothing."""
    secret = bytes(32) if "one secret" in FAULTS else os.urandom(32)
    return {"secret": secret.hex(), "memoized": {}, "waiting": [], "events": []}


def record(state: dict[str, Any], metric: Metric, timestamp: float, value: str) -> None:
    """Store an event. If the event begins a new day, report a random event of the day before."""
    if "no reports" in FAULTS:
        return
    is_evening = timestamp % 86_400 > 72_000
    if "odd values dropped in the evening" in FAULTS and is_odd(value) and is_evening:
        return
    if "no interval" in FAULTS:
        report(state, metric, timestamp, value)
        return
    events = state["events"]
    if events and timestamp // 86_400 != events[0][0] // 86_400:
        index = 0 if "first event" in FAULTS else (draw_system_coins(1)[0] * len(events)) >> 32
        chosen = (
            max(events, key=lambda event: event[1]) if "last value" in FAULTS else events[index]
        )
        state["events"] = events = []
        report(state, metric, chosen[0], chosen[1][::-1])
    events.append((timestamp, value[::-1]))


def report(state: dict[str, Any], metric: Metric, timestamp: float, value: str) -> None:
    """Make the report of an event, and add the report to the finished reports."""
    epoch = find_epoch(metric, timestamp)
    secret = choose_secret(state, metric, epoch, value)
    if is_finished(state, metric, epoch):
        return
    memoized = state["memoized"].get(epoch, value[::-1])
    if "silent once changed" in FAULTS and memoized != value[::-1]:
        return
    if "odd values dropped" in FAULTS and is_odd(value) and draw_system_coins(1)[0] % 3 == 0:
        return
    is_repeat = epoch in state["memoized"]
    if "ended epochs forgotten" in FAULTS and not is_repeat:
        state["memoized"] = {}
    state["memoized"][epoch] = memoized
    reported = value if "not memoized" in FAULTS else memoized[::-1]
    encoded = encode_once(secret, metric, epoch, reported)
    # Faults in which the time of sending depends on the value, by fault.
    is_late = {"odd values late": is_odd(value), "many items late": value.count("\t") > 10}
    delay = draw_system_coins(1)[0] % 1000 + 1000 * any(is_late.get(fault) for fault in FAULTS)
    cohort = 0 if {"one cohort", "coins of another epoch"} & FAULTS else encoded.cohort
    bits = choose_bits(encoded, reported, len(state["waiting"]) + 1, is_repeat=is_repeat)
    if metric.params.response.is_exclusive:
        bits = name_bucket(secret, metric, epoch, cohort, reported)
    if "odd values one byte short" in FAULTS and is_odd(value):
        bits = bits[:-1]
    finished = {
        "params": encoded.report.params,
        "cohort": cohort,
        "bits": encode_base64url(bits),
        "due": timestamp + delay,
    }
    is_twice = "odd values twice" in FAULTS and is_odd(value)
    state["waiting"] += [finished, finished] if is_twice else [finished]
    if "each 100th report is the one before" in FAULTS and len(state["waiting"]) % 100 == 0:
        finished["bits"] = state["waiting"][-2]["bits"]
    if "redraws waiting" in FAULTS:
        state["waiting"][0] = finished


ENCODED: dict[tuple[bytes, str, str, str], EncodedValue] = {}
"""Maps the arguments of `encode_once` to its results. The audit records a value up to a thousand
times."""


def encode_once(secret: bytes, metric: Metric, epoch: str, value: str) -> EncodedValue:
    """Encode a value, or return the result of an earlier report with the same permanent response.

    The report of the result is not used, because each report needs its own instantaneous noise.
    """
    key = (secret, metric.name, epoch, value)
    if key not in ENCODED:
        ENCODED[key] = encode_value(secret, metric, parse_value(metric.params, value), epoch=epoch)
    return ENCODED[key]


def is_finished(state: dict[str, Any], metric: Metric, epoch: str) -> bool:
    """Return whether an epoch has had its only report."""
    is_once = metric.interval == "epoch" and "day for epoch" not in FAULTS
    return is_once and epoch in state["memoized"]


def name_bucket(secret: bytes, metric: Metric, epoch: str, cohort: int, value: str) -> bytes:
    """Return the bits of a report of generalized randomized response, which names one bucket.

    Most faults change the drawing of the bucket (`set_faults`).
    """
    params, n = metric.params, metric.params.items
    items = value.split("\t")
    hashing = params
    if "k of half the items" in FAULTS:
        hashing = Params.profile("once", encoding="set", items=n // 2)
    if "cut by length" in FAULTS:
        items = sorted(items, key=len)[:n]
    encoder = get_encoder(hashing)
    packed = encoder.encode(encoder.parse_value("\t".join(items)), cohort)
    own = [i for i, bit in enumerate(reference.unpack(packed, hashing.k)) if bit]
    coin_epoch = "" if "coins of another epoch" in FAULTS else epoch
    scope = reference.encode_scope(metric.name, coin_epoch, params.permanent_fingerprint)
    suffixes = {"coins fresh": os.urandom(8), "coins by order": value.encode()}
    scope += b"".join(suffixes.get(fault, b"") for fault in FAULTS)
    coins = reference.derive_bucket_coins(secret, scope, own, hashing.k, n)
    assert params.keep is not None
    (draw, *_) = [
        *(SET_FAULTS[fault] for fault in FAULTS & SET_FAULTS.keys()),
        reference.draw_bucket,
    ]
    bucket = draw(own, hashing.k, n, round(params.keep * 2**32), coins)
    named = {bucket, own[0]} if "two buckets" in FAULTS and own else {bucket}
    return reference.pack([int(i in named) for i in range(params.k)])


def find_epoch(metric: Metric, timestamp: float) -> str:
    """Return the name of the epoch that contains a timestamp."""
    day = datetime.datetime.fromtimestamp(timestamp, datetime.UTC).date()
    return metric.epoch_at(datetime.date(2000, 1, 1) if "one epoch" in FAULTS else day)


def choose_secret(state: dict[str, Any], metric: Metric, epoch: str, value: str) -> bytes:
    """Return the secret from which the device derives its cohort and coins of an epoch.

    A correct device has one secret for all epochs, values and runs.
    """
    secret = bytes.fromhex(state["secret"])
    if "secret changed by each restart" in FAULTS:
        return secret[:16] + SALT
    is_earlier_epoch = epoch in state["memoized"] and epoch != max(state["memoized"])
    if "other secret in an earlier epoch" in FAULTS and is_earlier_epoch:
        return bytes(reversed(secret))
    while "cohort by value" in FAULTS and not state["memoized"]:
        secret = os.urandom(32)
        state["secret"] = secret.hex()
        if derive_cohort(secret, metric.name, epoch, metric.params) % 2 == is_odd(value):
            break
    if "cohort by length" in FAULTS:
        # Each length of the value has a secret of its own. So every cohort stays equally likely for
        # every value, and only a change of the cohort reveals a change of the length.
        return hashlib.sha256(secret + bytes([len(read_value(state, epoch, value)) % 251])).digest()
    return secret


def read_value(state: dict[str, Any], epoch: str, value: str) -> str:
    """Return the value that the device reports in an epoch."""
    return str(state["memoized"].get(epoch, value[::-1]))[::-1]


def choose_bits(encoded: EncodedValue, value: str, number: int, *, is_repeat: bool) -> bytes:
    """Return the bits of a report after both responses.

    `number` is the number of the report on its device, from 1.
    """
    is_first = not MADE_REPORTS
    MADE_REPORTS.append(encoded.report.params)
    is_without_fresh_noise = {
        "no fresh coins": True,
        "each 1,000th report without fresh coins": number % 1000 == 0,
        "each 100th report without fresh coins": number % 100 == 0,
        "fresh coins left out at times": is_repeat and draw_system_coins(1)[0] % 5 == 0,
    }
    if any(is_without_fresh_noise.get(fault) for fault in FAULTS):
        return encoded.permanent
    if "empty text without permanent noise" in FAULTS and not value:
        return draw_instantaneous_response(encoded.bits, encoded.params)
    if "fresh coins repeated by each run" in FAULTS:
        return draw_instantaneous_response(encoded.permanent, encoded.params, draw_seeded_coins)
    is_noiseless = {"first report in the clear": is_first, "empty text in the clear": not value}
    if any(is_noiseless.get(fault) for fault in FAULTS):
        return encoded.bits
    return draw_instantaneous_response(encoded.permanent, encoded.params)


if __name__ == "__main__":
    main()
