"""Results of sending: `Step` for one step of the uploader, `FlushResult` for a whole flush."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class FlushReason(enum.Enum):
    """Reason why a flush ended.

    After NOTHING_WAITING, SENT and REFUSED no report is queued any more.

    Examples
    --------
    >>> FlushReason.UNREACHABLE.value
    'the collector was not reached'
    """

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
"""Reasons after which no report is queued any more, if they end a flush."""
_ATTEMPTS: Final = (
    FlushReason.SENT,
    FlushReason.REFUSED,
    FlushReason.UNREACHABLE,
    FlushReason.COLLECTOR_ERROR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushResult:
    """Result of a flush; true if no report is queued any more.

    Attributes
    ----------
    reason : FlushReason
        Reason why the flush ended.
    sent : int
        Number of reports that the collector accepted in this flush.
    waiting : int
        Number of reports that are still queued. Reports of open intervals do not count.
    status : int, optional
        HTTP status of the collector's error, None without an error response.
    detail : str
        Description of the failure, empty without a failure.
    retry_at : float, optional
        Time of the next planned attempt, in seconds since 1970. Another flush may come before,
        unless the collector asked to wait.

    Examples
    --------
    >>> result = FlushResult(reason=FlushReason.UNREACHABLE, waiting=2, retry_at=1_795_000_000.0)
    >>> bool(result), result.waiting
    (False, 2)
    >>> print(result)
    the collector was not reached; the next attempt is planned for 2026-11-18 11:06:40 UTC
    """

    reason: FlushReason
    sent: int = 0
    waiting: int = 0
    status: int | None = None
    detail: str = ""
    retry_at: float | None = None

    @property
    def done(self) -> bool:
        """Whether no report is queued any more."""
        return self.reason in _DONE

    def __bool__(self) -> bool:
        """Return whether no report is queued any more."""
        return self.done

    def __str__(self) -> str:
        """Return the result as one sentence."""
        text = self.detail or self.reason.value
        if self.retry_at is None:
            return text
        retry_at = datetime.datetime.fromtimestamp(self.retry_at, datetime.UTC)
        return f"{text}; the next attempt is planned for {retry_at:%Y-%m-%d %H:%M:%S} UTC"


class Step(NamedTuple):
    """Result of one step of the uploader.

    Attributes
    ----------
    next_at
        Time of the next step, in seconds since 1970. None if no step is needed before another
        report is queued.
    reason
        Result of the attempt, or the reason why nothing may be sent. None if all queued uploads
        only wait for their time.
    status
        HTTP status of an error response.
    detail
        Description of a failure or of a wait.
    upload_id
        Id of the upload that was sent or tried.
    """

    next_at: float | None
    reason: FlushReason | None = None
    status: int | None = None
    detail: str = ""
    upload_id: str = ""

    @property
    def is_attempt(self) -> bool:
        """Whether the step has sent an upload, or tried to send it."""
        return self.reason in _ATTEMPTS


def summarize_steps(steps: Sequence[Step], *, waiting: int) -> FlushResult:
    """Return the result of a flush from its steps.

    The decisive step gives reason, status and detail:

        reports are queued   last step         decisive step
        no                   any               a refusal, else a success, else none: nothing waited
        yes                  sent or refused   none: the time was over
        yes                  any other         the last step with a failure or an obstacle (such as
                                               BUSY), else none: the time was over

    Parameters
    ----------
    steps
        All steps of the flush, one or more.
    waiting
        Number of reports that are still queued.
    """
    by_reason = {step.reason: step for step in steps}
    last = steps[-1]
    failed = [step for step in steps if step.reason not in (None, *_DONE)]
    next_at = None
    if not waiting:
        # A refusal is shown also if a later upload was accepted: a report was dropped for good.
        decisive = by_reason.get(FlushReason.REFUSED) or by_reason.get(FlushReason.SENT)
        decisive = decisive or Step(None)
    elif last.reason in _DONE:
        decisive = Step(None, FlushReason.TIMEOUT)
    else:
        # A step that only waits has no reason, but its detail describes the wait.
        timed_out = last._replace(reason=FlushReason.TIMEOUT)
        decisive, next_at = failed[-1] if failed else timed_out, last.next_at
    return FlushResult(
        reason=decisive.reason or FlushReason.NOTHING_WAITING,
        sent=sum(step.reason is FlushReason.SENT for step in steps),
        waiting=waiting,
        status=decisive.status,
        detail=decisive.detail,
        retry_at=next_at,
    )
