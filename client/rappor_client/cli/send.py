"""`rappor-client send`: try a collector by hand."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor.ground.files import read_text
from rappor.protocol.encodings import parse_value
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.cli.parser import SEGMENT, Command, argument, seconds
from rappor_client.cli.show import upload_in_words
from rappor_client.client import Client
from rappor_client.folder.spool import ACCEPTED
from rappor_client.settings import Policy


def run(chosen: Namespace) -> bool:
    """Send every value; True if the collector accepted all of them."""
    metrics = _metrics(chosen.registry, chosen.metric)
    key = read_text(chosen.key_file).strip() if chosen.key_file else None
    accepted = []
    for text in chosen.values:
        with (
            tempfile.TemporaryDirectory() as folder,
            Client.open(
                folder,
                registry=Registry(metrics, total=math.inf),
                consent=True,
                collector=chosen.collector,
                policy=Policy(key=key, segment=dict(chosen.segment)),
            ) as client,
        ):
            accepted.append(_send_one(client, metrics[0], text, chosen.timeout))
    return all(accepted)


def _send_one(client: Client, metric: Metric, text: str, timeout: float) -> bool:
    """Send one value and print the result; the value itself is not repeated."""
    outcome = client.record(metric.name, parse_value(metric.params, text))
    if not outcome:
        print(f"Not sent: {outcome}.")  # noqa: T201 - a command's output
        return False
    flushed = client.flush(timeout=timeout)
    if not flushed:
        print(f"Not sent: {flushed.detail or flushed.reason.value}.")  # noqa: T201
        return False
    uploads = client.log()
    for upload in uploads:
        print(upload_in_words(upload))  # noqa: T201
    return all(upload.reports[0].status == ACCEPTED for upload in uploads)


def _metrics(path: Path, name: str) -> list[Metric]:
    """Return a metric of the registry, and what is answered together with it.

    They have no interval, which is not for tries by hand.
    """
    registry = Registry.load(path)
    names = registry.together(registry.metric(name).name)
    return [dataclasses.replace(registry[each], interval="none") for each in names]


COMMAND: Final = Command(
    run=run,
    summary="Send each VALUE from a new device, to try a collector by hand.",
    details=(
        "Each value is sent by a new device in a temporary folder, which is erased at\n"
        "the end. The metric's interval is ignored: the report is sent at once."
    ),
    example=(
        "rappor-client send duckduckgo qwant --registry metrics.toml \\\n"
        "    --metric search_engine --collector http://127.0.0.1:8080"
    ),
    arguments=(
        argument(
            "values", nargs="+", metavar="VALUE", help="A value to send. Separate flags by commas."
        ),
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
