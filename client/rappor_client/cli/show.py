"""`rappor-client show`: print the uploads of a device byte by byte, and their privacy loss.

A report on the device has one of three states:

    pending    its interval is open, so a later event may replace it
    queued     its interval is over, and the report waits for an upload
    sent       it has left in an upload, whose attempts and status are listed

The output says "waiting" for queued reports. In the JSON document, whose keys stay the same for
scripts, "waiting" is the number of queued reports and "held" the number of pending reports.
"""

from __future__ import annotations

import dataclasses
import json
import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from rappor.base.sentence_numbers import format_count
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.wire import Report, encode_base64url
from rappor_client.cli.parser import FOLDER, Command, declare_argument
from rappor_client.folder.spool import ReportRecord, SentUpload
from rappor_client.person.contents import Contents, check_device_folder, read_contents


def run(args: Namespace) -> bool:
    """Print the contents of a folder, and return True: the command has done its work."""
    # Raise an error if the folder contains no device, for example because its path is misspelt. The
    # output would otherwise look like the output of a device without reports.
    check_device_folder(args.folder)
    contents = read_contents(args.folder)
    text = (
        json.dumps(_build_document(contents), indent=2) if args.json else _format_contents(contents)
    )
    print(text)  # noqa: T201 - a command's output
    return True


def format_upload(upload: SentUpload) -> str:
    """Return day, reports and bytes of an upload as lines of text."""
    head = f"{upload.day}  Upload {upload.id}, {format_count(upload.attempts, 'attempt')}"
    reports = map(_format_report, upload.reports)
    return "\n".join([head, *reports, f"    {upload.body.decode()}"])


def _format_report(report: ReportRecord) -> str:
    """Return status, privacy loss and bits of a sent report as lines of text.

    The status is the collector's response, such as "accepted", or the state of an upload without a
    response.
    """
    params = report.params
    return (
        f"  {report.metric}: {report.status} "
        f"(epsilon_1 = {epsilon_1(params):.2f}, epsilon_inf = {epsilon_inf(params):.2f}).\n"
        f"    Cohort {report.cohort} of {params.m}, {params.k} bits: {_spell_bits(report)}"
    )


def _format_contents(contents: Contents) -> str:
    """Return the contents of a folder as text for people."""
    # How many values were recorded, and how many reports were accepted, refused or dropped.
    counters = ", ".join(f"{name} {n}" for name, n in contents.counters.items())
    lines = [
        *map(format_upload, contents.sent_uploads),
        *(f"Waiting: {json.dumps(_report_object(report))}" for report in contents.queued_reports),
        str(contents.spent),  # sentences about the privacy loss so far
        f"{format_count(len(contents.queued_reports), 'report')} waiting to be sent, "
        f"{format_count(len(contents.pending_reports), 'report')} pending in open intervals.",
        f"Counters: {counters or 'none'}",
    ]
    return "\n".join(lines)


def _build_document(contents: Contents) -> dict[str, Any]:
    """Return the contents of a folder as a JSON object for scripts."""
    uploads = [
        {
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
                    "bits": _spell_bits(report),
                    "status": report.status,
                }
                for report in upload.reports
            ],
        }
        for upload in contents.sent_uploads
    ]
    return {
        "uploads": uploads,
        "reports": [_report_object(report) for report in contents.queued_reports],
        "spent": _replace_infinity(dataclasses.asdict(contents.spent)),
        "waiting": len(contents.queued_reports),
        # Number of pending reports, under the key that scripts already read.
        "held": len(contents.pending_reports),
        "counters": dict(contents.counters),
    }


def _report_object(report: Report) -> dict[str, Any]:
    """Return a queued report as the JSON object that its upload contains."""
    return dataclasses.asdict(report) | {"bits": encode_base64url(report.bits)}


def _spell_bits(report: ReportRecord) -> str:
    """Return the bits as k characters 0 and 1, bit 0 first, as `rappor encode` writes them."""
    packed = int.from_bytes(report.bits, "little")  # bit i of the report is bit i of the integer
    return "".join(str(packed >> i & 1) for i in range(report.params.k))


def _replace_infinity(value: Any) -> Any:
    """Return a copy with None in place of infinity, which JSON cannot express."""
    if isinstance(value, Mapping):
        return {key: _replace_infinity(item) for key, item in value.items()}
    return None if value == math.inf else value


COMMAND: Final = Command(
    run=run,
    summary="Show exactly what a device has sent or holds, and its privacy loss.",
    details=(
        "Each upload is shown with its day, its bytes, its privacy loss and the\n"
        "collector's answer. Waiting reports and the total privacy loss follow."
    ),
    example=(
        "rappor-client show ~/.local/share/myapp/telemetry\n"
        "rappor-client show ~/.local/share/myapp/telemetry --json"
    ),
    arguments=(
        FOLDER,
        declare_argument("--json", action="store_true", help="Print one JSON object for scripts."),
    ),
)
