"""`rappor-client send`: try a collector by hand.

A report is drawn under a new secret and sent at once. No folder is read or written, so no budget
and no interval applies. The collector counts each report as the report of one more device.
"""

from __future__ import annotations

import datetime
import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor.base.atomic_files import read_text
from rappor.encode import encode_value
from rappor.protocol.encodings import parse_value
from rappor.protocol.randomizer import SECRET_BYTES, system_coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.cli.parser import SEGMENT, Command, argument, seconds
from rappor_client.cli.show import upload_in_words
from rappor_client.folder.spool import ACCEPTED, ReportRecord, SentUpload
from rappor_client.network.http_transport import HttpTransport
from rappor_client.network.transport import Transport, UploadError
from rappor_client.outbox.uploader import read_status


def run(chosen: Namespace) -> bool:
    """Send every value; True if the collector accepted all of them."""
    registry = Registry.load(chosen.registry).in_segment(dict(chosen.segment))
    metric = registry.metric(chosen.metric)
    today = datetime.datetime.now(datetime.UTC).date()
    metric.check_active(today)
    key = read_text(chosen.key_file).strip() if chosen.key_file else None
    transport = HttpTransport(chosen.collector, key=key)
    accepted = []
    try:
        for text in chosen.values:
            value, secret = parse_value(metric.params, text), os.urandom(SECRET_BYTES)
            accepted.append(_send_one(transport, metric, value, secret, today, chosen.timeout))
    finally:
        transport.close()
    n_accepted = sum(accepted)
    if n_accepted:
        print(_counted_as(n_accepted))  # noqa: T201 - a command's output
    return n_accepted == len(accepted)


def _send_one(
    transport: Transport,
    metric: Metric,
    value: object,
    secret: bytes,
    today: datetime.date,
    timeout: float,
) -> bool:
    """Send one report and print the result; the value itself is not repeated."""
    epoch = metric.epoch_at(today)
    encoded = encode_value(secret, metric, value, epoch=epoch, coins=system_coins)
    upload = Upload(id=Upload.new_id(), reports=(encoded.report,))
    body = upload.to_json()
    try:
        status = read_status(transport.send(body, timeout=timeout))
    except UploadError as error:
        print(f"Not sent: {error}.")  # noqa: T201 - a command's output
        return False
    report = ReportRecord(
        metric=metric.name,
        params=encoded.params,
        cohort=encoded.report.cohort,
        bits=encoded.report.bits,
        status=status,
    )
    sent = SentUpload(day=today.isoformat(), id=upload.id, attempts=1, body=body, reports=(report,))
    print(upload_in_words(sent))  # noqa: T201 - a command's output
    return status == ACCEPTED


def _counted_as(n_reports: int) -> str:
    if n_reports == 1:
        return "The collector counts this report as one more device."
    return f"The collector counts these {n_reports} reports as {n_reports} more devices."


COMMAND: Final = Command(
    run=run,
    summary="Send a report of each VALUE at once, to try a collector by hand.",
    details=(
        "Each report is drawn under a new secret and sent at once, whatever the metric's\n"
        "interval is. No folder is used. The collector counts each report as a device."
    ),
    example=(
        "rappor-client send duckduckgo qwant --registry metrics.toml \\\n"
        "    --metric search_engine --collector http://127.0.0.1:8080"
    ),
    arguments=(
        argument("values", nargs="+", metavar="VALUE", help="A value to send."),
        argument(
            "--registry",
            required=True,
            type=Path,
            metavar="FILE",
            help="The registry, a TOML file.",
        ),
        argument(
            "--metric", required=True, metavar="NAME", help="The metric that the values belong to."
        ),
        argument(
            "--collector",
            required=True,
            metavar="URL",
            help="The collector's address: https, or http on this machine.",
        ),
        argument(
            "--key-file",
            type=Path,
            metavar="FILE",
            help="A file with the upload key, if the collector requires one.",
        ),
        SEGMENT,
        argument(
            "--timeout",
            type=seconds,
            default=10.0,
            metavar="SECONDS",
            help="Seconds to wait for the answer to each value (default: 10).",
        ),
    ),
)
