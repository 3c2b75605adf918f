"""Files for operators: units, alert rules, a dashboard, a runbook, settings."""

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
from collectors import REGISTRY, build_upload, call_command, run_file_collector
from places import ROOT
from prometheus_client.parser import text_string_to_metric_families
from rappor_server.app.settings import Settings
from tools import need

FOLDER = ROOT / "server" / "packaging"
ALERTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0][
    "rules"
]
"""Alert rules that Prometheus would load."""
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
"""Dashboard that Grafana would load."""
NAME = re.compile(r"\b(?:rappor|process)_[a-z_]+\b")
"""Pattern that the names of Prometheus metrics match."""
VALUE = re.compile(r'([a-z]+)!?="([^"]+)"')
"""Pattern of a label and its value in an expression of Prometheus. A dashboard with a misspelt
value would show no data, so the tests compare the values with exported samples."""
LABEL = re.compile(r"(?:by|on) \(([a-z, ]+)\)|\{([a-z]+)[!=]|,([a-z]+)[!=]")
"""Pattern that the labels of an expression match, with or without values."""
EVENT = re.compile(r'(?:log_event|_write)\(\s*"([a-z ]+)"')
"""Call that logs an event. Its group is the text of the event."""
TIMERS = ("rappor-prune.timer", "rappor-backup.timer", "rappor-publish.timer")
"""Timers that the folder contains."""
INSTANCES = ("prune.service", "prune.timer", "backup.service", "backup.timer")
"""Units, without `rappor-`, that each further collector with its own database has, too."""
UNITS = ("rappor-server.service", *(timer.replace("timer", "service") for timer in TIMERS))
"""Services that the folder contains: the collector, and one for each timer."""


def list_expressions() -> list[str]:
    """Return every Prometheus expression of the alert rules and the panels."""
    expressions = [rule["expr"] for rule in ALERTS]
    return expressions + [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
    ]


@pytest.mark.slow
def test_expressions_use_exported_metrics(tmp_path: Path) -> None:
    """Every metric, label and value of the expressions is exported by a running collector."""
    keys = tmp_path / "keys"
    keys.write_text("programs open-sesame-open\n")
    flags = ("--suspicious", "accept", "--upload-key-file", str(keys))
    with run_file_collector(tmp_path, *flags) as running:
        assert (
            running.post(build_upload(), Authorization="Bearer open-sesame-open").status_code == 200
        )
        text = running.get("/metrics").text
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    names = {sample.name for sample in samples}
    labels = {label for sample in samples for label in sample.labels} | {
        "instance",
        "job",
        "program",
    }
    values = {pair for sample in samples for pair in sample.labels.items()} | {("job", "rappor")}
    assert len(list_expressions()) > 20
    for expression in list_expressions():
        metric_names = set(NAME.findall(expression))
        assert metric_names <= names, expression
        lists = {names for groups in LABEL.findall(expression) for names in groups if names}
        used = {label.strip() for names in lists for label in names.split(",")}
        assert used <= labels, expression
        assert set(VALUE.findall(expression)) <= values, expression
        assert expression.count("(") == expression.count(")")
    for name in ("rappor_build_info", "rappor_registry_info", "process_resident_memory_bytes"):
        assert name in names
    assert not any(name.endswith("_created") for name in names)
    assert 'rappor_uploads_total{status="503"} 0.0' in text
    assert 'rappor_reports_total{metric="sound"} 0.0' in text


def test_runbook_has_a_section_for_each_alert() -> None:
    """The runbook has a section for each alert, and no other. Its table of contents has them."""
    runbook = (FOLDER / "runbook.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (Rappor\w+)$", runbook, flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]
    assert re.findall(r"\[(Rappor\w+)\]\(#rappor\w+\)", runbook) == sections
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"[0-9]+[mh]", rule["for"])


def test_runbook_explains_each_event_of_the_log() -> None:
    """The table of events has every text that the collector logs as an event, and no other."""
    runbook = (FOLDER / "runbook.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([a-z ]+)` \| (\w+) \|", runbook, re.MULTILINE)
    # Two events are written without `log_event`, because they have no message.
    logged = {"library warned", "unexpected error"}
    for path in (ROOT / "server" / "rappor_server").rglob("*.py"):
        logged |= set(EVENT.findall(path.read_text(encoding="utf-8")))
    assert len(logged) > 20
    assert {event for event, _ in table} == logged
    assert len(table) == len(logged)
    assert {level for _, level in table} == {"info", "warning", "error"}


