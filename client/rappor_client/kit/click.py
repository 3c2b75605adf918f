"""Telemetry for a program of click or typer.

    from rappor_client.kit.click import telemetry

    telemetry(cli, registry="metrics.toml", collector="https://telemetry.example.org")

The call adds the command `telemetry` to the program. Each run records the names of its commands and
flags, never a value, and a successful run is followed by the consent question.

*Uses.* A recorded name is called a use: a command with its groups, and at most one flag. Uses of a
program with the group `remote`, the commands `remote add` and `build`, and the flag `--force`:

    typed by the person              uses
    build                            build
    build --force --name=x           build --force, build --name
    --verbose build                  --verbose, build
    remote add https://example.org   remote add
    (only the name of the program)   (no command), if the program allows it

The kit reports one of the uses of a run (see `rappor_client.kit.host`).

*Contexts.* Click makes a context (`ctx`) for each parsed command. The parent of the context of
`remote add` is the context of `remote`, and its parent is the context of the root: the program
itself. All contexts of a run share the dictionary `ctx.meta`, in which this module keeps two keys.

*Watching.* The module replaces methods of the program's command objects ("watches" a command) by
functions that call them. In the order of a run:

    main           notes at the root whether click ends the process, or returns to the program
    get_command    watches a command when its group looks it up, because groups may load commands
                   late
    make_context   collects the contexts of all commands that one run has parsed
    invoke         records the run when the first command starts; at the root it also shows the
                   consent question at the end

Importing this module imports neither library, because a program has only one of them: some versions
of typer contain their own copy of click. `telemetry` imports the library of its program, to create
the command. Everything else uses only attributes and methods that the objects of both libraries
have.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from rappor.base.errors import ParamsError
from rappor_client.kit.host import Host, is_success

_Program = TypeVar("_Program")

NAME: Final = "telemetry"
"""Name of the command that is added to the root of the program. It is never recorded as a use."""
_NO_COMMAND: Final = "(no command)"
"""Name that is recorded for a run of the root without a command and without a flag."""
_HAS_RUN: Final = f"{__name__}.has_run"
"""Key in `ctx.meta`, which all contexts of one run share. The value is True once a command ran."""
_PARSED: Final = f"{__name__}.parsed"
"""Key in `ctx.meta` for the list of contexts of all commands that the run has parsed."""
_WITHOUT_PARSING: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""Settings of a command whose arguments click does not parse. The command `telemetry` has these
settings. The kit parses its arguments with a parser of its own, so the command is the same in every
program."""


def telemetry(cli: _Program, *, registry: str | os.PathLike[str], **settings: Any) -> _Program:
    """Give telemetry to a program of click or typer. Call it below the last command.

    Parameters
    ----------
    cli : group of click or app of typer
        The program. It must have commands.
    registry : path
        Path of the file that `telemetry init` writes. A relative path starts at the folder of the
        calling file.
    **settings
        Arguments of `Host`, such as `collector`. The default of `name` is the package, or the
        script, of the caller.

    Returns
    -------
    group of click or app of typer
        The argument `cli`.

    Raises
    ------
    ParamsError
        The program has no commands, or a command `telemetry`.
    """
    is_typer = hasattr(cli, "registered_commands")  # only an app of typer has this attribute
    # A group of click has a mapping of its commands by name.
    names = _list_names_of_typer(cli) if is_typer else getattr(cli, "commands", ())
    if NAME in names:
        raise ParamsError(f"cli must have no command {NAME} of its own")
    # The package and the file of the caller give the name of the program and the place of its
    # registry, so that most programs need not pass either.
    caller = sys._getframe(1).f_globals
    file = str(caller.get("__file__", ""))
    name = settings.pop("name", None) or _name_caller(caller, file)
    path = os.path.join(os.path.dirname(os.path.abspath(file)), registry)
    host = Host(name, registry=path, **settings)
    if is_typer:
        _add_to_typer(cli, host)
    elif hasattr(cli, "add_command"):
        _add_to_click(cli, host)
    else:
        raise ParamsError(
            f"cli must be a group of click or an app of typer, got {type(cli).__name__}"
        )
    return cli


