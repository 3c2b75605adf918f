"""The page of the registry: its examples load, and its tables equal the code."""

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
    """The three metrics reserve the total, to the nat."""
    registry = load_example()
    assert list(registry) == ["search_engine", "theme", "start_seconds"]
    needed = sum(reservation.total for reservation in registry.reserved)
    assert needed <= registry.total < needed + 1


def test_the_example_with_a_list_costs_what_is_written() -> None:
    """One metric with quarters reserves 16 nats."""
    *_, text, _ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert registry["editor"].listed == ("vscode", "neovim", "emacs", "vim")
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_sets_has_one_report_in_a_quarter() -> None:
    """One report of one bucket costs the promise of the profile, 4 nats a quarter."""
    _, _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    params = registry["plugins"].params
    assert (params.k, params.m, params.items) == (464, 128, 8)
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_tuples_has_both_forms() -> None:
    """Nine combinations and a bucket for other values; two fields hashed together."""
    _, _, _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    closed, strings = registry["editor_by_system"].params, registry["site_by_country"].params
    assert (closed.k, closed.field_names) == (10, ("editor", "system"))
    assert (strings.k, strings.field_names) == (128, ("site", "country"))
    assert (closed.normalize, strings.normalize) == ("casefold,none", "host,none")
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 32


def test_the_example_of_a_ranked_list_loads() -> None:
    """The entry names a file whose order is prior knowledge, and costs what is written."""
    *_, text = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert registry["home_page"].ranked
    assert sum(reservation.total for reservation in registry.reserved) == registry.total == 16


def test_the_example_of_tables_for_pages_has_both_texts() -> None:
    """The name of the program and the counted metric are read."""
    _, text, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    registry = Registry.loads(text)
    assert (registry.program, registry.installations) == ("Sketch", "search_engine")


def test_every_key_is_explained() -> None:
    """The table has all keys of an entry, and no others."""
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
def test_the_table_of_budgets(profile: str, epoch: str, nats: str) -> None:
    """The table has the reservation of a daily metric for a whole year."""
    metric = dataclasses.replace(
        load_example()["search_engine"], params=Params.profile(profile), epoch=epoch
    )
    assert reserve(metric).total == pytest.approx(float(nats))
