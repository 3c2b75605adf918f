"""Databases on which a test of the server runs."""

from __future__ import annotations

from typing import Final

import pytest

DATABASES: Final = ("sqlite", pytest.param("postgresql", marks=pytest.mark.acceptance))
"""Databases of a test with the fixture `database`, if the test names no other.

Most of the SQL is the same for SQLite and PostgreSQL. The first stage has SQLite only.
"""

ON_BOTH_DATABASES: Final = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""Decorator of a test that the second stage runs on PostgreSQL, too.

It is for tests whose statements, locks, transactions or types differ on PostgreSQL: concurrent or
terminated processes, exceptions within a transaction, characters that PostgreSQL refuses, the clock
of the database.
Other tests have it so that the second stage sends every statement to PostgreSQL that the collector
can send. The stage "acceptance" runs the remaining tests on PostgreSQL.
"""
