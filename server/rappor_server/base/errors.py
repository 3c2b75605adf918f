"""Errors of the collector beyond the errors of `rappor`.

RapporError
|-- LimitError         a token has too many queries in progress
|-- StoreError         the database failed; .retryable
|   `-- SchemaError    the database has the schema of an older or newer version
|-- NotFoundError      nothing has the requested name
`-- ConfigError        a setting is invalid
"""

from __future__ import annotations

from rappor.base.errors import RapporError


class StoreError(RapporError):
    """The database failed to read or write."""

    def __init__(self, reason: str, *, retryable: bool = True) -> None:
        """Store the reason, and whether a retry of the same request may succeed."""
        self.retryable = retryable
        super().__init__(reason)


class SchemaError(StoreError):
    """The database has the schema of an older or newer version of the collector."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retryable=False)


class LimitError(RapporError):
    """A token has as many queries in progress as the settings allow."""


class NotFoundError(RapporError):
    """Nothing has the requested name."""


class ConfigError(RapporError):
    """A setting is outside its range, or two settings exclude each other."""
