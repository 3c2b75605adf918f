"""Telemetry for a program of click or typer.

    from rappor_client.kit.click import telemetry

    telemetry(cli, registry="metrics.toml", collector="https://telemetry.example.org")

It adds the command `telemetry`, records the names of commands and flags, never a value, and puts
one question after a command's own output. Neither library is imported here: typer has long had a
copy of click of its own, so what both have in common is all that is used.
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
_ALONE: Final = "(no command)"
"""The use of a program whose root runs without a command and without a flag."""
_RAN: Final = f"{__name__}.ran"
_PARSED: Final = f"{__name__}.parsed"
"""Keys of what the contexts of one run share: whether a command ran, and all that will run."""
_UNREAD: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""The command's words are read by the kit, the same in every program."""


def telemetry(cli: _Program, *, registry: str | os.PathLike[str], **settings: Any) -> _Program:
    """Give a program of click or typer telemetry, and return it; call it below the last command.

    `cli`: a group of click or an app of typer with commands. `registry`: the path of the file that
    `telemetry init` writes; a relative one is beside the file that calls this. `settings`: those of
    `Host`, as `collector`; `name` is the package's, or the script's, that calls, unless given.
    Raises ParamsError for a program without commands, or with a command `telemetry` of its own.
    """
    own = (*getattr(cli, "commands", ()), *getattr(cli, "registered_commands", ()))
    if NAME in [getattr(each, "name", each) for each in own]:
        raise ParamsError(f"cli must have no command {NAME} of its own")
    caller = sys._getframe(1).f_globals
    here = str(caller.get("__file__", ""))
    name = settings.pop("name", None) or _name_of(caller, here)
    path = os.path.join(os.path.dirname(os.path.abspath(here)), registry)
    host = Host(name, registry=path, **settings)
    if hasattr(cli, "registered_commands"):
        _add_to_typer(cli, host)
    elif hasattr(cli, "add_command"):
        _add_to_click(cli, host)
    else:
        raise ParamsError(
            f"cli must be a group of click or an app of typer, got {type(cli).__name__}"
        )
    return cli


def uses_of(ctx: Any) -> list[str]:
    """Return what a run uses: `command --flag` for each typed flag, `command` if it has none."""
    path: list[str] = []
    found: list[str] = []
    flags: list[str] = []
    for each in _chain(ctx):
        if each.parent is not None:
            if (name := _listed_name(each)) is None:
                return []
            path.append(name)
        flags = [" ".join([*path, flag]) for flag in _typed_flags(each)]
        found += flags
    return found if flags else [*found, " ".join(path) or _ALONE]


def all_uses(ctx: Any) -> Iterator[str]:
    """Yield every name that `uses_of` can return of a program, from a context of its root."""
    path = [each.info_name for each in _chain(ctx)][1:]
    if not _is_group(ctx.command) or _may_run_alone(ctx.command):
        yield " ".join(path) or _ALONE
    for option in _options(ctx.command):
        yield from (" ".join([*path, flag]) for flag in _flags(option))
    if _is_group(ctx.command):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            if command is not None and not (name == NAME and not path):
                yield from all_uses(type(ctx)(command, info_name=name, parent=ctx))


def _add_to_click(group: Any, host: Host) -> None:
    import click

    run = click.pass_context(_manager(host))
    group.add_command(click.Command(NAME, callback=run, help=_help(host), context_settings=_UNREAD))
    _watch_root(group, host)


def _add_to_typer(app: Any, host: Host) -> None:
    import typer
    from typer.core import TyperGroup

    is_group = app.registered_callback or app.registered_groups or app.info.callback
    if not is_group and len(app.registered_commands) < 2:
        raise ParamsError(
            "cli must have two commands, or a callback: typer runs a single one alone"
        )
    run = _manager(host)
    run.__annotations__ = {"ctx": typer.Context, "return": None}
    app.command(NAME, help=_help(host), context_settings=_UNREAD)(run)
    has_own = isinstance(getattr(app.registered_callback, "cls", None), type)
    info = app.registered_callback if has_own else app.info
    base: Any = info.cls if isinstance(info.cls, type) else TyperGroup

    class Watched(base):  # type: ignore[misc]  # the program chooses it
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            _watch_root(self, host)

    info.cls = Watched


