"""A command-line tool that asks for consent once, records what is searched with, and sends it.

    python command_line.py search duckduckgo     # asks at the first use, on a terminal only
    python command_line.py telemetry show        # what was sent and what it cost
    python command_line.py telemetry off         # erases everything; `on` starts again

The answer is a file of the tool's own. Without an answer nothing is computed, stored or sent.
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
ANSWER = HOME / "consent"


def consent() -> bool:
    """Return the person's answer; no answer is a no."""
    return ANSWER.exists() and ANSWER.read_text() == "yes"


def ask() -> None:
    """Ask for consent once, at a terminal. A script is never asked."""
    if ANSWER.exists() or not sys.stdin.isatty():
        return
    question = "May mytool report, with noise, which search engine you use? [y/N] "
    answer(is_yes=input(question).strip().lower() in ("y", "yes"))


def answer(*, is_yes: bool) -> None:
    """Keep the person's answer."""
    HOME.mkdir(parents=True, exist_ok=True)
    ANSWER.write_text("yes" if is_yes else "no")


def open_telemetry() -> Client:
    """Open the device; a "no" erases what an earlier "yes" left."""
    return Client.open(
        HOME / "telemetry",
        registry=REGISTRY,
        consent=consent(),
        collector=COLLECTOR,
        options=ClientOptions(
            respect_environment=True
        ),  # nothing in CI, nor where DO_NOT_TRACK is set
    )


def search(engine: str) -> None:
    """Do the tool's work, and record it on the way."""
    ask()
    with open_telemetry() as telemetry:
        print(f"Searching with {engine} ...")
        telemetry.record("search_engine", engine)
        telemetry.flush(timeout=2.0)  # what is not sent now waits for the next run


def manage(action: str) -> None:
    """Let the person look, agree or withdraw."""
    if action in ("on", "off"):
        answer(is_yes=action == "on")
    with open_telemetry() as telemetry:
        print("Telemetry is on." if consent() else "Telemetry is off, and nothing is kept.")
        if action == "show":
            print(telemetry.privacy_spent())
            for upload in telemetry.sent_uploads():
                print(upload.day, upload.body.decode())


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description="Search, and count search engines.")
    commands = parser.add_subparsers(required=True)
    searching = commands.add_parser("search")
    searching.add_argument("engine")
    searching.set_defaults(run=lambda chosen: search(chosen.engine))
    telemetry = commands.add_parser("telemetry")
    telemetry.add_argument("action", choices=["show", "on", "off"])
    telemetry.set_defaults(run=lambda chosen: manage(chosen.action))
    chosen = parser.parse_args()
    chosen.run(chosen)


if __name__ == "__main__":
    main()
