"""`rappor collects`: every metric in plain words."""

from __future__ import annotations

import datetime
import hashlib
import json

from shell import Shell, ok, refused

from rappor import Params, Registry
from rappor.privacy.notice import describe

BARE = """
[budget]
total = inf

[metrics.bare]
description = "d"
owner = "o"
expires = 2999-12-31
epoch = "life"
encoding = "boolean"
interval = "none"
f = 0.0
p = 0.25
q = 0.75
"""


def test_collects_describes_every_metric(shell: Shell) -> None:
    """The plain words name each metric, its owner and that one has expired."""
    out = ok(shell("collects", "--registry", "metrics.toml"))
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out
    registry = Registry.load(shell.place / "metrics.toml", today=datetime.date.today())
    total = sum(each.total for each in registry.reserved)
    assert f"at most {total:g} nats" in out.splitlines()[-2]
    assert "A value that stays the same for a year" in out
    assert "together" not in shell("collects", "theme", "--registry", "metrics.toml")[1]


def test_collects_warns_where_nothing_bounds_the_loss(shell: Shell) -> None:
    """A metric without permanent noise has no sum to rely on; JSON has no infinity but a text."""
    (shell.place / "bare.toml").write_text(BARE)
    out = ok(shell("collects", "--registry", "bare.toml"))
    assert out.splitlines()[-1].endswith("has no limit.")
    _, out, _ = shell("collects", "--registry", "bare.toml", "--json")
    assert json.loads(out)["total"] == "Infinity"


def test_collects_json_is_the_whole_registry_and_its_seal(shell: Shell) -> None:
    """One line: every metric with its fingerprints and its notice, and the SHA-256 of the rest."""
    out = ok(shell("collects", "--registry", "metrics.toml", "--json"))
    document = json.loads(out)
    registry = Registry.load(shell.place / "metrics.toml", today=datetime.date.today())
    assert [each["name"] for each in document["metrics"]] == list(registry)
    for each in document["metrics"]:
        metric = registry[each["name"]]
        assert each["fingerprint"] == metric.fingerprint
        assert Params.from_json(json.dumps(each["params"])) == metric.params
        assert each["notice"] == describe(metric)
    body = out.strip().partition(',"seal":')[0] + "}"
    assert document["seal"] == hashlib.sha256(body.encode()).hexdigest()


def test_collects_json_says_what_a_page_cannot_promise(shell: Shell) -> None:
    """A durable metric is served to pages too; notice and warning are of what they can do."""
    (shell.place / "bare.toml").write_text(BARE + "durable = true\n")
    assert "written to the disk at once" in shell("collects", "--registry", "bare.toml")[1]
    code, out, err = shell("collects", "--registry", "bare.toml", "--json")
    assert code == 0
    assert err.startswith("warning: bare is durable: a device in JavaScript stores it soon after")
    (metric,) = json.loads(out)["metrics"]
    assert "written to the disk" not in metric["notice"]
    assert "durable" not in metric


def test_collects_json_of_some_metrics_is_refused(shell: Shell) -> None:
    """The budget is that of all metrics together."""
    said = refused(shell("collects", "theme", "--registry", "metrics.toml", "--json"))
    assert "METRICS must be absent with --json" in said
