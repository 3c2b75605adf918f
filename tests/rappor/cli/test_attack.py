"""`rappor attack`: tables, JSON, charts and sentences for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rappor import Params
from rappor.auditing.forger import Forgery, Moved, shift
from rappor.cli.app import run
from rappor.cli.attack_charts import draw_moved

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
    assert document["cohort_bits"] == 2
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


def test_one_share_is_drawn_on_the_whole_formula(tmp_path: Path) -> None:
    """The line has a length, and the legend tells it from the dots of the decoder."""
    path = tmp_path / "moved.svg"
    forgeries: tuple[Forgery, ...] = ("all ones", "matched")
    rows = [
        Moved(
            share=0.01,
            forgery=forgery,
            checked=True,
            counted=1.0,
            formula=3200.0,
            bits=3200.0,
            decoded=3170.0,
            std_error=30.0,
        )
        for forgery in forgeries
    ]
    draw_moved(tuple(rows), str(path))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 1
    assert "0.01 %" in text
    assert text.count(">formula<") == 1


def test_poisoning_prints_and_draws(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each share has four rows: both forgeries, with and without the check."""
    chart = tmp_path / "moved.svg"
    words = ["--share", "0.01", "--share", "0.1", "--reports", "2e4", "--runs", "2"]
    assert run(["attack", "poisoning", *LETTERS, *words, "--json", "--chart", str(chart)]) == 0
    document = json.loads(capfd.readouterr().out)
    assert len(document["moved"]) == 8
    assert document["shift"] == pytest.approx(shift(Params(k=32, f=0.5, p=0.25, q=0.75)))
    assert chart.read_text().startswith("<svg")
    assert run(["attack", "poisoning", *LETTERS, *words[2:]]) == 0
    assert "One forged report counts as" in capfd.readouterr().out


def test_bad_input_of_attacks_gets_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and no traceback."""
    for words in (
        ["longitudinal"],
        ["longitudinal", *LETTERS, "--devices", "1"],
        ["poisoning", *LETTERS, "--share", "2"],
        ["poisoning", *LETTERS, "--chart", "x.pdf"],
    ):
        assert run(["attack", *words]) == 2
        captured = capfd.readouterr()
        assert not captured.out
        assert "Traceback" not in captured.err
