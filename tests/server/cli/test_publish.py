"""`rappor-server publish`: editions of whole weeks on a static site."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from collectors import put, run_command
from dashboards import TOML
from rappor_server.storage.database import open_database, utc_today
from rappor_server.storage.schema_versions import migrate

from rappor import Population, Registry, simulate_counts

TABLES = '[program]\nname = "Sketch"\n[installations]\nmetric = "theme"\n'


@pytest.mark.slow
def test_whole_weeks_are_published(tmp_path: Path) -> None:
    """The present week is not published. The same weeks give the same edition.

    Without --metric, a line names each metric that has no whole week.
    """
    registry, site = tmp_path / "metrics.toml", tmp_path / "site"
    registry.write_text(TOML, encoding="utf-8")
    database = f"sqlite:///{tmp_path / 'metrics.sqlite3'}"
    migrate(database)
    today = utc_today()
    monday = today - datetime.timedelta(days=today.weekday())
    params = Registry.load(registry, today=datetime.date(2025, 1, 1))["theme"].params
    with open_database(database) as engine:
        for weeks, shares in ((0, [1, 9]), (1, [1, 2]), (2, [3, 1]), (3, [3, 1])):
            counts = simulate_counts(
                Population(["light", "dark"], shares),
                params.with_segment((("version", "1"),)),
                n_reports=5000,
                seed=weeks,
                metric="theme",
            )
            put(engine, counts, monday - datetime.timedelta(days=7 * weeks))
    arguments = ("--registry", str(registry), "--metric", "theme", "--out", str(site))
    result = run_command("publish", *arguments)
    assert result.returncode == 0, result.stderr
    (page,) = site.glob("theme/*/index.html")
    text = page.read_text(encoding="utf-8")
    assert "2 of the 2 listed values were found in use." in text
    assert "light</bdi> fell from" in text
    assert "15,000 reports from 3 weeks" in text
    assert str(page) in result.stdout
    assert run_command("publish", *arguments).stdout == result.stdout
    every_metric = run_command("publish", "--registry", str(registry), "--out", str(site))
    assert every_metric.stdout == "other: no whole week is released yet\n"
    # The same site with the name of the program and the number of its devices. All reports of a
    # week are from its Monday.
    counted = (TABLES + TOML).replace("min_reports = 0", "min_reports = 100")
    registry.write_text(counted, encoding="utf-8")
    result = run_command("publish", *arguments)
    assert result.returncode == 0, result.stderr
    page = Path(result.stdout.split(" in ", 1)[1].strip())
    text = page.read_text(encoding="utf-8")
    (end,) = re.findall(r"<h1>Sketch: theme, \S+ to (\S+)</h1>", text)
    last_monday = datetime.date.fromisoformat(end) - datetime.timedelta(days=6)
    assert f"<strong>5,000</strong> active installations on {last_monday}." in text
    assert text.index("<strong>5,000</strong>") < text.index("leads with")
    assert run_command("publish", *arguments).stdout == result.stdout
