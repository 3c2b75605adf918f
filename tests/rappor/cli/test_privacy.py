"""`rappor privacy`: its numbers equal the library's, as text and as JSON."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registries import format_entry, format_registry
from shell import Shell, expect_refusal, expect_success

from rappor import Counts, Params, Registry
from rappor.cli.console import print_json
from rappor.privacy.assessment import ShuffledBatch, Usage, privacy_report
from rappor.privacy.registry_datasheet import format_loss, sum_reserved
from rappor.protocol.loss import epsilon_inf

CommandResult = tuple[int, str, str]


@pytest.fixture
def run_privacy(shell: Shell) -> Callable[..., CommandResult]:
    """Return a function that runs `rappor privacy` in a folder with three registries.

    r.toml has the metrics life and year. fainter.toml and redrawn.toml have the same metrics with
    another p and with another f.
    """
    both = {"k": "128", "m": "8", "p": "0.25", "q": "0.75"}
    life, year = {"f": "0.5"}, {"f": "0.25", "epoch": '"year"'}
    changes: dict[str, dict[str, str]] = {"fainter": {"p": "0.5"}, "redrawn": {"f": "0.125"}}
    for name, change in [("r", {}), *changes.items()]:
        text = format_registry("life", **both | life | change) + format_entry(
            "year", **both | year | change
        )
        (shell.folder / f"{name}.toml").write_text(text)
    return functools.partial(shell, "privacy")


LIFE = Params(k=128, h=1, m=8, f=0.5, p=0.25, q=0.75, interval="day", epoch="life")
BROWSER = ("-k", "128", "--hashes", "2", "-f", ".5", "-p", ".25", "-q", ".75", "--cohorts")
EIGHT = (*BROWSER, "8")
SENT = (5_000, 4_000, 0, 6_000, 5_000, 5_000, 5_000, 5_000)
"""Numbers of reports. The counts of a batch have so many in each of eight cohorts."""

COUNTED = "--shuffled 1e6 --counts c.counts"


def parse_report(result: CommandResult) -> dict[str, Any]:
    """Return the JSON that a successful command printed."""
    report: dict[str, Any] = json.loads(expect_success(result))
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
def test_json_is_the_record_of_the_library(
    run_privacy: Callable[..., CommandResult],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    words: str,
    options: dict[str, Any],
) -> None:
    """The JSON has every field of `privacy_report`, with usage, batch and change.

    It also has the errors of a joint decode and the limit of detection.
    """
    Counts(LIFE, np.zeros((8, 128), dtype=int), np.array(SENT)).save(tmp_path / "c.counts")
    document = parse_report(run_privacy(name, "--registry", "r.toml", *words.split(), "--json"))
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


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("life", "fainter.toml", "keep their permanent responses"),
        ("life", "redrawn.toml", "draw new permanent responses"),
        ("year", "fainter.toml", "with the next year"),
        ("life", "r.toml", "Nothing changes"),
    ],
)
def test_a_sentence_describes_a_change(
    run_privacy: Callable[..., CommandResult], name: str, changed: str, sentence: str
) -> None:
    """A sentence states the effect of a changed entry on permanent responses.

    A change of p keeps them, and a change of f draws new ones. A metric with epochs changes with
    the next epoch.
    """
    assert sentence in " ".join(
        expect_success(run_privacy(name, "--registry", "r.toml", "--changed", changed)).split()
    )


def test_infinite_losses_are_null_or_a_word(run_privacy: Callable[..., CommandResult]) -> None:
    """An infinite loss is null in JSON and the word "infinite" in the text."""
    words = ("-f", "0", "-p", "0", "-q", "0.9")
    report = parse_report(run_privacy(*words, "--json"))
    assert report["epsilon_1"] is None
    assert report["epsilon_inf"] is None
    out = expect_success(run_privacy(*words))
    assert "infinite" in out
    assert "The permanent response reveals 0 bits once" in " ".join(out.split())


def test_text_has_every_section(run_privacy: Callable[..., CommandResult]) -> None:
    """The text has the losses of the browser's parameters in [EPK14], and every section.

    Sections about shuffling and about one person need --shuffled and a metric.
    """
    out = expect_success(run_privacy(*EIGHT, "--shuffled", "1e6"))
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
    assert "shuffl" not in run_privacy(*EIGHT)[1]
    assert "Account of one person" not in out
    assert "Account of one person" in run_privacy("life", "--registry", "r.toml")[1]
    assert max(map(len, out.splitlines())) <= 100


def test_text_fits_the_metric(run_privacy: Callable[..., CommandResult], tmp_path: Path) -> None:
    """No number of the text is about more reports, candidates or names than the metric has.

    Bad case: a yes-or-no metric with one report an epoch. The text once had the probability that
    two sets of 20 reports of the epoch recognise the device, a name "among 1 equally likely", and
    1,000 candidates.
    """
    noise = {"encoding": '"boolean"', "f": "0.5", "p": "0.25", "q": "0.75"}
    once = noise | {"epoch": '"quarter"', "interval": '"epoch"'}
    weekly = noise | {"epoch": '"month"', "interval": '"week"'}
    (tmp_path / "o.toml").write_text(
        format_registry("once", **once) + format_entry("weekly", **weekly)
    )
    text = " ".join(expect_success(run_privacy("once", "--registry", "o.toml")).split())
    assert "A value that stays epoch" in text
    assert "among 1 candidate (" in text
    assert "A device sends one report in an epoch, so an epoch has no two reports to link." in text
    assert not re.search(r"named|collisions|in each set|permanent response reveals", text)
    text = " ".join(expect_success(run_privacy("weekly", "--registry", "o.toml")).split())
    assert re.findall(r"\((\d+) reports? in each set\)", text) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "named", "advice"),
    [
        (("balanced",), True, 'one that stays, "life", or one report a year'),
        (("once",), True, '"life" is impossible: one report an epoch'),
        (("boolean",), False, 'one that stays, "life", or one report a year'),
    ],
)
def test_the_note_on_epochs_fits_the_registry(
    run_privacy: Callable[..., CommandResult],
    tmp_path: Path,
    words: tuple[str],
    named: bool,
    advice: str,
) -> None:
    """The advice names only epochs that a registry accepts, and the note has the assumptions.

    The assumption about common bits is for strings only. Bad case: under "once" the note once
    advised "life", which a registry refuses with one report an epoch.
    """
    if words == ("boolean",):
        noise = {"encoding": '"boolean"', "f": "0.5", "p": "0.25", "q": "0.75"}
        (tmp_path / "b.toml").write_text(format_registry("boolean", **noise))
        result = run_privacy("boolean", "--registry", "b.toml")
    else:
        result = run_privacy("--profile", *words)
    text = " ".join(expect_success(result).split())
    assert advice in text
    assert ("Random strings share bits" in text) is named
    assert ("counts collisions of strings, too" in text) is named
    assert "`rappor plan` prints another share" in text


def test_the_account_ends_with_the_loss_of_a_calendar_year(
    run_privacy: Callable[..., CommandResult], tmp_path: Path
) -> None:
    """Below the account of one epoch stands the loss of a whole year, as `rappor collects` has it.

    Bad case: the account once had the sum over one epoch of each metric only, a quarter of the
    loss of a year for metrics with quarters.
    """
    noise = {"k": "8", "m": "8", "f": "0.5", "p": "0.25", "q": "0.75", "epoch": '"quarter"'}
    (tmp_path / "q.toml").write_text(format_registry("quarterly", **noise))
    text = " ".join(expect_success(run_privacy("quarterly", "--registry", "q.toml")).split())
    year = sum_reserved(Registry.load(tmp_path / "q.toml"))
    assert year == pytest.approx(
        4 * epsilon_inf(Params(k=8, m=8, f=0.5, p=0.25, q=0.75)), abs=0.004
    )
    assert f"cost a device at most {format_loss(year)} nats." in text


def test_a_chart_that_cannot_be_saved_leaves_no_text(
    run_privacy: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart is written before the text, so a failure prints no text."""
    (tmp_path / "taken.svg").mkdir()
    assert "taken.svg" in expect_refusal(run_privacy("--profile", "strict", "--chart", "taken.svg"))
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert "rappor[png]" in expect_refusal(run_privacy("--profile", "strict", "--chart", "a.png"))


def test_chart_is_drawn(run_privacy: Callable[..., CommandResult], tmp_path: Path) -> None:
    """The chart of posterior beliefs has four lines. Equal curves share a label.

    The curves are for 1 report, 10 reports and any number of reports.
    """
    path = tmp_path / "belief.svg"
    expect_success(run_privacy("--profile", "strict", "--chart", str(path)))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 4
    assert "10 reports: epsilon = 2; any number: epsilon = 2" in text
