"""Settings, the checker of registries, and the command line around them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from collectors import REGISTRY, TODAY, metric_of, run_command
from rappor_server.errors import ConfigError
from rappor_server.ingest.registry_check import check_edit, check_registry
from rappor_server.problems import Problem
from rappor_server.request_limits import RateLimit
from rappor_server.settings import Settings, load
from registries import registry_of

from rappor import Metric, Params, Registry

STRICT = Params.profile("strict")
ONEHOT = Params(k=3, encoding="onehot", categories=("a", "b", "c"), f=0.5, p=0.25, q=0.75)


def chosen(flags: dict[str, Any], environment: dict[str, str], file: str | None) -> Settings:
    """Load settings with a registry."""
    return load({"registry": "m.toml"} | flags, environment=environment, file=file)


def test_flags_come_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    """One documented order."""
    path = tmp_path / "server.toml"
    path.write_text('port = 1\nrate = 1\nmax_body = 1\nolder = ["old.toml"]\nbody_seconds = 3\n')
    environment = {"RAPPOR_SERVER_PORT": "2", "RAPPOR_SERVER_RATE": "2", "OTHER": "x"}
    settings = chosen({"port": 3, "host": None, "older": ()}, environment, str(path))
    assert (settings.port, settings.rate, settings.max_body, settings.host) == (
        3,
        2,
        1,
        "127.0.0.1",
    )
    assert settings.older == ("old.toml",)
    assert settings.body_seconds == 3
    assert settings.database == "sqlite:///m.sqlite3"
    listed = chosen({}, {"RAPPOR_SERVER_ORIGINS": "https://a,https://b"}, None)
    assert listed.origins == ("https://a", "https://b")


@pytest.mark.parametrize(
    ("flags", "environment", "text", "message"),
    [
        ({}, {"RAPPOR_SERVER_PROT": "1"}, "", "RAPPOR_SERVER_PROT must name a setting"),
        ({}, {"RAPPOR_SERVER_PORT": "x"}, "", "RAPPOR_SERVER_PORT must be a number"),
        ({}, {}, "prot = 1", "prot must name a setting"),
        ({}, {}, 'port = "1"', "port must be of type"),
        ({}, {}, "port = ", "must be TOML"),
        ({"port": 70000}, {}, "", "port in"),
        ({"database": "postgresql://a:b@c/d"}, {}, "", "no password in a flag"),
        ({"rate": -1}, {}, "", "rate must be at least 0"),
        ({"max_body": 0}, {}, "", "max_body must be at least 1"),
        ({"body_seconds": float("nan")}, {}, "", "body_seconds must be above 0"),
        ({"suspicious": "maybe"}, {}, "", "suspicious must be refuse, apart or accept"),
        ({"tls_key": "k"}, {}, "", "must be given together"),
        ({"workers": 2}, {}, "", "workers must be 1 on SQLite"),
        ({"registry": ""}, {}, "", "registry must be the path"),
    ],
)
def test_wrong_settings_are_refused(
    flags: dict[str, Any], environment: dict[str, str], text: str, message: str, tmp_path: Path
) -> None:
    """With the setting's name."""
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        chosen(flags, environment, str(path))


def test_settings_survive_the_way_to_a_worker() -> None:
    """As JSON, and without the key itself."""
    settings = Settings(registry="m.toml", older=("a",), origins=("b",), upload_key_file="k")
    assert Settings.from_json(settings.to_json()) == settings
    assert json.loads(settings.to_json())["upload_key_file"] == "k"


# Limits


def test_rate_keeps_no_address() -> None:
    """Counts by a keyed hash, forgotten with the key every minute."""
    now = [0.0]
    limit = RateLimit(2, clock=lambda: now[0])
    for _ in range(2):
        limit.check("203.0.113.7")
    with pytest.raises(Problem) as caught:
        limit.check("203.0.113.7")
    assert caught.value.retry_after == 60
    limit.check("203.0.113.8")
    assert "203.0.113" not in str(vars(limit))
    sources = set(limit._counts)
    now[0] = 60.0
    limit.check("203.0.113.7")
    assert not sources & set(limit._counts)
    RateLimit(0).check("anyone")


# The checker


def levels(old: Metric, *new: Metric) -> list[str]:
    """Return the levels of what an edit brings."""
    return [finding.level for finding in check_edit(registry_of(old), registry_of(*new))]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (metric_of(), [metric_of()], []),
        (metric_of(), [metric_of(), metric_of("more")], []),
        (metric_of(), [metric_of("other")], ["refused"]),
        (metric_of(), [metric_of(params=STRICT)], ["note"]),
        (metric_of(), [metric_of(epoch="month")], ["warning"]),
        (metric_of(), [metric_of(params=ONEHOT, description="new")], ["refused"]),
        (metric_of(), [metric_of(params=ONEHOT)], ["note"]),
    ],
)
def test_edits_that_would_mix_are_refused(
    old: Metric, new: list[Metric], expected: list[str]
) -> None:
    """Removed metrics and reused names; changed parameters are explained."""
    assert levels(old, *new) == expected


