"""`rappor audit`: verdicts, exit codes, JSON, and programs under test."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
from places import ROOT
from registries import format_entry, format_registry
from shell import Shell, expect_success
from warm_commands import locate_commands

from rappor import Params
from rappor.auditing.pairs import choose_pairs

NOISE = {"k": "8", "h": "1", "m": "2", "f": "0.5", "p": "0.25"}
"""Keys of a metric's parameters, without q."""

ENCODER = [sys.executable, "-m", "rappor.auditing.reference_encoder"]
LETTERS = ["-k", "8", "--cohorts", "1", "-f", "0.5", "-p", "0.25", "-q", "0.75"]


@pytest.fixture
def registry(shell: Shell) -> str:
    """Return the path of a registry with the metric page, and with loud, which has less noise."""
    path = shell.folder / "metrics.toml"
    path.write_text(
        format_registry("page", **NOISE, q="0.75") + format_entry("loud", **NOISE, q="0.95")
    )
    return str(path)


def encode(name: str, registry: str) -> str:
    """Return the command line of a program that encodes values of a metric, one a line."""
    return shlex.join(
        [str(locate_commands() / "rappor"), "encode", name, "-", "--registry", registry, "--json"]
    )


@pytest.mark.slow
def test_reference_encoder_passes(shell: Shell) -> None:
    """The encoder of this package passes with exit code 0, and every bound is below its claim."""
    document = json.loads(expect_success(shell("audit", *LETTERS, "--trials", "2000", "--json")))
    assert document["passed"] is True
    assert document["trials"] == 2000
    bounds = [check for check in document["checks"] if check["bound"] is not None]
    assert [check["name"] for check in bounds] == ["epsilon_1", "epsilon_2", "epsilon_inf"]
    assert all(0 < check["bound"] <= check["claim"] for check in bounds)
    assert {check["verdict"] for check in document["checks"]} <= {"pass", "fault", "not seen"}


@pytest.mark.acceptance
def test_rappor_encode_passes_its_audit(registry: str, shell: Shell) -> None:
    """`rappor encode` passes as --command. With a secret, devices send several reports.

    The four checks that a command cannot show are "not seen".
    """
    words = ["--registry", registry, "page", "--command", encode("page", registry)]
    words += ["--secret-file-option=--secret-file"]
    out = expect_success(shell("audit", *words, "--trials", "2000"))
    unseen = [line.split("  ")[0] for line in out.splitlines() if "not seen" in line]
    assert unseen == [
        "epsilon_2",
        "permanent: same in another spelling",
        "another metric: independent noise",
        "own coins: no shift register",
    ]


@pytest.mark.slow
def test_a_command_with_less_noise_is_a_fault(registry: str, shell: Shell) -> None:
    """A command with a larger q than the metric's is a fault: exit code 1 and one sentence.

    A true 1 is reported as 1 with q* = .775 instead of .625. This is a distance of 14 standard
    deviations over 2,000 devices, and a check needs 6 to 7.
    """
    words = ["--registry", registry, "page", "--command", encode("loud", registry)]
    code, out, err = shell("audit", *words, "--trials", "2000", "--json")
    document = json.loads(out)
    assert (code, document["passed"]) == (1, False)
    faults = {check["name"] for check in document["checks"] if check["verdict"] == "fault"}
    assert "report: share of ones" in faults
    assert err.strip().endswith("checks found a fault")


@pytest.mark.slow
def test_values_of_a_file_are_sent(shell: Shell) -> None:
    """--values adds the two values of a file to the values that the audit sends.

    Empty lines are no values. Without the file the audit sends both values of each pair, and 19
    random and special values (`rappor.auditing.pairs`).
    """
    (shell.folder / "values.txt").write_bytes("canary\r\n\nfür\n".encode())
    words = ("--trials", "1000", "--json", "--values", "values.txt")
    sentence = json.loads(expect_success(shell("audit", *LETTERS, *words)))["not_examined"][0]
    n_pairs = len(choose_pairs(Params(k=8, h=1, m=1, f=0.5, p=0.25, q=0.75)))
    assert int(sentence.split()[1]) == 2 * n_pairs + 19 + 2


def test_a_command_is_compared_with_the_protocol(shell: Shell) -> None:
    """--exact compares all outputs bit by bit. The record states that coins are not examined."""
    words = ["audit", *LETTERS, "--command", shlex.join(ENCODER), "--exact", "--trials", "60"]
    document = json.loads(expect_success(shell(*words, "--json")))
    assert [check["name"] for check in document["checks"]] == ["protocol: exact"]
    assert document["trials"] == 60
    assert any("Coins" in sentence for sentence in document["not_examined"])


@pytest.mark.slow
def test_the_last_line_is_the_verdict(registry: str, shell: Shell) -> None:
    """The text of a passed audit ends with the number of checks, of a failed one with the faults.

    A check that had nothing to compare does not count as passed.
    """
    words = ["--registry", registry, "page", "--trials", "2000", "--command"]
    out = expect_success(shell("audit", *words, encode("page", registry)))
    table, _ = out.split("This audit did not look at:")
    n_passed, n_unseen = (len(re.findall(rf"  {word}  ", table)) for word in ("pass", "not seen"))
    assert n_unseen > 0
    assert "adjusted p-value" in table
    last = out.splitlines()[-1]
    assert last == f"No fault found in {n_passed} checks. {n_unseen} checks had nothing to compare."
    code, out, _ = shell("audit", *words, encode("loud", registry))
    assert code == 1
    end = out[out.rindex("\n\n") :]
    assert re.match(r"\s+\d+ faults: .*report: share of ones", end, re.DOTALL)


@pytest.mark.slow
def test_one_process_of_many_devices_is_audited(shell: Shell) -> None:
    """With --questions, one process encodes the values of many devices, and draws the coins."""
    words = ["audit", *LETTERS, "--command", shlex.join(ENCODER), "--questions"]
    assert "permanent: same after 64 reports" in expect_success(shell(*words, "--trials", "1000"))


@pytest.mark.slow
def test_a_client_is_audited_over_days(registry: str, shell: Shell) -> None:
    """--client audits a client that runs for many days. The metric has the epoch "life"."""
    client = shlex.join([sys.executable, str(ROOT / "tests" / "support" / "audited_child.py")])
    words = ["--registry", registry, "page", "--client", client, "--trials", "20"]
    assert "client: one cohort in an epoch" in expect_success(shell("audit", *words))
