"""The consent question: on a terminal, after a command, and not again after a response."""

from __future__ import annotations

import re
import time

import pytest
from kit_tools import CLICK, QUESTION, TYPER, Tool
from places import ROOT
from rappor_client.kit.consent_question import write_question

from rappor import Registry

DAY = 86400
"""A day has this number of seconds."""


def find_day(days_ago: int) -> int:
    """Return an earlier day, in days since 1970."""
    return int(time.time()) // DAY - days_ago


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "response", "word"),
    [
        (CLICK, b"y\n", "yes"),
        (CLICK, b"\n", "no"),
        (CLICK, b"no\n", "no"),
        (TYPER, b"y\n", "yes"),  # the kit reads the response, and a library only ends its command
    ],
    ids=["click, y", "click, empty", "click, no", "typer, y"],
    indirect=["tool"],
)
def test_a_person_is_asked_once_after_the_output(tool: Tool, response: bytes, word: str) -> None:
    """The question follows the output. The response is stored, and the next run has no question."""
    output = tool.run_on_terminal("build", response=response)
    assert output.startswith("built\n")
    assert QUESTION in output
    assert tool.consent_path.read_text().split()[0] == word
    assert tool.run_on_terminal("build") == "built\n"
    assert ("is on" if word == "yes" else "is off: you said no") in tool.run("telemetry", "status")


@pytest.mark.slow
def test_the_question_names_the_other_metrics_of_the_registry(tool: Tool) -> None:
    """A yes is stored for all metrics of the registry, so the question names all of them.

    Once it named the commands only, and a yes agreed to the metrics that the maker had added.
    """
    tool.add_theme()
    output = tool.run_on_terminal("build", response=b"y\n")
    sentence = (
        "It would also send, with random noise: Light or dark appearance (at most once a day)."
    )
    assert sentence in " ".join(output.split())
    assert tool.consent_path.read_text().split()[2:] == ["command", "theme"]


@pytest.mark.parametrize(
    ("keys", "year"),
    [
        ('profile = "once"', "was half sure of a value that stays the same, can become almost"),
        ("f = 0.9\np = 0.5\nq = 0.6", "stays the same, can be at most"),
        ("f = 0\np = 0\nq = 1\ninsecure = true", "Some of it can be read back from the reports."),
    ],
)
def test_the_question_says_what_a_year_of_reports_reveals(keys: str, year: str) -> None:
    """The question names the collector, the frequency, and the largest belief after a year."""
    epoch = "month" if "once" in keys else "year"
    registry = Registry.loads(
        f"[budget]\ntotal = inf\n[metrics.command]\ndescription = 'Commands'\nowner = 'o'\n"
        f"expires = 2099-12-31\nencoding = 'boolean'\nepoch = '{epoch}'\n{keys}\n"
        + ("interval = 'epoch'\n" if "once" in keys else "")
    )
    text = write_question(
        "mytool", "commands", registry["command"], registry, "https://telemetry.example.org"
    )
    assert year in text
    assert "with random noise, to https://telemetry.example.org." in " ".join(text.split())
    frequency = "Once a month" if "once" in keys else "At most once a day"
    assert f"{frequency} this device would send the name of one of them" in text


def test_page_shows_the_question(tool: Tool) -> None:
    """The transcript in client/KIT.md is the output that a person sees."""
    output = tool.run_on_terminal("build", response=b"y\n").partition(QUESTION)[0]
    output = output.replace("http://127.0.0.1:9", "https://telemetry.example.org")
    page = (ROOT / "client" / "KIT.md").read_text(encoding="utf-8")
    assert " ".join(output.split()) in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.parametrize("registry", ["damaged", "ended"])
def test_no_question_about_a_collection_that_is_impossible(tool: Tool, registry: str) -> None:
    """A person is not asked if the registry cannot be read, or if its last day is over.

    The question once came in both cases. A yes recorded nothing, and with a damaged registry it was
    not even stored.
    """
    text = tool.registry.read_text()
    if registry == "damaged":
        tool.registry.write_text(text + "]")
    else:
        tool.registry.write_text(re.sub(r"expires = .*", "expires = 2026-01-01", text))
    assert tool.run_on_terminal("build", response=b"y\n") == "built\n"
    assert not tool.data.exists()


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "end of input"])
def test_question_without_a_response_is_shown_once_more_a_week_later(
    tool: Tool, key: bytes
) -> None:
    """Neither Ctrl-C nor the end of the input is a response, so the question comes again.

    After the second time it never comes again. The test moves the last day of the consent file
    back, because a person on a terminal has no other clock.
    """
    assert QUESTION in tool.run_on_terminal("build", response=key)
    assert "the question of" in tool.run("telemetry", "status")
    for days_ago, is_shown in ((6, False), (7, True), (400, False)):
        word, *days = tool.consent_path.read_text().split()
        assert word == "asked"
        days[-1] = str(find_day(days_ago))
        tool.consent_path.write_text(" ".join([word, *days]))
        assert (QUESTION in tool.run_on_terminal("build", response=key)) is is_shown
    assert [path.name for path in tool.folder.iterdir()] == ["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_question_follows_neither_help_nor_a_command_of_the_kit(
    tool: Tool, request: pytest.FixtureRequest
) -> None:
    """The question follows a command of the program only."""
    commands = ["--help", "build --help", "db --help", "telemetry status", "telemetry preview"]
    if "click" in request.node.name:  # the program of typer has no option --version
        commands.append("--version")
    for command in commands:
        assert QUESTION not in tool.run_on_terminal(*command.split())
    assert not tool.data.exists()
