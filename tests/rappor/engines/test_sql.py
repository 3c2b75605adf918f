"""SQL statements that count reports in a warehouse.

DuckDB and PostgreSQL run the statements of their dialects. A parser reads the statements of all
other dialects. Spark runs its statements in `spark_suite.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from postgres import new_database
from report_files import FAULTS, METRICS, Row, count_rows_by_hand, draw_rows, format_row

from rappor import Counts, Params
from rappor.base.errors import ParamsError
from rappor.engines import aggregate_files, count_sql, refused_sql
from rappor.engines.sql import _DATE, DIALECTS, _list_conditions

Run = Callable[[str], tuple[list[str], list[tuple[Any, ...]]]]
"""Function that runs a statement and returns the names of the columns, and the rows."""

FAULTS_OF_PAGE = [(reason, change) for reason, change in FAULTS if "metric" not in change]
"""Reason and changed columns of each fault that leaves a row in the metric page."""


def reports() -> list[Row]:
    """Return reports of two metrics, and rows with one fault each."""
    good = draw_rows("page", 1)[0]
    bad = [good | change for _, change in FAULTS]
    return [*draw_rows("page", 300), *draw_rows("theme", 50), *bad]


@contextlib.contextmanager
def run_by_duckdb() -> Iterator[Run]:
    """Yield a function that runs a statement in DuckDB, which has the table `reports`."""
    table = pa.Table.from_pylist(reports())
    with duckdb.connect() as db:
        db.register("reports", table)

        def run(statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = db.execute(statement)
            return [column[0] for column in cursor.description], cursor.fetchall()

        yield run


@contextlib.contextmanager
def run_by_postgres(server: str) -> Iterator[Run]:
    """Yield a function that runs a statement in PostgreSQL, which has the table `reports`."""
    import psycopg  # noqa: PLC0415 - not installed with the package extra "test"

    with new_database(server) as address, psycopg.connect(address) as db:
        db.execute(
            "CREATE TABLE reports (format smallint, metric text, params text, day date, "
            "cohort integer, bits bytea)"
        )
        with db.cursor().copy("COPY reports FROM STDIN") as copy:
            for row in reports():
                copy.write_row(tuple(row.values()))

        def run(statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
            cursor = db.execute(statement.encode())
            assert cursor.description is not None
            return [column.name for column in cursor.description], cursor.fetchall()

        yield run


@pytest.fixture(
    scope="module",
    params=["duckdb", pytest.param("postgres", marks=pytest.mark.slow)],
)
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    """Yield a database with the reports, and the name of its dialect."""
    if request.param == "duckdb":
        running = run_by_duckdb()
    else:
        running = run_by_postgres(request.getfixturevalue("postgres"))
    with running as run:
        yield request.param, run


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_the_statement_returns_the_counts_of_accepted_rows(
    name: str, database: tuple[str, Run], tmp_path: Path
) -> None:
    """The result, saved as CSV, is read as counts that equal counts by hand.

    The table also contains refused rows, which are in no sum.
    """
    dialect, run = database
    params = METRICS[name].params
    columns, rows = run(count_sql(params, name, dialect=dialect))
    lines = [columns, *rows]
    path = tmp_path / "counts.csv"
    path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    expected = count_rows_by_hand([*draw_rows("page", 300), *draw_rows("theme", 50)])
    assert Counts.from_csv(path, params, name) == expected[name, params.fingerprint]


def test_refused_rows_are_counted_by_reason(database: tuple[str, Run]) -> None:
    """The statement counts the accepted and the refused rows of the metric, by reason.

    Rows of other metrics are not counted.
    """
    dialect, run = database
    columns, rows = run(refused_sql(METRICS["page"].params, "page", dialect=dialect))
    assert columns == ["reason", "reports"]
    assert dict(rows) == {"accepted": 300, **Counter(reason for reason, _ in FAULTS_OF_PAGE)}


DAYS = {
    "2026-11-30": True,
    "2024-02-29": True,
    "2000-02-29": True,
    "9999-12-31": True,
    None: True,
    "2026-02-29": False,
    "2100-02-29": False,
    "2026-11-31": False,
    "2026-13-01": False,
    "0000-01-01": False,
    "2026-11-30 00:00:00": False,
    "20261130": False,
    "2026-W48-1": False,
    "": False,
}
"""Texts of a day, and whether the row is accepted. A missing day is accepted too."""


def test_days_are_read_as_on_one_machine(database: tuple[str, Run], tmp_path: Path) -> None:
    """A statement accepts the same texts of days as `aggregate_files` does.

    A table without a column day has no refusal with the reason "day".
    """
    dialect, run = database
    spelt = DIALECTS[dialect]
    rows = " UNION ALL ".join(
        f"SELECT {'NULL' if text is None else repr(text)} AS day_text" for text in DAYS
    )
    (condition,) = [
        text
        for reason, text in _list_conditions(METRICS["page"].params, "page", spelt)
        if reason == "day"
    ]
    _, rows_of_days = run(f"SELECT day_text, {condition} FROM ({rows}) AS days")  # noqa: S608
    assert dict(rows_of_days) == DAYS
    path = tmp_path / "days.jsonl"
    row = format_row(draw_rows("page", 1)[0])
    path.write_text("".join(json.dumps(row | {"day": text}) + "\n" for text in DAYS))
    result = aggregate_files([path], METRICS)
    assert result.n_reports == sum(DAYS.values())
    assert [reason for *_, reason in result.refused] == ["day"]
    table = "(SELECT format, metric, params, cohort, bits FROM reports) AS without_days"
    _, refused = run(refused_sql(METRICS["page"].params, "page", dialect=dialect, table=table))
    assert "day" not in dict(refused)
    assert ("accepted", 300) in refused


def test_a_subquery_can_replace_the_table(database: tuple[str, Run]) -> None:
    """`table` may be a subquery, which selects days or segments before the reports are counted."""
    dialect, run = database
    table = "(SELECT * FROM reports WHERE cohort = 3) AS chosen"
    statement = count_sql(METRICS["page"].params, "page", dialect=dialect, table=table)
    _, rows = run(statement)
    assert [row[0] for row in rows] == list(range(8))
    assert [row[1] > 0 for row in rows] == [cohort == 3 for cohort in range(8)]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("write", [count_sql, refused_sql])
@pytest.mark.parametrize("k", [1, 12, 128])
def test_a_parser_of_the_dialect_reads_every_statement(
    dialect: str, write: Callable[..., str], k: int
) -> None:
    """The parser sqlglot reads each text as one query, with the documented columns."""
    params = Params(k=k, m=4, f=0.5, p=0.25, q=0.75) if k > 1 else METRICS["theme"].params
    text = write(params, "page", dialect=dialect, table="warehouse.reports")
    (statement,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(statement, sqlglot.exp.Query)
    names = ["reason", "reports"]
    if write is count_sql:
        names = ["cohort", "reports", *(f"bit_{i}" for i in range(params.k))]
    assert statement.named_selects == names
    tables = {str(table.db) + "." + table.name for table in statement.find_all(sqlglot.exp.Table)}
    assert "warehouse.reports" in tables


def test_a_wrong_dialect_or_too_many_bits_are_refused() -> None:
    """An unknown dialect is refused, and more bits than columns of a result allow.

    PostgreSQL allows 1,664 columns: cohort, reports, and 1,662 bits.
    """
    with pytest.raises(ParamsError, match=r"dialect must be one of bigquery, duckdb, .* got 'x'"):
        count_sql(METRICS["page"].params, "page", dialect="x")
    wide = Params(k=1663, m=1, f=0.5, p=0.25, q=0.75)
    with pytest.raises(ParamsError, match=r"k must be in \[1, 1662\] for postgres"):
        count_sql(wide, "page", dialect="postgres")
    assert "bit_1662" in count_sql(wide, "page", dialect="duckdb")
    widest = Params(k=1662, m=1, f=0.5, p=0.25, q=0.75)
    assert "bit_1661" in count_sql(widest, "page", dialect="postgres")


@pytest.mark.parametrize("write", [count_sql, refused_sql])
def test_an_invalid_name_of_a_metric_is_refused(write: Callable[..., str]) -> None:
    """A quotation mark in the name would end the text in the statement."""
    with pytest.raises(ParamsError, match="metric must match"):
        write(METRICS["page"].params, "page' OR 'a' = 'a", dialect="duckdb")


def test_a_day_with_a_line_feed_is_no_date_in_spark() -> None:
    """In Java as in Python, `$` also matches before a line feed at the end."""
    pattern = DIALECTS["spark"].matches("day_text", _DATE).partition("RLIKE ")[2].strip("'")
    assert re.search(pattern, "2026-11-30")
    for text in ("2026-11-30\n", "2026-11-31", "2026-11-30 ", "2026-11-301", "\n2026-11-30"):
        assert not re.search(pattern, text)


MACROS = """
CREATE MACRO to_code_points(b) AS
  [('0x' || substr(hex(b), 2 * i + 1, 2))::INT for i in range(octet_length(b))];
