"""`rappor simulate`: counts and reports of a population."""

from __future__ import annotations

import pytest
from shell import Shell

from rappor import Counts


def test_simulate_repeats_with_a_seed_and_differs_without(shell: Shell) -> None:
    """One seed gives one file; no seed gives another each time."""
    files = []
    for name, seed in (("a", ("--seed", "1")), ("b", ("--seed", "1")), ("c", ()), ("d", ())):
        path = shell.path(name)
        words = ("--population", "population.csv", "--reports", "1000", *seed, "--out", path)
        assert shell.metric("simulate", *words)[0] == 0
        files.append(Counts.load(path))
    assert files[0] == files[1]
    assert files[2] != files[3]  # equal with a probability below 1e-9: 16,384 binomials


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\xff",
        b"word,number\nx,1\n",
        b"value,weight\nx,nan\n",
        b"value,weight\nx,-1\n",
        b"value,weight\nx,inf\n",
        b"value,weight\nx,0\n",
        b"value,weight\nx\n",
        b"value,weight\nx,1\nx,2\n",
    ],
)
def test_simulate_refuses_bad_populations(shell: Shell, content: bytes) -> None:
    """Each fault of a population file gets one sentence, exit code 2, and no file is written."""
    (shell.place / "bad.csv").write_bytes(content)
    out = shell.place / "out.counts"
    words = ("--population", "bad.csv", "--reports", "10", "--out", str(out))
    code, _, err = shell.metric("simulate", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_numbers_may_be_written_in_powers_of_ten(shell: Shell) -> None:
    """A billion devices are 1e9; a fraction and a word are usage errors."""
    words = ("--population", "population.csv", "--out", shell.path("x"), "--reports")
    assert shell.metric("simulate", *words, "1e9")[0] == 0
    assert Counts.load(shell.path("x")).n_reports == 10**9
    for bad in ("1.5", "many", "nan", "inf"):
        code, _, err = shell.metric("simulate", *words, bad)
        assert code == 2
        assert "whole number" in err


def test_simulate_refuses_a_negative_number(shell: Shell) -> None:
    """Fewer than no devices cannot report."""
    words = ("--population", "population.csv", "--reports", "-1", "--out", shell.path("x"))
    code, _, err = shell.metric("simulate", *words)
    assert code == 2
    assert "n_reports" in err


def test_writing_into_a_missing_folder_is_told(shell: Shell) -> None:
    """An output that cannot be written is named, exit code 2."""
    words = ("--population", "population.csv", "--reports", "10")
    code, _, err = shell.metric("simulate", *words, "--out", shell.path("no/such/x.counts"))
    assert code == 2
    assert "no/such" in err
