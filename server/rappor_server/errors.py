"""What the collector raises beyond the errors of `rappor`.

RapporError
|-- LimitError         there is as much of something as there may be
|-- StoreError         the database cannot answer; .retryable
|   `-- SchemaError    the database is older or newer than this program
|-- NotFoundError      there is nothing of the name that was given
`-- ConfigError        a setting is not what it must be
"""

from __future__ import annotations

from rappor.ground.errors import RapporError


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
    """There is as much of something as there may be."""


class NotFoundError(RapporError):
    """There is nothing of the name that was given."""


class ConfigError(RapporError):
    """A setting is not what it must be."""