def list_uses(ctx: Any) -> list[str]:
    """Return the recorded names of a run: `command --flag` for each typed flag, else `command`.

    The list is empty if a command was typed by a name that its group does not list, because such a
    name may be a value.
    """
    path: list[str] = []
    uses: list[str] = []
    flags: list[str] = []
    for context in _list_contexts(ctx):
        # The name of the root is the name of the program, which is part of no use.
        if context.parent is not None:
            if (name := _find_listed_name(context)) is None:
                return []
            path.append(name)
        flags = [" ".join([*path, flag]) for flag in _list_typed_flags(context)]
        uses += flags
    # `flags` are those of the last command. Flags of its groups are uses, too, but do not stand for
    # the command: `--verbose build` has the uses `--verbose` and `build`.
    return uses if flags else [*uses, " ".join(path) or _NO_COMMAND]


def list_all_uses(ctx: Any) -> Iterator[str]:
    """Yield every name that `list_uses` can return for a program, from a context of its root.

    The function calls itself with a context of each command of a group. `telemetry init` writes
    these names into the registry.
    """
    path = [context.info_name for context in _list_contexts(ctx)][1:]  # without the program's name
    if not _is_group(ctx.command) or _may_run_without_command(ctx.command):
        yield " ".join(path) or _NO_COMMAND
    for option in _list_options(ctx.command):
        yield from (" ".join([*path, flag]) for flag in _list_flags(option))
    if _is_group(ctx.command):
        for name in ctx.command.list_commands(ctx):
            # A person who looks at the telemetry does not use the program. Only the root has the
            # added command. A command `telemetry` of a group belongs to the program, and is a use.
            is_added_command = name == NAME and ctx.parent is None
            command = ctx.command.get_command(ctx, name)
            if command is not None and not is_added_command:
                yield from list_all_uses(type(ctx)(command, info_name=name, parent=ctx))


def _add_to_click(group: Any, host: Host) -> None:
    """Add the command `telemetry` to a group of click, and watch the group."""
    import click

    run = click.pass_context(_make_manager(host))
    command = click.Command(
        NAME, callback=run, help=_describe_command(host), context_settings=_WITHOUT_PARSING
    )
    group.add_command(command)
    _watch_root(group, host)


def _list_names_of_typer(app: Any) -> Iterator[str]:
    """Yield the names of the commands and groups of an app of typer.

    Typer chooses the names when it builds the program. A command without a name has the name of its
    function. A group without a name gives its commands to the app.
    """
    from typer.main import get_command_name, solve_typer_info_defaults

    for command in app.registered_commands:
        yield command.name or get_command_name(command.callback.__name__)
    for group in app.registered_groups:
        group_name = solve_typer_info_defaults(group).name
        if group_name:
            yield group_name
        else:
            yield from _list_names_of_typer(group.typer_instance)


def _add_to_typer(app: Any, host: Host) -> None:
    """Add the command `telemetry` to an app of typer, and watch the group that typer builds."""
    import typer
    from typer.core import TyperGroup

    is_group = app.registered_callback or app.registered_groups or app.info.callback
    # Typer runs a single command as the program itself. With `telemetry` as the second command,
    # users of the program would have to type the name of the first one.
    if not is_group and len(app.registered_commands) < 2:
        raise ParamsError(
            "cli must have two commands, or a callback: typer runs a single command without its "
            "name"
        )
    run = _make_manager(host)
    # Typer passes the context to an argument that has this annotation.
    run.__annotations__ = {"ctx": typer.Context, "return": None}
    app.command(NAME, help=_describe_command(host), context_settings=_WITHOUT_PARSING)(run)
    # A program may choose the class of its group in the decorator of its callback,
    # `@app.callback(cls=...)`, or in `typer.Typer(cls=...)`. If it does both, typer uses the class
    # of the callback.
    has_callback_class = isinstance(getattr(app.registered_callback, "cls", None), type)
    info = app.registered_callback if has_callback_class else app.info
    base: Any = info.cls if isinstance(info.cls, type) else TyperGroup

    # Typer builds the group object anew at each run, so its class does the watching.
    class Watched(base):  # type: ignore[misc]  # the program chooses it
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            _watch_root(self, host)

    info.cls = Watched


