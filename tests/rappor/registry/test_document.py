"""The page of the registry (rappor/registry/README.md): its examples load, its tables are right.

Readers copy the examples, and choose a budget from the tables.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from places import ROOT

from rappor.protocol.params import Params
from rappor.registry.budget import reserve
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor.registry.toml_file import KEYS

DOCUMENT = (ROOT / "rappor" / "registry" / "README.md").read_text(encoding="utf-8")


def load_example() -> Registry:
    """Load the first registry of the page."""
    text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    return Registry.loads(text)


def test_the_example_is_a_registry_that_uses_its_whole_budget() -> None:
    """The three metrics of the first example reserve its total, to the nat."""
    registry = load_example()
    assert list(registry) == ["search_engine", "theme", "start_seconds"]
    needed = sum(reservation.total for reservation in registry.reserved)
    assert needed <= registry.total < needed + 1


def test_the_example_with_a_list_of_candidates_reserves_its_total() -> None:
    """The metric with quarters reserves 16 nats, and its candidates are listed in the entry."""
    *_, text, _ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert registry["editor"].listed == ("vscode", "neovim", "emacs", "vim")
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_sets_has_one_report_in_a_quarter() -> None:
    """A set sends one report in a quarter, which costs the 4 nats of the profile `once`."""
    _, _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    params = registry["plugins"].params
    assert (params.k, params.m, params.items) == (464, 128, 8)
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_tuples_has_both_forms() -> None:
    """The example has a tuple of categories and a tuple of strings.

    The categories have nine combinations and a bucket for other values. The fields of strings are
    hashed together.
    """
    _, _, _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    closed, strings = registry["editor_by_system"].params, registry["site_by_country"].params
    assert (closed.k, closed.field_names) == (10, ("editor", "system"))
    assert (strings.k, strings.field_names) == (128, ("site", "country"))
    assert (closed.normalize, strings.normalize) == ("casefold,none", "host,none")
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 32


def test_the_example_of_a_ranked_list_loads() -> None:
    """The entry names a file of candidates in their expected order, and reserves 16 nats."""
    *_, text = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert registry["home_page"].ranked
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_tables_for_pages_has_both_tables() -> None:
    """The example names the program, and the metric that counts installations."""
    _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert (registry.program, registry.installations) == ("Sketch", "search_engine")


def test_every_key_is_explained() -> None:
    """The table of keys explains all keys of an entry, and no others."""
    rows = re.findall(r"^\| (`.*?`.*?) \|", DOCUMENT.split("## The budget")[0], re.MULTILINE)
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert named == set(KEYS)


def test_defaults_are_those_of_a_metric() -> None:
    """The documented defaults equal the defaults of the fields."""
    defaults = {field.name: field.default for field in dataclasses.fields(Metric)}
    (documented,) = re.findall(r"^\| `interval` \|.*\| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert documented.strip("`") == defaults["interval"]
    assert (defaults["min_reports"], defaults["min_cohort"]) == (100, 10)
    for key in ("min_reports", "min_cohort"):
        (documented,) = re.findall(rf"^\| `{key}` \|.*\| (\d+) \|$", DOCUMENT, re.MULTILINE)
        assert int(documented) == defaults[key]


@pytest.mark.parametrize(
    ("profile", "epoch", "nats"),
    re.findall(r"^\| (strict|balanced) \| (\w+) \| (\d+) \|$", DOCUMENT, re.MULTILINE),
)
def test_the_table_of_budgets_has_the_reserved_nats(profile: str, epoch: str, nats: str) -> None:
    """Each row of the table has the nats that a daily metric reserves of a calendar year."""
    metric = dataclasses.replace(
        load_example()["search_engine"], params=Params.profile(profile), epoch=epoch
    )
    assert reserve(metric).total == pytest.approx(float(nats))
