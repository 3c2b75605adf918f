"""What a step of sending met, and why a flush ended."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class FlushReason(enum.Enum):
    """Why a flush ended; the first three leave nothing waiting."""

    NOTHING_WAITING = "nothing was waiting"
    SENT = "the collector accepted everything"
    REFUSED = "the collector refused a report for good, so it was dropped"
    UNREACHABLE = "the collector was not reached"
    COLLECTOR_ERROR = "the collector answered with an error"
    ASKED_TO_WAIT = "the collector asked to wait"
    BUSY = "another thread or process is sending"
    TIMEOUT = "the time was over before everything was sent"
    NO_COLLECTOR = "no collector was named"
    NO_CONSENT = "there is no consent"
    FAILED = "the disk is full, read-only or locked"


_DONE: Final = (FlushReason.NOTHING_WAITING, FlushReason.SENT, FlushReason.REFUSED)
_ATTEMPTS: Final = (
    FlushReason.SENT,
    FlushReason.REFUSED,
    FlushReason.UNREACHABLE,
    FlushReason.COLLECTOR_ERROR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushResult:
    """The end of a flush: true if nothing waits any more.

    `sent` reports were accepted in this call, and `waiting` are left; those held for their
    interval are in neither. `status` is the collector's HTTP status where it answered with an
    error. `detail` says in words what went wrong. `retry_at` is the moment of the next attempt in
    seconds since 1970, if one is planned; a flush may come before it unless the collector asked
    to wait.
    """

    reason: FlushReason
    sent: int = 0
    waiting: int = 0
    status: int | None = None
    detail: str = ""
    retry_at: float | None = None

    @property
    def done(self) -> bool:
        """Whether nothing waits any more."""
        return self.reason in _DONE

    def __bool__(self) -> bool:
        """Return whether nothing waits any more."""
        return self.done

    def __str__(self) -> str:
        """Say it in one sentence."""
        text = self.detail or self.reason.value
        if self.retry_at is None:
            return text
        moment = datetime.datetime.fromtimestamp(self.retry_at, datetime.UTC)
        return f"{text}; the next attempt is planned for {moment:%Y-%m-%d %H:%M:%S} UTC"


class Step(NamedTuple):
    """What one step of sending met, and when the next one is due.

    `due` is in seconds since 1970, None if no step is due. `reason` is None where nothing could be
    sent yet. `upload_id` names the upload that was sent, or tried.
    """

    due: float | None
    reason: FlushReason | None = None
    status: int | None = None
    detail: str = ""
    upload_id: str = ""

    @property
    def is_attempt(self) -> bool:
        """Whether an upload was sent, or tried."""
        return self.reason in _ATTEMPTS


def sum_up(steps: Sequence[Step], *, waiting: int) -> FlushResult:
    """Return what the steps of one flush come to, after which `waiting` reports are left."""
    met = {step.reason: step for step in steps}
    last, failed = steps[-1], [step for step in steps if step.reason not in (None, *_DONE)]
    due = None
    if not waiting:
        told = met.get(FlushReason.REFUSED) or met.get(FlushReason.SENT) or Step(None)
    elif last.reason in _DONE:
        told = Step(None, FlushReason.TIMEOUT)
    else:  # what failed before, where nothing is due any more
        told, due = failed[-1] if failed else last._replace(reason=FlushReason.TIMEOUT), last.due
    return FlushResult(
        reason=told.reason or FlushReason.NOTHING_WAITING,
        sent=sum(step.reason is FlushReason.SENT for step in steps),
        waiting=waiting,
        status=told.status,
        detail=told.detail,
        retry_at=due,
    )
