"""`rappor sql`: the statement that counts stored reports in a warehouse."""

from __future__ import annotations

import json

from shell import REGISTRY, Shell

from rappor import Registry
from rappor.engines import count_statement, refused_statement


def test_the_statement_is_printed_as_the_library_writes_it(shell: Shell) -> None:
    """For a metric of the registry and the table that is named."""
    words = ("--registry", "metrics.toml", "--dialect", "postgres", "--source", "lake.reports")
    code, printed, _ = shell("sql", "theme", *words)
    params = Registry.loads(REGISTRY)["theme"].params
    assert code == 0
    assert printed == count_statement(params, "theme", dialect="postgres", table="lake.reports")
    code, printed, _ = shell("sql", "theme", *words, "--refused", "--json")
    answer = json.loads(printed)
    assert answer["statement"] == refused_statement(
        params, "theme", dialect="postgres", table="lake.reports"
    )
    assert (answer["metric"], answer["params"]) == ("theme", params.fingerprint)


def test_a_part_is_named_where_there_are_parts_and_nowhere_else(shell: Shell) -> None:
    """Counts of parts never mix."""
    entry = 'parts = [{name = "prefix:3", share = 0.5}, {name = "whole"}]\nencoding = "bloom"'
    (shell.place / "metrics.toml").write_text(REGISTRY.replace('encoding = "bloom"', entry, 1))
    words = ("--registry", "metrics.toml", "--dialect", "spark")
    assert "--part must be one of prefix:3, whole" in shell("sql", "engine", *words)[2]
    assert "--part must be omitted" in shell("sql", "theme", *words, "--part", "whole")[2]
    code, printed, _ = shell("sql", "engine", *words, "--part", "prefix:3", "--json")
    metric = Registry.load(shell.place / "metrics.toml")["engine"]
    assert code == 0
    assert json.loads(printed)["params"] == metric.part_params("prefix:3").fingerprint
