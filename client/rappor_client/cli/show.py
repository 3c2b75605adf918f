"""`rappor-client show`: what left a device, exactly as it left, and what it cost."""

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
from rappor_client.cli.parser import FOLDER, Command, argument
from rappor_client.folder.spool import ReportRecord, SentUpload
from rappor_client.person.contents import Contents, check_telemetry, read_contents


def run(chosen: Namespace) -> bool:
    """Print what a folder holds."""
    check_telemetry(chosen.folder)
    contents = read_contents(chosen.folder)
    text = json.dumps(_document(contents), indent=2) if chosen.json else _in_words(contents)
    print(text)  # noqa: T201 - a command's output
    return True


def upload_in_words(upload: SentUpload) -> str:
    """Say when an upload left, what it contained, and its bytes."""
    head = f"{upload.day}  Upload {upload.id}, {format_count(upload.attempts, 'attempt')}"
    reports = map(_report_in_words, upload.reports)
    return "\n".join([head, *reports, f"    {upload.body.decode()}"])


def _report_in_words(report: ReportRecord) -> str:
    params = report.params
    return (
        f"  {report.metric}: {report.status} "
        f"(epsilon_1 = {epsilon_1(params):.2f}, epsilon_inf = {epsilon_inf(params):.2f}).\n"
        f"    Cohort {report.cohort} of {params.m}, {params.k} bits: {_spelled(report)}"
    )


def _in_words(contents: Contents) -> str:
    counters = ", ".join(f"{name} {n}" for name, n in contents.counters.items())
    lines = [
        *map(upload_in_words, contents.sent_uploads),
        *(f"Waiting: {json.dumps(_waiting(report))}" for report in contents.queued_reports),
        str(contents.spent),
        f"{format_count(len(contents.queued_reports), 'report')} waiting to be sent, "
        f"{format_count(len(contents.pending_reports), 'report')} kept until its interval ends.",
        f"Counters: {counters or 'none'}",
    ]
    return "\n".join(lines)


def _document(contents: Contents) -> dict[str, Any]:
    """Return the same for scripts."""
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
                    "bits": _spelled(report),
                    "status": report.status,
                }
                for report in upload.reports
            ],
        }
        for upload in contents.sent_uploads
    ]
    return {
        "uploads": uploads,
        "reports": [_waiting(report) for report in contents.queued_reports],
        "spent": _finite(dataclasses.asdict(contents.spent)),
        "waiting": len(contents.queued_reports),
        "held": len(contents.pending_reports),
        "counters": dict(contents.counters),
    }


def _waiting(report: Report) -> dict[str, Any]:
    """Return a waiting report as the object of its upload."""
    return dataclasses.asdict(report) | {"bits": encode_base64url(report.bits)}


def _spelled(report: ReportRecord) -> str:
    """Return k characters, bit 0 first, as `rappor encode` writes them."""
    packed = int.from_bytes(report.bits, "little")
    return "".join(str(packed >> i & 1) for i in range(report.params.k))


def _finite(value: Any) -> Any:
    """Return the same with null for infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
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
        argument("--json", action="store_true", help="Print one JSON object for scripts."),
    ),
)
