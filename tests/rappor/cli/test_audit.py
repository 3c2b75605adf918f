"""`rappor audit`: verdicts, exit codes, JSON, and programs under test."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from places import ROOT
from registries import entry_of, toml_of
from shell import Shell, ok

NOISE = {"k": "8", "h": "1", "m": "2", "f": "0.5", "p": "0.25"}

ENCODER = [sys.executable, "-m", "rappor.auditing.reference_encoder"]
RAPPOR = [sys.executable, "-c", "from rappor.cli import main; main()"]
LETTERS = ["-k", "8", "--cohorts", "1", "-f", "0.5", "-p", "0.25", "-q", "0.75"]


@pytest.fixture
def registry(shell: Shell) -> str:
    """A file with a metric, and another one whose devices add less noise."""
    path = shell.place / "metrics.toml"
    path.write_text(toml_of("page", **NOISE, q="0.75") + entry_of("loud", **NOISE, q="0.95"))
    return str(path)


def encode(name: str, registry: str) -> str:
    """Return the command line that turns values into reports of a metric."""
    return shlex.join([*RAPPOR, "encode", name, "-", "--registry", registry, "--json"])


@pytest.mark.slow
def test_shipped_encoder_passes(shell: Shell) -> None:
    """The encoder of this package passes with exit code 0, and every bound is below its claim."""
    document = json.loads(ok(shell("audit", *LETTERS, "--trials", "2000", "--json")))
    assert document["passed"] is True
    assert document["trials"] == 2000
    bounds = [check for check in document["checks"] if check["bound"] is not None]
    assert [check["name"] for check in bounds] == ["epsilon_1", "epsilon_2", "epsilon_inf"]
    assert all(0 < check["bound"] <= check["claim"] for check in bounds)
    assert {check["verdict"] for check in document["checks"]} <= {"pass", "fault", "not seen"}


@pytest.mark.acceptance
def test_a_command_passes_as_it_stands(registry: str, shell: Shell) -> None:
    """`rappor encode` passes as --command, also with several reports of each device."""
    words = ["--registry", registry, "page", "--command", encode("page", registry)]
    words += ["--secret-file-option=--secret-file"]
    out = ok(shell("audit", *words, "--trials", "2000"))
    unseen = [line.split("  ")[0] for line in out.splitlines() if "not seen" in line]
    assert unseen == [
        "epsilon_2",
        "permanent: same in another spelling",
        "another metric: independent noise",
        "own coins: no shift register",
    ]


@pytest.mark.slow
def test_a_faulty_command_ends_with_1(registry: str, shell: Shell) -> None:
    """Devices with a larger q than claimed are detected: exit code 1, and one sentence."""
    words = ["--registry", registry, "page", "--command", encode("loud", registry)]
    code, out, err = shell("audit", *words, "--trials", "4000", "--json")
    document = json.loads(out)
    assert (code, document["passed"]) == (1, False)
    faults = {check["name"] for check in document["checks"] if check["verdict"] == "fault"}
    assert "report: share of ones" in faults
    assert err.strip().endswith("checks found a fault")


@pytest.mark.slow
def test_named_values_are_asked_about(shell: Shell) -> None:
    """Values of a file are tested beside random values. Empty lines are no values."""
    (shell.place / "values.txt").write_bytes("canary\r\n\nfür\n".encode())
    queries = {}
    for words in ((), ("--values", "values.txt")):
        out = ok(shell("audit", *LETTERS, "--trials", "1000", "--json", *words))
        sentence = json.loads(out)["not_examined"][0]
        queries[bool(words)] = int(sentence.split()[1])
    assert queries[True] == queries[False] + 2


def test_a_command_is_compared_with_the_protocol(shell: Shell) -> None:
    """--exact compares reports bit by bit, and the record lists the checks that were not made."""
    words = ["audit", *LETTERS, "--command", shlex.join(ENCODER), "--exact", "--trials", "60"]
    document = json.loads(ok(shell(*words, "--json")))
    assert [check["name"] for check in document["checks"]] == ["protocol: exact"]
    assert document["trials"] == 60
    assert any("Coins" in sentence for sentence in document["not_examined"])


@pytest.mark.slow
def test_a_command_that_answers_questions_is_audited_from_outside(shell: Shell) -> None:
    """With --questions one process serves many devices, and draws its own coins."""
    words = ["audit", *LETTERS, "--command", shlex.join(ENCODER), "--questions"]
    assert "permanent: same after 64 reports" in ok(shell(*words, "--trials", "1000"))


@pytest.mark.slow
def test_a_client_is_audited_over_days(registry: str, shell: Shell) -> None:
    """--client audits the client of this package, with a metric for life."""
    client = shlex.join([sys.executable, str(ROOT / "tests" / "support" / "audited_child.py")])
    words = ["--registry", registry, "page", "--client", client, "--trials", "20"]
    assert "client: one cohort in an epoch" in ok(shell("audit", *words))
