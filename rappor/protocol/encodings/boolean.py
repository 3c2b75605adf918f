"""The boolean encoding: yes or no, in one bit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings.encoding import Encoding, EncodingParams, describe_value

_TEXTS: Final = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
"""Boolean values by their texts on a command line, in lower case."""


class Boolean(Encoding):
    """Yes or no: one bit, which True sets."""

    name = "boolean"
    single_value_noun = "value"
    is_exclusive = False

    @classmethod
    def check_params(cls, params: EncodingParams) -> None:
        """Raise ParamsError unless k is 1 and the common checks pass."""
        super().check_params(params)
        if params.k != 1:
            raise ParamsError(f"k must be 1 for encoding boolean, got {params.k}")

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> int:  # noqa: ARG003  (there are none)
        """Return 1."""
        return 1

    def parse_value(self, text: str) -> bool:
        """Convert true, yes or 1 to True, and false, no or 0 to False."""
        value = _TEXTS.get(text.strip().lower())
        if value is None:
            raise ReportError(
                f"a value must be one of {', '.join(_TEXTS)}, got {describe_value(text)}"
            )
        return value

    def find_set_bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return bit 0 for True, and no bit for False."""
        return [0] if value else []

    def _convert_value(self, value: object) -> bool:
        """Convert a boolean of Python or numpy to Python's."""
        # A numpy boolean is accepted like Python's. Only a program that has imported numpy can pass
        # a numpy boolean, so numpy is looked up here and never imported: devices run without numpy.
        numpy_bool = getattr(sys.modules.get("numpy"), "bool_", bool)
        if not isinstance(value, bool | numpy_bool):
            raise ReportError(f"a value must be True or False, got {describe_value(value)}")
        return bool(value)

    @property
    def true_bit_counts(self) -> range:
        """No bit or one bit."""
        return range(2)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the loss of the single bit, in the direction with the larger loss, in nats.

        One bit differs, and only in one direction: the loss is a maximum and not a sum.
        """
        return max(up, down)

    @property
    def category_labels(self) -> tuple[str, ...]:
        """The label of the single bit."""
        return ("true",)

    @property
    def description(self) -> str:
        """Yes or no."""
        return "yes or no"

    @property
    def most_different_pairs(self) -> list[tuple[str, str]]:
        """The only two values."""
        return [("false", "true")]
