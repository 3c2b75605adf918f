"""`rappor encode`: JSON for scripts, secrets and epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import reference
from registries import format_entry, format_registry
from shell import SECRET, Shell, expect_refusal, expect_success

from rappor import Registry, encode_value


def encode(shell: Shell, *words: str) -> Any:
    """Run `rappor encode --json`, and return the parsed output."""
    out = expect_success(shell("encode", *words, "--registry", "metrics.toml", "--json"))
    return json.loads(out)


def test_json_of_encode(shell: Shell) -> None:
    """The JSON has the documented keys, and texts of bits begin with bit 0.

    Two runs with one secret differ in the report only.
    """
    first = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert list(first) == ["metric", "params", "cohort", "bits", "permanent", "report"]
    metric = Registry.load(shell.folder / "metrics.toml").metric("engine")
    expected = encode_value(bytes.fromhex(SECRET), metric, "qwant")
    number = int.from_bytes(expected.bits, "little")
    assert first["bits"] == "".join(str(number >> i & 1) for i in range(128))
    assert first["cohort"] == expected.cohort
    assert first["params"] == metric.fingerprint
    second = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert second["permanent"] == first["permanent"]
    assert second["report"] != first["report"]  # equal with probability 2^-60 at most


@pytest.mark.parametrize(
    ("profile", "interval", "sentence"),
    [
        ("once", "epoch", "and the report shows it as it is."),
        ("balanced", "epoch", "and a device sends one report in an epoch."),
        ("balanced", "day", "the report is drawn anew each time."),
    ],
)
def test_encode_states_how_the_report_is_drawn(
    profile: str, interval: str, sentence: str, shell: Shell
) -> None:
    """The text states whether a device draws another report of the permanent response.

    With p = 0 and q = 1 the report is the permanent response. Once an epoch a device sends one.
    """
    text = format_registry(epoch="'year'", interval=f"'{interval}'", profile=f"'{profile}'")
    (shell.folder / "once.toml").write_text(text)
    out = expect_success(shell("encode", "page", "a", "--registry", "once.toml"))
    fields = dict(line.split() for line in out.splitlines()[:6])
    is_permanent = fields["permanent"] == fields["report"]
    assert is_permanent is (profile == "once")
    assert " ".join(out.split()).endswith(f"stays the same for this value, {sentence}")


@pytest.mark.slow
def test_a_secret_on_the_command_line_warns_once(shell: Shell) -> None:
    """--secret-hex gives one warning for any number of values, and --secret-file gives none.

    A file of 31 bytes is refused. No output contains the secret.
    """
    (shell.folder / "secret").write_bytes(bytes.fromhex(SECRET))
    sources = ("--secret-file", "secret"), ("--secret-hex", SECRET)
    responses = [encode(shell, "engine", "qwant", *source)["permanent"] for source in sources]
    assert responses[0] == responses[1]
    encode_all = [sys.executable, "-c", "from rappor.cli import main; main()", "encode", "engine"]
    encode_all += ["-", "--registry", "metrics.toml"]
    for source, warnings in (("--secret-hex", 1), ("--secret-file", 0)):
        run = [*encode_all, source, SECRET if warnings else "secret"]
        process = subprocess.run(
            run, input="a\nb\n", capture_output=True, text=True, check=True, cwd=shell.folder
        )
        assert len(process.stdout.splitlines()) == 2
        assert process.stderr.count("--secret-hex shows the secret") == warnings
        assert SECRET not in process.stderr


def test_standard_input_that_is_no_text_is_refused_in_one_sentence(shell: Shell) -> None:
    """The lines before the damaged line are encoded, and the exit code is that of wrong input."""
    command = [sys.executable, "-X", "utf8=0", "-c", "from rappor.cli import main; main()"]
    process = subprocess.run(
        [*command, "encode", "theme", "-", "--registry", "metrics.toml"],
        input=b"dark\n\xff\n",
        capture_output=True,
        check=False,
        cwd=shell.folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert process.returncode == 2
    assert process.stderr == b"rappor: standard input: it must be text in utf-8\n"


@pytest.mark.parametrize(
    ("settings", "value", "clause"),
    [
        ({"normalize": "'host'"}, ("two words",), "page reports the empty text in place of this"),
        ({"encoding": "'set'", "items": "1"}, ("a", "b"), "items of this set are left out"),
        (
            {"encoding": "'onehot'", "categories": "['a', 'b']"},
            ("c",),
            "page reports this value in the bucket for all other values",
        ),
    ],
)
def test_a_value_that_is_not_representable_has_a_warning(
    settings: dict[str, str], value: tuple[str, ...], clause: str, shell: Shell
) -> None:
    """The warning says how a value is reported that the encoding cannot represent.

    Strings without a host, sets with too many items, and texts outside the categories of
    generalized randomized response are reported in different ways.
    """
    is_string = "normalize" in settings
    profile, interval = ("balanced", "day") if is_string else ("once", "epoch")
    text = format_registry(
        epoch="'quarter'", interval=f"'{interval}'", profile=f"'{profile}'", **settings
    )
    (shell.folder / "other.toml").write_text(text)
    code, _, err = shell("encode", "page", *value, "--registry", "other.toml")
    assert code == 0
    assert err.startswith(f"warning: {clause}")


def test_encode_of_a_boolean_and_of_other_epochs(shell: Shell) -> None:
    """The value yes of a boolean sets its bit. Another epoch has another permanent response."""
    assert encode(shell, "sync", "yes")["bits"] == "1"
    assert encode(shell, "sync", "no")["bits"] == "0"
    permanent_responses = {
        encode(shell, "theme", "dark", "--secret-hex", SECRET, "--epoch", f"{year}-Q1")["permanent"]
        for year in range(2000, 2060)
    }
    assert len(permanent_responses) > 1


def test_encode_warns_of_a_value_outside_the_categories(shell: Shell) -> None:
    """A value that is no category sets no bit, with a warning that does not contain the value."""
    code, out, err = shell(
        "encode", "theme", "secretcolour", "--registry", "metrics.toml", "--json"
    )
    assert code == 0
    assert json.loads(out)["bits"] == "000"
    assert err == "warning: theme has no place for this value: the report contains noise only\n"


def write_sets(shell: Shell) -> None:
    """Write a registry with a metric of sets."""
    text = format_registry(
        epoch="'quarter'", interval="'epoch'", profile="'once'", encoding="'set'"
    )
    (shell.folder / "sets.toml").write_text(text + "items = 2\n")


def test_encode_of_sets_equals_the_reference(shell: Shell) -> None:
    """The JSON of a set has the cohort and buckets that the reference implementation computes.

    A set may have any number of values. The JSON has all results that another client must compute:
    the buckets of its items, the chosen buckets, and the reported bucket.
    """
    write_sets(shell)
    metric = Registry.load(shell.folder / "sets.toml").metric("page")
    secret = bytes.fromhex(SECRET)
    for values in ([], ["git"], ["git", "vim", "git", ""], ["a", "b", "c", "d"]):
        words = ("page", *values, "--registry", "sets.toml", "--secret-hex", SECRET)
        document = json.loads(
            expect_success(shell("encode", *words, "--epoch", "2026-Q4", "--json"))
        )
        assert list(document) == ["metric", "params", "cohort", "own", "chosen", "bucket"]
        scope = reference.encode_scope("page", "2026-Q4", metric.params.permanent_fingerprint)
        cohort = reference.derive_cohort(secret, scope, 128)
        own = reference.list_own_buckets(values, cohort, 112)
        coins = reference.derive_bucket_coins(secret, scope, own, 112, 2)
        assert (document["params"], document["cohort"]) == (metric.fingerprint, cohort)
        assert document["own"] == own
        assert document["chosen"] == reference.choose_own_buckets(own, 112, 2, coins)
        assert document["bucket"] == reference.draw_bucket(own, 112, 2, 2100421408, coins)


def test_encode_of_sets_as_text(shell: Shell) -> None:
    """The text states which results leave the device. Metrics of other encodings take one value."""
    write_sets(shell)
    out = expect_success(shell("encode", "page", "git", "vim", "--registry", "sets.toml"))
    assert out.endswith("for this value.\nA device sends one report in an epoch.\n")
    code, _, err = shell("encode", "engine", "a", "b", "--registry", "metrics.toml")
    assert (code, "give one VALUE, got 2" in err) == (2, True)
    code, _, err = shell("encode", "engine", "--registry", "metrics.toml")
    assert (code, "give one VALUE, got 0" in err) == (2, True)


TUPLES = format_registry(
    "choice",
    epoch="'quarter'",
    interval="'epoch'",
    profile="'once'",
    encoding="'onehot'",
    categories="{editor = ['vim', 'code'], system = ['linux', 'mac']}",
    normalize="{editor = 'casefold'}",
) + format_entry("pair", fields="['site', 'country']")
"""Registry with both forms of tuples. The categories of `choice` are listed for each field. The
strings of `pair` are not listed."""


def test_encode_of_tuples_takes_each_field_by_name(shell: Shell) -> None:
    """Fields are written NAME=VALUE, in any order. A value may contain an equals sign.

    The four listed combinations have the buckets 0 to 3, and all other values have bucket 4.
    """
    (shell.folder / "tuples.toml").write_text(TUPLES)
    options = ("--registry", "tuples.toml", "--secret-hex", SECRET, "--json")
    words = ("choice", "system=mac", "editor=VIM", *options)
    assert json.loads(expect_success(shell("encode", *words)))["own"] == [1]
    code, out, err = shell("encode", "choice", "system=os2", "editor=vim", *options)
    assert (code, json.loads(out)["own"]) == (0, [4])
    assert "choice reports this value in the bucket for all other values" in err
    metric = Registry.load(shell.folder / "tuples.toml").metric("pair")
    value = {"site": "a=b", "country": ""}
    encoded = encode_value(bytes.fromhex(SECRET), metric, value)
    for order in (("site=a=b", "country="), ("country=", "site=a=b")):
        document = json.loads(expect_success(shell("encode", "pair", *order, *options)))
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
    """A missing, repeated or unknown field is refused. The sentence contains no value."""
    (shell.folder / "tuples.toml").write_text(TUPLES)
    message = expect_refusal(shell("encode", "pair", *words, "--registry", "tuples.toml"))
    assert reason in message
    assert "secretsite" not in message
