"""One-hot: one of several categories, a bit each."""

from __future__ import annotations

from rappor.protocol.encodings.encoding import NamedEncoding, normalised_by


class OneHot(NamedEncoding):
    """Categories: one bit each, at most one set."""

    name = "onehot"
    least_categories = 2

    def bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit of a category's name; none for another text."""
        return self.bits_of([value])

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
