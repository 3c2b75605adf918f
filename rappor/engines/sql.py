"""SQL statements that count stored reports inside a data warehouse.

Analysts use the statements if BigQuery, DuckDB, PostgreSQL, Snowflake or Spark stores their
reports. `count_sql` and `refused_sql` return the text of a statement, which the analyst runs.

The table has the columns of `rappor.engines.layout`, with bits as bytes. A statement counts the
reports of one metric under one parameter set, with k times m sums. The result has m rows in the
order of the cohorts, and the columns cohort, reports, bit_0, bit_1 and so on. `Counts.from_csv`
reads the result if it is saved as CSV with a header. `count_sql` leaves out rows that are not
reports. `refused_sql` counts these rows by their reason.

Bit i of a report is bit i mod 8, least significant first, of byte i div 8. Databases number the
bits of binary data differently, and most have no function for one bit. So each dialect writes the
expression for a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value
from rappor.engines.layout import FORMAT
from rappor.protocol.params import Params
from rappor.protocol.wire import METRIC_NAME

_DATE: Final = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
"""Regular expression of a date such as 2026-11-30. The databases have no common function that reads
a text as a date without raising an error. An error would end the statement at the first row with
another text."""


def _read_day_by_lateral_query(table: str) -> str:
    """Write a table with the text of the column day, or null where the table has no such column.

    Naming a column that a table lacks is an error in SQL. The query avoids the error: it joins the
    table with one row, `absent`, whose only column is `day` and null. SQL looks for the name `day`
    in the table first, and in `absent` only if the table has no such column.
    """
    return (
        "(SELECT CAST(NULL AS VARCHAR(10)) AS day) AS absent CROSS JOIN LATERAL (\n"
        "    SELECT format, metric, params, cohort, bits, CAST(day AS VARCHAR(64)) AS day_text\n"
        f"    FROM {table}\n"
        "  ) AS report"
    )


def _read_day_by_json(table: str) -> str:
    """Write a table with the text of the column day, for a database without lateral queries.

    Each row is converted to JSON. The value of a key that the JSON lacks is null, so the column may
    be absent.
    """
    return (
        "(\n"
        "    SELECT format, metric, params, cohort, bits,\n"
        "      JSON_VALUE(TO_JSON_STRING(stored), '$.day') AS day_text\n"
        f"    FROM (SELECT * FROM {table}) AS stored\n"
        "  ) AS report"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Expressions of one database.

    Attributes
    ----------
    byte : writes byte i of the bits as an integer. None if the dialect reads bits directly.
    bit : writes bit i from the expression of its byte, or from the bits.
    length : number of bytes of the bits.
    cohorts : writes a query with the column cohort, 0 to m - 1.
    matches : writes the comparison of a whole text with a regular expression.
    source : writes the rows of a table with the text of their day as `day_text`.
    max_columns : largest number of columns of a result.
    heading : writes the name of a column of the result. The name is quoted if the database would
        change its case.
    """

    byte: Callable[[int], str] | None
    bit: Callable[[int, str], str]
    length: str
    cohorts: Callable[[int], str]
    matches: Callable[[str, str], str]
    source: Callable[[str], str] = _read_day_by_lateral_query
    max_columns: int = 10_000
    heading: Callable[[str], str] = str


