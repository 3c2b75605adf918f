"""`rappor-client show`: what left a device, exactly as it left, and what it cost."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rappor.ground.plurals import counted
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.wire import encode_base64url
from rappor_client.budget.spent import Spent
from rappor_client.cli.parser import Namespace, ProgramParser
from rappor_client.folder.spool import Sent, SentReport
from rappor_client.person.contents import check_telemetry, read_contents


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord:
    """One report that left: `bits` has k characters, bit 0 first, as `rappor encode` writes it."""

    metric: str
    params: Params
    fingerprint: str
    cohort: int
    bits: str
    status: str

    @classmethod
    def of(cls, report: SentReport) -> Self:
        """Spell out a report of the log."""
        packed = int.from_bytes(report.bits, "little")
        return cls(
            metric=report.metric,
            params=report.params,
            fingerprint=report.params.fingerprint,
            cohort=report.cohort,
            bits="".join(str(packed >> i & 1) for i in range(report.params.k)),
            status=report.status,
        )

    def __str__(self) -> str:
        """Say it in two lines."""
        params = self.params
        return (
            f"  {self.metric}: {self.status} "
            f"(epsilon_1 = {epsilon_1(params):.2f}, epsilon_inf = {epsilon_inf(params):.2f}).\n"
            f"    Cohort {self.cohort} of {params.m}, {params.k} bits: {self.bits}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRecord:
    """One upload that left, with its body as it left."""

    day: str
    id: str
    attempts: int
    body: str
    reports: tuple[ReportRecord, ...]

    @classmethod
    def of(cls, upload: Sent) -> Self:
        """Spell out an upload of the log."""
        return cls(
            day=upload.day,
            id=upload.id,
            attempts=upload.attempts,
            body=upload.body.decode(),
            reports=tuple(ReportRecord.of(report) for report in upload.reports),
        )

    def __str__(self) -> str:
        """Say when it left, what it contained, and its bytes."""
        head = f"{self.day}  Upload {self.id}, {counted(self.attempts, 'attempt')}"
        return "\n".join([head, *map(str, self.reports), f"    {self.body}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """What one device has sent and spent, and how many reports wait or are held.

    `reports` are those that wait, as the objects of their uploads.
    """

    uploads: tuple[UploadRecord, ...]
    reports: tuple[Mapping[str, str | int], ...]
    spent: Spent
    waiting: int
    held: int
    counters: Mapping[str, int]

    def __str__(self) -> str:
        """Say all of it in plain words."""
        counters = ", ".join(f"{name} {n}" for name, n in self.counters.items())
        lines = [
            *map(str, self.uploads),
            *(f"Waiting: {json.dumps(report)}" for report in self.reports),
            str(self.spent),
            f"{counted(self.waiting, 'report')} waiting to be sent, "
            f"{counted(self.held, 'report')} kept until its interval ends.",
            f"Counters: {counters or 'none'}",
        ]
        return "\n".join(lines)


def add_to(program: ProgramParser) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "show",
        run,
        summary="Show exactly what a device has sent or holds, and its privacy loss.",
        details=(
            "Each upload is shown with its day, its bytes, its privacy loss and the\n"
            "collector's answer. Waiting reports and the total privacy loss follow."
        ),
        example=(
            "rappor-client show ~/.local/share/myapp/telemetry\n"
            "rappor-client show ~/.local/share/myapp/telemetry --json"
        ),
    )
    command.add_folder()
    command.add_argument("--json", action="store_true", help="Print one JSON object for scripts.")


def run(chosen: Namespace) -> bool:
    """Print the record of a folder."""
    record = device_record(chosen.folder)
    print(json.dumps(_plain(record), indent=2) if chosen.json else record)  # noqa: T201 - output
    return True


def device_record(folder: Path) -> DeviceRecord:
    """Return the record of a folder; FileError if there is no telemetry in it."""
    check_telemetry(folder)
    contents = read_contents(folder)
    return DeviceRecord(
        uploads=tuple(UploadRecord.of(upload) for upload in contents.sent),
        reports=tuple(
            dataclasses.asdict(each) | {"bits": encode_base64url(each.bits)}
            for each in contents.waiting
        ),
        spent=contents.spent,
        waiting=len(contents.waiting),
        held=len(contents.held),
        counters=contents.counters,
    )


def _plain(value: Any) -> Any:
    """Return a record as what JSON knows; JSON has no infinity, so null stands for it."""
    match value:
        case Params():
            return json.loads(value.to_json())
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case float() if math.isinf(value):
            return None
        case str() | int() | float():
            return value
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
