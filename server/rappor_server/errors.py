"""What the collector raises beyond the errors of `rappor`.

RapporError
|-- LimitError         there is as much of something as there may be
|-- StoreError         the database cannot answer; .retryable
|   |-- ConflictError  an upload id that was used before came with another body
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


class ConflictError(StoreError):
    """An upload id that was used before came with another body."""

    def __init__(self) -> None:
        """Say that the id was used; the message does not repeat it."""
        super().__init__(
            "id must not be used for another upload; a retry must send the same bytes",
            retryable=False,
        )

    def __reduce__(self) -> tuple[type[ConflictError], tuple[()]]:
        """Let another process raise it."""
        return ConflictError, ()


class SchemaError(StoreError):
    """The database's schema is not the one that this program knows."""

    def __init__(self, reason: str) -> None:
        """Keep the reason; a retry does not help."""
        super().__init__(reason, retryable=False)


class LimitError(RapporError):
    """There is as much of something as there may be."""


class NotFoundError(RapporError):
    """There is nothing of the name that was given."""


class ConfigError(RapporError):
    """A setting is not what it must be."""
