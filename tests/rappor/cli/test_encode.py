"""`rappor encode`: JSON for scripts, secrets and epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import reference
from registries import entry_of, toml_of
from shell import SECRET, Shell, ok, refused

from rappor import Registry, encode_value


def encode(shell: Shell, *words: str) -> Any:
    out = ok(shell("encode", *words, "--registry", "metrics.toml", "--json"))
    return json.loads(out)


def test_encode_contract(shell: Shell) -> None:
    """The JSON has the documented keys, bit 0 first. Only the report differs between two runs."""
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
    """The text states that the report equals the permanent response if p = 0 and q = 1."""
    text = toml_of(epoch="'year'", interval="'epoch'", profile=f"'{profile}'")
    (shell.place / "once.toml").write_text(text)
    out = ok(shell("encode", "page", "a", "--registry", "once.toml"))
    fields = dict(line.split() for line in out.splitlines()[:6])
    is_bare = fields["permanent"] == fields["report"]
    assert is_bare is (profile == "once")
    assert ("and the report shows it as it is" in out) is is_bare
    assert ("is drawn anew" in out) is not is_bare


@pytest.mark.slow
def test_a_secret_on_the_command_line_warns_once(shell: Shell) -> None:
    """--secret-hex warns once for any number of values.

    --secret-file does not warn, and refuses 31 bytes.
    """
    (shell.place / "secret").write_bytes(bytes.fromhex(SECRET))
    (shell.place / "short").write_bytes(b"S" * 31)
    words = ("encode", "engine", "qwant", "--registry", "metrics.toml", "--secret-file", "short")
    assert "SSS" not in refused(shell(*words))
    sources = ("--secret-file", "secret"), ("--secret-hex", SECRET)
    responses = [encode(shell, "engine", "qwant", *source)["permanent"] for source in sources]
    assert responses[0] == responses[1]
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
    """The value yes sets the one bit. Another epoch has another permanent response."""
    assert encode(shell, "sync", "yes")["bits"] == "1"
    assert encode(shell, "sync", "no")["bits"] == "0"
    seen = {
        encode(shell, "theme", "dark", "--secret-hex", SECRET, "--epoch", f"{year}-Q1")["permanent"]
        for year in range(2000, 2060)
    }
    assert len(seen) > 1


def test_encode_warns_of_a_value_without_a_place(shell: Shell) -> None:
    """A text that is no category is reported with a warning, which does not contain the text."""
    code, out, err = shell(
        "encode", "theme", "secretcolour", "--registry", "metrics.toml", "--json"
    )
    assert code == 0
    assert json.loads(out)["bits"] == "000"
    assert err == "warning: theme has no place for this value: the report holds noise only\n"


def write_sets(shell: Shell) -> None:
    """Write a registry with a metric of sets."""
    text = toml_of(epoch="'quarter'", interval="'epoch'", profile="'once'", encoding="'set'")
    (shell.place / "sets.toml").write_text(text + "items = 2\n")


def test_encode_of_sets_agrees_with_known_answers(shell: Shell) -> None:
    """A set has any number of values; the JSON has what another client must compute."""
    write_sets(shell)
    metric = Registry.load(shell.place / "sets.toml").metric("page")
    secret = bytes.fromhex(SECRET)
    for values in ([], ["git"], ["git", "vim", "git", ""], ["a", "b", "c", "d"]):
        words = ("page", *values, "--registry", "sets.toml", "--secret-hex", SECRET)
        document = json.loads(ok(shell("encode", *words, "--epoch", "2026-Q4", "--json")))
        assert list(document) == ["metric", "params", "cohort", "own", "chosen", "bucket"]
        scope = reference.encode_scope("page", "2026-Q4", metric.params.permanent_fingerprint)
        cohort = reference.derive_cohort(secret, scope, 128)
        own = reference.list_own_buckets(values, cohort, 112)
        coins = reference.derive_bucket_coins(secret, scope, own, 112, 2)
        assert (document["params"], document["cohort"]) == (metric.fingerprint, cohort)
        assert document["own"] == own
        assert document["chosen"] == reference.choose_own_buckets(own, 112, 2, coins)
        assert document["bucket"] == reference.draw_bucket(own, 112, 2, 2100421408, coins)


def test_encode_of_sets_in_words(shell: Shell) -> None:
    """Without --json, the sentence says what leaves the device; other metrics have one value."""
    write_sets(shell)
    out = ok(shell("encode", "page", "git", "vim", "--registry", "sets.toml"))
    assert "Only metric, params, cohort and bucket leave the device." in out
    code, _, err = shell("encode", "engine", "a", "b", "--registry", "metrics.toml")
    assert (code, "give one VALUE, got 2" in err) == (2, True)
    code, _, err = shell("encode", "engine", "--registry", "metrics.toml")
    assert (code, "give one VALUE, got 0" in err) == (2, True)


TUPLES = toml_of(
    "choice",
    epoch="'quarter'",
    interval="'epoch'",
    profile="'once'",
    encoding="'onehot'",
    categories="{editor = ['vim', 'code'], system = ['linux', 'mac']}",
    normalize="{editor = 'casefold'}",
) + entry_of("pair", fields="['site', 'country']")
"""Registry with both forms of tuples. The categories of `choice` are listed for each field. The
strings of `pair` are not listed."""


def test_encode_of_tuples_takes_each_field_by_name(shell: Shell) -> None:
    """The order of the arguments does not matter; a value may contain an equals sign."""
    (shell.place / "tuples.toml").write_text(TUPLES)
    options = ("--registry", "tuples.toml", "--secret-hex", SECRET, "--json")
    words = ("choice", "system=mac", "editor=VIM", *options)
    assert json.loads(ok(shell("encode", *words)))["own"] == [1]
    code, out, err = shell("encode", "choice", "system=os2", "editor=vim", *options)
    assert (code, json.loads(out)["own"]) == (0, [4])
    assert "choice reports this value in the bucket for all other values" in err
    metric = Registry.load(shell.place / "tuples.toml").metric("pair")
    value = {"site": "a=b", "country": ""}
    encoded = encode_value(bytes.fromhex(SECRET), metric, value)
    for order in (("site=a=b", "country="), ("country=", "site=a=b")):
        document = json.loads(ok(shell("encode", "pair", *order, *options)))
        assert document["cohort"] == encoded.cohort
        bits = reference.unpack(encoded.bits, metric.params.k)
        assert document["bits"] == "".join(map(str, bits))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("site=secretsite",), "a value must have every field, got none for country"),
        (
            ("secretsite", "country=x"),
            "a value must be site=VALUE country=VALUE, got a text without a field's name",
        ),
        (("site=secretsite", "site=b"), "a value must be site=VALUE country=VALUE, got site twice"),
        (
            ("site=secretsite", "land=x"),
            "a value must be site=VALUE country=VALUE, got a text without",
        ),
        ((), "a value must have every field, got none for site, country"),
    ],
)
def test_encode_refuses_other_fields(shell: Shell, words: tuple[str, ...], reason: str) -> None:
    """The sentence names the fields and no value."""
    (shell.place / "tuples.toml").write_text(TUPLES)
    message = refused(shell("encode", "pair", *words, "--registry", "tuples.toml"))
    assert reason in message
    assert "secretsite" not in message
