"""Statements that count stored reports inside a warehouse, by GROUP BY.

The table has the columns of `layout`, with bits as bytes. A statement is of one metric under one
parameter set, for k times m sums. It answers with exactly m rows in the order of their cohorts,
the columns cohort, reports, bit_0, bit_1 and so on: saved as CSV with a header, that is what
`Counts.from_csv` reads. What `count_sql` leaves out, `refused_sql` counts by reason.

Bit i is bit i mod 8 (least significant first) of byte i div 8, so a dialect has to say how it
reads a bit of some bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.engines.layout import FORMAT
from rappor.protocol.params import Params

_DATE: Final = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
"""Regular expression of a date as 2026-11-30. No function of all databases reads a text as a date
without an error, which would end the statement at the first row with another text."""


def _read_lateral(table: str) -> str:
    """Write a table with the text of the column day, or null where the table has no such column.

    The inner query takes `day` from the table. If the table has no column of this name, the name
    stands for the null of the outer query.
    """
    return (
        "(SELECT CAST(NULL AS VARCHAR(10)) AS day) AS absent CROSS JOIN LATERAL (\n"
        "    SELECT format, metric, params, cohort, bits, CAST(day AS VARCHAR(64)) AS day_text\n"
        f"    FROM {table}\n"
        "  ) AS report"
    )


def _read_json(table: str) -> str:
    """Write the same for a database without lateral queries: a row as JSON may lack a column."""
    return (
        "(\n"
        "    SELECT format, metric, params, cohort, bits,\n"
        "      JSON_VALUE(TO_JSON_STRING(stored), '$.day') AS day_text\n"
        f"    FROM (SELECT * FROM {table}) AS stored\n"
        "  ) AS report"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a database spells what its statements need.

    `byte` writes byte i of bits as an integer; it is None where bits are read directly. `bit`
    writes bit i, from the byte that it is in or from bits, `length` the number of bytes, and
    `cohorts` a query of the column cohort, 0 to m - 1. An answer has at most `max_columns`.
    `heading` writes the name of a column of the answer: quoted, where the database would change
    its case. `source` writes the rows of a table with the text of their day as `day_text`, and
    `matches` compares a text with a regular expression as a whole.
    """

    byte: Callable[[int], str] | None
    bit: Callable[[int, str], str]
    length: str
    cohorts: Callable[[int], str]
    matches: Callable[[str, str], str]
    source: Callable[[str], str] = _read_lateral
    max_columns: int = 10_000
    heading: Callable[[str], str] = str


DIALECTS: Final[Mapping[str, Dialect]] = {
    "bigquery": Dialect(
        byte=lambda i: f"TO_CODE_POINTS(bits)[SAFE_OFFSET({i})]",
        bit=lambda i, byte: f"({byte} >> {i % 8}) & 1",
        length="BYTE_LENGTH(bits)",
        cohorts=lambda m: f"SELECT cohort FROM UNNEST(GENERATE_ARRAY(0, {m - 1})) AS cohort",
        matches=lambda text, pattern: f"REGEXP_CONTAINS({text}, r'^({pattern})$')",
        source=_read_json,
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
        bit=lambda i, _: f"get_bit(bits, {i})",  # of each byte, the least significant bit first
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
        matches=lambda text, pattern: f"REGEXP_LIKE({text}, '{pattern}')",  # as a whole
        heading=lambda name: f'"{name}"',
    ),
    "spark": Dialect(
        byte=lambda i: f"CAST(conv(hex(substring(bits, {i + 1}, 1)), 16, 10) AS INT)",
        bit=lambda i, byte: f"getbit({byte}, {i % 8})",
        length="octet_length(bits)",
        cohorts=lambda m: f"SELECT explode(sequence(0, {m - 1})) AS cohort",
        matches=lambda text, pattern: f"{text} RLIKE '^({pattern})$'",
    ),
}
"""The databases that statements are written for."""


