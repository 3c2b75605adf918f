"""Exceptions of the collector. The exceptions of the library are in `rappor.base.errors`.

    RapporError                                                              HTTP status
    |-- LimitError         a token has too many queries in progress          429
    |-- StoreError         the database failed; .retryable                   503
    |   |-- SchemaError    the database has the schema of another version    503
    |   `-- DatabaseFileError  a file of an SQLite database is missing, or   503
    |                      the wrong one
    |-- NotFoundError      no page, list or result has the requested name    404
    `-- ConfigError        a setting is invalid; only commands raise it      -

`base/problems.py` converts each of them into an HTTP response. A command prints the message and
exits with status 2.
"""

from __future__ import annotations

from rappor.base.errors import RapporError


class StoreError(RapporError):
    """The database failed to read or write, or its disk is full.

    Attributes
    ----------
    retryable : whether the same request may succeed later. Then the response has `Retry-After`, and
        a device keeps its report and sends it again.
    """

    def __init__(self, reason: str, *, retryable: bool = True) -> None:
        """Store a sentence for the operator and the client, without data of uploads."""
        self.retryable = retryable
        super().__init__(reason)


class SchemaError(StoreError):
    """The database has the schema of an older or newer version of the collector.

    A retry cannot succeed before an operator runs `rappor-server migrate` or another version.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retryable=False)


class DatabaseFileError(StoreError):
    """A file of an SQLite database cannot be opened, or is the wrong one.

    Waiting does not help, so a start fails at once. A running collector treats the error like any
    other failure of the database: devices keep their reports while an operator mends the file.
    """


class LimitError(RapporError):
    """A token has as many queries in progress as the setting `queries_per_token` allows."""


class NotFoundError(RapporError):
    """No uploaded list, result or page has the requested name."""


class ConfigError(RapporError):
    """A setting is outside its range, or two settings exclude each other."""
