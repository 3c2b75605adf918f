"""The command `PROGRAM telemetry`, for the users and the authors of a program with telemetry.

The kit (`rappor_client.kit`) adds this command to a program. Example for a program `prog`:

    $ prog telemetry status
    Telemetry of prog is on: you said yes on 2026-11-18.
    0 reports sent, 0 waiting.
    Nothing can be sent before 2026-12-06 (UTC): this device records nothing before 2026-12-05.

Each subcommand is a function that yields the lines of its output.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rappor.base.errors import RapporError
from rappor.base.streams import run_command
from rappor.privacy.notice import privacy_notice
from rappor.registry.registry import Registry
from rappor_client.kit import init_command, payload
from rappor_client.kit.consent_file import ALL_METRICS, read_consent
from rappor_client.kit.host import Host
from rappor_client.outbox.next_report import NextReport
from rappor_client.periods import day_of
from rappor_client.person.contents import read_contents

_FIRST_DAY = datetime.date(1970, 1, 1)
"""Day 0. The file with the consent counts days from this day."""


def manage(host: Host, words: Sequence[str], uses: Sequence[str]) -> int:
    """Run `telemetry WORDS` and return its exit code.

    Parameters
    ----------
    host : Host
        The program.
    words : sequence of str
        Words of the command line after `telemetry`.
    uses : sequence of str
        Names of the commands and flags whose use the program may report. `telemetry init` writes
        them into the registry.

    Returns
    -------
    int
        0 for success, 1 if the disk or the registry fails. The codes of the standard output are
        those of `rappor.base.streams`: 141 if the reader of a pipe has ended, 2 on a full disk.
    """
    # The command is the last thing that its process does. So it may let the standard output escape
    # characters that its encoding lacks.
    command = f"{host.name} telemetry"
    return run_command(command, lambda: _print_lines(command, host, words, uses))


def _print_lines(command: str, host: Host, words: Sequence[str], uses: Sequence[str]) -> int:
    """Parse the words, run the subcommand, and print its lines; return the exit code."""
    args = _build_parser(host).parse_args(list(words))
    lines = args.run(host, args, uses)
    while True:
        # Each line is printed when it is computed: `telemetry on` describes the metrics before it
        # stores the consent, so a failure of the disk does not hide the description.
        try:
            line = next(lines, None)
        except RapporError as error:
            print(f"{command}: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            # The text of an OSError has Python's form: "[Errno 13] Permission denied: 'PATH'".
            path = f"{error.filename}: " if error.filename else ""
            print(f"{command}: {path}{error.strerror or error}", file=sys.stderr)
            return 1
        if line is None:
            return 0
        # This statement is outside the block: an error of `print` concerns the standard output.
        # Once `telemetry log | head -1` ended with "Broken pipe" and exit code 1.
        print(line)


def _build_parser(host: Host) -> argparse.ArgumentParser:
    """Build the parser of the command lines of a host's telemetry command."""
    parser = argparse.ArgumentParser(
        prog=f"{host.name} telemetry",
        description=f"See what {host.name} reports, agree to it, or refuse it.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, summary in (
        ("on", _turn_on, "Agree to the reports that are described."),
        ("off", _turn_off, "Refuse, and erase what is kept for telemetry."),
        ("status", _print_status, "Say whether telemetry is on, and what decided it."),
        ("preview", _preview, "Print the bytes that would be sent, and what they reveal."),
        ("view", _view, "Open a page of what is kept, was sent and would be sent."),
        ("log", _print_log, "Print every upload that left, and the privacy loss."),
        (
            "reset",
            _reset,
            "Erase the secret and all reports, and begin anew; your yes or no stays.",
        ),
        ("send", _send, "Send the waiting reports now, and print the result."),
        (
            "init",
            init_command.run_init,
            "For makers: write the registry, and the text for the README.",
        ),
    ):
        # Each account of a web site is a device of its own, and its user agrees or refuses on the
        # pages of the site. So the command line has no commands for one device.
        if host.is_site and name not in ("preview", "send", "init"):
            continue
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run)
        if name == "view":
            command.add_argument("--no-browser", action="store_true", help="Print its path only.")
        if name == "init":
            init_command.add_arguments(command, host)
    return parser


