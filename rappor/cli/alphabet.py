"""Alphabets on the command line: characters and ranges of them."""

from __future__ import annotations

import re
from typing import Final

import click

_RANGE: Final = re.compile(r"(.)-(.)", re.DOTALL)


def characters(text: str) -> str:
    """Write out the ranges of an alphabet; a character that comes twice counts once.

    "a-z" stands for all from a to z, a hyphen at either end for itself.
    """
    written = _RANGE.sub(lambda found: _between(found[1], found[2]), text)
    return "".join(dict.fromkeys(written))


def _between(first: str, last: str) -> str:
    if first > last:
        raise click.UsageError(f"--alphabet: {first}-{last} is no range, its ends are reversed")
    return "".join(map(chr, range(ord(first), ord(last) + 1)))