DIALECTS: Final[Mapping[str, Dialect]] = {
    "bigquery": Dialect(
        byte=lambda i: f"TO_CODE_POINTS(bits)[SAFE_OFFSET({i})]",
        bit=lambda i, byte: f"({byte} >> {i % 8}) & 1",
        length="BYTE_LENGTH(bits)",
        cohorts=lambda m: f"SELECT cohort FROM UNNEST(GENERATE_ARRAY(0, {m - 1})) AS cohort",
        matches=lambda text, pattern: f"REGEXP_CONTAINS({text}, r'^({pattern})$')",
        source=_read_day_by_json,
    ),
    "duckdb": Dialect(
        byte=None,
        # A cast to BIT begins with the most significant bit of the first byte.
        bit=lambda i, _: f"get_bit(CAST(bits AS BIT), {8 * (i // 8) + 7 - i % 8})",
        length="octet_length(bits)",
        cohorts=lambda m: f"SELECT range AS cohort FROM range({m})",
        matches=lambda text, pattern: f"regexp_full_match({text}, '{pattern}')",
    ),
    "postgres": Dialect(
        byte=None,
        # The function numbers the bits of each byte from the least significant bit.
        bit=lambda i, _: f"get_bit(bits, {i})",
        length="octet_length(bits)",
        cohorts=lambda m: f"SELECT generate_series AS cohort FROM generate_series(0, {m - 1})",
        matches=lambda text, pattern: f"{text} ~ '^({pattern})$'",
        max_columns=1664,
    ),
    "snowflake": Dialect(
        byte=lambda i: f"TO_NUMBER(HEX_ENCODE(SUBSTR(bits, {i + 1}, 1)), 'XX')",
        bit=lambda i, byte: f"BITAND(BITSHIFTRIGHT({byte}, {i % 8}), 1)",
        length="OCTET_LENGTH(bits)",
        cohorts=lambda m: (
            "SELECT ROW_NUMBER() OVER (ORDER BY 1) - 1 AS cohort "
            f"FROM TABLE(GENERATOR(ROWCOUNT => {m}))"
        ),
        # The function compares the whole text.
        matches=lambda text, pattern: f"REGEXP_LIKE({text}, '{pattern}')",
        heading=lambda name: f'"{name}"',
    ),
    "spark": Dialect(
        byte=lambda i: f"CAST(conv(hex(substring(bits, {i + 1}, 1)), 16, 10) AS INT)",
        bit=lambda i, byte: f"getbit({byte}, {i % 8})",
        length="octet_length(bits)",
        cohorts=lambda m: f"SELECT explode(sequence(0, {m - 1})) AS cohort",
        # `$` of Java also matches before a line feed at the end. Without (?![^0-9]), a day with a
        # line feed would be a date in Spark, and no date in other engines.
        matches=lambda text, pattern: f"{text} RLIKE '^({pattern})(?![^0-9])$'",
    ),
}
"""Dialects of the databases for which statements are written."""


def count_sql(params: Params, metric: str, *, dialect: str, table: str = "reports") -> str:
    """Return the statement that counts the reports of a metric under one parameter set.

    Parameters
    ----------
    params : Params
        The parameter set.
    metric : str
        Name of the metric.
    dialect : str
        Name of the database, one of "bigquery", "duckdb", "postgres", "snowflake" and "spark".
    table : str
        Name of the table as the statement should contain it, with quotes if necessary, or a
        query in parentheses with an alias.

    Returns
    -------
    str

    Raises
    ------
    ParamsError
        If the dialect is unknown, the name of the metric is invalid, or the database allows fewer
        columns than k + 2.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.engines import count_sql
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> statement = count_sql(params, "member", dialect="duckdb", table="reports")
    >>> print(statement.splitlines()[5])
      FROM (SELECT CAST(NULL AS VARCHAR(10)) AS day) AS absent CROSS JOIN LATERAL (
    """
    sql = _find_dialect(dialect)
    if params.k + 2 > sql.max_columns:
        raise ParamsError(
            f"k must be in [1, {sql.max_columns - 2}] for {dialect}, whose results have at most "
            f"{sql.max_columns} columns, got {params.k}"
        )
    names = [f"bit_{i}" for i in range(params.k)]
    sums = [f"SUM({sql.bit(i, f'byte_{i // 8}')}) AS {name}" for i, name in enumerate(names)]
    zeros = [f"COALESCE(counted.{name}, 0) AS {sql.heading(name)}" for name in ["reports", *names]]
    bits = ["bits"]
    if sql.byte is not None:
        bits = [f"{sql.byte(i)} AS byte_{i}" for i in range(params.n_bytes)]
    conditions = "\n    AND ".join(
        condition for _, condition in _list_conditions(params, metric, sql)
    )
    return f"""\
-- {metric}, params {params.fingerprint}: {params.k} bits, {params.m} cohorts, for {dialect}
WITH cohorts AS (
  {sql.cohorts(params.m)}
), accepted AS (
  SELECT {", ".join(["cohort", *bits])}
  FROM {sql.source(table)}
  WHERE {conditions}
), counted AS (
  SELECT cohort, COUNT(*) AS reports,
    {_join_lines(sums)}
  FROM accepted
  GROUP BY cohort
)
SELECT cohorts.cohort AS {sql.heading("cohort")},
  {_join_lines(zeros, "  ")}
FROM cohorts LEFT JOIN counted ON counted.cohort = cohorts.cohort
ORDER BY cohorts.cohort;
"""


