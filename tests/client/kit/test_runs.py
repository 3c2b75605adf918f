"""Runs of programs of click and typer: the uses of a run, and the question after its success."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from rappor_client.kit import click as kit
from rappor_client.kit.click import list_all_uses
from rappor_client.kit.host import Host


class RunRecorder(Host):
    """A host that stores the uses of each run, and counts questions in place of asking."""

    def __init__(self) -> None:
        """Create a host without a folder."""
        super().__init__("x", registry="none.toml", collector=None, folder="/nowhere")
        self.runs: list[list[str]] = []
        self.n_questions = 0

    def is_recording(self) -> bool:
        """Return True."""
        return True

    def record(self, uses: Sequence[str]) -> None:
        """Store the uses of a run."""
        self.runs.append(list(uses))

    def finish_run(self) -> None:
        """Count the question."""
        self.n_questions += 1


ENDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "returns": (lambda: None, True),
    "sys.exit()": (sys.exit, True),
    "sys.exit(0)": (lambda: sys.exit(0), True),
    "sys.exit(False)": (lambda: sys.exit(False), True),
    "SystemExit(None)": (lambda: leave(SystemExit(None)), True),
    "parser.exit(0)": (lambda: argparse.ArgumentParser().exit(0), True),
    "parser.exit(2)": (lambda: argparse.ArgumentParser().exit(2), False),
    "click exit 0": (lambda: leave(click.exceptions.Exit(0)), True),
    "click exit 1": (lambda: leave(click.exceptions.Exit(1)), False),
    "sys.exit(3)": (lambda: sys.exit(3), False),
    "sys.exit(text)": (lambda: sys.exit("a failure"), False),
    "sys.exit('')": (lambda: sys.exit(""), False),
    "sys.exit(0.0)": (lambda: sys.exit(0.0), False),  # type: ignore[arg-type]  # it is printed
    "an error": (lambda: leave(ValueError()), False),
    "an error with an exit code": (lambda: leave(ExitCodeError()), False),
    "abort": (lambda: leave(click.Abort()), False),
    "usage": (lambda: leave(click.UsageError("wrong")), False),
    "Ctrl-C": (lambda: leave(KeyboardInterrupt()), False),
}
"""Ends of a command by name: a function that ends the command, and whether the end is a success."""


class ExitCodeError(Exception):
    """An error of a program, with an attribute that the Exit of click has, too."""

    exit_code = 0


def leave(error: BaseException) -> None:
    """Raise an exception."""
    raise error


@pytest.mark.parametrize(
    ("result", "is_success"), [(None, True), (0, True), (["built"], True), (1, False), (7, False)]
)
def test_no_question_follows_a_command_that_returns_a_failure(
    result: object, is_success: bool
) -> None:
    """A number is an exit code: a program may end by `sys.exit(cli(standalone_mode=False))`."""
    host = RunRecorder()
    program = click.Group("x", commands=[click.Command("go", callback=lambda: result)])
    kit._watch_root(program, host)
    assert program.main(["go"], standalone_mode=False) == result
    assert host.n_questions == is_success


@pytest.mark.parametrize("result", [0, 1, 7, True])
@pytest.mark.parametrize("mode", [{}, {"standalone_mode": True}], ids=["default", "standalone"])
def test_the_question_follows_a_returned_number_that_click_ignores(
    result: int, mode: dict[str, Any]
) -> None:
    """In the standalone mode click ends with exit code 0, whatever a command returns."""
    host = RunRecorder()

    @click.group()
    def program() -> None:
        pass

    @program.command()
    def inner() -> int:
        return 3

    @program.command()
    def go() -> int:
        # A failure within the run of another command is no end of the program.
        assert program.main(["inner"], standalone_mode=False) == 3
        assert host.n_questions == 0
        return result

    kit._watch_root(program, host)
    with pytest.raises(SystemExit) as end:
        program.main(["go"], **mode)
    assert (end.value.code, host.n_questions) == (0, 1)


class InterruptedHost(Host):
    """A host whose person presses Ctrl-C while the response is stored."""

    n_interrupts = 0

    def _ask_for_consent(self) -> None:
        self.n_interrupts += 1
        raise KeyboardInterrupt


def test_ctrl_c_after_the_question_leaves_the_success(tmp_path: Path) -> None:
    """The run has succeeded, so it ends without an exception."""
    host = InterruptedHost("x", registry="none.toml", collector=None, folder=tmp_path)
    with host.run("go"):
        pass
    assert host.n_interrupts == 1


@pytest.mark.parametrize(("end_command", "is_success"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("program_kind", ["click", "nested", "Host.run"])
def test_every_success_is_followed_by_the_question(
    program_kind: str, end_command: Callable[[], Any], is_success: bool
) -> None:
    """The question follows an end with exit code 0, and no other end.

    The end is that of a command of click, of a command in a group, or of a block of `Host.run`.
    """
    host = RunRecorder()
    errors: list[BaseException] = []
    try:
        if program_kind == "Host.run":
            with host.run("go"):
                end_command()
        else:
            command = click.Command("go", callback=end_command)
            inner = click.Group("inner", commands=[click.Command("go", callback=end_command)])
            program = click.Group("x", commands=[command, inner])
            kit._watch_root(program, host)
            words = ["go"] if program_kind == "click" else ["inner", "go"]
            program.main(words, standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - as the interpreter gets it
        errors.append(error)
    assert host.n_questions == is_success
    if program_kind == "Host.run":
        assert bool(errors) == (end_command is not ENDS["returns"][0])


def chain(*, runs_without_command: bool = False) -> click.Group:
    """Return a group of which a person may type several commands in one run."""
    wheel = click.Command("wheel", params=[click.Option(["--fast"], is_flag=True)])
    wheel.callback = lambda fast: None  # noqa: ARG005 - by click's call
    commands = [click.Command(name, callback=lambda: None) for name in ("sdist", "upload")]
    return click.Group(
        "x", chain=True, commands=[*commands, wheel],
        invoke_without_command=runs_without_command,
        callback=lambda verbose: None,  # noqa: ARG005 - by click's call
        params=[click.Option(["--verbose"], is_flag=True)],
    )  # fmt: skip


def groups() -> click.Group:
    """Return a program whose root and groups also run without a command."""
    flags = [click.Option(["--all"], is_flag=True)]
    remote = click.Group(
        "remote", invoke_without_command=True, params=flags, callback=lambda all: None,  # noqa: A006, ARG005
        commands=[click.Command("add", callback=lambda: None)],
    )  # fmt: skip
    stash = click.Group("stash", commands=[click.Command("pop", callback=lambda: None)])
    build = click.Command("build", callback=lambda: None)
    commands = [remote, stash, build, chained := chain(runs_without_command=True)]
    chained.name = "dist"
    return click.Group(
        "x", invoke_without_command=True, callback=lambda: None,
        commands={command.name or "": command for command in commands},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "words", "uses"),
    [
        (chain, "sdist", {"sdist"}),
        (chain, "sdist wheel upload", {"sdist", "wheel", "upload"}),
        (chain, "sdist sdist", {"sdist"}),
        (chain, "sdist wheel --fast upload", {"sdist", "wheel --fast", "upload"}),
        (chain, "--verbose sdist upload", {"--verbose", "sdist", "upload"}),
        (groups, "", {"(no command)"}),
        (groups, "build", {"build"}),
        (groups, "remote", {"remote"}),
        (groups, "remote --all", {"remote --all"}),
        (groups, "remote add", {"remote add"}),
        (groups, "remote --all add", {"remote --all", "remote add"}),
        (groups, "stash pop", {"stash pop"}),
        (groups, "dist", {"dist"}),
        (groups, "dist sdist upload", {"dist sdist", "dist upload"}),
    ],
)
def test_each_command_and_flag_of_a_run_is_a_use(
    make: Callable[[], click.Group], words: str, uses: set[str]
) -> None:
    """Each command of a chain is a use, and so is a group that runs by itself. `init` lists all.

    No use is recorded twice in a run.
    """
    host, program = RunRecorder(), make()
    kit._watch_root(program, host)
    program.main(words.split(), standalone_mode=False)
    (uses_of_run,) = host.runs
    assert sorted(uses_of_run) == sorted(uses)
    assert uses <= set(list_all_uses(click.Context(make(), info_name="x")))
    assert host.n_questions == 1


def switches() -> click.Group:
    """Return a program with options that set one parameter: a feature switch of click."""
    flags: list[click.Parameter] = [
        click.Option(["--upper", "case"], flag_value="upper", default="upper"),
        click.Option(["--lower", "case"], flag_value="lower"),
        click.Option(["--fast/--slow"], default=True),
        click.Option(["--red", "color"], flag_value="red"),
        click.Option(["--color", "color"]),
        click.Option(["-q", "--quiet", "volume"], flag_value=0, type=int),
        click.Option(["-v", "--verbose", "volume"], flag_value=2, type=int, default=1),
    ]
    write = click.Command("write", params=flags, callback=lambda **_: None)
    return click.Group("x", commands=[write])


@pytest.mark.parametrize(
    ("words", "uses"),
    [
        ("", ["write"]),
        ("--upper", ["write --upper"]),
        ("--lower", ["write --lower"]),
        ("--upper --lower", ["write --lower"]),  # the last one counts, for click as well
        ("-q", ["write --quiet"]),
        ("-v --lower", ["write --lower", "write --verbose"]),
        ("--slow", ["write --slow"]),
        ("--fast", ["write --fast"]),
        ("--red", ["write --red"]),
        ("--color=blue", ["write --color"]),
    ],
)
def test_a_feature_switch_is_one_use(words: str, uses: list[str]) -> None:
    """Of several options that set one parameter, the typed option is recorded, and no other."""
    host, program = RunRecorder(), switches()
    kit._watch_root(program, host)
    program.main(["write", *words.split()], standalone_mode=False)
    assert host.runs == [uses]
    assert set(uses) <= set(list_all_uses(click.Context(switches(), info_name="x")))


@pytest.mark.parametrize("words", ["sdist nothing", "nothing", "sdist --wrong", "stash", "--help"])
def test_an_error_of_usage_is_not_recorded(words: str) -> None:
    """A run with an unknown word, or without a needed command, records no use and asks nothing.

    `--help` records nothing either.
    """
    for make in (chain, groups):
        host, program = RunRecorder(), make()
        kit._watch_root(program, host)
        try:
            program.main(words.split(), standalone_mode=False)
        except click.UsageError:
            assert host.n_questions == 0
        assert host.runs == []


@pytest.mark.parametrize(
    ("words", "uses"),
    [("", ["(no command)"]), ("sub", ["sub"]), ("sub go", ["sub go"]), ("go", ["go"])],
)
def test_groups_of_typer_run_by_themselves(words: str, uses: list[str]) -> None:
    """A group of typer that runs without a command is a use.

    Typer has a copy of the code of click, so its groups are other classes.
    """
    app, sub = typer.Typer(), typer.Typer()
    for group in (app, sub):
        group.callback(invoke_without_command=True)(lambda: None)
        group.command("go")(lambda: None)
    app.add_typer(sub, name="sub")
    program: Any = typer.main.get_command(app)
    host = RunRecorder()
    kit._watch_root(program, host)
    program.main(words.split(), standalone_mode=False)
    assert host.runs == [uses]
