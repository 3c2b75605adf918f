"""`rappor-client reset`: erase the device in a folder."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor_client.cli.parser import FOLDER, Command, declare_argument
from rappor_client.person.contents import check_telemetry, read_contents
from rappor_client.person.erasure import erase


def run(args: Namespace) -> bool:
    """Erase the device after a confirmation, or at once with --yes, and print what is left.

    Returns
    -------
    True if nothing is left. False if the person did not confirm, or if files are left. The exit
    code of the command is 0 or 1.

    Raises
    ------
    FileError
        The folder contains no device, such as a misspelt path.
    """
    check_telemetry(args.folder)
    if not (args.yes or _ask_for_confirmation(args.folder)):
        return False
    withdrawal = erase(args.folder, now=time.time())
    # A withdrawal is true if nothing is left. Otherwise its text names the files that are left.
    result = "Erased." if withdrawal else str(withdrawal)
    # A reservation survives the erasure. Otherwise a new device in the same folder would have the
    # budget of the year again.
    reserved = read_contents(args.folder).spent.reserved
    losses = ", ".join(f"epsilon = {nats:.2f} in {year}" for year, nats in reserved.items())
    print(result, f"Privacy loss that stays reserved: {losses or 'none'}.")  # noqa: T201 - output
    return bool(withdrawal)


def _ask_for_confirmation(folder: Path) -> bool:
    """Ask on the terminal for a confirmation. Any answer but y or yes is a no."""
    try:
        line = input(f"Erase the secret, waiting reports, state and log in {folder}? [y/N] ")
    except EOFError:  # the standard input is closed, as in a job: nobody can confirm
        return False
    return line.strip().lower() in ("y", "yes")


COMMAND: Final = Command(
    run=run,
    summary="Erase a device's secret, waiting reports, state and log.",
    details=(
        "The privacy loss reserved in each year is kept, so that starting again does not\n"
        "renew the device's budget. First stop the program that uses the folder."
    ),
    example="rappor-client reset ~/.local/share/myapp/telemetry --yes",
    arguments=(
        FOLDER,
        declare_argument("--yes", action="store_true", help="Erase without asking."),
    ),
)
"""The command, as the list of `rappor_client.cli` takes it."""
