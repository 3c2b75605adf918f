"""A chart of editors of the size of one that is published, with a large `other`.

Go's public telemetry showed, in a week of some 9,000 reports, 5,830 of VS Code and 2,935 of
"other". These two numbers are public. All others here are invented, and so is what `other` holds.
"""

from __future__ import annotations

from typing import Final

from rappor.simulation.population import Population, english_words

NAMED: Final = {"vscode": 5830, "neovim": 120, "emacs": 70, "vim": 45}
"""Devices of each category in a week."""

COMMON: Final = {"cursor": 1000, "zed": 600, "helix": 400, "kate": 200, "acme": 120, "geany": 100}
"""Devices of the common editors in `other`."""

GUESSES: Final = (
    *("cursor", "zed", "helix", "kate", "acme", "geany", "atom", "nano", "micro", "pluma"),
    *("gedit", "fleet", "lapce", "joe", "jed", "xed", "sam", "idea", "lite", "nova"),
)
"""A list that somebody could have thought of: the common ones, and others that nobody has."""

_RARE: Final = 103
_RARE_DEVICES: Final = 5
_RANK: Final = 2000
"""The frequency rank of the English word that is the first rare name."""


def editors() -> Population:
    """Return who holds what: the categories, the common ones in `other`, and 103 rare names."""
    words = english_words().values[_RANK:]
    names = (each for each in words if each.isascii() and each.isalpha() and 4 <= len(each) <= 6)
    held = {**NAMED, **COMMON, **{next(names): _RARE_DEVICES for _ in range(_RARE)}}
    return Population(tuple(held), list(held.values()))
