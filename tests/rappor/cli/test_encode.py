"""`rappor encode`: its contract for scripts, secrets and epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from registries import toml_of
from shell import SECRET, Shell, ok, refused

from rappor import Registry, encode_value


def encode(shell: Shell, *words: str) -> Any:
    out = ok(shell("encode", *words, "--registry", "metrics.toml", "--json"))
    return json.loads(out)


def test_encode_contract(shell: Shell) -> None:
    """The JSON has the contract's keys; bits come first bit first; only the report is fresh."""
    first = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert list(first) == ["metric", "params", "cohort", "bits", "permanent", "report"]
    metric = Registry.load(shell.place / "metrics.toml").metric("engine")
    expected = encode_value(bytes.fromhex(SECRET), metric, "qwant")
    number = int.from_bytes(expected.bits, "little")
    assert first["bits"] == "".join(str(number >> i & 1) for i in range(128))
    assert first["cohort"] == expected.cohort
    assert first["params"] == metric.fingerprint
    again = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert again["permanent"] == first["permanent"]
    assert again["report"] != first["report"]  # equal with probability 2^-60 at most


@pytest.mark.parametrize("profile", ["once", "balanced"])
def test_encode_says_whether_the_report_is_the_permanent_response(
    profile: str, shell: Shell
) -> None:
    """Where p = 0 and q = 1 it is."""
    text = toml_of(epoch="'year'", interval="'epoch'", profile=f"'{profile}'")
    (shell.place / "once.toml").write_text(text)
    out = ok(shell("encode", "page", "a", "--registry", "once.toml"))
    shown = dict(line.split() for line in out.splitlines()[:6])
    is_bare = shown["permanent"] == shown["report"]
    assert is_bare is (profile == "once")
    assert ("and the report shows it as it is" in out) is is_bare
    assert ("is drawn anew" in out) is not is_bare


def test_a_secret_on_the_command_line_warns_once(shell: Shell) -> None:
    """However many values there are; the same one in a file does not, and 31 bytes are refused."""
    (shell.place / "secret").write_bytes(bytes.fromhex(SECRET))
    (shell.place / "short").write_bytes(b"S" * 31)
    words = ("encode", "engine", "qwant", "--registry", "metrics.toml", "--secret-file", "short")
    assert "SSS" not in refused(shell(*words))
    sources = ("--secret-file", "secret"), ("--secret-hex", SECRET)
    shown = [encode(shell, "engine", "qwant", *source)["permanent"] for source in sources]
    assert shown[0] == shown[1]
    encode_all = [sys.executable, "-c", "from rappor.cli import main; main()", "encode", "engine"]
    encode_all += ["-", "--registry", "metrics.toml"]
    for source, warnings in (("--secret-hex", 1), ("--secret-file", 0)):
        run = [*encode_all, source, SECRET if warnings else "secret"]
        done = subprocess.run(
            run, input="a\nb\n", capture_output=True, text=True, check=True, cwd=shell.place
        )
        assert len(done.stdout.splitlines()) == 2
        assert done.stderr.count("--secret-hex shows the secret") == warnings
        assert SECRET not in done.stderr


def test_encode_takes_yes_or_no_and_epochs(shell: Shell) -> None:
    """Yes sets the one bit; another epoch draws another permanent response."""
    assert encode(shell, "sync", "yes")["bits"] == "1"
    assert encode(shell, "sync", "no")["bits"] == "0"
    seen = {
        encode(shell, "theme", "dark", "--secret-hex", SECRET, "--epoch", f"{year}-Q1")["permanent"]
        for year in range(2000, 2060)
    }
    assert len(seen) > 1


def test_encode_warns_of_a_value_without_a_place(shell: Shell) -> None:
    """A text that is no category is reported all the same; the warning does not repeat it."""
    code, out, err = shell(
        "encode", "theme", "secretcolour", "--registry", "metrics.toml", "--json"
    )
    assert code == 0
    assert json.loads(out)["bits"] == "000"
    assert err == "warning: theme has no place for this value: the report holds noise only\n"
