"""`rappor attack`: tables, JSON, a chart and sentences for bad input."""

from __future__ import annotations

import json

import pytest
from shell import Shell, ok

from rappor import Params
from rappor.auditing.forger import shift

LETTERS = ["-k", "32", "-f", "0.5", "-p", "0.25", "-q", "0.75", "--cohorts", "4", "--seed", "1"]


def test_longitudinal_prints_and_draws(shell: Shell) -> None:
    """The table has a row for each number of reports; JSON has both worlds; a chart is written."""
    words = ("attack", "longitudinal", *LETTERS, "--devices", "50")
    out = ok(shell(*words))
    assert "1,000" in out
    assert "32 permanent bits are known with 99 % probability after" in out
    chart = shell.place / "learned.svg"
    document = json.loads(ok(shell(*words, "--json", "--chart", str(chart))))
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
    shape: tuple[str, ...], said: str, shell: Shell
) -> None:
    """Where no values share their bits, nothing is said of others."""
    letters = () if "--profile" in shape else tuple(LETTERS[2:8])
    words = ("attack", "longitudinal", "--devices", "10", "--seed", "1")
    assert said in " ".join(ok(shell(*words, *shape, *letters)).split())


def test_poisoning_prints(shell: Shell) -> None:
    """In words and as JSON."""
    words = ("attack", "poisoning", *LETTERS[:-2])
    document = json.loads(ok(shell(*words, "--json")))
    assert document["shift"] == pytest.approx(shift(Params(k=32, f=0.5, p=0.25, q=0.75)))
    told = ok(shell(*words, "--reports", "2e4"))
    assert "One forged report counts as" in told
    several = f"can raise up to {document['most_strings']:,} strings by"
    assert f"One forged report that passes the collector's check {several}" in " ".join(
        told.split()
    )
