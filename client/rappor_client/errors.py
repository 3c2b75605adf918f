"""What the device raises beyond the errors of `rappor`.

RapporError
`-- UploadError     the collector was not reached; .status, .retryable
"""

from __future__ import annotations

from rappor.ground.errors import RapporError


class UploadError(RapporError):
    """An upload got no answer that settles it."""

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after: float | None = None,
        timed_out: bool = False,
    ) -> None:
        """Keep the HTTP status if there was one, and whether and when (seconds) to try again.

        `timed_out` says that the time given was over before an answer came.
        """
        self.status = status
        self.timed_out = timed_out
        self.retryable = retryable
        self.retry_after = retry_after
        super().__init__(reason)
