"""Commands of `rappor-server` that end by themselves: output, exit codes, error messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collectors import REGISTRY, call_command, run_command
from databases import ON_BOTH_DATABASES
from rappor_server.storage.database import utc_today


@pytest.mark.slow
def test_check_command(tmp_path: Path) -> None:
    """The exit code of `check` is 0 for a registry that may be served, 1 for one that must not.

    A pipeline calls `check` before it deploys a registry, and stops at 1. The new registry here
    lacks the metric `old`, whose name must never mean another metric. Exit code 2 means that the
    command could not check, because the file is missing.
    """
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(REGISTRY)
    new.write_text(REGISTRY.replace("[metrics.old]", "[metrics.new]"))
    result = run_command("check", str(old))
    assert result.returncode == 0
    assert "warning: old: expired on 2020-01-01" in result.stdout
    assert "4 metrics may be served" in result.stdout
    edited = call_command("check", str(new), "--against", str(old))
    assert edited.returncode == 1
    assert "refused: old: a metric must stay" in edited.stdout
    # `serve` refuses a smaller minimum while `older` names the registry before.
    new.write_text(REGISTRY.replace("min_cohort = 2", "min_cohort = 1"))
    edited = call_command("check", str(new), "--against", str(old))
    assert edited.returncode == 1
    assert "refused: small: min_cohort must not fall from 2 to 1" in edited.stdout
    assert "may be served" not in edited.stdout


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_database_commands(tmp_path: Path, database: str) -> None:
    """Commands on a database print a result that an operator can act on, or one sentence of error.

    An operator runs these commands from timers and reads the output in a journal. Exit code 2 means
    wrong input. The message names the option or the file, and contains no traceback.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    options = ["--registry", str(path), "--database", database]
    assert "has the schema of this version" in call_command("migrate", *options).stdout
    assert "deleted 0 deduplication keys" in call_command("prune", *options).stdout
    without_token = call_command("token", "list", *options)
    assert (without_token.returncode, without_token.stdout) == (0, "")
    assert "no token exists" in without_token.stderr
    _, name, _ = call_command("token", "create", *options).stdout.split(".")
    assert name in call_command("token", "list", *options).stdout
    assert call_command("token", "revoke", "nothing", *options).returncode == 1  # no such token
    copy = tmp_path / "copy.sqlite3"
    assert call_command("backup", str(copy), *options).returncode == 0
    # Into a folder, `backup` writes a file whose name has the day and the time, so a timer needs no
    # date. A backup by hand on the same day is no obstacle.
    daily = tmp_path / "daily"
    daily.mkdir()
    (daily / f"counts-{utc_today()}.bak").touch()
    written = call_command("backup", str(daily), *options).stdout
    assert re.fullmatch(r"written: .*/daily/counts-[0-9-]{10}T[0-9]{6}Z\.bak\n", written)
    # The original database has rows, and a restore would mix the rows of two databases.
    refused = call_command("restore", str(copy), *options)
    assert refused.returncode == 2
    assert "must be empty" in refused.stderr
    options_of_copy = [
        "--registry",
        str(path),
        "--database",
        f"sqlite:///{tmp_path / 'other.sqlite3'}",
    ]
    # The copy contains the tokens of its day, also a token that was revoked later. The command
    # therefore lists the tokens that are valid again.
    restored = call_command("restore", str(copy), *options_of_copy).stdout
    assert restored.startswith(f"restored\nvalid tokens: {name}; revoke")
    days = ["--from", "2026-01-01", "--to", "2026-01-02"]
    exported = call_command("export", str(tmp_path / "lake"), "--metric", "sound", *days, *options)
    assert exported.returncode == 0, exported.stderr
    assert exported.stderr == "no counts are released for these days\n"
    n_tokens = len(call_command("token", "list", *options).stdout.splitlines())
    late = call_command("token", "create", *options, "--expires", "2020-01-01")
    assert (late.returncode, late.stdout) == (2, "")
    assert "--expires must be at least today" in late.stderr
    assert len(call_command("token", "list", *options).stdout.splitlines()) == n_tokens


@pytest.mark.slow
def test_secrets_stay_out_of_errors(tmp_path: Path) -> None:
    """The message about a database that cannot be reached lacks the password of the database.

    The operator passes the password in the URL, and the driver of PostgreSQL quotes URLs in its
    errors. Logs are read by more people than the settings. Nothing listens on port 1.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    url = "postgresql://user:telltale@127.0.0.1:1/x?connect_timeout=1"
    short_wait = ("--database-seconds", "1")
    result = run_command("serve", str(path), *short_wait, RAPPOR_SERVER_DATABASE=url)
    assert result.returncode == 2
    assert "the database cannot answer" in result.stderr
    assert "telltale" not in result.stdout + result.stderr
