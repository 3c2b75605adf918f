"""What the collector raises beyond the errors of `rappor`.

RapporError
|-- StoreError         the database cannot answer; .retryable
|   |-- ConflictError  a known upload id came with another body
|   `-- SchemaError    the database is older or newer than this program
`-- ConfigError        a setting is not what it must be
"""

from __future__ import annotations

from rappor.errors import RapporError


class StoreError(RapporError):
    """The database cannot answer."""

    def __init__(self, reason: str, *, retryable: bool = True) -> None:
        """Keep whether the same request may succeed later."""
        self.retryable = retryable
        super().__init__(reason)


class ConflictError(StoreError):
    """A known upload id came with another body."""

    def __init__(self) -> None:
        """Say so; the id is not repeated."""
        super().__init__("id must not be used for another upload", retryable=False)


class SchemaError(StoreError):
    """The database's schema is not the one that this program knows."""

    def __init__(self, reason: str) -> None:
        """Say what to do; waiting does not help."""
        super().__init__(reason, retryable=False)


class ConfigError(RapporError):
    """A setting is not what it must be."""
