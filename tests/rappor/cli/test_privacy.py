"""`rappor privacy`: its numbers equal the library's, as text and as JSON."""

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

from rappor import Counts, Params, Registry
from rappor.cli.console import print_json
from rappor.privacy.assessment import ShuffledBatch, Usage, privacy_report

Answer = tuple[int, str, str]


@pytest.fixture
def ask(shell: Shell) -> Callable[..., Answer]:
    """Run the command in a folder with a registry and a registry with changed entries."""
    both = {"k": "128", "m": "8", "p": "0.25", "q": "0.75"}
    life, year = {"f": "0.5"}, {"f": "0.25", "epoch": '"year"'}
    changes: dict[str, dict[str, str]] = {"fainter": {"p": "0.5"}, "redrawn": {"f": "0.125"}}
    for name, change in [("r", {}), *changes.items()]:
        text = toml_of("life", **both | life | change) + entry_of("year", **both | year | change)
        (shell.place / f"{name}.toml").write_text(text)
    return functools.partial(shell, "privacy")


LIFE = Params(k=128, h=1, m=8, f=0.5, p=0.25, q=0.75, interval="day", epoch="life")
OTHER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
BROWSER = ("-k", "128", "--hashes", "2", "-f", ".5", "-p", ".25", "-q", ".75", "--cohorts")
EIGHT = (*BROWSER, "8")
SENT = (5_000, 4_000, 0, 6_000, 5_000, 5_000, 5_000, 5_000)
COUNTED = "--shuffled 1e6 --counts c.counts"


def report_of(answer: Answer) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(ok(answer))
    return report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        ("life", "--reports 3", {"usage": Usage(reports=3)}),
        ("year", "--values 4 --group 3", {"usage": Usage(values=4, group=3)}),
        (
            "life",
            f"{COUNTED} --delta 1e-6",
            {"batch": ShuffledBatch(devices=10**6, delta=1e-6, cohorts=SENT)},
        ),
        ("year", "--shuffled 35000", {"batch": ShuffledBatch(devices=35_000)}),
        ("life", "--changed fainter.toml", {"changed": "fainter"}),
        ("life", "--changed redrawn.toml", {"changed": "redrawn"}),
    ],
)
def test_json_is_what_the_library_says(
    ask: Callable[..., Answer],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    words: str,
    options: dict[str, Any],
) -> None:
    """The JSON has every field of the library's record, with usage, batch and change."""
    Counts(LIFE, np.zeros((8, 128), dtype=int), np.array(SENT)).save(tmp_path / "c.counts")
    document = report_of(ask(name, "--registry", "r.toml", *words.split(), "--json"))
    registry = Registry.load(tmp_path / "r.toml")
    if "changed" in options:
        changed = Registry.load(tmp_path / f"{options['changed']}.toml")
        options = {"changed": changed[name]}
        error = document["joint_error"]
        assert (error["same_devices"] > error["together"]) is document["change"]["kept"]
    print_json(privacy_report(registry[name], registry=registry, **options))
    expected = json.loads(capfd.readouterr().out)
    assert {key: document[key] for key in expected} == expected
    assert set(document) == {*expected, "joint_error", "detection"}


def test_counts_of_a_batch_are_of_the_same_parameters(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    """Counts of other parameters are refused, and the error has both fingerprints."""
    Counts.zero(LIFE).save(tmp_path / "c.counts")
    err = refused(ask(*EIGHT, *COUNTED.split()))
    assert f"counts must be of parameters {OTHER.fingerprint}, got {LIFE.fingerprint}" in err


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("life", "fainter.toml", "keep their permanent responses"),
        ("life", "redrawn.toml", "draw new permanent responses"),
        ("year", "fainter.toml", "with the next year"),
        ("life", "r.toml", "Nothing changes"),
    ],
)
def test_a_change_is_told_in_words(
    ask: Callable[..., Answer], name: str, changed: str, said: str
) -> None:
    """A change of p and q keeps the permanent response, f draws a new one, and epochs wait."""
    assert said in " ".join(ok(ask(name, "--registry", "r.toml", "--changed", changed)).split())


def test_infinite_losses_are_null_and_said(ask: Callable[..., Answer]) -> None:
    """An infinite loss is null in JSON and the word "infinite" in the text."""
    words = ("-f", "0", "-p", "0", "-q", "1")
    report = report_of(ask(*words, "--json"))
    assert report["epsilon_1"] is None
    assert report["epsilon_inf"] is None
    out = ok(ask(*words))
    assert "infinite" in out
    assert "The permanent response reveals 0 bits once" in " ".join(out.split())


def test_people_read_every_section(ask: Callable[..., Answer]) -> None:
    """The text contains the numbers of the paper's tables in every section."""
    out = ok(ask(*EIGHT, "--shuffled", "1e6"))
    for sentence in (
        "2.0433",
        "3.389",
        "4.3944",
        "identify a device among",
        "51 reports",
        "after shuffling",
        "a shuffler that neither you nor the collector runs",
        "A value that stays",
    ):
        assert sentence in out
    assert "shuffl" not in ask(*EIGHT)[1]
    assert "Account of one person" not in out
    assert "Account of one person" in ask("life", "--registry", "r.toml")[1]
    assert max(map(len, out.splitlines())) <= 100


def test_a_chart_that_cannot_be_saved_leaves_no_text(
    ask: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart is written before the text, so a failure prints no text."""
    (tmp_path / "taken.svg").mkdir()
    assert "taken.svg" in refused(ask("--profile", "strict", "--chart", "taken.svg"))
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert "rappor[png]" in refused(ask("--profile", "strict", "--chart", "a.png"))


def test_chart_is_drawn(ask: Callable[..., Answer], tmp_path: Path) -> None:
    """The chart has a curve for 1 report, 10 reports and any number. Equal curves share a label."""
    path = tmp_path / "belief.svg"
    ok(ask("--profile", "strict", "--chart", str(path)))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 4
    assert "10 reports: epsilon = 2; any number: epsilon = 2" in text