_Lines = Iterator[str]


def _turn_on(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Print the privacy notices, store the consent, and print the new state."""
    # The descriptions come before the consent is stored. If the registry cannot be read, this line
    # raises, and nobody has agreed to metrics without a description.
    registry, today = Registry.load(host.registry), host.compute_date()
    yield from (privacy_notice(metric, today=today) for metric in registry.values())
    yield f"The reports go to {host.describe_destination()}."
    host.agree()
    yield from _describe_state(host)


def _turn_off(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Store a refusal, erase the device, and print the result."""
    withdrawal = host.refuse()
    yield f"Telemetry of {host.name} is off. " + _describe_erasure(host, withdrawal.left)


def _reset(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Erase the device, and print the result and the state."""
    yield _describe_erasure(host, host.erase().left)
    yield from _describe_state(host)


def _describe_erasure(host: Host, remaining_files: Sequence[str]) -> str:
    """Erase the pages of `telemetry view`, and return a sentence about an erasure with its result.

    The erasure of the device could not erase `remaining_files`.
    """
    from rappor_client.kit.device_page import erase_pages

    if remaining := [*remaining_files, *erase_pages(host.name)]:
        return f"Not everything could be erased: {', '.join(remaining)}."
    kept = []
    if read_consent(host.folder).word:
        kept.append("your answer")
    # A device that has never reported has reserved nothing.
    if read_contents(host.folder).spent.reserved:
        kept.append("the privacy loss that is reserved for each year")
    if not kept:
        return "Erased. Nothing is kept."
    return f"Erased. Only {' and '.join(kept)} {'is' if len(kept) == 1 else 'are'} kept."


def _print_status(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Print the state of telemetry, and the numbers of sent, queued and pending reports."""
    yield from _describe_state(host)
    if host.is_on():
        # Once the status of a metric that had ended was "on", without another word.
        registry, today = Registry.load(host.registry), host.compute_date()
        if ended := [metric.name for metric in registry.values() if today > metric.expires]:
            yield f"Nothing more is recorded for {', '.join(ended)}: the collection has ended."
        with host.open() as client:
            if client.disabled_reason:
                yield f"It cannot work now: {client.disabled_reason}."
            # Reservations outlive `reset`, `off` and a new list of names. Without this sentence the
            # status said that telemetry is on, while the device was silent until January.
            if unaffordable := sorted(client.find_unaffordable_metrics()):
                names = ", ".join(unaffordable)
                yield (
                    f"Nothing more is recorded for {names} this year: the privacy budget of the "
                    "year has no room, because an erased device or an earlier registry has "
                    "reserved it."
                )
                # Bad case: one metric had no room, and the status read as if all were silent.
                if others := ", ".join(sorted(set(registry) - {*ended, *unaffordable})):
                    yield f"The budget has room for {others}."
            # A report of today is pending and not yet queued. When the status showed only queued
            # reports, it said that nothing waits on the day of the month's only report.
            contents = read_contents(host.folder)
            n_pending = len(contents.pending_reports)
            pending = f", {n_pending} kept until the day is over" if n_pending else ""
            sent = len(client.sent_uploads())
            yield f"{sent} reports sent, {client.queued_count()} waiting{pending}."
            # A person who has just agreed sees nothing sent for weeks.
            if not contents.queued_reports:
                yield from _describe_earliest_upload(
                    [day_of(report.interval_end) for report in contents.pending_reports],
                    client.find_next_reports().values(),
                    today,
                )
    elif not host.read_consent().word and host.is_in_container():
        yield "Nobody is asked in a container."


def _describe_earliest_upload(
    pending_ends: Sequence[datetime.date],
    next_reports: Collection[NextReport],
    today: datetime.date,
) -> _Lines:
    """Yield the first day on which an upload may leave, if it is known and not today.

    Parameters
    ----------
    pending_ends
        Days on which the intervals of pending reports are over.
    next_reports
        First days of the next report of each metric.
    today
        Present day (UTC).
    """
    earliest = min([*pending_ends, *(days.leaves_from for days in next_reports)], default=today)
    if earliest <= today:
        return
    recorded_from = min((days.recorded_from for days in next_reports), default=today)
    if earliest in pending_ends:
        reason = "a report leaves when its day or week is over"
    elif recorded_from == today:
        reason = "nothing is recorded yet, and a report leaves when its day or week is over"
    else:
        reason = f"this device records nothing before {recorded_from}"
    yield f"Nothing can be sent before {earliest} (UTC): {reason}."


def _describe_state(host: Host) -> _Lines:
    """Yield sentences that say whether telemetry is on, and why.

    The reason is an environment variable, an obstacle of the program, or the person's response.
    """
    consent = host.read_consent()
    # After a response, the record has one day. Without a response, it has a day for each time that
    # the question was shown, and the last of these days is printed.
    day = _FIRST_DAY + datetime.timedelta(days=consent.days[-1]) if consent.days else None
    # Only the operator of a server agrees to all metrics, by an environment variable. A person
    # agrees to the metrics of the registry by their names.
    if ALL_METRICS in consent.metrics:
        agreement = f"the environment has {host.consents}=yes"
    else:
        agreement = f"you said yes on {day}"
    decisions = {
        "yes": agreement,
        "no": f"you said no on {day}",
        "asked": f"the question of {day} has no answer",
        "lost": "your answer cannot be read",
    }
    decision = decisions.get(consent.word, "nobody has agreed to it")
    if obstacle := host.find_obstacle():
        yield f"Telemetry of {host.name} is off: {obstacle}. Apart from that, {decision}."
        return
    yield f"Telemetry of {host.name} is {'on' if consent.word == 'yes' else 'off'}: {decision}."
    # After a yes, the metrics without consent are those of a later version of the program.
    new_metrics = consent.refused_metrics(Registry.load(host.registry))
    if consent.word == "yes" and new_metrics:
        yield (
            f"Since then {host.name} learnt to report {', '.join(sorted(new_metrics))}. This is "
            f"off; `{host.name} telemetry on` describes it and agrees to it."
        )


def _preview(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Print the queued uploads, examples of all other metrics, and what they reveal."""
    registry, contents = Registry.load(host.registry), read_contents(host.folder)
    today = host.compute_date()
    yield from payload.describe_payload(registry, contents.bodies, host.collector, today=today)


def _view(host: Host, args: argparse.Namespace, uses: Sequence[str]) -> _Lines:
    """Write a page about the device into a private folder, and open it in a browser."""
    from rappor_client.kit.device_page import render_page, write_page

    # The state has the day before which nothing can be sent. Without it, the page of a person who
    # has just agreed said that nothing is recorded, and not why.
    state = " ".join(_print_status(host, args, uses))
    page = render_page(
        host.name,
        state,
        Registry.load(host.registry),
        Path(host.folder),
        collector=host.collector,
        today=host.compute_date(),
    )
    path = write_page(host.name, page)
    if not args.no_browser:
        import webbrowser

        webbrowser.open(path.as_uri())
    yield str(path)


def _print_log(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Print all sent uploads and the privacy loss."""
    contents = read_contents(host.folder)
    yield from (f"{upload.day} {upload.body.decode()}" for upload in contents.sent_uploads)
    # The log of a device that was erased is gone, and the device may have sent reports.
    if not contents.sent_uploads:
        yield "This device has no record of anything sent."
    yield str(contents.spent)


def _send(host: Host, _args: argparse.Namespace, _uses: Sequence[str]) -> _Lines:
    """Send the queued reports, and print the result."""
    result = host.send()
    if result is None:  # telemetry is off
        yield from _describe_state(host)
    else:
        yield str(result)
