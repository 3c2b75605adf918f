"""Shape: what an encoding reads of a parameter set, so that it need not know the rest."""

from __future__ import annotations

from typing import Protocol


class Shape(Protocol):
    """The fields of `Params` that decide which bits a value sets."""

    def __hash__(self) -> int:
        """Return the same for equal ones: what is worked out for a shape is kept."""

    @property
    def encoding(self) -> str:
        """The encoding's name."""

    @property
    def k(self) -> int:
        """Bits of a report."""

    @property
    def h(self) -> int:
        """Hash functions."""

    @property
    def m(self) -> int:
        """Cohorts."""

    @property
    def n_bytes(self) -> int:
        """Bytes of a report's bits."""

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the bits, or edges, in bit order."""

    @property
    def normalize(self) -> str:
        """The normalizer's name."""

    @property
    def layout(self) -> str:
        """The hash layout's name."""

    @property
    def part(self) -> str:
        """The part of a string; empty for all of it."""
