"""`rappor-client`: what a device has sent and spent, an end to it, a collector tried by hand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rappor.errors import FileError, RapporError
from rappor.files import read_text
from rappor.protocol.encodings import parse_value
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client import ledger, spool
from rappor_client.client import Client
from rappor_client.identity import Device
from rappor_client.ledger import Caps
from rappor_client.outcome import Outcome
from rappor_client.spool import Sent, SentReport
from rappor_client.state import counters
from rappor_client.store import Store, failing_as_file_error

_DONE: Final = 0
_NOT_DONE: Final = 1
_USAGE: Final = 2
_UNCAPPED: Final = Caps(patterns=float("inf"), epsilon=float("inf"), lifetime=float("inf"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 not done, 2 usage."""
    chosen = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return run(chosen)
    except RapporError as error:
        print(f"rappor-client: {error}", file=sys.stderr)  # noqa: T201
        return _USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rappor-client", description="What a device has sent and spent."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="what was sent, exactly as it left, and its loss")
    show.add_argument("folder", type=Path, help="the folder that the program keeps telemetry in")
    show.add_argument("--json", action="store_true", help="for scripts")
    show.set_defaults(run=_show)

    reset = commands.add_parser(
        "reset", help="erase secret, spool, ledger and log; only the nats spent stay"
    )
    reset.add_argument("folder", type=Path, help="the folder that the program keeps telemetry in")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    reset.set_defaults(run=_reset)

    send = commands.add_parser(
        "send", help="send each VALUE as a device of its own, to try a collector by hand"
    )
    send.add_argument("values", nargs="+", metavar="VALUE")
    send.add_argument("--registry", required=True, type=Path, metavar="TOML")
    send.add_argument("--metric", required=True, metavar="NAME")
    send.add_argument("--collector", required=True, metavar="URL")
    send.add_argument("--key-file", type=Path, metavar="FILE", help="the key for sending")
    send.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    send.set_defaults(run=_send)
    return parser


def _show(chosen: argparse.Namespace) -> int:
    store = _existing(chosen.folder)
    with failing_as_file_error(chosen.folder), store.reading() as db:
        sent, spent = spool.log(db), ledger.spent(db)
        waiting, counted = spool.waiting(db), counters(db)
    if chosen.json:
        document = {
            "uploads": [_document(upload) for upload in sent],
            "spent": dataclasses.asdict(spent),
            "waiting": waiting,
            "counters": counted,
        }
        _say(json.dumps(document, indent=2))
        return _DONE
    for upload in sent:
        _say(_described(upload))
    _say(str(spent))
    _say(f"{waiting} reports wait to be sent.")
    _say("Counted: " + (", ".join(f"{name} {n}" for name, n in counted.items()) or "nothing"))
    return _DONE


def _reset(chosen: argparse.Namespace) -> int:
    store = _existing(chosen.folder)
    if not chosen.yes:
        answer = input(f"Erase the identity and all records in {chosen.folder}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return _NOT_DONE
    with failing_as_file_error(chosen.folder):
        Device(chosen.folder, store, "error").erase()
        with store.reading() as db:
            _say(f"Erased; {ledger.total(db):.3f} nats stay on the account.")
    return _DONE


def _send(chosen: argparse.Namespace) -> int:
    registry = Registry.load(chosen.registry)
    metric = registry.metric(chosen.metric)
    key = read_text(chosen.key_file).strip() if chosen.key_file else None
    code = _DONE
    for text in chosen.values:
        with (
            tempfile.TemporaryDirectory() as folder,
            Client.open(
                folder, registry=registry, collector=chosen.collector, key=key, caps=_UNCAPPED
            ) as client,
        ):
            code |= _send_one(client, metric, text, chosen.timeout)
    return code


def _send_one(client: Client, metric: Metric, text: str, timeout: float) -> int:
    """Send one value and say what became of it; the value itself is not repeated."""
    outcome = client.record(metric.name, parse_value(metric.params, text))
    if outcome is not Outcome.RECORDED:
        _say(f"not sent: {outcome.value}")
        return _NOT_DONE
    if not client.flush(timeout=timeout):
        _say("not sent: the collector did not take it")
        return _NOT_DONE
    (upload,) = client.log()
    _say(_described(upload))
    return _DONE if upload.reports[0].status == "accepted" else _NOT_DONE


def _existing(folder: Path) -> Store:
    """Return the store of a folder that has one; nothing is made."""
    store = Store(folder)
    if not store.exists():
        raise FileError(folder, "there is no telemetry in it")
    return store


def _document(upload: Sent) -> dict[str, Any]:
    return {
        "day": upload.day,
        "id": upload.id,
        "attempts": upload.attempts,
        "body": upload.body.decode(),
        "reports": [
            {
                "metric": report.metric,
                "params": json.loads(report.params.to_json()),
                "fingerprint": report.params.fingerprint,
                "cohort": report.cohort,
                "bits": _bits(report),
                "nats": report.nats,
                "status": report.status,
            }
            for report in upload.reports
        ],
    }


def _bits(report: SentReport) -> str:
    """Write bits as `rappor encode` does: k characters, bit 0 first."""
    packed = int.from_bytes(report.bits, "little")
    return "".join(str(packed >> i & 1) for i in range(report.params.k))


def _described(upload: Sent) -> str:
    lines = [f"{upload.day}  upload {upload.id}, {upload.attempts} attempts"]
    for report in upload.reports:
        params = report.params
        lines.append(
            f"  {report.metric}: {report.status}; cohort {report.cohort} of {params.m}, "
            f"{params.k} bits, {report.nats:.3f} nats added (one report {epsilon_1(params):.2f}, "
            f"all of a value {epsilon_inf(params):.2f})"
        )
    lines.append(f"  {upload.body.decode()}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a command's output
