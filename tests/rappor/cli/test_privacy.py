"""`rappor privacy`: its figures are the library's, for people and for scripts."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registries import entry_of, toml_of
from shell import Shell, ok, refused

from rappor import Counts, Params
from rappor.privacy.changing_values import change_visibility
from rappor.privacy.shuffling import shuffled_epsilon
from rappor.protocol.loss import belief_bound, epsilon_inf, epsilon_n

Answer = tuple[int, str, str]


@pytest.fixture
def ask(shell: Shell) -> Callable[..., Answer]:
    """Run the command where a registry, and one with changed entries, lie."""
    both = {"k": "128", "m": "8", "p": "0.25", "q": "0.75", "interval": '"none"'}
    life, year = {"f": "0.5", "patterns": "2"}, {"f": "0.25", "epoch": '"year"'}
    changes: dict[str, dict[str, str]] = {"fainter": {"p": "0.5"}, "redrawn": {"f": "0.125"}}
    for name, change in [("r", {}), *changes.items()]:
        text = toml_of("life", **both | life | change) + entry_of("year", **both | year | change)
        (shell.place / f"{name}.toml").write_text(text)
    return functools.partial(shell, "privacy")


LIFE = Params(k=128, h=1, m=8, f=0.5, p=0.25, q=0.75)
YEAR = Params(k=128, h=1, m=8, f=0.25, p=0.25, q=0.75)
OTHER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
BROWSER = ("-k", "128", "--hashes", "2", "-f", ".5", "-p", ".25", "-q", ".75", "--cohorts")
EIGHT = (*BROWSER, "8")


def report_of(answer: Answer) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(ok(answer))
    return report


def test_json_holds_what_the_library_says(ask: Callable[..., Answer]) -> None:
    """Losses, beliefs, changes, batch, links and the whole registry."""
    report = report_of(ask("life", "--registry", "r.toml", "--reports", "3", "--json"))
    assert report["fingerprint"] == LIFE.fingerprint
    assert (report["p_star"], report["q_star"]) == (LIFE.p_star, LIFE.q_star)
    assert report["epsilon_inf"] == epsilon_inf(LIFE)
    assert [loss["reports"] for loss in report["losses"]] == [1, 2, 3, 5, 10, 100, None]
    for loss in report["losses"]:
        n = loss["reports"]
        assert loss["epsilon"] == (epsilon_inf(LIFE) if n is None else epsilon_n(LIFE, n))
        assert [belief["prior"] for belief in loss["beliefs"]] == [0.01, 0.1, 0.5, 0.9]
        for belief in loss["beliefs"]:
            bound = belief_bound(loss["epsilon"], belief["prior"])
            assert (belief["least"], belief["most"]) == bound
    seen = change_visibility(LIFE, 1, 1)
    row = {"reports": 2, "accounted": seen.accounted, "worst": seen.worst, "mean": seen.mean}
    assert report["value_changes"][0] == row
    assert report["promise"].startswith("Promise: in its whole life")
    assert "up to 2 values" in report["promise"]
    assert report["linkability"]["cohort_bits"] == 3
    assert report["linkability"]["reports_to_recover"] == 51
    person = report["account"]
    assert [row["metric"] for row in person["metrics"]] == ["life", "year"]
    assert person["epsilon"] == epsilon_n(LIFE, 3) + epsilon_n(YEAR, 3)
    assert person["epsilon_inf"] == epsilon_inf(LIFE) + epsilon_inf(YEAR)
    assert person["group_epsilon"] == 2 * person["epsilon"]


def test_epochs_have_the_other_promise(ask: Callable[..., Answer]) -> None:
    """There is nothing to tell about a change where a device keeps to one value an epoch."""
    report = report_of(ask("year", "--registry", "r.toml", "--values", "4", "--json"))
    assert report["promise"].startswith("Promise: in each year")
    assert report["value_changes"] == []
    assert report["account"]["metrics"][1]["epsilon_inf"] == 4 * epsilon_inf(YEAR)


def test_batch_is_divided_by_cohorts(ask: Callable[..., Answer], tmp_path: Path) -> None:
    """The actual smallest cohort of counts, one that is likely, or all where there is one."""
    reports = np.array([5_000, 4_000, 0, 6_000, 5_000, 5_000, 5_000, 5_000])
    path = tmp_path / "c.counts"
    Counts(LIFE, np.zeros((8, 128), dtype=int), reports).save(path)
    shuffled = ("--shuffled", "1e6", "--counts", "c.counts")
    words = ("life", "--registry", "r.toml", *shuffled, "--delta", "1e-6", "--json")
    batch = report_of(ask(*words))["shuffling"]
    assert (batch["devices"], batch["smallest_cohort"], batch["counted"]) == (35_000, 4_000, True)
    epsilon = shuffled_epsilon(epsilon_n(LIFE, 1), 4_000, delta=1e-6)
    assert batch["losses"][0]["epsilon"] == epsilon < epsilon_n(LIFE, 1)
    err = refused(ask(*EIGHT, *shuffled))
    assert f"counts must be of parameters {OTHER.fingerprint}, got {LIFE.fingerprint}" in err
    likely = report_of(ask(*EIGHT, "--shuffled", "35000", "--json"))["shuffling"]
    assert 3_500 < likely["smallest_cohort"] < 35_000 / 8
    few = report_of(ask(*EIGHT, "--shuffled", "9", "--json"))["shuffling"]
    assert (few["smallest_cohort"], few["losses"]) == (0, [])
    one = report_of(ask(*BROWSER, "1", "--shuffled", "10", "--json"))
    assert one["shuffling"]["smallest_cohort"] == 10


def test_a_change_of_parameters_is_priced(ask: Callable[..., Answer]) -> None:
    """P and q alone keep the permanent response; f draws a new one; epochs wait."""
    words = ("life", "--registry", "r.toml", "--json", "--changed")
    kept = report_of(ask(*words, "fainter.toml"))
    assert kept["change"]["kept"]
    assert kept["change"]["epsilon_inf"] == epsilon_inf(LIFE)
    assert kept["joint_error"]["same_devices"] > kept["joint_error"]["together"]
    drawn = report_of(ask(*words, "redrawn.toml"))["change"]
    assert not drawn["kept"]
    assert drawn["epsilon_inf"] > epsilon_inf(LIFE)
    for name, changed, said in (
        ("life", "fainter.toml", "keep their permanent responses"),
        ("life", "redrawn.toml", "draw new permanent responses"),
        ("year", "fainter.toml", "with the next year"),
        ("life", "r.toml", "Nothing changes"),
    ):
        assert said in " ".join(ok(ask(name, "--registry", "r.toml", "--changed", changed)).split())


def test_infinite_losses_are_null_and_said(ask: Callable[..., Answer]) -> None:
    """JSON has no infinity; people read the word."""
    words = ("-f", "0", "-p", "0", "-q", "1")
    report = report_of(ask(*words, "--json"))
    assert report["epsilon_1"] is None
    assert report["epsilon_inf"] is None
    out = ok(ask(*words))
    assert "infinite" in out
    assert "The permanent response reveals 0 bits once" in " ".join(out.split())


def test_people_read_every_section(ask: Callable[..., Answer]) -> None:
    """The figures of the paper's tables stand in the text."""
    out = ok(ask(*EIGHT, "--shuffled", "1e6"))
    for said in (
        "2.0433",
        "3.389",
        "4.3944",
        "identify a device among",
        "51 reports",
        "half way",
        "after shuffling",
        "a shuffler that neither you nor the collector runs",
        "A value that stays",
    ):
        assert said in out
    assert "shuffl" not in ask(*EIGHT)[1]
    assert "Account of one person" not in out
    assert "Account of one person" in ask("life", "--registry", "r.toml")[1]
    assert max(map(len, out.splitlines())) <= 100


def test_a_chart_that_cannot_be_saved_leaves_no_text(
    ask: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written first: whoever reads the text has the chart too."""
    (tmp_path / "taken.svg").mkdir()
    assert "taken.svg" in refused(ask("--profile", "strict", "--chart", "taken.svg"))
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert "rappor[png]" in refused(ask("--profile", "strict", "--chart", "a.png"))


def test_chart_is_drawn(ask: Callable[..., Answer], tmp_path: Path) -> None:
    """Posterior against prior, for 1 report, 10, and any number; strict has two in one place."""
    path = tmp_path / "belief.svg"
    ok(ask("--profile", "strict", "--chart", str(path)))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 4
    assert "10 reports: epsilon = 2; any number: epsilon = 2" in text
