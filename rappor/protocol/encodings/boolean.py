"""Boolean: yes or no, one bit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings.encoding import Encoding, described
from rappor.protocol.encodings.shape import Shape

_TEXTS: Final = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


class Boolean(Encoding):
    """Yes or no: one bit, set by yes."""

    name = "boolean"
    exclusive = False

    @classmethod
    def check(cls, params: Shape) -> None:
        """Check that there is one bit."""
        super().check(params)
        if params.k != 1:
            raise ParamsError(f"k must be 1 for encoding boolean, got {params.k}")

    @classmethod
    def implied_bits(cls, categories: Sequence[str]) -> int:  # noqa: ARG003  (there are none)
        """Return 1."""
        return 1

    def parse_value(self, text: str) -> bool:
        """Read true, yes, 1 or false, no, 0."""
        answer = _TEXTS.get(text.strip().lower())
        if answer is None:
            raise ReportError(f"a value must be one of {', '.join(_TEXTS)}, got {described(text)}")
        return answer

    def bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit if the value is True."""
        # Whoever has a value of numpy has imported it. A device without numpy must not.
        numpy_bool = getattr(sys.modules.get("numpy"), "bool_", bool)
        if not isinstance(value, bool | numpy_bool):
            raise ReportError(f"a value must be True or False, got {described(value)}")
        return [0] if value else []

    @property
    def true_bits(self) -> range:
        """None or one."""
        return range(2)

    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss of the one bit, in the direction that tells more."""
        return max(up, down)

    @property
    def answers(self) -> tuple[str, ...]:
        """What the bit stands for."""
        return ("true",)

    @property
    def described(self) -> str:
        """Yes or no."""
        return "yes or no"

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """The two values."""
        return [("false", "true")]
