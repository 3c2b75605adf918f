"""`rappor attack`: tables, JSON, a chart and sentences for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rappor import Params
from rappor.auditing.forger import shift
from rappor.cli.app import run

LETTERS = ["-k", "32", "-f", "0.5", "-p", "0.25", "-q", "0.75", "--cohorts", "4", "--seed", "1"]


def test_longitudinal_prints_and_draws(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each number of reports; JSON has both worlds; a chart is written."""
    assert run(["attack", "longitudinal", *LETTERS, "--devices", "50"]) == 0
    out = capfd.readouterr().out
    assert "1,000" in out
    assert "32 permanent bits are known with 99 % probability after" in out
    chart = tmp_path / "learned.svg"
    words = ["--devices", "50", "--json", "--chart", str(chart)]
    assert run(["attack", "longitudinal", *LETTERS, *words]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [document[world][-1]["n"] for world in ("memoised", "redrawn")] == [1000, 1000]
    assert chart.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("-k", "8"), "% of the values: the others share their bits."),
        (("--profile", "balanced", "--candidates", "2"), "would name all values."),
    ],
)
def test_longitudinal_says_which_values_have_bits_of_their_own(
    shape: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where no values share their bits, nothing is said of others."""
    letters = () if "--profile" in shape else tuple(LETTERS[2:8])
    words = ("attack", "longitudinal", "--devices", "10", "--seed", "1")
    assert run([*words, *shape, *letters]) == 0
    assert said in " ".join(capfd.readouterr().out.split())


def test_poisoning_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """In words and as JSON."""
    letters = LETTERS[:-2]
    assert run(["attack", "poisoning", *letters, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["shift"] == pytest.approx(shift(Params(k=32, f=0.5, p=0.25, q=0.75)))
    assert run(["attack", "poisoning", *letters, "--reports", "2e4"]) == 0
    assert "One forged report counts as" in capfd.readouterr().out


def test_bad_input_of_attacks_gets_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and no traceback."""
    for words in (
        ["longitudinal"],
        ["longitudinal", *LETTERS, "--devices", "1"],
        ["longitudinal", *LETTERS, "--chart", "x.pdf"],
        ["poisoning", *LETTERS[:-2], "--reports", "-1"],
    ):
        assert run(["attack", *words]) == 2
        captured = capfd.readouterr()
        assert not captured.out
        assert "Traceback" not in captured.err