def _make_manager(host: Host) -> Callable[[Any], None]:
    """Return the function of the command `telemetry`: it passes the typed words to the kit."""

    def manage(ctx: Any) -> None:
        from rappor_client.kit import commands

        uses = dict.fromkeys(list_all_uses(ctx.find_root()))
        ctx.exit(commands.manage(host, ctx.args, list(uses)))

    return manage


def _describe_command(host: Host) -> str:
    """Return the help of the command `telemetry`."""
    return f"See what {host.name} reports, agree to it, or refuse it: on, off, status, preview."


def _watch_root(group: Any, host: Host) -> None:
    """Watch the root of a program, and show the consent question after each successful run."""
    _watch(group, host)
    main, invoke = group.main, group.invoke
    is_standalone = False

    def start(*args: Any, **settings: Any) -> Any:
        nonlocal is_standalone
        # A command may call `main` again, so the value of the outer call is kept.
        outer = is_standalone
        # `standalone_mode` is the fourth parameter of `main`.
        is_standalone = args[3] if len(args) > 3 else settings.get("standalone_mode", True)
        try:
            return main(*args, **settings)
        finally:
            is_standalone = outer

    def run(ctx: Any) -> Any:
        try:
            result = invoke(ctx)
        except (Exception, SystemExit) as error:
            # `--version` and `--help` also end a program with success, but no command has run. A
            # person who reads the help should not be asked.
            if _HAS_RUN in ctx.meta and is_success(error):
                host.finish_run()
            raise
        # With `standalone_mode=False` a program ends by `sys.exit(cli(...))`, so a number is its
        # exit code. Bad case: the question came after a command that returned 1. In the standalone
        # mode click ignores the result and ends with exit code 0. Bad case: no question came after
        # a command that returned the number of its results.
        if is_standalone or not (isinstance(result, int) and result):
            host.finish_run()
        return result

    group.main, group.invoke = start, run


def _watch(command: Any, host: Host) -> None:
    """Let a command record itself when it runs, and let a group watch its commands."""
    if _is_group(command):
        _watch_lookup(command, host)
    make_context, invoke = command.make_context, command.invoke

    def make(*args: Any, **settings: Any) -> Any:
        ctx = make_context(*args, **settings)
        # Click parses resiliently for the completion of a shell, which is no run.
        if not (_is_group(command) or ctx.resilient_parsing):
            ctx.meta.setdefault(_PARSED, []).append(ctx)
        return ctx

    def run(ctx: Any) -> Any:
        if not _is_group(command) or _is_run_without_command(ctx):
            _record(ctx, host)
        return invoke(ctx)

    command.make_context, command.invoke = make, run


def _watch_lookup(group: Any, host: Host) -> None:
    """Let a group watch each command that it looks up."""
    get_command = group.get_command

    def get_watched(ctx: Any, name: str) -> Any:
        command = get_command(ctx, name)
        # A group with a lookup of its own may not find the added command `telemetry`.
        if name == NAME and ctx.parent is None:
            return command or group.commands[NAME]
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            # A watched command has `invoke` as an attribute of its own, beside the method of its
            # class. It is not watched twice: it would record each run twice.
            if command is not None and "invoke" not in vars(command):
                _watch(command, host)
        return command

    group.get_command = get_watched


def _record(ctx: Any, host: Host) -> None:
    """Record a run when its first command starts.

    The kit draws one of the uses of a run at random and reports it. A chain of commands is one run.
    Click parses all commands of a chain before it runs the first, so the drawn use may belong to
    any command of the chain.
    """
    is_first = _HAS_RUN not in ctx.meta
    ctx.meta[_HAS_RUN] = True
    with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
        if is_first and host.is_recording():
            contexts = ctx.meta.get(_PARSED) or [ctx]
            uses = dict.fromkeys(use for parsed in contexts for use in list_uses(parsed))
            host.record(list(uses))


