"""A command-line tool that asks for consent once, records search engines, and sends reports.

    python command_line.py search duckduckgo     # asks at the first use, on a terminal only
    python command_line.py telemetry show        # shows the sent uploads and the privacy loss
    python command_line.py telemetry off         # erases everything; `on` starts again

The tool stores the consent of the person in a file of its own, `CONSENT_FILE`:

    no file, or any other text   no consent: nothing is computed, stored or sent
    "no"                         the same, and the person is not asked again
    "yes"                        `search` records the engine; each run sends the queued reports

A report of one day leaves in the first run on a later day, because the interval of the metric is a
day.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rappor_client import Client, ClientOptions

REGISTRY = Path(__file__).with_name("metrics.toml")
COLLECTOR = os.environ.get("MYTOOL_COLLECTOR", "https://telemetry.example.org")
HOME = Path(os.environ.get("MYTOOL_HOME", "~/.local/share/mytool")).expanduser()
CONSENT_FILE = HOME / "consent"


def has_consent() -> bool:
    """Return whether the person has agreed. Without an answer there is no consent."""
    return CONSENT_FILE.exists() and CONSENT_FILE.read_text() == "yes"


def ask_for_consent() -> None:
    """Ask the person for consent, unless there is an answer. A script is never asked."""
    if CONSENT_FILE.exists() or not sys.stdin.isatty():
        return
    question = "May mytool report, with noise, which search engine you use? [y/N] "
    store_answer(is_yes=input(question).strip().lower() in ("y", "yes"))


def store_answer(*, is_yes: bool) -> None:
    """Store the answer of the person."""
    HOME.mkdir(parents=True, exist_ok=True)
    CONSENT_FILE.write_text("yes" if is_yes else "no")


def open_telemetry() -> Client:
    """Open the device. Without consent, this call erases what an earlier consent has left."""
    # The environment variables CI, DO_NOT_TRACK and RAPPOR_DISABLED disable the device.
    options = ClientOptions(respect_environment=True)
    return Client.open(
        HOME / "telemetry",
        registry=REGISTRY,
        consent=has_consent(),
        collector=COLLECTOR,
        options=options,
    )


def search(engine: str) -> None:
    """Do the work of the tool, and record the search engine."""
    ask_for_consent()
    with open_telemetry() as telemetry:
        print(f"Searching with {engine} ...")
        telemetry.record("search_engine", engine)
        # A report that is not sent within two seconds waits for the next run.
        telemetry.flush(timeout=2.0)


def manage_telemetry(action: str) -> None:
    """Show the uploads and the privacy loss, or store a yes ("on") or a no ("off")."""
    if action in ("on", "off"):
        store_answer(is_yes=action == "on")
    with open_telemetry() as telemetry:
        print("Telemetry is on." if has_consent() else "Telemetry is off, and nothing is kept.")
        if action == "show":
            print(telemetry.privacy_spent())
            for upload in telemetry.sent_uploads():
                print(upload.day, upload.body.decode())


def main() -> None:
    """Parse the command line, and run the command."""
    parser = argparse.ArgumentParser(description="Search, and count search engines.")
    commands = parser.add_subparsers(required=True)
    search_command = commands.add_parser("search")
    search_command.add_argument("engine")
    search_command.set_defaults(run=lambda args: search(args.engine))
    telemetry_command = commands.add_parser("telemetry")
    telemetry_command.add_argument("action", choices=["show", "on", "off"])
    telemetry_command.set_defaults(run=lambda args: manage_telemetry(args.action))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