def _manager(host: Host) -> Callable[[Any], None]:
    def manage(ctx: Any) -> None:
        from rappor_client.kit import commands

        uses = dict.fromkeys(all_uses(ctx.find_root()))
        ctx.exit(commands.manage(host, ctx.args, list(uses)))

    return manage


def _help(host: Host) -> str:
    return f"See what {host.name} reports, agree to it, or refuse it: on, off, status, preview."


def _watch_root(group: Any, host: Host) -> None:
    """Watch the commands below a program's root, and end each run."""
    _watch(group, host)
    invoke = group.invoke

    def run(ctx: Any) -> Any:
        try:
            result = invoke(ctx)
        except (Exception, SystemExit) as error:
            # Options such as --version end the program with success, too, but before any command.
            if _RAN in ctx.meta and is_success(error):
                host.end()
            raise
        host.end()
        return result

    group.invoke = run


def _watch(command: Any, host: Host) -> None:
    """Let a command record itself when it runs, and a group watch what it looks up."""
    if _is_group(command):
        _watch_lookup(command, host)
    make_context, invoke = command.make_context, command.invoke

    def make(*args: Any, **settings: Any) -> Any:
        ctx = make_context(*args, **settings)
        if not (_is_group(command) or ctx.resilient_parsing):
            ctx.meta.setdefault(_PARSED, []).append(ctx)
        return ctx

    def run(ctx: Any) -> Any:
        if not _is_group(command) or _runs_alone(ctx):
            _record(ctx, host)
        return invoke(ctx)

    command.make_context, command.invoke = make, run


def _watch_lookup(group: Any, host: Host) -> None:
    """Let a group watch each command that it looks up."""
    get_command = group.get_command

    def watched(ctx: Any, name: str) -> Any:
        command = get_command(ctx, name)
        if name == NAME and ctx.parent is None:  # a group may look up its own commands only
            return command or group.commands[NAME]
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            if command is not None and "invoke" not in vars(command):
                _watch(command, host)
        return command

    group.get_command = watched


def _record(ctx: Any, host: Host) -> None:
    """Record a run, at its first command.

    A chain of commands is one run: click has parsed all of them before it runs the first, so the
    use that is drawn may be of any.
    """
    is_first = _RAN not in ctx.meta
    ctx.meta[_RAN] = True
    with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
        if is_first and host.listens():
            contexts = ctx.meta.get(_PARSED) or [ctx]
            host.record(list(dict.fromkeys(use for parsed in contexts for use in uses_of(parsed))))


def _runs_alone(ctx: Any) -> bool:
    """Return whether a group runs by itself: it may, and no command's name was typed."""
    words = getattr(ctx, "_protected_args", None)  # of click from 8.2 on
    if words is None:
        words = ctx.protected_args
    return _may_run_alone(ctx.command) and not (words or ctx.args)


def _may_run_alone(group: Any) -> bool:
    return bool(getattr(group, "invoke_without_command", False))


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _chain(ctx: Any) -> list[Any]:
    """Return a context and those above it, the root first."""
    return [*([] if ctx.parent is None else _chain(ctx.parent)), ctx]


def _listed_name(ctx: Any) -> str | None:
    """Return the name by which a command's group lists it; what else was typed may be a value."""
    listed = ctx.parent.command.list_commands(ctx.parent)
    return next((name for name in (ctx.info_name, ctx.command.name) if name in listed), None)


def _typed_flags(ctx: Any) -> Iterator[str]:
    for option in _options(ctx.command):
        source = ctx.get_parameter_source(option.name)
        if getattr(source, "name", "") == "COMMANDLINE":
            on, *off = _flags(option)
            yield off[0] if off and ctx.params.get(option.name) is False else on


def _options(command: Any) -> list[Any]:
    """Return the options that a command's function gets: not those that end it, as --version."""
    options = [each for each in command.params if each.param_type_name == "option"]
    return [each for each in options if each.expose_value and not each.is_eager]


def _flags(param: Any) -> list[str]:
    """Return the longest name of an option, and that of its opposite if it has one."""
    return [max(names, key=len) for names in (param.opts, param.secondary_opts) if names]


def _name_of(caller: dict[str, Any], here: str) -> str:
    package = str(caller.get("__package__") or caller["__name__"]).partition(".")[0]
    return package if package != "__main__" else os.path.splitext(os.path.basename(here))[0]
