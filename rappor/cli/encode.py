"""`rappor encode`: what a device would send for a value, shown to its own user."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import click

from rappor.cli.console import json_option, load_metric, print_json, registry_option
from rappor.encode import encode_value
from rappor.errors import FileError, ParamsError
from rappor.protocol.encodings import parse_value
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.registry.metric import Metric


@click.command()
@click.argument("name", metavar="METRIC")
@click.argument("value")
@registry_option
@click.option("--secret-hex", help="The device's secret, 64 hex digits.")
@click.option("--secret-file", type=click.Path(), help="A file of the secret's 32 bytes.")
@click.option("--epoch", help="Epoch such as 2026-Q4; by default today's, in UTC.")
@json_option
def encode(
    name: str,
    value: str,
    registry_path: str,
    secret_hex: str | None,
    secret_file: str | None,
    epoch: str | None,
    as_json: bool,
) -> None:
    """Show cohort, true bits, permanent response and one report for a VALUE.

    Flags are names joined by commas. Without a secret a fresh one is drawn and forgotten.
    Run it again with the same secret: only the report changes. With - for the VALUE every line
    of standard input is one, answered by a line of JSON.
    """
    metric = load_metric(registry_path, name)
    today = datetime.datetime.now(datetime.UTC).date()
    metric.check_active(today)
    if epoch is None:
        epoch = metric.epoch_at(today)
    if value == "-":
        for line in sys.stdin:
            secret = _read_secret(secret_hex, secret_file)
            print_json(_encode(metric, line.removesuffix("\n"), secret, epoch))
        return
    shown = _encode(metric, value, _read_secret(secret_hex, secret_file), epoch)
    if as_json:
        print_json(shown)
        return
    for label, text in shown.items():
        click.echo(f"{label:<10} {text}")
    click.echo(
        "\nOnly metric, params, cohort and report leave the device; bit 0 comes first. The\n"
        "permanent response stays the same for this value, the report is drawn anew each time."
    )


def _encode(metric: Metric, value: str, secret: bytes, epoch: str) -> dict[str, object]:
    encoded = encode_value(secret, metric, parse_value(metric.params, value), epoch=epoch)
    return {
        "metric": metric.name,
        "params": metric.fingerprint,
        "cohort": encoded.cohort,
        "bits": _show(encoded.bits, metric.params.k),
        "permanent": _show(encoded.permanent, metric.params.k),
        "report": _show(encoded.report.bits, metric.params.k),
    }


def _show(bits: bytes, k: int) -> str:
    number = int.from_bytes(bits, "little")
    return "".join("1" if number >> i & 1 else "0" for i in range(k))


def _read_secret(secret_hex: str | None, secret_file: str | None) -> bytes:
    if secret_hex is not None and secret_file is not None:
        raise click.UsageError("give --secret-hex or --secret-file, not both")
    if secret_file is not None:
        return _read_secret_file(secret_file)
    if secret_hex is None:
        return os.urandom(SECRET_BYTES)
    try:
        return bytes.fromhex(secret_hex)
    except ValueError:
        raise ParamsError(f"secret must be {2 * SECRET_BYTES} hex digits, got other text") from None


def _read_secret_file(path: str) -> bytes:
    try:
        secret = Path(path).read_bytes()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if len(secret) != SECRET_BYTES:
        raise FileError(path, f"a secret must be {SECRET_BYTES} bytes, got {len(secret)}")
    return secret