@pytest.mark.parametrize(
    ("categories", "expected"),
    [(("a", "b", "c"), []), (("a", "b", "c", "d"), ["note"]), (("a", "b"), ["refused", "note"])],
)
def test_categories_may_be_added_and_not_removed(
    categories: tuple[str, ...], expected: list[str]
) -> None:
    """A new one makes a new fingerprint."""
    params = Params(
        k=len(categories), encoding="onehot", categories=categories, f=0.5, p=0.25, q=0.75
    )
    assert levels(metric_of(params=ONEHOT), metric_of(params=params)) == expected


def test_change_of_parameters_says_what_it_costs() -> None:
    """P and q keep the permanent response; anything else does not."""
    old = Params(k=16, m=4, f=0.5, p=0.25, q=0.75)
    quieter = Params(k=16, m=4, f=0.5, p=0.4, q=0.6)
    (kept,) = check_edit(
        registry_of(metric_of(params=old)),
        registry_of(metric_of(params=quieter)),
    )
    (drawn,) = check_edit(
        registry_of(metric_of(params=old)),
        registry_of(metric_of(params=STRICT)),
    )
    assert "permanent responses stay" in kept.text
    assert "devices draw new permanent responses" in drawn.text
    assert quieter.fingerprint in kept.text


def test_weak_and_expiring_metrics_are_warned_of() -> None:
    """With their losses and days."""
    weak = Params(k=16, m=4, f=0.01, p=0.01, q=0.99)
    registry = Registry(
        [
            metric_of("weak", weak),
            metric_of("over", STRICT, expires=TODAY - datetime.timedelta(days=1)),
            metric_of("soon", STRICT, expires=TODAY + datetime.timedelta(days=30)),
            metric_of("fine", Params.profile("accurate")),
        ],
        total=float("inf"),
    )
    texts = [finding.text for finding in check_registry(registry, today=TODAY)]
    assert len(texts) == 3
    assert texts[0].startswith("weak: weak protection: 8.")
    assert texts[1:] == ["over: expired on 2026-11-20", "soon: expires on 2026-12-21"]


def test_check_command(tmp_path: Path) -> None:
    """0 and a word for each finding; 1 where an edit is refused; 2 for what is no registry."""
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(REGISTRY)
    new.write_text(REGISTRY.replace("[metrics.old]", "[metrics.new]"))
    answer = run_command("check", str(old))
    assert answer.returncode == 0
    assert "warning: old: expired on 2020-01-01" in answer.stdout
    assert "4 metrics may be served" in answer.stdout
    edited = run_command("check", str(new), "--against", str(old))
    assert edited.returncode == 1
    assert "refused: old: a metric must stay" in edited.stdout
    assert run_command("check", str(tmp_path / "absent.toml")).returncode == 2


def test_commands_of_operation(tmp_path: Path, database: str) -> None:
    """migrate, prune, export, backup, restore: each says what it did."""
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    options = ["--registry", str(path), "--database", database]
    assert "has the schema of this version" in run_command("migrate", *options).stdout
    assert "deleted 0 upload ids" in run_command("prune", *options).stdout
    copy = tmp_path / "copy.sqlite3"
    assert run_command("backup", str(copy), *options).returncode == 0
    again = run_command("restore", str(copy), *options)
    assert again.returncode == 2
    assert "into an empty database" in again.stderr
    other = ["--registry", str(path), "--database", f"sqlite:///{tmp_path / 'other.sqlite3'}"]
    assert run_command("restore", str(copy), *other).stdout == "restored\n"
    days = ["--from", "2026-01-01", "--to", "2026-01-02"]
    exported = run_command("export", str(tmp_path / "lake"), "--metric", "sound", *days, *options)
    assert exported.returncode == 0, exported.stderr
    wrong = run_command("export", str(tmp_path / "lake"), "--metric", "none", *days, *options)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert run_command("prune").returncode == 2
    assert "--registry" in run_command("prune").stderr
    assert run_command("token", "create", *options, "--metric", "nothing").returncode == 2


def test_secrets_stay_out_of_errors(tmp_path: Path) -> None:
    """A database's password is in no message."""
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    url = "postgresql://user:telltale@127.0.0.1:1/x?connect_timeout=1"
    answer = run_command("serve", str(path), RAPPOR_SERVER_DATABASE=url)
    assert answer.returncode == 2
    assert "the database cannot answer" in answer.stderr
    assert "telltale" not in answer.stdout + answer.stderr
