"""Result of a withdrawal of consent, as the person and the host program see it.

`person/erasure.py` erases the files of a device and returns a `Withdrawal`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

UNDER_WAY: Final = "an upload under way"
"""Entry of `Withdrawal.left` for an upload that is being sent. The transport cannot be closed, or
another process is sending."""
UNVERIFIED: Final = "everything, because the disk did not answer in time"
"""Entry of `Withdrawal.left` if nothing could be verified. The erasure is done as soon as the disk
answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Verified result of an erasure; true if nothing is left.

    Attributes
    ----------
    secret_gone : bool
        Whether no file of the folder contains the secret any more.
    left : tuple of str
        Paths of the files that could not be erased, relative to the folder, and
        `an upload under way` if an upload could not be aborted. The record of the nats reserved by
        year always stays and is not in the list.

    Examples
    --------
    >>> from rappor_client import Withdrawal
    >>> bool(Withdrawal(secret_gone=True))
    True
    >>> print(Withdrawal(secret_gone=True, left=("an upload under way",)))
    The secret is gone; still there: an upload under way.
    """

    secret_gone: bool
    left: tuple[str, ...] = ()

    def with_left(self, entry: str) -> Self:
        """Return a copy with one more entry in `left`."""
        return self if entry in self.left else replace(self, left=(*self.left, entry))

    def __bool__(self) -> bool:
        """Return whether the secret and everything else is gone."""
        return self.secret_gone and not self.left

    def __str__(self) -> str:
        """Return the result as a sentence for the person."""
        if UNVERIFIED in self.left:
            return f"Nothing could be verified; maybe still there: {', '.join(self.left)}."
        secret = "The secret is gone" if self.secret_gone else "The secret could not be erased"
        remainder = (
            f"still there: {', '.join(self.left)}" if self.left else "everything else is erased"
        )
        return f"{secret}; {remainder}."
