"""`rappor-client reset`: erase a device."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor_client.cli.parser import FOLDER, Command, argument
from rappor_client.person.contents import check_telemetry, read_contents
from rappor_client.person.withdrawal import erase


def run(chosen: Namespace) -> bool:
    """Erase a folder, after a question unless --yes is given; say what was verified."""
    check_telemetry(chosen.folder)
    if not (chosen.yes or _is_confirmed(chosen.folder)):
        return False
    withdrawal = erase(chosen.folder, now=time.time())
    erased = "Erased." if withdrawal else str(withdrawal)
    kept = read_contents(chosen.folder).spent.reserved
    years = ", ".join(f"epsilon = {nats:.2f} in {year}" for year, nats in kept.items())
    print(erased, f"What was reserved is kept: {years or 'nothing'}.")  # noqa: T201 - output
    return bool(withdrawal)


def _is_confirmed(folder: Path) -> bool:
    try:
        answer = input(f"Erase the identity and all records in {folder}? [y/N] ")
    except EOFError:  # nobody is there to answer
        return False
    return answer.strip().lower() in ("y", "yes")


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
        argument("--yes", action="store_true", help="Erase without asking."),
    ),
)
