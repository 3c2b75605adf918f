"""The command `telemetry` of every program with the kit, for its users and for its makers."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rappor.base.errors import RapporError
from rappor.privacy.notice import privacy_notice
from rappor.registry.registry import Registry
from rappor_client.kit import introduction, payload
from rappor_client.kit.answer import EVERY
from rappor_client.kit.host import Host
from rappor_client.person.contents import read_contents

_FIRST_DAY = datetime.date(1970, 1, 1)


def manage(host: Host, words: Sequence[str], uses: Sequence[str]) -> int:
    """Run `telemetry WORDS` and return its exit code; `uses` are the names that `init` lists."""
    chosen = _parser(host).parse_args(list(words))
    try:
        for line in chosen.run(host, chosen, uses):
            print(_encodable(line))
    except (OSError, RapporError) as error:
        print(f"{host.name} telemetry: {error}", file=sys.stderr)
        return 1
    return 0


def _encodable(text: str) -> str:
    """Return a text as the host's standard output can write it, other characters escaped.

    The stream is the host's own, so it is not reconfigured.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _parser(host: Host) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{host.name} telemetry",
        description=f"See what {host.name} reports, agree to it, or refuse it.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, summary in (
        ("on", _on, "Agree to the reports that are described."),
        ("off", _off, "Refuse, and erase what is kept for telemetry."),
        ("status", _status, "Say whether telemetry is on, and what decided it."),
        ("preview", _preview, "Print the bytes that would be sent, and what they reveal."),
        ("view", _view, "Open a page of what is kept, was sent and would be sent."),
        ("log", _log, "Print every upload that left, and the privacy loss."),
        ("reset", _reset, "Erase the device and begin as a new one; the answer stays."),
        ("send", _send, "Send what waits now, and say what became of it."),
        (
            "init",
            introduction.write,
            "For makers: write the registry, and the text for the README.",
        ),
    ):
        if host.is_site and name not in ("preview", "send", "init"):
            continue
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run)
        if name == "view":
            command.add_argument("--no-browser", action="store_true", help="Print its path only.")
        if name == "init":
            introduction.add_arguments(command, host)
    return parser


_Lines = Iterator[str]


def _on(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    yield from (privacy_notice(metric) for metric in Registry.load(host.registry).values())
    host.agree()
    yield from _state(host)


def _off(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    erased = host.refuse()
    yield f"Telemetry of {host.name} is off. " + _erased(erased.left)


def _reset(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    yield _erased(host.erase().left)
    yield from _state(host)


def _erased(left: Sequence[str]) -> str:
    kept = "Only the privacy loss that is reserved for each year is kept."
    return f"Not everything could be erased: {', '.join(left)}." if left else f"Erased. {kept}"


def _status(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    yield from _state(host)
    if host.is_on():
        with host.open() as client:
            if client.disabled_reason:
                yield f"It cannot work now: {client.disabled_reason}."
            held = len(read_contents(host.folder).pending_reports)
            until = f", {held} kept until the day is over" if held else ""
            sent = len(client.sent_uploads())
            yield f"{sent} reports sent, {client.queued_count()} waiting{until}."
    elif not host.answer().word and host.is_in_container():
        yield "Nobody is asked in a container."


def _state(host: Host) -> _Lines:
    """Say whether telemetry is on, and which one of environment, program and person decided."""
    said = host.answer()
    day = _FIRST_DAY + datetime.timedelta(days=said.days[-1]) if said.days else None
    words = {
        "yes": f"the environment has {host.consents}=yes"
        if EVERY in said.metrics
        else f"you said yes on {day}",
        "no": f"you said no on {day}",
        "asked": f"the question of {day} has no answer",
        "lost": "your answer cannot be read",
    }
    own = words.get(said.word, "nobody has agreed to it")
    if obstacle := host.obstacle():
        yield f"Telemetry of {host.name} is off: {obstacle}. Apart from that, {own}."
        return
    yield f"Telemetry of {host.name} is {'on' if said.word == 'yes' else 'off'}: {own}."
    if said.word == "yes" and (more := said.refused(Registry.load(host.registry))):
        yield (
            f"Since then {host.name} learnt to report {', '.join(sorted(more))}. This is off; "
            f"`{host.name} telemetry on` describes it and agrees to it."
        )


def _preview(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    registry, contents = Registry.load(host.registry), read_contents(host.folder)
    yield from payload.lines(registry, contents.bodies, host.collector)


def _view(host: Host, chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    from rappor_client.kit.page import html

    state, registry = " ".join(_state(host)), Registry.load(host.registry)
    path = Path(tempfile.mkdtemp(prefix="telemetry-"), "telemetry.html")  # only for the user
    path.write_text(html(host.name, state, registry, Path(host.folder)), encoding="utf-8")
    if not chosen.no_browser:
        import webbrowser

        webbrowser.open(path.as_uri())
    yield str(path)


def _log(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    contents = read_contents(host.folder)
    yield from (f"{upload.day} {upload.body.decode()}" for upload in contents.sent_uploads)
    yield str(contents.spent) if contents.sent_uploads else "Nothing has been sent."


def _send(host: Host, _chosen: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    yield from _state(host) if (flushed := host.send()) is None else [str(flushed)]
