"""`rappor sql`: the statement that counts stored reports in a warehouse."""

from __future__ import annotations

import json

import pytest
from shell import REGISTRY, Shell

from rappor import Population, Registry, simulate_counts
from rappor.engines import count_sql, refused_sql


def test_the_statement_is_the_one_of_the_library(shell: Shell) -> None:
    """The command prints the statement of `count_sql` for a metric and a table.

    With --refused it prints the statement of `refused_sql`, which counts the rows of the table that
    are no reports, by the reason of their refusal.
    """
    words = ("--registry", "metrics.toml", "--dialect", "postgres", "--source", "lake.reports")
    code, printed, _ = shell("sql", "theme", *words)
    params = Registry.loads(REGISTRY)["theme"].params
    assert code == 0
    assert printed == count_sql(params, "theme", dialect="postgres", table="lake.reports")
    code, printed, _ = shell("sql", "theme", *words, "--refused", "--json")
    document = json.loads(printed)
    assert document["statement"] == refused_sql(
        params, "theme", dialect="postgres", table="lake.reports"
    )
    assert (document["metric"], document["params"]) == ("theme", params.fingerprint)


def test_a_metric_with_parts_needs_the_name_of_a_part(shell: Shell) -> None:
    """--part is required for a metric with parts, and refused for other metrics."""
    entry = 'parts = [{name = "prefix:3", share = 0.5}, {name = "whole"}]\nencoding = "bloom"'
    (shell.folder / "metrics.toml").write_text(REGISTRY.replace('encoding = "bloom"', entry, 1))
    words = ("--registry", "metrics.toml", "--dialect", "spark")
    code, printed, _ = shell("sql", "engine", *words, "--part", "prefix:3", "--json")
    metric = Registry.load(shell.folder / "metrics.toml")["engine"]
    assert code == 0
    assert json.loads(printed)["params"] == metric.part_params("prefix:3").fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("is_upper", [False, True])
def test_the_result_of_a_statement_is_decoded(shell: Shell, is_upper: bool) -> None:
    """Commands print the same output for the CSV result of a statement as for a counts file.

    The CSV has no parameters, so it needs --registry and --metric. Names of columns may be in upper
    case, because some databases change names to upper case.
    """
    params = Registry.loads(REGISTRY)["engine"].params
    population = Population(["bing", "qwant"], [2, 1])
    counts = simulate_counts(population, params, n_reports=50_000, seed=1, metric="engine")
    for name in ("monday", "tuesday"):
        counts.save(shell.folder / f"{name}.counts")
        counts.to_csv(shell.folder / f"{name}.csv")
        text = (shell.folder / f"{name}.csv").read_text()
        (shell.folder / f"{name}.csv").write_text(text.upper() if is_upper else text)
    (shell.folder / "metrics.toml").write_text(REGISTRY)
    (shell.folder / "list.txt").write_text("bing\nqwant\n")
    named = ("--registry", "metrics.toml", "--metric", "engine", "--candidates", "list.txt")
    for command, names, options in (
        ("decode", ("monday",), ("--json",)),
        ("compare", ("monday", "tuesday"), ("--json",)),
        ("trend", ("monday", "tuesday"), ("--from", "2026-11-01", "--json")),
    ):
        outputs = []
        for suffix in ("counts", "csv"):
            files = [f"{name}.{suffix}" for name in names]
            outputs.append(shell(command, *files, *options, *named))
        assert outputs[0] == outputs[1]
        assert outputs[0][0] == 0, outputs[0]
    code, _, error = shell("decode", "monday.csv", "--candidates", "list.txt")
    assert code == 2
    assert "looks like a table of counts in CSV" in error
