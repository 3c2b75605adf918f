"""`rappor-client reset`: erase the device in a folder."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor_client.cli.parser import FOLDER, Command, declare_argument
from rappor_client.person.contents import check_telemetry, read_contents
from rappor_client.person.withdrawal import erase


def run(args: Namespace) -> bool:
    """Erase the device after a confirmation, or at once with --yes; print the verified result.

    Returns False if the person did not confirm, or if files are left.
    """
    check_telemetry(args.folder)
    if not (args.yes or _is_confirmed(args.folder)):
        return False
    withdrawal = erase(args.folder, now=time.time())
    result = "Erased." if withdrawal else str(withdrawal)
    reserved = read_contents(args.folder).spent.reserved
    years = ", ".join(f"epsilon = {nats:.2f} in {year}" for year, nats in reserved.items())
    print(result, f"What was reserved is kept: {years or 'nothing'}.")  # noqa: T201 - output
    return bool(withdrawal)


def _is_confirmed(folder: Path) -> bool:
    """Ask on the terminal for a confirmation; anything but y or yes is a no."""
    try:
        line = input(f"Erase the identity and all records in {folder}? [y/N] ")
    except EOFError:  # the standard input is closed, as in a job: nobody can confirm
        return False
    return line.strip().lower() in ("y", "yes")


COMMAND: Final = Command(
    run=run,
    summary="Erase a device's secret, waiting reports, state and log.",
    details=(
        "The privacy loss reserved in each year is kept, so that starting again does not\n"
        "renew the device's budget. Stop the program first."
    ),
    example="rappor-client reset ~/.local/share/myapp/telemetry --yes",
    arguments=(
        FOLDER,
        declare_argument("--yes", action="store_true", help="Erase without asking."),
    ),
)