def test_panels_do_not_overlap() -> None:
    """Each panel has a title and an area of its own. Legends use labels of the expressions."""
    panels = DASHBOARD["panels"]
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    titles = {panel["title"] for panel in panels}
    assert len(corners) == len(titles) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label == "instance" or label in target["expr"]


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports no error in any unit, with and without TLS."""
    for name in (*UNITS, *TIMERS):
        text = (FOLDER / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/opt/rappor/bin/rappor-server", "/bin/true"))
    instances = []
    for name in ("server.service", *INSTANCES):
        stem, _, kind = name.partition(".")
        instances.append(f"rappor-{stem}@mytool.{kind}")
        (tmp_path / instances[-1]).write_text((tmp_path / f"rappor-{name}").read_text())
    drop_in = tmp_path / "rappor-server.service.d"
    drop_in.mkdir()
    for name in ("tls.conf", "upload-keys.conf"):
        shutil.copy(FOLDER / name, drop_in)
    verify = [str(need("systemd-analyze")), "verify", "--man=no"]
    result = subprocess.run(
        [*verify, *(str(tmp_path / name) for name in (*UNITS, *TIMERS, *instances))],
        capture_output=True,
        text=True,
        check=False,
    )
    messages = [
        line for line in result.stderr.splitlines() if str(tmp_path) in line or "rappor" in line
    ]
    assert (result.returncode, messages) == (0, [])


def parse_unit(name: str) -> dict[str, list[str]]:
    """Return the values of each setting of a unit by its name."""
    values_of_key: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        key, is_set, value = line.partition("=")
        if is_set and not line.startswith("#"):
            values_of_key.setdefault(key, []).append(value)
    return values_of_key


def test_units_limit_and_restart_the_collector() -> None:
    """The units restart the collector after any end.

    Memory, tasks and files have limits. The limit of files has room for all connections.
    """
    service = parse_unit("rappor-server.service")
    assert (service["Type"], service["Restart"]) == (["notify"], ["always"])
    assert service["StartLimitIntervalSec"] == ["0"]
    (files,) = service["LimitNOFILE"]
    assert int(files) > Settings(registry="x").max_connections + 256
    for name in UNITS:
        unit = parse_unit(name)
        assert unit["MemoryMax"]
        assert unit["UMask"] == ["0077"]
        assert unit["User"] == ["rappor"]
    for name in TIMERS:
        timer = parse_unit(name)
        (start_times,) = timer["OnCalendar"]
        assert re.fullmatch(r"(Mon )?\*-\*-\* [0-9:]{8} UTC", start_times)
        assert timer["Persistent"] == ["true"]


def test_secrets_are_credentials_of_systemd() -> None:
    """Each file in the settings is a credential of the unit, and the runbook explains it."""
    runbook = (FOLDER / "runbook.md").read_text(encoding="utf-8")
    fields = {field.name for field in dataclasses.fields(Settings)}
    for file, secrets, task in (
        ("tls.conf", {"chain", "key"}, "Renew a certificate"),
        ("upload-keys.conf", {"upload-keys"}, "Replace an upload key"),
    ):
        drop_in = parse_unit(file)
        credentials = {credential.partition(":")[0] for credential in drop_in["LoadCredential"]}
        settings = [assignment.partition("=") for assignment in drop_in["Environment"]]
        named = {value.removeprefix("%d/") for *_, value in settings if value.startswith("%d/")}
        assert named == credentials == secrets
        assert {name.removeprefix("RAPPOR_SERVER_").lower() for name, *_ in settings} <= fields
        _, _, advice = runbook.partition(f"**{task}**")
        assert f"[{file}]({file})" in advice.partition("- **")[0], task


def test_https_without_a_proxy_is_reachable() -> None:
    """The drop-in listens on all addresses, and a port below 1024 has the capability it needs."""
    drop_in = parse_unit("tls.conf")
    variables = dict(assignment.split("=") for assignment in drop_in["Environment"])
    assert variables["RAPPOR_SERVER_HOST"] == "0.0.0.0"  # noqa: S104 - the address in question
    assert int(variables["RAPPOR_SERVER_PORT"]) < 1024
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert drop_in[key] == ["CAP_NET_BIND_SERVICE"]


def test_units_share_one_file_of_settings() -> None:
    """Each unit names the same file of settings, whose names and values are valid."""
    for name in UNITS:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert "Environment=RAPPOR_SERVER_CONFIG=/etc/rappor/server.toml" in text
    chosen = Settings(**tomllib.loads((FOLDER / "server.toml").read_text(encoding="utf-8")))
    assert chosen.registry == "/etc/rappor/metrics.toml"
    assert chosen.admin_address == ("127.0.0.1", 9090)


@pytest.mark.slow
def test_each_collector_has_an_environment_and_folders_of_its_own() -> None:
    """Each unit of an instance, such as rappor-prune@mytool, reads the instance's environment file.

    The last file wins. The backups and sites of two collectors have equal names, so each instance
    has a folder, which systemd creates.
    """
    for name in UNITS:
        unit = parse_unit(name)
        assert unit["EnvironmentFile"][-1] == "-/etc/rappor/environment-%i"
        (command,) = unit["ExecStart"]
        for folder in re.findall("/var/lib/([^ ]+)", command):
            assert folder.endswith("/%i")
            assert folder in unit["StateDirectory"][0].split()


def test_commands_create_no_database(tmp_path: Path) -> None:
    """Commands read the file of settings. A wrong database address is refused and creates no file.

    Only `serve`, `migrate` and `restore` create a database.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    missing_database = tmp_path / "nowhere.sqlite3"
    config = tmp_path / "server.toml"
    config.write_text(f'registry = "{registry}"\ndatabase = "sqlite:///{missing_database}"\n')
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
        result = call_command(*arguments, **named)
        assert result.returncode == 2, arguments
        assert "database must contain the tables of a collector" in result.stderr
        assert "nowhere.sqlite3, which does not exist: run rappor-server serve" in result.stderr
        assert not missing_database.exists()
    # `check` needs no database: a registry is checked before the first start, too.
    assert call_command("check", str(registry), **named).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.toml", "server.toml"]
    assert call_command("migrate", **named).returncode == 0
    assert "deleted 0 deduplication keys" in call_command("prune", **named).stdout
