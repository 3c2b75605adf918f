"""`rappor-client send`: send a report of each value at once, to try a collector by hand.

Each report has a new secret. The command uses no folder, so no budget and no interval applies. The
collector therefore counts each report as the report of one more device.
"""

from __future__ import annotations

import datetime
import http
import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor.base.atomic_files import read_upload_key
from rappor.encode import describe_unrepresentable_value, encode_value
from rappor.protocol.encodings import get_encoder, parse_value
from rappor.protocol.randomizer import SECRET_BYTES, draw_system_coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.cli.parser import SEGMENT, Command, declare_argument, parse_seconds
from rappor_client.cli.show import format_upload
from rappor_client.folder.spool import ACCEPTED, ReportRecord, SentUpload
from rappor_client.network.http_transport import HttpTransport
from rappor_client.network.transport import Transport, UploadError
from rappor_client.outbox.upload_response import read_status

_KEY_REMEDY: Final = (
    " It wants an upload key that is valid today: --key-file names the file with the key."
)
"""Sentence after a response with status 401, the only one that a missing or expired key gets."""

_UNKNOWN_TO_COLLECTOR: Final = ("refused: unknown-params", "refused: unknown-metric")
"""A report has one of these statuses if the collector's registry lacks its metric or parameters."""
_REGISTRY_REMEDY: Final = (
    "The collector serves another registry than {path}. Start it with this file, or replace its "
    "file and reload it; or name its file with --registry."
)
"""The command prints this sentence after such a status. "{path}" is the registry of its options."""


def run(args: Namespace) -> bool:
    """Send a report of every value; return whether the collector accepted all reports."""
    registry = Registry.load(args.registry).in_segment(dict(args.segment))
    metric = registry.metric(args.metric)
    today = datetime.datetime.now(datetime.UTC).date()
    metric.check_active(today)
    key = read_upload_key(args.key_file) if args.key_file else None
    # A value that cannot be parsed raises before any report has left.
    values = [parse_value(metric.params, text) for text in args.values]
    transport = HttpTransport(args.collector, key=key)
    statuses = []
    try:
        for value in values:
            secret = os.urandom(SECRET_BYTES)
            statuses.append(_send_one(transport, metric, value, secret, today, args.timeout))
    finally:
        transport.close()
    n_accepted = statuses.count(ACCEPTED)
    if n_accepted:
        print(_describe_count(n_accepted))  # noqa: T201 - a command's output
    if any(status in _UNKNOWN_TO_COLLECTOR for status in statuses):
        print(_REGISTRY_REMEDY.format(path=args.registry))  # noqa: T201 - a command's output
    return n_accepted == len(statuses)


def _send_one(
    transport: Transport,
    metric: Metric,
    value: object,
    secret: bytes,
    today: datetime.date,
    timeout: float,
) -> str:
    """Send one report and print the result without the value.

    Returns the collector's status, or an empty text if the report was not sent.
    """
    epoch = metric.epoch_at(today)
    encoded = encode_value(secret, metric, value, epoch=epoch, coins=draw_system_coins)
    upload = Upload(id=Upload.new_id(), reports=(encoded.report,))
    body = upload.to_json()
    try:
        status = read_status(transport.send(body, timeout=timeout))
    except UploadError as error:
        remedy = _KEY_REMEDY if error.status == http.HTTPStatus.UNAUTHORIZED else ""
        print(f"Not sent: {error}.{remedy}")  # noqa: T201 - a command's output
        return ""
    report = ReportRecord(
        metric=metric.name,
        params=encoded.params,
        cohort=encoded.report.cohort,
        bits=encoded.report.bits,
        status=status,
    )
    sent = SentUpload(day=today.isoformat(), id=upload.id, attempts=1, body=body, reports=(report,))
    print(format_upload(sent))  # noqa: T201 - a command's output
    # A misspelt category is accepted like any other value, and no result would ever show it.
    if not get_encoder(metric.params).is_representable(value):
        print(f"    Warning: {describe_unrepresentable_value(metric)}.")  # noqa: T201 - likewise
    return status


def _describe_count(n_reports: int) -> str:
    """Return the sentence that warns that every report counts as a device."""
    if n_reports == 1:
        return "The collector counts this report as one more device."
    return f"The collector counts these {n_reports} reports as {n_reports} more devices."


COMMAND: Final = Command(
    run=run,
    summary="Send a report of each VALUE at once, to try a collector by hand.",
    details=(
        "Each report is drawn under a new secret and sent at once, whatever the metric's\n"
        "interval is. No folder is used. The collector counts each report as a device.\n"
        "\n"
        "The texts of a tuple, one for each field in its order, and the items of a set\n"
        "are one VALUE with tabs between them, such as $'vim\\tlinux' in bash and zsh."
    ),
    example=(
        "rappor-client send duckduckgo qwant --registry metrics.toml \\\n"
        "    --metric search_engine --collector http://127.0.0.1:8080"
    ),
    arguments=(
        declare_argument("values", nargs="+", metavar="VALUE", help="A value to send."),
        declare_argument(
            "--registry",
            required=True,
            type=Path,
            metavar="FILE",
            help="The registry, a TOML file.",
        ),
        declare_argument(
            "--metric", required=True, metavar="NAME", help="The metric that the values belong to."
        ),
        declare_argument(
            "--collector",
            required=True,
            metavar="URL",
            help="The collector's address: https, or http on this machine.",
        ),
        declare_argument(
            "--key-file",
            type=Path,
            metavar="FILE",
            help="A file with the upload key alone, if the collector requires one.",
        ),
        SEGMENT,
        declare_argument(
            "--timeout",
            type=parse_seconds,
            default=10.0,
            metavar="SECONDS",
            help="Seconds to wait for the answer to each value (default: 10).",
        ),
    ),
)
