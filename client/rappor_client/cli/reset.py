"""`rappor-client reset`: erase a device, which is the content of its folder.

The folder contains the secret from which the device derives its noise, reports that wait to be
sent, the state and the log of sent reports. All of them are erased. Only the reserved budget stays:
the privacy loss, in nats, that the device has set aside for its metrics in each calendar year.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor_client.cli.parser import FOLDER, Command, declare_argument
from rappor_client.person.contents import check_device_folder, read_contents
from rappor_client.person.erasure import erase


def run(args: Namespace) -> bool:
    """Erase the device after a confirmation, or at once with --yes, and print what is left.

    Returns
    -------
    Whether nothing is left; False also if the person did not confirm. The exit code of the command
    is 0 for True and 1 for False.

    Raises
    ------
    FileError
        The folder contains no device, such as a misspelt path.
    """
    check_device_folder(args.folder)
    if not (args.yes or _ask_for_confirmation(args.folder)):
        return False
    withdrawal = erase(args.folder, now=time.time())
    # A withdrawal is true if nothing is left. Otherwise its text names the files that are left.
    result = "Erased." if withdrawal else str(withdrawal)
    # The reserved privacy loss of each year survives the erasure. Otherwise a new device in the
    # same folder would have the whole budget of the year again.
    reserved = read_contents(args.folder).spent.reserved
    losses = ", ".join(f"epsilon = {epsilon:.2f} in {year}" for year, epsilon in reserved.items())
    print(result, f"Privacy loss that stays reserved: {losses or 'none'}.")  # noqa: T201 - output
    return bool(withdrawal)


def _ask_for_confirmation(folder: Path) -> bool:
    """Ask on the terminal for a confirmation. Any answer but y or yes is a no."""
    # Nobody can confirm in these cases. EOFError: the standard input has ended, as in a job.
    # RuntimeError: it was closed before the program started (`<&-`). OSError: the terminal is gone.
    # ValueError: the typed bytes are no text in the encoding of the terminal.
    try:
        line = input(f"Erase the secret, waiting reports, state and log in {folder}? [y/N] ")
    except (EOFError, OSError, RuntimeError, ValueError):
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
