"""`rappor collects`: every metric in plain words."""

from __future__ import annotations

from shell import Shell


def test_collects_describes_every_metric(shell: Shell) -> None:
    """The plain words name each metric, its owner and that one has expired."""
    code, out, _ = shell("collects", "--registry", "metrics.toml")
    assert code == 0
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out


def test_collects_of_an_unknown_metric_names_the_nearest(shell: Shell) -> None:
    """A misspelt name gets a suggestion."""
    code, _, err = shell("collects", "them", "--registry", "metrics.toml")
    assert code == 2
    assert err == "rappor: unknown metric 'them'; did you mean 'theme'?\n"