def count_sql(params: Params, metric: str, *, dialect: str, table: str = "reports") -> str:
    """Return the statement that counts a metric's reports under one parameter set.

    `dialect` is one of DIALECTS, `table` is spelt as in the statement, quoted if it must be. Raises
    ParamsError where the dialect is unknown, or allows fewer columns than the parameters need.
    """
    spelt = _dialect(dialect)
    if params.k + 2 > spelt.max_columns:
        raise ParamsError(
            f"k must be in [1, {spelt.max_columns - 2}] for {dialect}, which answers with at most "
            f"{spelt.max_columns} columns, got {params.k}"
        )
    names = [f"bit_{i}" for i in range(params.k)]
    sums = [f"SUM({spelt.bit(i, f'byte_{i // 8}')}) AS {name}" for i, name in enumerate(names)]
    zeros = [
        f"COALESCE(counted.{name}, 0) AS {spelt.heading(name)}" for name in ["reports", *names]
    ]
    bits = ["bits"]
    if spelt.byte is not None:
        bits = [f"{spelt.byte(i)} AS byte_{i}" for i in range(params.n_bytes)]
    conditions = "\n    AND ".join(condition for _, condition in _conditions(params, metric, spelt))
    return f"""\
-- {metric}, params {params.fingerprint}: {params.k} bits, {params.m} cohorts, for {dialect}
WITH cohorts AS (
  {spelt.cohorts(params.m)}
), accepted AS (
  SELECT {", ".join(["cohort", *bits])}
  FROM {spelt.source(table)}
  WHERE {conditions}
), counted AS (
  SELECT cohort, COUNT(*) AS reports,
    {_lines(sums)}
  FROM accepted
  GROUP BY cohort
)
SELECT cohorts.cohort AS {spelt.heading("cohort")},
  {_lines(zeros, "  ")}
FROM cohorts LEFT JOIN counted ON counted.cohort = cohorts.cohort
ORDER BY cohorts.cohort;
"""


def refused_sql(params: Params, metric: str, *, dialect: str, table: str = "reports") -> str:
    """Return the statement that counts what `count_sql` leaves out of a metric, by reason.

    It answers with the columns reason and reports; "accepted" is the reason of what is counted.
    """
    spelt = _dialect(dialect)
    name, *checks = _conditions(params, metric, spelt)
    cases = [f"CASE WHEN {condition} THEN NULL ELSE '{reason}' END" for reason, condition in checks]
    return f"""\
-- {metric}, params {params.fingerprint}: reports by what speaks against them, for {dialect}
SELECT reason AS {spelt.heading("reason")}, COUNT(*) AS {spelt.heading("reports")}
FROM (
  SELECT COALESCE(
    {_lines([*cases, "'accepted'"])}
  ) AS reason
  FROM {spelt.source(table)}
  WHERE {name[1]}
) AS judged
GROUP BY reason
ORDER BY reason;
"""


def _dialect(name: str) -> Dialect:
    if name not in DIALECTS:
        raise ParamsError(f"dialect must be one of {', '.join(DIALECTS)}, got {name!r}")
    return DIALECTS[name]


def _conditions(params: Params, metric: str, spelt: Dialect) -> list[tuple[str, str]]:
    """Return what a report fulfils, each with the reason against one that does not."""
    conditions = [
        ("unknown-metric", f"metric = '{metric}'"),  # no letter of a name needs an escape
        ("format", f"format = {FORMAT}"),
        ("unknown-params", f"params = '{params.fingerprint}'"),
        # A day may be missing. A text that is no date is refused as on one machine.
        ("day", _describe_day(spelt)),
        # A cohort of 3.5, which a column of floating-point numbers may have, is in no sum.
        ("cohort", f"cohort BETWEEN 0 AND {params.m - 1} AND cohort = FLOOR(cohort)"),
        ("length", f"{spelt.length} = {params.n_bytes}"),
    ]
    byte = spelt.byte(params.n_bytes - 1) if spelt.byte else ""
    unused = [f"{spelt.bit(i, byte)} = 0" for i in range(params.k, 8 * params.n_bytes)]
    if unused:  # only bits of the right length have them, and no order of conditions is promised
        guarded = f"CASE WHEN {spelt.length} = {params.n_bytes} THEN {' AND '.join(unused)} END"
        conditions.append(("padding", guarded))
    return conditions


def _describe_day(spelt: Dialect) -> str:
    """Write the condition that a day is missing or a date. The year 0 is no year of a date."""
    is_date = spelt.matches("day_text", _DATE)
    return f"(day_text IS NULL OR ({is_date} AND day_text NOT LIKE '0000%'))"


def _lines(parts: list[str], indent: str = "    ") -> str:
    return f",\n{indent}".join(parts)
