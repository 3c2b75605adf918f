"""`rappor demo`: values of a file, false detections, and the sentences about privacy."""

from __future__ import annotations

import json

from shell import Shell, expect_success

from rappor import Params, Population, decode, simulate_counts
from rappor.cli.trying.demo import Demo


def test_demo_of_values_of_a_file(shell: Shell) -> None:
    """Each line of a text file is one device. A CSV file has the number of devices of each value.

    The true number of devices is printed with each estimate.
    """
    (shell.folder / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    (shell.folder / "own.csv").write_text("value,count\ncat,30000\ndog,20000\n")
    for name in ("own.txt", "own.csv"):
        rows = json.loads(expect_success(shell("demo", "--values", name, "--seed", "1", "--json")))[
            "estimates"
        ]
        assert {row["candidate"]: row["truth"] for row in rows} == {"cat": 30_000, "dog": 20_000}


def test_a_small_demo_has_ten_thousand_devices_and_20_words(shell: Shell) -> None:
    """--small simulates 10,000 devices with 20 words. --reports changes the number of devices."""
    out = expect_success(
        shell("demo", "--small", "--seed", "1", "--profile", "low-noise", "--json")
    )
    document = json.loads(out)
    rows = document["estimates"]
    assert document["reports"] == 10_000
    assert document["detected"] == len(rows) <= 20
    assert rows[0]["candidate"] == "the"
    _code, out, _ = shell("demo", "--small", "--seed", "1", "--reports", "2e4", "--json")
    assert json.loads(out)["reports"] == 20_000


def test_only_words_are_ranked(shell: Shell) -> None:
    """The 10,000 English words are ranked by a published list, so their tests are weighted.

    The values of --small and of --values are not ranked. Their order comes from the devices.
    """
    for words, is_ranked in ((("--reports", "2e4"), True), (("--small",), False)):
        document = json.loads(expect_success(shell("demo", "--seed", "1", "--json", *words)))
        assert all(("weight" in row) == is_ranked for row in document["estimates"])
        assert document["estimates"]
    text = " ".join(expect_success(shell("demo", "--reports", "2e4", "--seed", "1")).split())
    assert "10,000 candidates, ranked by a published list of frequencies, against" in text
    of_file = ("demo", "--values", "population.csv", "--seed", "1", "--reports", "20000")
    assert "weight" not in expect_success(shell(*of_file))


def test_demo_draws_values_by_weights(shell: Shell) -> None:
    """A table of weights is a population from which --reports devices draw."""
    words = ("demo", "--values", "population.csv", "--seed", "1", "--reports", "20000", "--json")
    document = json.loads(expect_success(shell(*words)))
    assert document["reports"] == 20_000
    truth = {row["candidate"]: row["truth"] for row in document["estimates"]}
    assert sum(truth.values()) == 20_000
    assert truth["duckduckgo"] > truth["qwant"] > truth["other"]


def test_every_line_of_a_file_without_commas_is_a_value(shell: Shell) -> None:
    """A file without commas has no header. Long lines and control characters are values, too.

    Only CR and LF end a line. U+2028 and U+0085, which `str.splitlines` takes for line ends, are
    part of a value.
    """
    values = "x" * 200_000 + "\n" + 'a\0"\u2028b\x85\n' * 200
    (shell.folder / "own.txt").write_text(values, encoding="utf-8")
    out = expect_success(shell("demo", "--values", "own.txt", "--seed", "1", "--json"))
    assert json.loads(out)["reports"] == 201


def test_demo_of_few_reports_warns(shell: Shell) -> None:
    """Below 100 reports, intervals are not reliable, and the demo prints a warning."""
    words = ("demo", "--values", "population.csv", "--seed", "1", "--reports")
    sentence = "Intervals and detections of strings are not reliable below 100 reports, got 50."
    assert sentence in " ".join(expect_success(shell(*words, "50")).split())
    assert "not reliable" not in shell(*words, "100")[1]


def test_demo_without_a_detection_has_no_table(shell: Shell) -> None:
    """Without a detection, a sentence replaces the table and the number of false detections."""
    out = expect_success(shell("demo", "--profile", "strict", "--reports", "500", "--seed", "1"))
    text = " ".join(out.split())
    assert "and detect none of them. No candidate was detected: all reports are unalloc" in text
    assert "false" not in text
    assert "std error" not in text


def test_demo_counts_false_detections() -> None:
    """A detected candidate with fewer devices than one standard error is a false detection.

    In the second case, b has 9 devices and c has none, so two of three detections are false.
    """
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


def test_demo_ends_with_the_largest_beliefs_of_an_observer(shell: Shell) -> None:
    """The last sentences have both losses, and the largest posterior belief of each loss.

    epsilon_inf holds for the reports of one epoch, so the sentences name the epoch.
    """
    (shell.folder / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    text = " ".join(expect_success(shell("demo", "--values", "own.txt", "--seed", "1")).split())
    assert "Each of 50,000 devices has one of 2 values" in text
    assert "None of the 2 detected is false." in text
    assert text.endswith(
        "Somebody who thought it 50 % likely that a device has a certain value is at most 88.1 % "
        "sure after its report (epsilon_1 = 2.00), and at most 98.3 % sure after any number of "
        "reports of one epoch (epsilon_inf = 4.00). The losses of several epochs add up."
    )
