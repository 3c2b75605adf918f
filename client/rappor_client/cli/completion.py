"""`rappor-client completion`: the script by which a shell completes the command.

The scripts are written from the parser, so that they know every command and option. Where neither
fits, the shell offers file names.
"""

from __future__ import annotations

import shlex
from argparse import Action
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rappor_client.cli.parser import PROGRAM, CommandParser, Namespace, ProgramParser


def add_to(program: ProgramParser) -> None:
    """Add the command to the program, whose parser the scripts are written from."""

    def run(chosen: Namespace) -> bool:
        print(_SCRIPTS[chosen.shell](program))  # noqa: T201 - a command's output
        return True

    command = program.add_command(
        "completion",
        run,
        summary="Print the script by which a shell completes this command.",
        details="The shell reads the script when it starts; the examples show where to put it.",
        example=(
            "rappor-client completion bash >> ~/.bashrc\n"
            "rappor-client completion zsh >> ~/.zshrc\n"
            "rappor-client completion fish > ~/.config/fish/completions/rappor-client.fish"
        ),
    )
    command.add_argument(
        "shell", choices=list(_SCRIPTS), metavar="SHELL", help="The shell: bash, zsh or fish."
    )


def _bash(program: ProgramParser) -> str:
    cases = [
        (" -", program.options),
        (" ", list(program.commands)),
        *((f"{name} -", command.options) for name, command in program.commands.items()),
        *((f"{name} ", _choices(command)) for name, command in program.commands.items()),
    ]
    lines = [f"        '{start}'*) words='{' '.join(words)}' ;;" for start, words in cases if words]
    return "\n".join(
        [
            "_rappor_client() {",
            "    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=",
            '    if [ "$COMP_CWORD" -eq 1 ]; then command=; fi',
            '    case "$command $word" in',
            *lines,
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            f"complete -o default -F _rappor_client {PROGRAM}",
        ]
    )


def _zsh(program: ProgramParser) -> str:
    cases = [
        f"        command:{name}) _arguments {_zsh_specs(command)} ;;"
        for name, command in program.commands.items()
    ]
    names = " ".join(program.commands)
    return "\n".join(
        [
            f"#compdef {PROGRAM}",
            "_rappor_client() {",
            "    local state line",
            f"    _arguments -C {_zsh_specs(program)} '1:COMMAND:({names})' '*::word:->command'",
            '    case "$state:$line[1]" in',
            *cases,
            "    esac",
            "}",
            f"compdef _rappor_client {PROGRAM}",
        ]
    )


def _zsh_specs(parser: CommandParser) -> str:
    specs = []
    for action in parser.arguments:
        values = f"({' '.join(action.choices)})" if action.choices else "_files"
        value = f":{action.metavar}:{values if action.choices or _is_path(action) else ''}"
        text = str(action.help).replace(":", "\\:")
        if action.option_strings:
            rest = "" if action.nargs == 0 else value
            specs += [f"{name}[{text}]{rest}" for name in action.option_strings]
        else:
            specs.append(f"*{value}" if action.nargs == "+" else f"1{value}")
    return " ".join(map(shlex.quote, specs))


def _fish(program: ProgramParser) -> str:
    lines = [f"complete -c {PROGRAM} -f"]
    lines += _fish_lines("__fish_use_subcommand", program)
    for name, command in program.commands.items():
        summary = shlex.quote(str(command.description).splitlines()[0])
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -a {name} -d {summary}")
        lines += _fish_lines(f"__fish_seen_subcommand_from {name}", command)
    return "\n".join(lines)


def _fish_lines(condition: str, parser: CommandParser) -> list[str]:
    start = f"complete -c {PROGRAM} -n {shlex.quote(condition)}"
    return [
        f"{start} {_fish_spec(action)} -d {shlex.quote(str(action.help))}"
        for action in parser.arguments
    ]


def _fish_spec(action: Action) -> str:
    names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings]
    if _is_path(action):
        names.append("-r -F" if action.option_strings else "-F")
    elif action.nargs != 0:
        names.append("-x")
    if action.choices:
        names.append(f"-a {shlex.quote(' '.join(action.choices))}")
    return " ".join(names)


def _choices(parser: CommandParser) -> list[str]:
    """Return the words that a command's arguments without an option may be."""
    return [
        word
        for action in parser.arguments
        if not action.option_strings
        for word in action.choices or ()
    ]


def _is_path(action: Action) -> bool:
    return action.type is Path


_SCRIPTS: Final[Mapping[str, Callable[[ProgramParser], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