def _is_run_without_command(ctx: Any) -> bool:
    """Return whether a group runs itself: it may, and the person typed no command.

    Click keeps the typed name of a command of the group in "protected args", and the words after it
    in `args`.
    """
    # The attribute has an underscore in click 8.2 and later.
    words = getattr(ctx, "_protected_args", None)
    if words is None:
        words = ctx.protected_args
    return _may_run_without_command(ctx.command) and not (words or ctx.args)


def _may_run_without_command(group: Any) -> bool:
    """Return whether the program allows that a group runs without one of its commands."""
    return bool(getattr(group, "invoke_without_command", False))


def _is_group(command: Any) -> bool:
    """Return whether a command has commands of its own."""
    return hasattr(command, "list_commands")


def _list_contexts(ctx: Any) -> list[Any]:
    """Return the contexts from the root to the given one."""
    return [*([] if ctx.parent is None else _list_contexts(ctx.parent)), ctx]


def _find_listed_name(ctx: Any) -> str | None:
    """Return the name by which a group lists a command, or None.

    Some groups accept any word as a command, for example the name of a file. Such a word is a value
    and must not be recorded.
    """
    names = ctx.parent.command.list_commands(ctx.parent)
    return next((name for name in (ctx.info_name, ctx.command.name) if name in names), None)


def _list_typed_flags(ctx: Any) -> Iterator[str]:
    """Yield the flags that the person typed, `--no-x` for a negated flag."""
    for option in _list_typed_options(ctx):
        on, *off = _list_flags(option)  # `off` has the negation, or is empty
        is_negated = off and ctx.params.get(option.name) is False
        yield off[0] if is_negated else on


def _list_typed_options(ctx: Any) -> list[Any]:
    """Return the options that the person typed.

    Click remembers for each parameter, and not for each option, whether it was typed. Several
    options may set one parameter ("feature switches"):

        @click.option("--upper", "case", flag_value="upper")
        @click.option("--lower", "case", flag_value="lower")

    Bad case: `--lower` was recorded as `--upper` and `--lower`. So among such options, the flag
    counts whose value the parameter has. If no flag has this value, it is the value of an option
    that takes one (`--case=title`).
    """
    typed_options = []
    options = _list_options(ctx.command)
    for option in options:
        source = ctx.get_parameter_source(option.name)
        switches = [other for other in options if other.name == option.name]
        if getattr(source, "name", "") == "COMMANDLINE" and (
            len(switches) == 1 or option in _list_options_with_value(switches, ctx)
        ):
            typed_options.append(option)
    return typed_options


def _list_options_with_value(switches: list[Any], ctx: Any) -> list[Any]:
    """Return the flags that give a parameter its value; options that take a value without such."""
    value = ctx.params.get(switches[0].name)
    flags = [option for option in switches if option.is_flag]
    matching_flags = []
    for flag in flags:
        is_negation = value is False and bool(flag.secondary_opts)
        # The value of a flag may have another type than the parameter, and no form in it.
        with contextlib.suppress(Exception):
            if is_negation or value == flag.type_cast_value(ctx, flag.flag_value):
                matching_flags.append(flag)
    return matching_flags or [option for option in switches if not option.is_flag]


def _list_options(command: Any) -> list[Any]:
    """Return the options that a command's function receives.

    Eager options such as `--version` end the program before the function runs.
    """
    options = [param for param in command.params if param.param_type_name == "option"]
    return [option for option in options if option.expose_value and not option.is_eager]


def _list_flags(param: Any) -> list[str]:
    """Return the longest name of an option, and the longest name of its negation."""
    return [max(names, key=len) for names in (param.opts, param.secondary_opts) if names]


def _name_caller(caller: dict[str, Any], file: str) -> str:
    """Return the name of the calling package, or of the script without its extension."""
    package = str(caller.get("__package__") or caller["__name__"]).partition(".")[0]
    return package if package != "__main__" else os.path.splitext(os.path.basename(file))[0]
