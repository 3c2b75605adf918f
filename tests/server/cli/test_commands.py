"""Commands of `rappor-server`: output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import REGISTRY, run_command


@pytest.mark.slow
def test_check_command(tmp_path: Path) -> None:
    """The exit code is 0 for a registry, 1 for a refused edit, 2 for a missing file."""
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(REGISTRY)
    new.write_text(REGISTRY.replace("[metrics.old]", "[metrics.new]"))
    result = run_command("check", str(old))
    assert result.returncode == 0
    assert "warning: old: expired on 2020-01-01" in result.stdout
    assert "4 metrics may be served" in result.stdout
    edited = run_command("check", str(new), "--against", str(old))
    assert edited.returncode == 1
    assert "refused: old: a metric must stay" in edited.stdout
    assert run_command("check", str(tmp_path / "absent.toml")).returncode == 2


@pytest.mark.slow
def test_database_commands(tmp_path: Path, database: str) -> None:
    """migrate, prune, export, backup and restore print their results."""
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    options = ["--registry", str(path), "--database", database]
    assert "has the schema of this version" in run_command("migrate", *options).stdout
    assert "deleted 0 deduplication keys" in run_command("prune", *options).stdout
    _, name, _ = run_command("token", "create", *options).stdout.split(".")
    assert name in run_command("token", "list", *options).stdout
    assert run_command("token", "revoke", "nothing", *options).returncode == 1
    copy = tmp_path / "copy.sqlite3"
    assert run_command("backup", str(copy), *options).returncode == 0
    (tmp_path / "daily").mkdir()
    assert "daily/counts-20" in run_command("backup", str(tmp_path / "daily"), *options).stdout
    refused = run_command("restore", str(copy), *options)
    assert refused.returncode == 2
    assert "must be empty" in refused.stderr
    other = ["--registry", str(path), "--database", f"sqlite:///{tmp_path / 'other.sqlite3'}"]
    restored = run_command("restore", str(copy), *other).stdout
    assert restored.startswith(f"restored\nvalid tokens: {name}; revoke")
    days = ["--from", "2026-01-01", "--to", "2026-01-02"]
    exported = run_command("export", str(tmp_path / "lake"), "--metric", "sound", *days, *options)
    assert exported.returncode == 0, exported.stderr
    assert exported.stderr == "no counts are released for these days\n"
    for last, message in (
        ("2999-01-01", "a day that has ended"),
        ("2025-12-31", "must not be after --to"),
    ):
        arguments = [str(tmp_path / "lake"), "--metric", "sound", *days[:3], last]
        exported = run_command("export", *arguments, *options)
        assert (exported.returncode, message in exported.stderr) == (2, True)
    wrong = run_command("export", str(tmp_path / "lake"), "--metric", "none", *days, *options)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
    assert run_command("prune").returncode == 2
    assert "--registry" in run_command("prune").stderr
    mistyped = run_command("prune", "--registry", "nosuch.toml")
    assert mistyped.returncode == 2
    assert "nosuch.toml: it does not exist" in mistyped.stderr
    assert run_command("token", "create", *options, "--metric", "nothing").returncode == 2


@pytest.mark.slow
def test_secrets_stay_out_of_errors(tmp_path: Path) -> None:
    """No message contains the password of a database."""
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    url = "postgresql://user:telltale@127.0.0.1:1/x?connect_timeout=1"
    quick = ("--database-seconds", "1")
    result = run_command("serve", str(path), *quick, RAPPOR_SERVER_DATABASE=url)
    assert result.returncode == 2
    assert "the database cannot answer" in result.stderr
    assert "telltale" not in result.stdout + result.stderr
