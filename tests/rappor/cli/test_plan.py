"""`rappor plan`: parts of a discovery, remedies, and the metric's entry."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from registries import toml_of
from shell import Shell, ok, refused

from rappor import Registry
from rappor.planning.entry import format_params_lines
from rappor.planning.set_design import design_sets

BUDGET = ("plan", "--discover", "--profile", "balanced", "--reports", "1e7")


def test_parts_are_planned(shell: Shell) -> None:
    """The output has parts, shares and candidates, and an entry that a registry reads."""
    code, printed, err = shell(*BUDGET, "--longest", "6", "--name", "word")
    assert (code, err) == (0, "")
    table, entry = printed.split("Entry for the registry:")
    metric = Registry.loads(entry)["word"]
    assert metric is not None
    assert ", ".join(part.name for part in metric.parts) in table
    assert "of up to 6 characters, 26 in the alphabet; 1,000 are assumed" in table


def test_the_largest_part_of_the_error_has_a_remedy(shell: Shell) -> None:
    """A sentence below the parts of the error names the remedy for the largest part."""
    output = ok(shell("plan", "--profile", "strict", "--reports", "1e6", "--candidates", "100"))
    words = " ".join(output.replace("│", " ").split())
    assert "The largest part of the error is privacy noise. To lower it, use more devices," in words


@pytest.mark.slow
def test_the_excess_with_collisions_is_told_from_that_of_the_noise(shell: Shell) -> None:
    """The summary has the excess with collisions and the excess of the noise alone."""
    text = " ".join(
        ok(shell(*["plan", "--epsilon-1", "1", "--epsilon-inf", "4", "--reports", "1e6"])).split()
    )
    with_collisions, noise = re.findall(r"([0-9.]+) % (?:above the best|by its noise alone)", text)
    (ratio,) = re.findall(r"this one .*? ([0-9.]+) [0-9.]+ %", text)
    assert float(with_collisions) > float(noise) + 1
    assert float(noise) == pytest.approx(100 * (float(ratio) - 1), abs=0.1)


def test_json_has_the_same_numbers(shell: Shell) -> None:
    """The JSON has the layouts with their numbers, and the entry."""
    more = ("--longest", "4", "--alphabet", "a-c0-1", "--candidates", "50", "--json")
    document = json.loads(ok(shell(*BUDGET, *more)))
    assert (document["characters"], document["longest"], document["strings"]) == (5, 4, 50)
    assert document["parts"][-1] == {"name": "whole", "share": None}
    assert 0 < document["found"] <= 50
    assert "parts = [" in document["toml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "cohorts"),
    [
        ("--devices 300", 8),
        ("--devices 300 --days 30", 8),
        ("--reports 1e6", 128),
        ("--devices 300 --profile strict", 8),
        ("--devices 300 --epsilon-1 2 --epsilon-inf 4", 8),
        ("--share .1", 128),
    ],
)
def test_a_metric_with_a_list_gets_the_cohorts_that_its_devices_fill(
    shell: Shell, size: str, cohorts: int
) -> None:
    """A metric with a list gets cohorts for its number of devices, and --write writes them.

    Without the number of devices, the plan keeps its cohorts.
    """
    text = toml_of("editor", candidates='["vim", "kate"]', profile='"balanced"', epoch='"quarter"')
    (shell.place / "list.toml").write_text(text)
    words = ("plan", "--registry", shell.path("list.toml"), "editor", *size.split())
    assert json.loads(ok(shell(*words, "--json")))["m"] == cohorts
    ok(shell(*words, "--write"))
    metric = Registry.load(shell.place / "list.toml")["editor"]
    assert (metric.params.m, metric.listed) == (cohorts, ("vim", "kate"))


def test_a_ranked_list_is_planned_with_its_weights(shell: Shell) -> None:
    """--ranked and the entry's key predict the same, and more detections than equal weights."""
    words = ("--reports", "1e6", "--candidates", "1000", "--json")
    equal = json.loads(ok(shell.metric("plan", *words)))
    ranked = json.loads(ok(shell.metric("plan", *words, "--ranked")))
    assert (equal["ranked"], ranked["ranked"]) == (False, True)
    assert ranked["found"] > equal["found"]
    assert ranked["share"] < equal["share"]
    text = ok(shell.metric("plan", "--reports", "1e6", "--ranked"))
    assert "Benjamini-Hochberg 5 %, weights by rank" in " ".join(text.split())
    registry = shell.place / "metrics.toml"
    entry = '[metrics.engine]\ncandidates = "engines.txt"\nranked = true'
    registry.write_text(registry.read_text().replace("[metrics.engine]", entry))
    assert json.loads(ok(shell.metric("plan", *words)))["found"] == ranked["found"]


