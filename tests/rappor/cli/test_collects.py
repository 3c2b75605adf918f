"""`rappor collects`: privacy notices of all metrics."""

from __future__ import annotations

import datetime
import json

import pytest
from registries import toml_of
from shell import Shell, ok

from rappor import Registry
from rappor.privacy.notice import privacy_notice
from rappor.registry.sealed_json import format_sealed_json

BARE = toml_of("bare", encoding='"boolean"', durable="true", f="0.0", p="0.25", q="0.75")


def test_collects_describes_every_metric(shell: Shell) -> None:
    """The text names each metric and its owner, and states that one metric has expired."""
    out = ok(shell("collects", "--registry", "metrics.toml"))
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out
    registry = Registry.load(shell.place / "metrics.toml", today=datetime.date.today())
    total = sum(reserved.total for reserved in registry.reserved)
    assert f"at most {total:g} nats" in out.splitlines()[-2]
    assert "A value that stays the same for a year" in out
    assert "together" not in shell("collects", "theme", "--registry", "metrics.toml")[1]


@pytest.mark.slow
def test_collects_json_is_the_sealed_registry(shell: Shell) -> None:
    """The JSON is one line, with the privacy notice of each metric."""
    registry = Registry.load(shell.place / "metrics.toml", today=datetime.date.today())
    sealed = format_sealed_json(
        registry, {name: privacy_notice(metric) for name, metric in registry.items()}
    )
    assert ok(shell("collects", "--registry", "metrics.toml", "--json")) == f"{sealed}\n"


def test_collects_json_marks_a_durable_metric_and_a_total_without_limit(shell: Shell) -> None:
    """The JSON marks a durable metric, and has a text for an infinite total."""
    (shell.place / "bare.toml").write_text(BARE)
    out = ok(shell("collects", "--registry", "bare.toml"))
    assert "written to the disk at once" in out
    assert out.splitlines()[-1].endswith("has no limit.")
    code, out, err = shell("collects", "--registry", "bare.toml", "--json")
    assert (code, json.loads(out)["total"], err) == (0, "Infinity", "")
    (metric,) = json.loads(out)["metrics"]
    assert "written to the disk at once" in " ".join(metric["notice"].split())
    assert metric["durable"] is True
