"""The table of a value that stays for years, in `rappor privacy` and `rappor plan`."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from rappor.cli.console import table
from rappor.privacy.staying import Staying
from rappor.reporting.numbers import most_belief, nats, percent

_CHOICE: Final = (
    "Losses add up over epochs that somebody links, by address, account or a person's one device. "
    'Choose the epoch by the value: one that changes often, a quarter; one that stays, "life", or '
    'one report a year (interval = "epoch", epoch = "year"). Losses add up over the devices of one '
    "person, too."
)


def staying_section(rows: tuple[Staying, ...]) -> tuple[str, Table, str]:
    """Return the title, the table and what to choose."""
    shown = table("epoch", "a year (nats)", "from 50 %", "named", "two years (nats)", "named")
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        cells = nats(one.epsilon), most_belief(one.most, one.epsilon), _named(one)
        shown.add_row(one.epoch, *cells, nats(two.epsilon), _named(two))
    among = f"among {rows[0].candidates:,} equally likely"
    return f"A value that stays, and how often it is named {among}", shown, _CHOICE


def _named(row: Staying) -> str:
    return "" if row.named is None else percent(row.named, 0)
