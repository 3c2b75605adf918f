"""All combinations of the candidates of the fields of a tuple.

A tuple is a value of several fields, such as a site and a country. An analyst lists candidates for
each field, and every combination is a candidate of the tuple. Example: the sites a.org and b.org
and the countries de and fr have the combinations a.org/de, a.org/fr, b.org/de and b.org/fr. The
last field varies fastest. The combinations are written block by block, so a product of a billion
combinations needs little memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.candidates.string_product import MAX_STRINGS
from rappor.candidates.texts import Texts
from rappor.protocol.normalizers import FIELD_SEPARATOR

_SEPARATOR: Final = FIELD_SEPARATOR.encode()

_BLOCK_STRINGS: Final = 1 << 16
"""Number of combinations that are written at a time. Larger blocks need more memory. Smaller blocks
need more calls of numpy."""


@dataclass(frozen=True, slots=True)
class FieldProduct:
    """All combinations of one text of each field.

    Attributes
    ----------
    texts : distinct normalized texts of each field, in UTF-8, in the order of the fields.
    """

    texts: Sequence[Sequence[bytes]]

    def check(self, field_names: Sequence[str]) -> None:
        """Check the texts of each field and the number of combinations.

        Raises
        ------
        ParamsError
            A field has no text, a text contains U+001F, or there are more than `MAX_STRINGS`
            combinations.
        """
        for name, texts in zip(field_names, self.texts, strict=True):
            if not texts:
                raise ParamsError(f"candidates of field {name} must not be empty")
            # U+001F separates fields: the combination would have another number of fields.
            if any(_SEPARATOR in text for text in texts):
                raise ParamsError(f"candidates of field {name} must be without U+001F")
        if self.n > MAX_STRINGS:
            sizes = " x ".join(f"{len(texts):,}" for texts in self.texts)
            raise ParamsError(
                f"candidates must have at most {MAX_STRINGS:,} combinations of fields, got "
                f"{sizes}: shorten the lists, or list the tuples in a file"
            )

    @property
    def n(self) -> int:
        """Number of combinations."""
        return math.prod(map(len, self.texts))

    @property
    def n_bytes(self) -> int:
        """Length of all combinations together, in bytes."""
        separators = self.n * (len(self.texts) - 1)
        # Each text of a field is in the same number of combinations.
        return separators + sum(
            sum(map(len, texts)) * (self.n // len(texts)) for texts in self.texts
        )

    def read_blocks(self) -> Iterator[Texts]:
        """Yield the combinations in blocks. The last field varies fastest."""
        combinations = map(_SEPARATOR.join, itertools.product(*self.texts))
        while block := list(itertools.islice(combinations, _BLOCK_STRINGS)):
            yield Texts.from_bytes(block)
