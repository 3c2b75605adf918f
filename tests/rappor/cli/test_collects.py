"""`rappor collects`: privacy notices of all metrics."""

from __future__ import annotations

import datetime
import json

import pytest
from registries import format_registry
from shell import Shell, expect_success

from rappor import Registry
from rappor.privacy.notice import privacy_notice
from rappor.registry.sealed_json import format_sealed_json

DURABLE = format_registry(
    "durable", encoding='"boolean"', durable="true", f="0.0", p="0.25", q="0.75"
)
"""Registry with a durable metric. It has no permanent noise, so its total is infinite."""


def test_collects_describes_every_metric(shell: Shell) -> None:
    """The text has the privacy notice of each metric, and the total of all metrics in nats.

    One metric has expired. The notice of a single metric has no total.
    """
    out = expect_success(shell("collects", "--registry", "metrics.toml"))
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out
    registry = Registry.load(shell.folder / "metrics.toml", today=datetime.date.today())
    total = sum(reserved.total for reserved in registry.reserved)
    assert f"at most {total:g} nats" in out.splitlines()[-2]
    assert "A value that stays the same for a year" in out
    assert "together" not in shell("collects", "theme", "--registry", "metrics.toml")[1]


@pytest.mark.slow
def test_collects_json_is_the_sealed_registry(shell: Shell) -> None:
    """The JSON is the sealed registry of the library, in one line."""
    registry = Registry.load(shell.folder / "metrics.toml", today=datetime.date.today())
    sealed = format_sealed_json(
        registry, {name: privacy_notice(metric) for name, metric in registry.items()}
    )
    assert (
        expect_success(shell("collects", "--registry", "metrics.toml", "--json")) == f"{sealed}\n"
    )


def test_collects_json_marks_a_durable_metric_and_a_total_without_limit(shell: Shell) -> None:
    """A durable metric is marked in notice and JSON, and an infinite total is a text in JSON."""
    (shell.folder / "durable.toml").write_text(DURABLE)
    out = expect_success(shell("collects", "--registry", "durable.toml"))
    assert "written to the disk at once" in out
    assert out.splitlines()[-1].endswith("has no limit.")
    code, out, err = shell("collects", "--registry", "durable.toml", "--json")
    assert (code, json.loads(out)["total"], err) == (0, "Infinity", "")
    (metric,) = json.loads(out)["metrics"]
    assert "written to the disk at once" in " ".join(metric["notice"].split())
    assert metric["durable"] is True