CREATE MACRO safe_offset(i) AS i + 1;
CREATE MACRO sub_bytes(b, first, n) AS unhex(substr(hex(b), 2 * first - 1, 2 * n));
CREATE MACRO hex_encode(b) AS hex(b);
CREATE MACRO to_number(digits, form) AS ('0x' || digits)::INT;
CREATE MACRO bitshiftright(number, n) AS number >> n;
CREATE MACRO bitand(a, b) AS a & b;
"""
"""Functions of BigQuery and Snowflake that DuckDB lacks. Each macro has the behaviour in the manual
of the function's database, so DuckDB can run expressions of these databases."""


@pytest.mark.parametrize("dialect", ["bigquery", "snowflake"])
def test_expressions_of_bits_have_the_order_of_the_protocol(dialect: str) -> None:
    """In BigQuery and Snowflake, the expression of bit i returns bit i of the little-endian bytes.

    DuckDB runs the expressions, with the functions of the other databases as macros.
    """
    spelt, packed = DIALECTS[dialect], bytes([0b00000110, 0b10100001, 0b01011111])
    assert spelt.byte is not None
    bits = [spelt.bit(i, spelt.byte(i // 8)).replace("SUBSTR(", "sub_bytes(") for i in range(24)]
    with duckdb.connect() as db:
        db.execute(MACROS)
        rows = db.from_arrow(pa.table({"bits": [packed]})).project(", ".join(bits)).fetchall()
    assert rows == [tuple(int.from_bytes(packed, "little") >> i & 1 for i in range(24))]
    cohorts = {"bigquery": "GENERATE_ARRAY(0, 7)", "snowflake": "ROWCOUNT => 8"}
    assert cohorts[dialect] in spelt.cohorts(8)
    assert ("ORDER BY 1) - 1 AS cohort" in spelt.cohorts(8)) == (dialect == "snowflake")


def test_names_of_columns_are_quoted_for_snowflake() -> None:
    """Snowflake changes names without quotes to upper case, so the columns are quoted."""
    params = METRICS["page"].params
    selected = count_sql(params, "page", dialect="snowflake").rpartition("\nSELECT ")[2]
    for name in ("cohort", "reports", *(f"bit_{i}" for i in range(params.k))):
        assert f'AS "{name}"' in selected
    refused = refused_sql(params, "page", dialect="snowflake")
    assert 'AS "reason", COUNT(*) AS "reports"' in refused
