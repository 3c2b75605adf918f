"""What operators are given: units, alert rules, a dashboard, a runbook, settings."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from collectors import REGISTRY, run_command, serving_file, upload_of
from places import ROOT
from prometheus_client.parser import text_string_to_metric_families
from rappor_server.app.settings import Settings
from tools import need

FOLDER = ROOT / "server" / "packaging"
ALERTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0][
    "rules"
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
NAME = re.compile(r"\b(?:rappor|process)_[a-z_]+\b")
VALUE = re.compile(r'([a-z]+)!?="([^"]+)"')
LABEL = re.compile(r"(?:by|on) \(([a-z, ]+)\)|\{([a-z]+)[!=]|,([a-z]+)[!=]")
TIMERS = ("rappor-prune.timer", "rappor-backup.timer", "rappor-publish.timer")
UNITS = ("rappor-server.service", *(each.replace("timer", "service") for each in TIMERS))


def expressions() -> list[str]:
    """Return every expression that rules and panels ask Prometheus."""
    asked = [rule["expr"] for rule in ALERTS]
    return asked + [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_alerts_and_dashboard_ask_for_what_is_exported(tmp_path: Path) -> None:
    """Every name, label and value in them is one that a running collector shows."""
    keys = tmp_path / "keys"
    keys.write_text("programs sesame\n")
    flags = ("--suspicious", "accept", "--upload-key-file", str(keys))
    with serving_file(tmp_path, *flags) as running:
        assert running.post(upload_of(), Authorization="Bearer sesame").status_code == 200
        text = running.get("/metrics").text
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    names = {sample.name for sample in samples}
    labels = {label for sample in samples for label in sample.labels} | {"instance", "job"}
    values = {pair for sample in samples for pair in sample.labels.items()} | {("job", "rappor")}
    assert len(expressions()) > 20
    for expression in expressions():
        asked = set(NAME.findall(expression))
        assert asked <= names, expression
        told = {part for groups in LABEL.findall(expression) for part in groups if part}
        assert {each.strip() for part in told for each in part.split(",")} <= labels, expression
        assert set(VALUE.findall(expression)) <= values, expression
        assert expression.count("(") == expression.count(")")
    for name in ("rappor_build_info", "rappor_registry_info", "process_resident_memory_bytes"):
        assert name in names
    assert not any(name.endswith("_created") for name in names)
    assert 'rappor_uploads_total{status="503"} 0.0' in text
    assert 'rappor_reports_total{metric="sound"} 0.0' in text


def test_every_alert_has_its_place_in_the_runbook() -> None:
    """The runbook has a section for each alert, and for nothing that is none."""
    runbook = (FOLDER / "runbook.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (Rappor\w+)$", runbook, flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"[0-9]+[mh]", rule["for"])


def test_panels_are_drawn_beside_each_other() -> None:
    """Panels have titles and places of their own, and legends that the expressions give."""
    panels = DASHBOARD["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label == "instance" or label in target["expr"]


def test_units_are_those_of_systemd(tmp_path: Path) -> None:
    """No unit has a fault that systemd finds, with the settings for TLS too."""
    for name in (*UNITS, *TIMERS):
        text = (FOLDER / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/rappor/bin/rappor-server", "/bin/true"))
    instance = tmp_path / "rappor-server@2.service"
    instance.write_text((tmp_path / "rappor-server.service").read_text())
    drop_in = tmp_path / "rappor-server.service.d"
    drop_in.mkdir()
    shutil.copy(FOLDER / "tls.conf", drop_in)
    verify = [str(need("systemd-analyze")), "verify", "--man=no"]
    answer = subprocess.run(
        [*verify, *(str(tmp_path / name) for name in (*UNITS, *TIMERS, instance.name))],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [
        line for line in answer.stderr.splitlines() if str(tmp_path) in line or "rappor" in line
    ]
    assert (answer.returncode, told) == (0, [])


def settings_of(name: str) -> dict[str, list[str]]:
    """Return what a unit sets, by name."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        key, is_set, value = line.partition("=")
        if is_set and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_units_bound_the_collector_and_start_it_again() -> None:
    """However it ends; memory, tasks and files have limits, and there is room for connections."""
    service = settings_of("rappor-server.service")
    assert (service["Type"], service["Restart"]) == (["notify"], ["always"])
    assert service["StartLimitIntervalSec"] == ["0"]
    (files,) = service["LimitNOFILE"]
    assert int(files) > Settings(registry="x").max_connections + 256
    for name in UNITS:
        unit = settings_of(name)
        assert unit["MemoryMax"]
        assert unit["UMask"] == ["0077"]
        assert unit["User"] == ["rappor"]
    for name in TIMERS:
        timer = settings_of(name)
        (when,) = timer["OnCalendar"]
        assert re.fullmatch(r"(Mon )?\*-\*-\* [0-9:]{8} UTC", when)
        assert timer["Persistent"] == ["true"]


def test_secrets_are_handed_over_by_systemd() -> None:
    """Each file that the settings name is a credential, and the runbook says what that means."""
    drop_in = settings_of("tls.conf")
    lent = {each.partition(":")[0] for each in drop_in["LoadCredential"]}
    named = [each.partition("=%d/") for each in drop_in["Environment"]]
    assert {name for *_, name in named} == lent == {"chain", "key", "upload-keys"}
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert {name.removeprefix("RAPPOR_SERVER_").lower() for name, *_ in named} <= fields
    runbook = (FOLDER / "runbook.md").read_text(encoding="utf-8")
    for secret in ("Replace an upload key", "Renew a certificate"):
        _, _, advice = runbook.partition(f"**{secret}**")
        assert "[tls.conf](tls.conf)" in advice.partition("- **")[0], secret


def test_units_share_one_file_of_settings() -> None:
    """Each unit names the same file, and its names and values are those of the program."""
    for name in UNITS:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert "Environment=RAPPOR_SERVER_CONFIG=/etc/rappor/server.toml" in text
    chosen = Settings(**tomllib.loads((FOLDER / "server.toml").read_text(encoding="utf-8")))
    assert chosen.registry == "/etc/rappor/metrics.toml"
    assert chosen.admin_address == ("127.0.0.1", 9090)


@pytest.mark.slow
def test_commands_find_their_settings_and_make_no_database(tmp_path: Path) -> None:
    """A wrong address is refused by each command but those that begin one, and nothing is made."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    absent = tmp_path / "nowhere.sqlite3"
    config = tmp_path / "server.toml"
    config.write_text(f'registry = "{registry}"\ndatabase = "sqlite:///{absent}"\n')
    named = {"RAPPOR_SERVER_CONFIG": str(config)}
    lake = ["--metric", "page", "--from", "2026-01-01", "--to", "2026-01-02"]
    for arguments in (
        ["prune"],
        ["backup", str(tmp_path / "copy")],
        ["token", "create"],
        ["token", "list"],
        ["token", "revoke", "x"],
        ["export", str(tmp_path / "lake"), *lake],
        ["publish", "--out", str(tmp_path / "site")],
    ):
        answer = run_command(*arguments, **named)
        assert answer.returncode == 2, arguments
        assert "database must be that of a collector" in answer.stderr
        assert "nowhere.sqlite3, which does not exist: run rappor-server serve" in answer.stderr
        assert not absent.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.toml", "server.toml"]
    assert run_command("migrate", **named).returncode == 0
    assert "deleted 0 upload keys" in run_command("prune", **named).stdout
