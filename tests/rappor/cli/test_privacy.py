"""`rappor privacy`: its figures are the library's, for people and for scripts."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import Shell, ok, refused

from rappor import Counts, Params
from rappor.privacy.changing_values import change_visibility
from rappor.privacy.shuffling import shuffled_epsilon
from rappor.protocol.loss import belief_bound, epsilon_inf, epsilon_n

BUDGET = "[budget]\ntotal = inf\n"
ENTRY = """
[metrics.{name}]
description = "d"
owner = "o"
expires = 2999-12-31
epoch = "{epoch}"
patterns = {patterns}
interval = "none"
encoding = "bloom"
k = 128
h = 1
m = 8
f = {f}
p = {p}
q = 0.75
"""

Answer = tuple[int, str, str]


@pytest.fixture
def ask(shell: Shell) -> Callable[..., Answer]:
    """Run the command where a registry, and one with changed entries, lie."""
    life = {"name": "life", "f": 0.5, "p": 0.25, "epoch": "life", "patterns": 2}
    year = {"name": "year", "f": 0.25, "p": 0.25, "epoch": "year", "patterns": 1}
    (shell.place / "r.toml").write_text(BUDGET + ENTRY.format(**life) + ENTRY.format(**year))
    changes = ({"p": 0.5}, {"f": 0.125})
    for name, change in zip(("fainter.toml", "redrawn.toml"), changes, strict=True):
        text = BUDGET + ENTRY.format(**life | change) + ENTRY.format(**year | change)
        (shell.place / name).write_text(text)
    return functools.partial(shell, "privacy")


LIFE = Params(k=128, h=1, m=8, f=0.5, p=0.25, q=0.75)
YEAR = Params(k=128, h=1, m=8, f=0.25, p=0.25, q=0.75)
OTHER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
BROWSER = ("-k", "128", "--hashes", "2", "-f", ".5", "-p", ".25", "-q", ".75", "--cohorts")
BATCH = ("--shuffled", "1e6")
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
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    """The file is written first: whoever reads the text has the chart too."""
    (tmp_path / "taken.svg").mkdir()
    assert "taken.svg" in refused(ask("--profile", "strict", "--chart", "taken.svg"))


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_chart_is_drawn(suffix: str, ask: Callable[..., Answer], tmp_path: Path) -> None:
    """Posterior against prior, for 1 report, 10, and any number; strict has two in one place."""
    path = tmp_path / f"belief{suffix}"
    ok(ask("--profile", "strict", "--chart", str(path)))
    assert path.stat().st_size > 3_000
    if suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        assert text.count("<polyline") == 4
        assert "10 reports: epsilon = 2; any number: epsilon = 2" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --registry and --metric, or --profile, or -f, -p and -q"),
        (("life",), "give --registry and --metric"),
        (("life", "--profile", "strict"), "give only one of: a metric of a registry"),
        (("--registry", "r.toml"), "give --registry and --metric"),
        (("life", "--registry", "r.toml", "--metric", "life"), "name the metric once"),
        (("lief", "--registry", "r.toml"), "did you mean 'life'?"),
        (("-f", "nan", "-p", ".2", "-q", ".5"), "f must be a number in [0, 1), got nan"),
        (("--profile", "strict", "--counts", "c.counts"), "--counts goes with --shuffled"),
        (
            ("--profile", "strict", *BATCH, "--delta", "0"),
            "delta must be a number in (0, 1), got 0.0",
        ),
        (
            ("--profile", "strict", *BATCH, "--delta", "nan"),
            "delta must be a number in (0, 1), got nan",
        ),
        (("--profile", "strict", "--reports", "0"), "--reports"),
        (("--profile", "strict", "--group", "-1"), "--group"),
        (("--profile", "strict", "--changed", "r.toml"), "--changed needs --registry"),
        (("--profile", "strict", "--chart", "a.pdf"), "chart must end in .svg, .png, .html"),
        (("--profile", "strict", "--chart", "nowhere/a.svg"), "there is no folder nowhere"),
        (("life", "--registry", "r.toml", "--changed", "nope.toml"), "nope.toml"),
        (("--profile", "strict", *BATCH, "--counts", "none.counts"), "none.counts"),
        (("--profile", "strict", "-f", ".3"), "give only one of: a metric of a registry"),
        (("--profile", "strict", "-k", "8"), "give only one of: a metric of a registry"),
        (("home", "--registry", "r.toml", "-f", ".3"), "give only one of: a metric of a registry"),
        (("--profile", "strict", "--devices", "0"), "0 is less than 1"),
        (("--profile", "strict", "--devices", "1e300"), "1e300 is more than 1,000,000,000,000,000"),
        (("--profile", "strict", "--values", "1e16"), "1e16 is more than 1,000,000,000,000,000"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: tuple[str, ...], said: str, ask: Callable[..., Answer]
) -> None:
    """Exit code 2, no traceback, nothing on standard output."""
    assert said in refused(ask(*words))


def test_what_a_png_lacks_is_told_before_the_work() -> None:
    """One sentence that names the extra."""
    program = (
        "import sys\nsys.modules['resvg_py'] = None\nfrom rappor.cli.app import run\n"
        "sys.exit(run(['privacy', '--profile', 'strict', '--chart', 'a.png']))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "rappor[png]" in answer.stderr


@pytest.mark.parametrize("command", ["privacy", "plan", "demo"])
def test_a_profile_that_went_away_names_its_successor(shell: Shell, command: str) -> None:
    """In the sentence of the library, not in a list of choices."""
    err = refused(shell(command, "--profile", "accurate"))
    assert "got 'accurate': low-noise loses less" in " ".join(err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--epsilon", "3"), "`rappor plan --epsilon-1 NATS"), (("--jsn",), "Did you mean '--json'?")],
)
def test_an_epsilon_is_asked_of_the_plan(shell: Shell, words: tuple[str, ...], said: str) -> None:
    """The option of another command is named with it; any other is click's to suggest."""
    assert said in refused(shell("privacy", *words))
