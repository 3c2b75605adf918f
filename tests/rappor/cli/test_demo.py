"""`rappor demo`: values of a file, false detections, and the sentences about privacy."""

from __future__ import annotations

import json

import pytest
from shell import Shell, ok, refused

from rappor import Params, Population, decode, simulate_counts
from rappor.cli.trying.demo import Demo


def test_demo_on_own_values(shell: Shell) -> None:
    """Each line of a file is one device, and the truth beside the estimate is exact."""
    (shell.place / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    (shell.place / "own.csv").write_text("value,count\ncat,30000\ndog,20000\n")
    for name in ("own.txt", "own.csv"):
        rows = json.loads(ok(shell("demo", "--values", name, "--seed", "1", "--json")))["estimates"]
        assert {row["candidate"]: row["truth"] for row in rows} == {"cat": 30_000, "dog": 20_000}


def test_a_small_demo_has_ten_thousand_devices_and_20_words(shell: Shell) -> None:
    """With --small every word is a candidate, and --reports replaces the number of devices."""
    out = ok(shell("demo", "--small", "--seed", "1", "--profile", "low-noise", "--json"))
    document = json.loads(out)
    rows = document["estimates"]
    assert document["reports"] == 10_000
    assert document["detected"] == len(rows) <= 20
    assert rows[0]["candidate"] == "the"
    _code, out, _ = shell("demo", "--small", "--seed", "1", "--reports", "2e4", "--json")
    assert json.loads(out)["reports"] == 20_000


def test_only_words_are_ranked(shell: Shell) -> None:
    """The order of a file's values comes from the devices, so it gives no weights."""
    for words, is_ranked in ((("--reports", "2e4"), True), (("--small",), False)):
        document = json.loads(ok(shell("demo", "--seed", "1", "--json", *words)))
        assert all(("weight" in row) == is_ranked for row in document["estimates"])
        assert document["estimates"]
    text = " ".join(ok(shell("demo", "--reports", "2e4", "--seed", "1")).split())
    assert "10,000 candidates, ranked by a published list of frequencies, against" in text
    own = ("demo", "--values", "population.csv", "--seed", "1", "--reports", "20000")
    assert "weight" not in ok(shell(*own))


def test_demo_draws_values_by_weights(shell: Shell) -> None:
    """A table of weights is a population from which --reports devices draw."""
    words = ("demo", "--values", "population.csv", "--seed", "1", "--reports", "20000", "--json")
    document = json.loads(ok(shell(*words)))
    assert document["reports"] == 20_000
    truth = {row["candidate"]: row["truth"] for row in document["estimates"]}
    assert sum(truth.values()) == 20_000
    assert truth["duckduckgo"] > truth["qwant"] > truth["other"]


def test_demo_takes_any_line_for_a_value(shell: Shell) -> None:
    """The first line of a file without commas is a value like the others."""
    (shell.place / "own.txt").write_text("x" * 200_000 + "\n" + 'a\0"\n' * 200)
    out = ok(shell("demo", "--values", "own.txt", "--seed", "1", "--json"))
    assert json.loads(out)["reports"] == 201


def test_demo_of_few_reports_warns(shell: Shell) -> None:
    """Below a hundred reports the printed errors are unreliable, and the demo warns."""
    words = ("demo", "--values", "population.csv", "--seed", "1", "--reports")
    sentence = "Intervals and detections of strings are not reliable below 100 reports, got 50."
    assert sentence in " ".join(ok(shell(*words, "50")).split())
    assert "not reliable" not in shell(*words, "100")[1]


def test_demo_without_a_detection_says_so(shell: Shell) -> None:
    """Without a detection, the output has no table and no sentence about false detections."""
    out = ok(shell("demo", "--profile", "strict", "--reports", "500", "--seed", "1"))
    text = " ".join(out.split())
    assert "and detect none of them. No candidate was detected: all reports are unalloc" in text
    assert "false" not in text
    assert "std error" not in text


def test_demo_says_how_many_are_false() -> None:
    """A detected candidate with fewer devices than one standard error is counted as false."""
    params, population = Params.profile("low-noise"), Population(["a", "b", "c"], [5, 3, 2])
    estimates = decode(simulate_counts(population, params, n_reports=1e5, seed=1), ["a", "b", "c"])
    truths = {"a": 50_000, "b": 30_000, "c": 20_000}, {"a": 50_000, "b": 9}
    for truth, n_false in zip(truths, (0, 2), strict=True):
        demo = Demo(
            estimates=estimates, truth=truth, params=params, profile="low-noise", n_values=3
        )
        assert (demo.n_detected, demo.n_false) == (3, n_false)
        document = demo.to_dict()
        assert (document["detected"], document["false"]) == (3, n_false)
        assert document["estimates"][0]["truth"] == 50_000


def test_demo_ends_with_what_an_observer_can_believe(shell: Shell) -> None:
    """The last sentences contain both losses and both largest beliefs."""
    (shell.place / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    text = " ".join(ok(shell("demo", "--values", "own.txt", "--seed", "1")).split())
    assert "Each of 50,000 devices has one of 2 values" in text
    assert "None of the 2 detected is false." in text
    assert text.endswith(
        "Somebody who thought it 50 % likely that a device has some value is at most 88.1 % sure "
        "after its report (epsilon_1 = 2.00), and at most 98.3 % sure after any number of reports "
        "(epsilon_inf = 4.00)."
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty: write one value a line"),
        (b"\n\n", "it is empty: write one value a line"),
        (b"value;count\ncat;3\n", "its columns are separated by semicolons: use commas"),
        (b"value\tcount\ncat\t3\n", "its columns are separated by tabs: use commas"),
        ("value,count\ncat,3\n".encode("utf-16"), "it is not UTF-8 but UTF-16, or binary: save it"),
        ("cat\ndog\n".encode("utf-16-le"), "line 1: it is not UTF-8 but UTF-16"),
        (b"value,count\n", "it has a header and no values"),
        (b"Paris, France\nRome\n", "a value with a comma needs one"),
        (b"\xff", "it is not UTF-8"),
        (b"value,count\ncat,1.5\n", "count must be a whole number"),
        (b"name,devices\ncat,3\n", "the header must be"),
        (b"cat,3\ndog,2\n", "the header must be"),
        (b"value,count\ncat,99999999\ndog,2\n", "must add up to at most"),
        (b"x" * 200_000 + b",", "the header must be"),
    ],
)
def test_demo_refuses_bad_values(shell: Shell, content: bytes, said: str) -> None:
    """An empty file, fractions and foreign tables give one sentence each."""
    (shell.place / "own").write_bytes(content)
    assert said in refused(shell("demo", "--values", "own"))
