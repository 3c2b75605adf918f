"""The consent question: on a terminal, after a command, and not again after a response."""

from __future__ import annotations

import time

import pytest
from kit_tools import CLICK, QUESTION, TYPER, Tool
from places import ROOT

DAY = 86400


def days_ago(n: int) -> int:
    """Return a day in days since 1970."""
    return int(time.time()) // DAY - n


@pytest.mark.slow
@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
@pytest.mark.parametrize(("typed", "word"), [(b"y\n", "yes"), (b"\n", "no"), (b"no\n", "no")])
def test_a_person_is_asked_once_after_the_output(tool: Tool, typed: bytes, word: str) -> None:
    """The response is stored, and the next run shows no question."""
    shown = tool.on_terminal("build", types=typed)
    assert shown.startswith("built\n")
    assert shown.index("built") < shown.index(QUESTION)
    assert tool.answer.read_text().split()[0] == word
    assert tool.on_terminal("build") == "built\n"
    assert ("is on" if word == "yes" else "is off: you said no") in tool.run("telemetry", "status")


def test_page_shows_the_question(tool: Tool) -> None:
    """The transcript in client/KIT.md is the output that a person sees."""
    shown = tool.on_terminal("build", types=b"y\n").partition(QUESTION)[0]
    page = (ROOT / "client" / "KIT.md").read_text(encoding="utf-8")
    assert " ".join(shown.split()) in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.parametrize("typed", [b"\x03", b"\x04"], ids=["Ctrl-C", "end of input"])
def test_no_answer_is_asked_again_once_a_week_later(tool: Tool, typed: bytes) -> None:
    """Neither Ctrl-C nor the end of the input is a response, so the question comes again."""
    assert QUESTION in tool.on_terminal("build", types=typed)
    assert "the question of" in tool.run("telemetry", "status")
    for days, is_asked in ((6, False), (7, True), (400, False)):
        word, *asked = tool.answer.read_text().split()
        assert word == "asked"
        earlier = [*asked[:-1], str(days_ago(days))]
        tool.answer.write_text(" ".join([word, *earlier]))
        assert (QUESTION in tool.on_terminal("build", types=typed)) is is_asked
    assert [path.name for path in tool.folder.iterdir()] == ["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_neither_help_nor_the_commands_ask(tool: Tool, request: pytest.FixtureRequest) -> None:
    """The question follows a command of the program only."""
    ends = ["--help", "build --help", "db --help", "telemetry status", "telemetry preview"]
    if "click" in request.node.name:
        ends.append("--version")
    for words in ends:
        assert QUESTION not in tool.on_terminal(*words.split())
    assert not tool.data.exists()
