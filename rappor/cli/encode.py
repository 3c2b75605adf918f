"""`rappor encode`: what a device would send for a value, shown to its own user."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rappor.base.errors import FileError, ParamsError
from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.options import (
    argument_field,
    json_option,
    option_field,
    option_group,
    registry_option,
)
from rappor.encode import encode_value
from rappor.protocol.encodings import encoder, parse_value
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_SEEN: Final = (
    "warning: --secret-hex shows the secret to whoever lists the machine's processes; "
    "use --secret-file"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownEncoding:
    """A value on its whole way to a report, as texts of k characters 0 and 1, bit 0 first.

    `params` is the fingerprint. Nothing of it is shown by `repr`.
    """

    metric: str
    params: str
    cohort: int
    bits: str
    permanent: str
    report: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Secret:
    """Where a device's secret comes from; nothing of it is shown by `repr`."""

    secret_hex: str | None = option_field(
        "HEX",
        "The device's secret, 64 hex digits, for tests only: other users of the machine can "
        "see it.",
    )
    secret_file: str | None = option_field(
        "FILE", "File of the secret's 32 bytes. Default: a new secret."
    )

    def read(self) -> bytes:
        """Return the secret, a fresh one if none is named."""
        if self.secret_hex is not None and self.secret_file is not None:
            raise click.UsageError("give --secret-hex or --secret-file, not both")
        if self.secret_file is not None:
            return _read_file(self.secret_file)
        if self.secret_hex is None:
            return os.urandom(SECRET_BYTES)
        try:
            return bytes.fromhex(self.secret_hex)
        except ValueError:
            raise ParamsError(
                f"secret must be {2 * SECRET_BYTES} hex digits, got other text"
            ) from None


@command(
    "rappor encode search_engine duckduckgo.com --registry metrics.toml",
    "rappor encode theme dark --registry metrics.toml --epoch 2026-Q4 --json",
    "echo dark | rappor encode theme - --registry metrics.toml",
)
def encode(
    *,
    name: str = argument_field(metavar="METRIC"),
    value: str = argument_field(),
    registry_path: str = registry_option(),
    source: _Secret = option_group(_Secret),
    epoch: str | None = option_field("EPOCH", "Epoch such as 2026-Q4. Default: today's (UTC)."),
    as_json: bool = json_option(),
) -> None:
    """Show what a device would send for a value.

    The command prints cohort, true bits, permanent response and one report of the VALUE for a
    METRIC of the registry. With the same secret, a second run changes only the report, and nothing
    where p = 0 and q = 1. If VALUE is -, every line of standard input is a value, and each is
    answered by a line of JSON.
    """
    if source.secret_hex is not None:
        click.echo(_SEEN, err=True)
    registry = Registry.load(registry_path)
    metric = registry.metric(name)
    today = datetime.datetime.now(datetime.UTC).date()
    metric.check_active(today)
    if epoch is None:
        epoch = metric.epoch_at(today)
    if value == "-":
        for line in sys.stdin:
            _print_line(metric, line.removesuffix("\n"), source.read(), epoch)
        return
    secret = source.read()
    if as_json:
        _print_line(metric, value, secret, epoch)
    else:
        _print(_encode(metric, value, secret, epoch))
        click.echo(_explain(metric.params))
    if not encoder(metric.params).fits(parse_value(metric.params, value)):
        click.echo(
            f"warning: {name} has no place for this value: the report holds noise only", err=True
        )


def _print_line(metric: Metric, value: str, secret: bytes, epoch: str) -> None:
    """Print one line of JSON."""
    print_json(_encode(metric, value, secret, epoch))


def _encode(metric: Metric, value: str, secret: bytes, epoch: str) -> ShownEncoding:
    encoded = encode_value(secret, metric, parse_value(metric.params, value), epoch=epoch)
    return ShownEncoding(
        metric=metric.name,
        params=encoded.report.params,
        cohort=encoded.cohort,
        bits=_show(encoded.bits, metric.params.k),
        permanent=_show(encoded.permanent, metric.params.k),
        report=_show(encoded.report.bits, metric.params.k),
    )


def _show(bits: bytes, k: int) -> str:
    number = int.from_bytes(bits, "little")
    return "".join("1" if number >> i & 1 else "0" for i in range(k))


def _print(shown: ShownEncoding) -> None:
    for field in dataclasses.fields(shown):
        click.echo(f"{field.name:<10} {getattr(shown, field.name)}")


def _explain(params: Params) -> str:
    """Say what leaves; where no noise is added to the permanent response, it is the report."""
    report = (
        "and the report shows it as it is"
        if params.is_bare
        else "the report is drawn anew each time"
    )
    return (
        "\nOnly metric, params, cohort and report leave the device; bit 0 comes first. The\n"
        f"permanent response stays the same for this value, {report}."
    )


def _read_file(path: str) -> bytes:
    try:
        secret = Path(path).read_bytes()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if len(secret) != SECRET_BYTES:
        raise FileError(path, f"a secret must be {SECRET_BYTES} bytes, got {len(secret)}")
    return secret
