"""Strings that are a prefix and some characters of an alphabet: made block by block, compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.candidates.texts import Texts
from rappor.protocol.normalizers import normalize

MOST: Final = 1_000_000_000
"""Strings of a product at most: a pass over as many takes some ten minutes."""

_UNREADABLE: Final = 10**18
"""Numbers from here on are told by their magnitude."""

_BLOCK: Final = 1 << 16
"""Strings made at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Prefixes, each continued by `least` to `most` characters."""

    prefixes: Texts
    characters: Texts
    least: int
    most: int

    @classmethod
    def of(cls, prefixes: Iterable[str], alphabet: str, least: int, most: int) -> Product:
        """Check the parts; see `Candidates.product`."""
        if isinstance(prefixes, str | bytes):
            raise ParamsError(f"prefixes must be strings, got one {type(prefixes).__name__}")
        check_integer("least", least, 0)
        check_integer("most", most, least)
        heads = list(prefixes)
        if len(set(alphabet)) < len(alphabet) or len(set(heads)) < len(heads):
            raise ParamsError("prefixes and the alphabet's characters must be distinct")
        whole = cls(
            prefixes=Texts.of([normalize("none", head).encode() for head in heads]),
            characters=Texts.of([normalize("none", each).encode() for each in alphabet]),
            least=least,
            most=most,
        )
        if whole.n > MOST:
            many = f"{whole.n:,}" if whole.n < _UNREADABLE else f"1e{len(str(whole.n)) - 1}"
            raise ParamsError(
                f"a product must have at most {MOST:,} strings, got {many}: "
                "use fewer prefixes or a smaller alphabet"
            )
        return whole

    @property
    def n(self) -> int:
        """How many strings there are."""
        lengths = range(self.least, self.most + 1)
        continuations: int = sum(len(self.characters) ** length for length in lengths)
        return len(self.prefixes) * continuations

    def blocks(self) -> Iterator[Texts]:
        """Make the strings, the shortest continuations first, then in the order of the parts."""
        # Imported here: it loads the compiler, which making a product does without.
        from rappor.candidates.product_kernel import continue_prefixes  # noqa: PLC0415

        for length in range(self.least, self.most + 1):
            n = len(self.prefixes) * len(self.characters) ** length
            for start in range(0, n, _BLOCK):
                yield continue_prefixes(
                    self.prefixes, self.characters, length, start, min(start + _BLOCK, n)
                )
