"""`rappor encode`: its contract for scripts, secrets, flags and epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
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
    (shell.place / "once.toml").write_text(
        "[budget]\ntotal = 50\n[metrics.page]\ndescription = 'a'\nowner = 'b'\n"
        "expires = 2099-12-31\nencoding = 'bloom'\nepoch = 'year'\ninterval = 'epoch'\n"
        f"profile = '{profile}'\n"
    )
    out = ok(shell("encode", "page", "a", "--registry", "once.toml"))
    shown = dict(line.split() for line in out.splitlines()[:6])
    is_bare = shown["permanent"] == shown["report"]
    assert is_bare is (profile == "once")
    assert ("and the report shows it as it is" in out) is is_bare
    assert ("is drawn anew" in out) is not is_bare


def test_encode_reads_a_secret_file(shell: Shell) -> None:
    """A file of 32 bytes serves as the secret; one of 31 is refused unseen."""
    (shell.place / "secret").write_bytes(bytes.fromhex(SECRET))
    (shell.place / "short").write_bytes(b"S" * 31)
    by_file = encode(shell, "engine", "qwant", "--secret-file", "secret")
    by_hex = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert by_file["permanent"] == by_hex["permanent"]
    words = ("encode", "engine", "qwant", "--registry", "metrics.toml", "--secret-file", "short")
    assert "SSS" not in refused(shell(*words))


def test_a_secret_on_the_command_line_warns_once(shell: Shell) -> None:
    """However many values there are; a secret in a file does not."""
    (shell.place / "secret").write_bytes(bytes.fromhex(SECRET))
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


def test_encode_takes_flags_and_epochs(shell: Shell) -> None:
    """Flags are joined by commas; another epoch draws another permanent response."""
    assert encode(shell, "add_ons", "sync,spell")["bits"] == "11"
    assert encode(shell, "add_ons", "")["bits"] == "00"
    seen = {
        encode(shell, "theme", "dark", "--secret-hex", SECRET, "--epoch", f"{year}-Q1")["permanent"]
        for year in range(2000, 2060)
    }
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("old", "true"), "expired"),
        (("theme", "dark", "--epoch", "2026"), "quarter"),
        (("engine", "x", "--epoch", "2026"), "epoch"),
        (("engine", "x", "--secret-hex", "zz"), "hex digits"),
        (("engine", "x", "--secret-hex", "07"), "32 bytes"),
        (("engine", "x", "--secret-hex", SECRET, "--secret-file", "metrics.toml"), "not both"),
        (("engine", "x", "--secret-file", "missing"), "missing"),
        (("nothing", "x"), "nothing"),
    ],
)
def test_encode_refuses(shell: Shell, words: tuple[str, ...], reason: str) -> None:
    """What cannot be encoded gets one sentence, exit code 2, and the value is not repeated."""
    assert reason in refused(shell("encode", *words, "--registry", "metrics.toml"))


def test_encode_warns_of_a_value_without_a_place(shell: Shell) -> None:
    """A text that is no category is reported all the same; the warning does not repeat it."""
    code, out, err = shell(
        "encode", "theme", "secretcolour", "--registry", "metrics.toml", "--json"
    )
    assert code == 0
    assert json.loads(out)["bits"] == "000"
    assert err == "warning: theme has no place for this value, and reports that\n"
