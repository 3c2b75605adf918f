"""The one-hot encoding of categories: one bit for each category.

The literature calls it unary encoding, and [EPK14] calls it Basic RAPPOR.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value
from rappor.protocol.encodings.encoding import (
    Encoding,
    EncodingParams,
    check_category_names,
    describe_fields,
    describe_normalizer,
    list_unlisted_bits,
)
from rappor.protocol.normalizers import FIELD_SEPARATOR, normalize
from rappor.protocol.tuples import format_fields, separate_categories, split_fields


class OneHot(Encoding):
    """Categories: one bit for each, of which a value sets at most one."""

    name = "onehot"
    single_value_noun = "category"
    supports_grr = True
    supports_normalizer = True
    supports_fields = True
    has_category_values = True
    categories_key = "categories"

    @classmethod
    def check_params(cls, params: EncodingParams) -> None:
        """Raise ParamsError unless the categories are valid and k is their number.

        The categories of a tuple are all combinations of one list for each field.
        """
        super().check_params(params)
        check_category_names(cls, params, 2)
        if params.field_names:
            separate_categories(params.categories, len(params.field_names))

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> int:
        """Return the number of categories."""
        return len(categories)

    def check_can_encode(self) -> None:
        """Raise ParamsError if normalizing makes two categories equal, or a category empty."""
        _ = self._bit_by_category

    def find_set_bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit of the category of a text.

        Any other text sets the bit of the bucket for other values, or no bit if there is no such
        bucket. The text and the names of the categories are compared after normalizing both.
        """
        bit = self._bit_by_category.get(self.read_text(value))
        return list_unlisted_bits(self.params) if bit is None else [bit]

    def is_representable(self, value: object) -> bool:
        """Return whether a text, or each field of a tuple, is one of the categories."""
        return self.read_text(value) in self._bit_by_category

    @property
    def true_bit_counts(self) -> range:
        """One bit; or no bit for a text outside the categories without a bucket for it."""
        return range(int(self.params.has_other_bucket), 2)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the loss between two categories, in nats: one bit differs in each direction."""
        return up + down

    @property
    def description(self) -> str:
        """The names of the categories. For a tuple, each field with its categories."""
        categories = self.params.categories
        if self.params.field_names:
            fields = " and ".join(describe_fields(self.params, self.field_categories))
            return f"one of {len(categories)} combinations of {fields}"
        normalizer_note = describe_normalizer(self.params)
        return f"one of {len(categories)} categories{normalizer_note}: {', '.join(categories)}"

    @property
    def unlisted_values(self) -> tuple[str, ...]:
        """The empty text, and a text that is not a category.

        Of a tuple, the first field has such a text, and all other fields have a category.
        """
        first_field, *other_fields = self.field_categories or (self.params.categories,)
        other_texts = [names[0] for names in other_fields]
        texts = ("", "none of these categories")
        return tuple(
            FIELD_SEPARATOR.join((text, *other_texts)) for text in texts if text not in first_field
        )

    @property
    def field_categories(self) -> tuple[tuple[str, ...], ...]:
        """Categories of each field of a tuple, in the order of the fields."""
        n_fields = len(self.params.field_names)
        return separate_categories(self.params.categories, n_fields) if n_fields else ()

    @property
    def _bit_by_category(self) -> Mapping[str, int]:
        """Bit index of each normalized category, computed once."""
        # A cached property of functools holds a lock in Python 3.11 while it computes. A process
        # that forks at that moment would keep the lock forever in the child, which then hangs.
        if (bits := self.__dict__.get("_numbered_categories")) is None:
            bits = self.__dict__["_numbered_categories"] = self._number_categories()
        return bits

    def _number_categories(self) -> dict[str, int]:
        """Return the bit of each normalized category; raise ParamsError if two are equal."""
        bits: dict[str, int] = {}
        normalizer = self.params.normalize
        for i, category in enumerate(self.params.categories):
            text = normalize(normalizer, category)
            category_text = format_value(format_fields(category))
            if "" in split_fields(text):
                raise ParamsError(
                    f"categories must be non-empty after normalising by {normalizer}, "
                    f"got {category_text}"
                )
            if bits.setdefault(text, i) != i:
                raise ParamsError(
                    f"categories must be distinct after normalising by {normalizer}, "
                    f"got {category_text} again"
                )
        return bits
