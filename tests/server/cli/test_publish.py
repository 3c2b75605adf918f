"""`rappor-server publish`: editions of whole weeks on a static site."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from collectors import LOUD, UNBOUNDED, call_command, format_entry, store_counts
from dashboards import TOML
from rappor_server.storage.database import open_database, utc_today
from rappor_server.storage.schema_versions import migrate

from rappor import Population, Registry, simulate_counts

TABLES = '[program]\nname = "Sketch"\n[installations]\nmetric = "theme"\n'
"""These tables of a registry name the program, and the metric that counts installations."""


@pytest.mark.slow
def test_whole_weeks_are_published(tmp_path: Path) -> None:
    """An edition contains whole weeks only, and the same weeks give the same edition.

    A part of a week would have fewer reports than its neighbours, and its shares would change until
    Sunday. The address of an edition never changes, so a second run on the same counts must write
    the same page to the same address. The numbers of the page are those of three past weeks, in
    which the share of "light" was 3/4, 3/4 and then 1/3. The reports of the present week, with a
    share of 1/10, do not show.
    """
    registry, site = tmp_path / "metrics.toml", tmp_path / "site"
    registry.write_text(TOML, encoding="utf-8")
    database = f"sqlite:///{tmp_path / 'metrics.sqlite3'}"
    migrate(database)
    today = utc_today()
    monday = today - datetime.timedelta(days=today.weekday())
    params = Registry.load(registry)["theme"].params
    with open_database(database) as engine:
        # How many weeks ago the reports came, and the relative frequencies of light and dark.
        for weeks, shares in ((0, [1, 9]), (1, [1, 2]), (2, [3, 1]), (3, [3, 1])):
            counts = simulate_counts(
                Population(["light", "dark"], shares),
                params.with_segment((("version", "1"),)),
                n_reports=5000,
                seed=weeks,
                metric="theme",
            )
            store_counts(engine, counts, monday - datetime.timedelta(days=7 * weeks))
    arguments = ("--registry", str(registry), "--metric", "theme", "--out", str(site))
    result = call_command("publish", *arguments)
    assert result.returncode == 0, result.stderr
    (page,) = site.glob("theme/*/index.html")
    text = page.read_text(encoding="utf-8")
    assert "2 of the 2 listed values were found in use." in text
    assert "light</bdi> fell from" in text
    assert "15,000 reports from 3 weeks" in text
    assert str(page) in result.stdout
    # Without --metric, `publish` takes the metrics with a minimum of reports. In this registry only
    # the metric `other` has a minimum, and no report of it has come.
    every_metric = call_command("publish", "--registry", str(registry), "--out", str(site))
    assert every_metric.stdout == (
        "other: no whole week is released yet\n"
        "not published, because min_reports is 0 as in a trial: home_page, theme, setup; "
        "--metric NAME publishes a metric all the same\n"
    )
    # The same weeks under a registry that names the program and counts installations, which needs
    # a minimum of reports. All 5,000 reports of a week came on its Monday.
    with_installations = (TABLES + TOML).replace("min_reports = 0", "min_reports = 100")
    registry.write_text(with_installations, encoding="utf-8")
    result = call_command("publish", *arguments)
    assert result.returncode == 0, result.stderr
    page = Path(result.stdout.split(" in ", 1)[1].strip())
    text = page.read_text(encoding="utf-8")
    (end,) = re.findall(r"<h1>Sketch: theme, \S+ to (\S+)</h1>", text)
    last_monday = datetime.date.fromisoformat(end) - datetime.timedelta(days=6)
    assert f"<strong>5,000</strong> active installations on {last_monday}." in text
    assert text.index("<strong>5,000</strong>") < text.index("leads with")
    assert call_command("publish", *arguments).stdout == result.stdout


def test_a_registry_of_trials_says_why_nothing_is_published(tmp_path: Path) -> None:
    """If every metric is a trial, the command names them and the reason, and writes no site.

    A metric without a minimum of reports shows every report at once, so it is published only by
    name. The command once ended without a word.
    """
    registry, site = tmp_path / "metrics.toml", tmp_path / "site"
    entry = format_entry("word", k=32, m=8, candidates=["a", "b"], **LOUD)
    registry.write_text(UNBOUNDED + entry, encoding="utf-8")
    migrate(f"sqlite:///{tmp_path / 'metrics.sqlite3'}")
    result = call_command("publish", "--registry", str(registry), "--out", str(site))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        "not published, because min_reports is 0 as in a trial: word; "
        "--metric NAME publishes a metric all the same\n"
    )
    assert not site.exists()