def refused_sql(params: Params, metric: str, *, dialect: str, table: str = "reports") -> str:
    """Return the statement that counts the rows of a metric by the reason of their refusal.

    The result has the columns reason and reports. `count_sql` leaves out the rows with a reason of
    `rappor.engines.layout`, such as "length". The row with the reason "accepted" has the number of
    reports that `count_sql` counts.

    Parameters
    ----------
    params, metric, dialect, table
        As in `count_sql`.

    Returns
    -------
    str

    Raises
    ------
    ParamsError
        If the dialect is unknown, or the name of the metric is invalid.

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.engines import refused_sql
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> statement = refused_sql(params, "member", dialect="postgres")
    >>> print(statement.splitlines()[1])
    SELECT reason AS reason, COUNT(*) AS reports
    """
    sql = _find_dialect(dialect)
    # The first condition compares the name of the metric. Rows of other metrics are not refused, so
    # this condition stands after WHERE. Each further condition has a reason.
    (_, has_name), *checks = _list_conditions(params, metric, sql)
    cases = [f"CASE WHEN {condition} THEN NULL ELSE '{reason}' END" for reason, condition in checks]
    return f"""\
-- {metric}, params {params.fingerprint}: reports by the reason of their refusal, for {dialect}
SELECT reason AS {sql.heading("reason")}, COUNT(*) AS {sql.heading("reports")}
FROM (
  SELECT COALESCE(
    {_join_lines([*cases, "'accepted'"])}
  ) AS reason
  FROM {sql.source(table)}
  WHERE {has_name}
) AS judged
GROUP BY reason
ORDER BY reason;
"""


def _find_dialect(name: str) -> Dialect:
    """Return the dialect of a name; raise ParamsError for an unknown name."""
    if name not in DIALECTS:
        raise ParamsError(f"dialect must be one of {', '.join(DIALECTS)}, got {name!r}")
    return DIALECTS[name]


def _list_conditions(params: Params, metric: str, sql: Dialect) -> list[tuple[str, str]]:
    """Return the conditions that every report fulfils, each with the reason for a refusal."""
    # A name with a quotation mark would end the text in the statement. Valid names contain no
    # character that SQL would have to escape.
    if not METRIC_NAME.fullmatch(metric):
        raise ParamsError(f"metric must match {METRIC_NAME.pattern}, got {format_value(metric)}")
    conditions = [
        ("unknown-metric", f"metric = '{metric}'"),
        ("format", f"format = {FORMAT}"),
        ("unknown-params", f"params = '{params.fingerprint}'"),
        # A day may be missing. A text that is no date is refused, as `machine.py` refuses it.
        ("day", _describe_day(sql)),
        # Case: a column of floating-point numbers with the cohort 3.5. No row of the result is for
        # this cohort, so its reports would disappear without a reason.
        ("cohort", f"cohort BETWEEN 0 AND {params.m - 1} AND cohort = FLOOR(cohort)"),
        ("length", f"{sql.length} = {params.n_bytes}"),
    ]
    byte = sql.byte(params.n_bytes - 1) if sql.byte else ""
    unused = [f"{sql.bit(i, byte)} = 0" for i in range(params.k, 8 * params.n_bytes)]
    if unused:
        # SQL promises no order of evaluation. Without the CASE a database might read the last byte
        # of bits that are too short.
        guarded = f"CASE WHEN {sql.length} = {params.n_bytes} THEN {' AND '.join(unused)} END"
        conditions.append(("padding", guarded))
    if params.response.is_exclusive:
        # A report of generalized randomized response names one bucket: exactly one bit is 1.
        byte_texts = [sql.byte(i) if sql.byte else "" for i in range(params.n_bytes)]
        ones = " + ".join(f"({sql.bit(i, byte_texts[i // 8])})" for i in range(params.k))
        guarded = f"CASE WHEN {sql.length} = {params.n_bytes} THEN {ones} END"
        conditions.append(("popcount", f"{guarded} = 1"))
    return conditions


def _describe_day(sql: Dialect) -> str:
    """Write the condition that a day is missing or a date. A date has no year 0."""
    is_date = sql.matches("day_text", _DATE)
    return f"(day_text IS NULL OR ({is_date} AND day_text NOT LIKE '0000%'))"


def _join_lines(parts: list[str], indent: str = "    ") -> str:
    """Join expressions by commas, one in each line."""
    return f",\n{indent}".join(parts)
