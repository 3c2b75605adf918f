"""`rappor sql`: the statement that counts stored reports in a warehouse."""

from __future__ import annotations

import json

import pytest
from shell import REGISTRY, Shell

from rappor import Population, Registry, simulate_counts
from rappor.engines import count_sql, refused_sql


def test_the_statement_is_printed_as_the_library_writes_it(shell: Shell) -> None:
    """The command prints the library's statement for a metric and a table."""
    words = ("--registry", "metrics.toml", "--dialect", "postgres", "--source", "lake.reports")
    code, printed, _ = shell("sql", "theme", *words)
    params = Registry.loads(REGISTRY)["theme"].params
    assert code == 0
    assert printed == count_sql(params, "theme", dialect="postgres", table="lake.reports")
    code, printed, _ = shell("sql", "theme", *words, "--refused", "--json")
    answer = json.loads(printed)
    assert answer["statement"] == refused_sql(
        params, "theme", dialect="postgres", table="lake.reports"
    )
    assert (answer["metric"], answer["params"]) == ("theme", params.fingerprint)


def test_a_part_is_named_where_there_are_parts_and_nowhere_else(shell: Shell) -> None:
    """--part is required for a metric with parts, and refused for other metrics."""
    entry = 'parts = [{name = "prefix:3", share = 0.5}, {name = "whole"}]\nencoding = "bloom"'
    (shell.place / "metrics.toml").write_text(REGISTRY.replace('encoding = "bloom"', entry, 1))
    words = ("--registry", "metrics.toml", "--dialect", "spark")
    assert "--part must be one of prefix:3, whole" in shell("sql", "engine", *words)[2]
    assert "--part must be omitted" in shell("sql", "theme", *words, "--part", "whole")[2]
    code, printed, _ = shell("sql", "engine", *words, "--part", "prefix:3", "--json")
    metric = Registry.load(shell.place / "metrics.toml")["engine"]
    assert code == 0
    assert json.loads(printed)["params"] == metric.part_params("prefix:3").fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("is_upper", [False, True])
def test_what_a_warehouse_answers_is_decoded(shell: Shell, is_upper: bool) -> None:
    """A CSV table is decoded with --registry and --metric, which the table does not contain."""
    params = Registry.loads(REGISTRY)["engine"].params
    population = Population(["bing", "qwant"], [2, 1])
    counts = simulate_counts(population, params, n_reports=50_000, seed=1, metric="engine")
    for name in ("monday", "tuesday"):
        counts.save(shell.place / f"{name}.counts")
        counts.to_csv(shell.place / f"{name}.csv")
        text = (shell.place / f"{name}.csv").read_text()
        (shell.place / f"{name}.csv").write_text(text.upper() if is_upper else text)
    (shell.place / "metrics.toml").write_text(REGISTRY)
    (shell.place / "list.txt").write_text("bing\nqwant\n")
    named = ("--registry", "metrics.toml", "--metric", "engine", "--candidates", "list.txt")
    for words in (
        ("decode", "monday", "--json"),
        ("compare", "monday", "tuesday", "--json"),
        ("trend", "monday", "tuesday", "--from", "2026-11-01", "--json"),
    ):
        outputs = []
        for kind in ("counts", "csv"):
            paths = [f"{word}.{kind}" if word.endswith("day") else word for word in words]
            outputs.append(shell(*paths, *named))
        assert outputs[0] == outputs[1]
        assert outputs[0][0] == 0, outputs[0]
    code, _, error = shell("decode", "monday.csv", "--candidates", "list.txt")
    assert code == 2
    assert "looks like a table of counts in CSV" in error
