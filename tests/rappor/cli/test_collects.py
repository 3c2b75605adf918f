"""`rappor collects`: every metric in plain words."""

from __future__ import annotations

import datetime

from shell import Shell

from rappor import Registry

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
    code, out, _ = shell("collects", "--registry", "metrics.toml")
    assert code == 0
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out
    registry = Registry.load(shell.place / "metrics.toml", today=datetime.date.today())
    total = sum(each.total for each in registry.reserved)
    last = f"All metrics together cost a device at most {total:g} nats in a calendar year."
    assert out.splitlines()[-1] == last
    assert "together" not in shell("collects", "theme", "--registry", "metrics.toml")[1]


def test_collects_warns_where_nothing_bounds_the_loss(shell: Shell) -> None:
    """A metric without permanent noise has no sum for people to rely on."""
    (shell.place / "bare.toml").write_text(BARE)
    code, out, _ = shell("collects", "--registry", "bare.toml")
    assert code == 0
    assert out.splitlines()[-1].startswith("WARNING: nothing bounds")


def test_collects_of_an_unknown_metric_names_the_nearest(shell: Shell) -> None:
    """A misspelt name gets a suggestion."""
    code, _, err = shell("collects", "them", "--registry", "metrics.toml")
    assert code == 2
    assert err == "rappor: unknown metric 'them'; did you mean 'theme'?\n"
