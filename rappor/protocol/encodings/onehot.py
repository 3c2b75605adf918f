"""One-hot: one of several categories, a bit each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value
from rappor.protocol.encodings.encoding import Encoding, check_names, normalised_by
from rappor.protocol.encodings.shape import Shape
from rappor.protocol.normalizers import normalize


class OneHot(Encoding):
    """Categories: one bit each, at most one set."""

    name = "onehot"
    normalizes = True
    names_values = True
    categories_key = "categories"

    @classmethod
    def check(cls, params: Shape) -> None:
        """Check the categories, and that k is their number."""
        super().check(params)
        check_names(cls, params, 2)

    @classmethod
    def implied_bits(cls, categories: Sequence[str]) -> int:
        """Return one bit for each category."""
        return len(categories)

    def check_values(self) -> None:
        """Refuse categories that normalising makes equal or empty."""
        _ = self._bits

    def bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit of a category's name; none for another text.

        The name and the text are compared after normalising both.
        """
        bit = self._bits.get(normalize(self.params.normalize, value))
        return [] if bit is None else [bit]

    def fits(self, value: object) -> bool:
        """Return whether a text sets a bit."""
        return len(self.bits(value, 0)) == 1

    @property
    def true_bits(self) -> range:
        """One, or none for a text that is no category."""
        return range(2)

    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss of two categories: one bit falls, another rises."""
        return up + down

    @property
    def described(self) -> str:
        """The categories."""
        names = ", ".join(self.params.categories)
        return f"one of {self.params.k} categories{normalised_by(self.params)}: {names}"

    @property
    def unlisted(self) -> tuple[str, ...]:
        """No text at all, and one that is no category."""
        listed = self.params.categories
        return tuple(text for text in ("", "none of these categories") if text not in listed)

    @property
    def _bits(self) -> Mapping[str, int]:
        # A cached property of Python 3.11 holds a lock, which a process that forks would keep.
        if (bits := self.__dict__.get("_numbered")) is None:
            bits = self.__dict__["_numbered"] = self._number()
        return bits

    def _number(self) -> dict[str, int]:
        """Return the bit of each normalised category; ParamsError for equal and empty ones."""
        bits: dict[str, int] = {}
        normalizer = self.params.normalize
        for i, category in enumerate(self.params.categories):
            text = normalize(normalizer, category)
            if not text:
                raise ParamsError(
                    f"categories must be non-empty after normalising by {normalizer}, "
                    f"got {format_value(category)}"
                )
            if bits.setdefault(text, i) != i:
                raise ParamsError(
                    f"categories must be distinct after normalising by {normalizer}, "
                    f"got {format_value(category)} again"
                )
        return bits
