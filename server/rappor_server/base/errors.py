"""What the collector raises beyond the errors of `rappor`.

RapporError
|-- LimitError         a token has as many queries in progress as it may
|-- StoreError         the database cannot answer; .retryable
|   `-- SchemaError    the database is older or newer than this program
|-- NotFoundError      there is nothing of the name that was given
`-- ConfigError        a setting is not what it must be
"""

from __future__ import annotations

from rappor.base.errors import RapporError


class StoreError(RapporError):
    """The database cannot answer."""

    def __init__(self, reason: str, *, retryable: bool = True) -> None:
        """Keep the reason, and whether a retry of the same request may succeed."""
        self.retryable = retryable
        super().__init__(reason)


class SchemaError(StoreError):
    """The database's schema is not the one that this program knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retryable=False)


class LimitError(RapporError):
    """A token has as many queries in progress as it may."""


class NotFoundError(RapporError):
    """There is nothing of the name that was given."""


class ConfigError(RapporError):
    """A setting is not what it must be."""