def test_the_plan_of_sets_compares_numbers_of_items(shell: Shell) -> None:
    """The output has items and buckets of the other designs, and `keep` as their noise."""
    options = ["--encoding", "set", "--items", "8", "--profile", "once", "--devices", "1e5"]
    words = " ".join(ok(shell("plan", *options)).split())
    assert "as in the profile once" in words
    assert "design items k keep p* q*" in words
    assert "items = 4 4 232 0.4803" in words
    assert "sets of 6 items on average" in words
    assert "best known mechanism" not in words


def test_a_metric_of_sets_is_planned_within_a_budget(shell: Shell, tmp_path: Path) -> None:
    """With a budget, the numbers of the entry change and its number of items stays."""
    path = tmp_path / "metrics.toml"
    entry = {"encoding": '"set"', "items": "4", "epoch": '"year"', "interval": '"epoch"'}
    path.write_text(toml_of("plugins", profile='"once"', **entry), encoding="utf-8")
    budget = ("--epsilon-1", "2", "--epsilon-inf", "2", "--devices", "1e5")
    text = ok(shell("plan", "plugins", "--registry", str(path), *budget))
    params = Registry.loads(text.split("Entry for the registry:")[1]).metric("plugins").params
    assert (params.items, params.k) == (4, design_sets(4, 2, m=1).k)


@pytest.mark.parametrize(
    "keys",
    [
        'encoding = "bloom"\nfields = ["site", "country"]\nnormalize = {country = "casefold"}\n',
        'encoding = "onehot"\ncategories = {a = ["x", "y"], b = ["\\"q", "ü", "t"]}\n',
    ],
)
def test_an_entry_of_a_tuple_keeps_its_fields(shell: Shell, keys: str) -> None:
    """The planned numbers are written, and the fields, categories and normalizers stay."""
    entry = toml_of("pair", profile='"balanced"', epoch='"quarter"')
    text = entry.replace('encoding = "bloom"\n', keys)
    (shell.place / "tuples.toml").write_text(text)
    before = Registry.load(shell.place / "tuples.toml")["pair"].params
    size = ("--reports", "1e5", "--epsilon-1", "1.5", "--epsilon-inf", "3")
    words = ("plan", "--registry", shell.path("tuples.toml"), "pair", *size)
    printed = ok(shell(*words)).partition("Entry for the registry:")[2]
    ok(shell(*words, "--write"))
    after = Registry.load(shell.place / "tuples.toml")["pair"].params
    assert Registry.loads(printed)["pair"].params == after
    assert (after.field_names, after.categories) == (before.field_names, before.categories)
    assert (after.normalize, after.f != before.f) == (before.normalize, True)
    head = "[budget]\ntotal = inf\n[metrics.pair]\ndescription = 'a'\nowner = 'b'\n"
    lines = [*format_params_lines(after), "expires = 2099-12-31", "epoch = 'quarter'"]
    assert Registry.loads(head + "\n".join(lines))["pair"].params == after


def test_association_of_two_fields_is_planned(shell: Shell) -> None:
    """--cells adds the strengths of an association that the test of independence detects."""
    words = ("plan", "--profile", "balanced", "--reports", "1e5", "--cells", "20x5")
    assert "Association of 20 x 5 equally frequent values at 5 %" in ok(shell(*words))
    answer = json.loads(ok(shell(*words, "--listed-share", "0.7", "--json")))
    test, (metric,) = answer["association"], Registry.loads(answer["toml"]).values()
    assert metric.params.field_names == ("first_field", "second_field")
    assert (test["n_values"], test["listed"]) == ([20, 5], 0.7)
    assert 0 < test["cramers_v"] < 1
    plain = json.loads(ok(shell(*words[:-2], "--json")))
    assert "association" not in plain
    assert "field" not in plain["toml"]
    sentence = refused(shell(*words[:-1], "20"))
    assert "--cells must be two numbers such as 20x5, got '20'" in sentence
