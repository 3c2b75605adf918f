"""`rappor encode`: the true bits, the permanent response and a report of a value.

The command shows each step of a device. It is the only command that prints true bits.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from collections.abc import Iterator
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
    metric_argument,
    option_field,
    option_group,
    registry_option,
)
from rappor.encode import describe_unrepresentable_value, encode_value
from rappor.protocol.encodings import get_encoder, get_encoding, parse_value
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES, derive_own_buckets
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_PROCESS_LIST_WARNING: Final = (
    "warning: --secret-hex shows the secret to whoever lists the machine's processes; "
    "use --secret-file"
)
"""Warning after --secret-hex. Every user of a machine can list the arguments of all processes."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownEncoding:
    """True bits, permanent response and report of a value, for printing.

    `bits`, `permanent` and `report` are texts of k characters 0 and 1, bit 0 first.

    The dataclass has no `repr`, because the record contains the true bits and must not reach a log.

    Attributes
    ----------
    metric : name of the metric.
    params : fingerprint (short hash) of the parameters.
    cohort : number of the cohort that the device drew.
    bits : true bits of the value, before any noise.
    permanent : permanent response: the bits after the noise that the device draws once.
    report : bits of one report, after the noise that every report draws anew.
    """

    metric: str
    params: str
    cohort: int
    bits: str
    permanent: str
    report: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownBucket:
    """Own buckets of a value and the bucket that its report names, for printing.

    Parameter sets with generalized randomized response (GRR) have such reports. The first bucket
    has the number 0.

    The dataclass has no `repr`, because the own buckets reveal the value and must not reach a log.

    Attributes
    ----------
    metric : name of the metric.
    params : fingerprint (short hash) of the parameters.
    cohort : number of the cohort that the device drew.
    own : own buckets, the buckets of the value before any noise, ascending.
    chosen : the own buckets after random buckets were added, or some were left out at random, until
        their number is the fixed number of the metric, ascending.
    bucket : bucket that the report names, after the noise.
    """

    metric: str
    params: str
    cohort: int
    own: list[int]
    chosen: list[int]
    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _SecretOptions:
    """Options for the secret of a device: 32 random bytes that determine its permanent noise.

    The dataclass has no `repr`, because a secret must not reach a log.
    """

    secret_hex: str | None = option_field(
        "HEX",
        "Secret of the device, 64 hex digits, which determines its permanent noise. For tests "
        "only: other users of the machine can see it.",
    )
    secret_file: str | None = option_field(
        "FILE", "File with the 32 bytes of the secret. Default: a new random secret."
    )

    def read(self) -> bytes:
        """Return the secret, or a new secret if the command line names none."""
        if self.secret_hex is not None and self.secret_file is not None:
            raise click.UsageError("give --secret-hex or --secret-file, not both")
        if self.secret_file is not None:
            return _read_secret(self.secret_file)
        if self.secret_hex is None:
            return os.urandom(SECRET_BYTES)
        try:
            return bytes.fromhex(self.secret_hex)
        except ValueError:
            # The message of the original error would contain the secret.
            raise ParamsError(
                f"secret must be {2 * SECRET_BYTES} hex digits, got other text"
            ) from None


@command(
    "rappor encode search_engine duckduckgo.com --registry metrics.toml",
    "rappor encode theme dark --registry metrics.toml --epoch 2026-Q4 --json",
    "echo dark | rappor encode theme - --registry metrics.toml",
    "rappor encode plugins git vim-mode --registry metrics.toml",
    "rappor encode editor_by_system editor=vim system=linux --registry metrics.toml",
)
def encode(
    *,
    name: str = metric_argument(),
    values: tuple[str, ...] = argument_field(nargs=-1, metavar="VALUE"),
    registry_path: str = registry_option(),
    secret_options: _SecretOptions = option_group(_SecretOptions),
    epoch: str | None = option_field(
        "EPOCH",
        "Epoch, the time for which the permanent noise stays, such as 2026-Q4. Default: the epoch "
        "of today (UTC).",
    ),
    as_json: bool = json_option(),
) -> None:
    """Show what a device would send for a value.

    The command prints the steps from the VALUE to a report for a METRIC of the registry: the
    cohort of the device, the true bits, the permanent response (bits after the permanent noise)
    and one report. A second run with the same secret prints the same cohort, true bits and
    permanent response, and another report. With p = 0 and q = 1 the report is the same, too. If
    VALUE is -, every line of standard input is a value, and the command prints a line of JSON for
    each.

    A tuple has a VALUE of the form FIELD=VALUE for each field of the metric; lines of standard
    input have the fields in their order, separated by tabs. A set has any number of values. If
    reports name one bucket, the command prints the own buckets (the buckets of the value), the
    buckets after padding or cutting to the fixed number of the metric, and the bucket that the
    report names.
    """
    if secret_options.secret_hex is not None:
        click.echo(_PROCESS_LIST_WARNING, err=True)
    metric = Registry.load(registry_path).metric(name)
    today = datetime.datetime.now(datetime.UTC).date()
    metric.check_active(today)
    if epoch is None:
        epoch = metric.epoch_at(today)
    if values == ("-",):
        # Each line is the value of another device. Without --secret-hex and --secret-file, each
        # device has a new secret.
        for line in _read_standard_input():
            read_value = parse_value(metric.params, line)
            print_json(_encode(metric, read_value, secret_options.read(), epoch))
        return
    value = _parse_values(metric.params, values)
    encoding = _encode(metric, value, secret_options.read(), epoch)
    if as_json:
        print_json(encoding)
    else:
        for field in dataclasses.fields(encoding):
            click.echo(f"{field.name:<10} {getattr(encoding, field.name)}")
        click.echo(_explain_fields(metric))
    if not get_encoder(metric.params).is_representable(value):
        click.echo(f"warning: {describe_unrepresentable_value(metric)}", err=True)


