"""`rappor demo`: own values, false detections and the last sentence."""

from __future__ import annotations

import json

import pytest
from shell import Shell

from rappor import Params, Population, decode, simulate_counts
from rappor.cli.demo import Demo


def test_demo_on_own_values(shell: Shell) -> None:
    """Each line of a file is one device; the truth beside the estimate is exact."""
    (shell.place / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    (shell.place / "own.csv").write_text("value,count\ncat,30000\ndog,20000\n")
    for name in ("own.txt", "own.csv"):
        code, out, _ = shell("demo", "--values", name, "--seed", "1", "--json")
        assert code == 0
        rows = json.loads(out)["estimates"]
        assert [(row["candidate"], row["truth"]) for row in rows] == [
            ("cat", 30_000),
            ("dog", 20_000),
        ]


def test_demo_says_how_many_are_false() -> None:
    """A detected candidate that fewer devices hold than one standard error is counted as false."""
    estimates = decode(
        simulate_counts(
            Population(["a", "b", "c"], [5, 3, 2]),
            Params.profile("accurate"),
            n_reports=100_000,
            seed=1,
        ),
        ["a", "b", "c"],
    )
    for truth, n_false in (
        ({"a": 50_000, "b": 30_000, "c": 20_000}, 0),
        ({"a": 50_000, "b": 9}, 2),
    ):
        found = Demo(
            estimates=estimates,
            truth=truth,
            params=Params.profile("accurate"),
            profile="accurate",
            n_values=3,
        )
        assert (found.n_detected, found.n_false) == (3, n_false)
        document = found.to_dict()
        assert (document["detected"], document["false"]) == (3, n_false)
        assert document["estimates"][0]["truth"] == 50_000


def test_demo_ends_with_what_an_observer_can_believe(shell: Shell) -> None:
    """The last sentences hold both losses and both beliefs, in whole words."""
    (shell.place / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    code, out, _ = shell("demo", "--values", "own.txt", "--seed", "1")
    assert code == 0
    text = " ".join(out.split())
    assert "Here 0 of 2 (0 %) are false" in text
    assert text.endswith(
        "An observer who gives even odds that a device holds some value can be at most 88.1 % sure "
        "after this report, and at most 98.3 % sure after any number of reports."
    )


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 2),
        (b"\xff\xfe\x00", 2),
        (b"value,count\ncat,1.5\n", 2),
        (b"value,count\ncat,nan\n", 2),
    ],
)
def test_demo_refuses_bad_values(shell: Shell, content: bytes, code: int) -> None:
    """Empty, binary and fractional data get one sentence."""
    (shell.place / "own").write_bytes(content)
    got, out, err = shell("demo", "--values", "own")
    assert (got, out) == (code, "")
    assert len(err.strip().splitlines()) == 1
