"""Cartesian products of strings: every prefix, followed by every combination of characters.

An analyst who has no list of candidates tries all short strings. Example: the prefixes "a" and "b"
with 0 to 1 characters of the alphabet "xy" give a, b, ax, ay, bx, by. The strings are written block
by block, so a product of a billion strings needs little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.candidates.texts import Texts
from rappor.protocol.normalizers import normalize

MAX_STRINGS: Final = 1_000_000_000
"""Largest number of strings of a product. It bounds the time of a pass of a decode: a pass over a
billion strings takes about ten minutes."""

_MAX_DIGITS_SHOWN: Final = 18
"""Largest number of digits that an error message contains, so that the message fits in a line. A
larger number is written as a power of ten."""

_BLOCK_STRINGS: Final = 1 << 16
"""Number of strings that are written at a time. It bounds the memory of a pass. Smaller blocks need
more calls of the compiled loop."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StringProduct:
    """All continuations of prefixes by `least` to `most` characters.

    Attributes
    ----------
    prefixes : distinct beginnings of the strings; may contain the empty string.
    characters : distinct characters of the alphabet.
    least, most : smallest and largest number of characters after the prefix.
    """

    prefixes: Texts
    characters: Texts
    least: int
    most: int

    @classmethod
    def from_strings(
        cls, prefixes: Iterable[str], alphabet: str, least: int, most: int
    ) -> StringProduct:
        """Check the arguments of `Candidates.product`, and encode them in UTF-8.

        Raises
        ------
        ParamsError
            A prefix or a character is repeated, `least` is negative or above `most`, or the product
            has more than `MAX_STRINGS` strings.
        """
        # Case: one text in place of a list. A text is an iterable of its characters, and one prefix
        # for each character is never intended.
        if isinstance(prefixes, str | bytes):
            raise ParamsError(f"prefixes must be strings, got one {type(prefixes).__name__}")
        check_integer("least", least, 0)
        check_integer("most", most, least)
        beginnings = list(prefixes)
        if len(set(alphabet)) < len(alphabet) or len(set(beginnings)) < len(beginnings):
            raise ParamsError("prefixes and the alphabet's characters must be distinct")
        product = cls(
            prefixes=Texts.from_bytes([normalize("none", text).encode() for text in beginnings]),
            characters=Texts.from_bytes([normalize("none", text).encode() for text in alphabet]),
            least=least,
            most=most,
        )
        if product.n > MAX_STRINGS:
            n = product.n
            # Python refuses to print integers of more than 4,300 digits, so the number of digits
            # comes from the logarithm.
            is_short = n < 10**_MAX_DIGITS_SHOWN
            number = f"{n:,}" if is_short else f"1e{math.floor(math.log10(n))}"
            raise ParamsError(
                f"a product must have at most {MAX_STRINGS:,} strings, got {number}: "
                "use fewer prefixes or a smaller alphabet"
            )
        return product

    @property
    def n(self) -> int:
        """Number of strings."""
        n_characters, n_lengths = len(self.characters), self.most - self.least + 1
        if n_characters == 1:
            return len(self.prefixes) * n_lengths
        # A geometric series, because the sum of the powers would take minutes for lengths of
        # thousands of characters. Without characters it has the value 1 if `least` is 0, else 0.
        series: int = n_characters ** (self.most + 1) - n_characters**self.least
        return len(self.prefixes) * (series // (n_characters - 1))

    def read_blocks(self) -> Iterator[Texts]:
        """Yield the strings in blocks: the shortest continuations first, prefix by prefix."""
        # This import loads the compiler, which checking a product does not need.
        from rappor.candidates.string_product_kernel import continue_prefixes  # noqa: PLC0415

        for length in range(self.least, self.most + 1):
            n = len(self.prefixes) * len(self.characters) ** length
            for start in range(0, n, _BLOCK_STRINGS):
                yield continue_prefixes(
                    self.prefixes, self.characters, length, start, min(start + _BLOCK_STRINGS, n)
                )