def _read_standard_input() -> Iterator[str]:
    """Yield the lines of standard input without their line ends.

    Raises
    ------
    FileError
        A line is not text in the encoding of the terminal, which is UTF-8 almost everywhere.
    """
    try:
        for line in sys.stdin:
            yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise FileError("standard input", f"it must be text in {error.encoding}") from None


def _parse_values(params: Params, texts: tuple[str, ...]) -> object:
    """Convert the arguments of a command line to one value. Sets and tuples have several."""
    has_several = get_encoding(params).supports_items or params.field_names
    if not has_several and len(texts) != 1:
        raise click.UsageError(f"give one VALUE, got {len(texts)}")
    return get_encoder(params).parse_arguments(texts)


def _encode(
    metric: Metric, value: object, secret: bytes, epoch: str
) -> ShownEncoding | ShownBucket:
    """Encode a value, and return its bits as texts, or its buckets."""
    encoded = encode_value(secret, metric, value, epoch=epoch)
    k = metric.params.k
    if encoded.params.response.is_exclusive:
        (bucket,) = _list_ones(encoded.report.bits)
        return ShownBucket(
            metric=metric.name,
            params=encoded.report.params,
            cohort=encoded.cohort,
            own=_list_ones(encoded.bits),
            chosen=derive_own_buckets(secret, metric.name, epoch, encoded.params, encoded.bits),
            bucket=bucket,
        )
    return ShownEncoding(
        metric=metric.name,
        params=encoded.report.params,
        cohort=encoded.cohort,
        bits=_format_bits(encoded.bits, k),
        permanent=_format_bits(encoded.permanent, k),
        report=_format_bits(encoded.report.bits, k),
    )


def _list_ones(bits: bytes) -> list[int]:
    """Return the positions of the ones of packed bits, ascending."""
    number = int.from_bytes(bits, "little")
    return [i for i in range(8 * len(bits)) if number >> i & 1]


def _format_bits(bits: bytes, k: int) -> str:
    """Return k packed bits as characters 0 and 1, bit 0 first."""
    number = int.from_bytes(bits, "little")
    return "".join("1" if number >> i & 1 else "0" for i in range(k))


def _explain_fields(metric: Metric) -> str:
    """Return sentences that say which of the printed fields leave a device, and how they repeat.

    The sentences contain line breaks for a terminal of 80 columns.
    """
    params = metric.params
    is_once = metric.interval == "epoch"
    if params.response.is_exclusive:
        once = "\nA device sends one report in an epoch." if is_once else ""
        return (
            "\nOnly metric, params, cohort and bucket leave the device. The bucket stays the same\n"
            f"for this value.{once}"
        )
    report = "the report is drawn anew each time"
    if not params.has_instantaneous_noise:
        # Case: p = 0 and q = 1. A report adds no noise of its own to the permanent response.
        report = "and the report shows it as it is"
    elif is_once:
        # Each run of this command draws another report. A device draws one and sends no other.
        report = "and a device\nsends one report in an epoch"
    return (
        "\nOnly metric, params, cohort and report leave the device; bit 0 comes first. The\n"
        f"permanent response stays the same for this value, {report}."
    )


def _read_secret(path: str) -> bytes:
    """Read a secret from a file. Raise FileError for a file of another length."""
    try:
        secret = Path(path).read_bytes()
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None
    if len(secret) != SECRET_BYTES:
        raise FileError(path, f"a secret must be {SECRET_BYTES} bytes, got {len(secret)}")
    return secret
