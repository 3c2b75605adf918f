"""Buckets: which range a number lies in, a bit for each range."""

from __future__ import annotations

import bisect
import itertools
import math
import numbers
from collections.abc import Sequence

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings.encoding import Encoding, check_names, described, neighbours
from rappor.protocol.encodings.shape import Shape


class Buckets(Encoding):
    """Numbers: one bit for each of (-inf, e1), [e1, e2), ..., [en, inf)."""

    name = "buckets"
    categories_key = "edges"

    @classmethod
    def check(cls, params: Shape) -> None:
        """Check the edges, and that k is one more than there are."""
        super().check(params)
        check_names(cls, params, 1)
        _check_edges(params.categories)

    @classmethod
    def implied_bits(cls, categories: Sequence[str]) -> int:
        """Return one bit for each range between the edges and beyond them."""
        return len(categories) + 1

    def parse_value(self, text: str) -> float:
        """Read a number."""
        try:
            return float(text)
        except ValueError:
            raise ReportError(f"a value must be a number, got {described(text)}") from None

    def bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit of the bucket that holds a number; NaN lies in none."""
        return [bisect.bisect_right(self.edges, _number(value))] if self.fits(value) else []

    def fits(self, value: object) -> bool:
        """Return whether a number is not NaN."""
        number = _number(value)
        return number == number  # noqa: PLR0124  (only NaN is not; a huge int has no float)

    @property
    def true_bits(self) -> range:
        """One, or none for NaN."""
        return range(2)

    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss of two buckets: one bit falls, another rises."""
        return up + down

    @property
    def answers(self) -> tuple[str, ...]:
        """The ranges, from the lowest to the highest."""
        edges = self.params.categories
        inner = (f"[{low}, {high})" for low, high in itertools.pairwise(edges))
        return (f"(-inf, {edges[0]})", *inner, f"[{edges[-1]}, inf)")

    @property
    def described(self) -> str:
        """The ranges, by their edges."""
        edges = ", ".join(self.params.categories)
        return f"which of {self.params.k} ranges a number is in, divided at {edges}"

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """A number of each bucket, beside one of the next."""
        edges = self.edges
        inner = [low + (high - low) / 2 for low, high in itertools.pairwise(edges)]
        return neighbours([repr(number) for number in (edges[0] - 1, *inner, edges[-1])])

    @property
    def unlisted(self) -> tuple[str, ...]:
        """What is no number."""
        return ("nan",)

    @property
    def edges(self) -> tuple[float, ...]:
        """The numbers between the ranges."""
        return tuple(float(edge) for edge in self.params.categories)


def _number(value: object) -> int | float:
    """Return a number as Python's own; ReportError for anything else, as True or a text.

    Numbers of numpy are registered as these abstract ones. They become Python's, because numpy
    compares a float32 with an edge in single precision, and so would move it to another bucket.
    """
    match value:
        case bool():
            pass
        case numbers.Integral():
            return int(value)
        case numbers.Rational():  # a Fraction is not what a program measures
            pass
        case numbers.Real():
            return float(value)
    raise ReportError(f"a value must be an int or a float, got {described(value)}")


def edge_text(edge: float) -> str:
    """Write a bucket's edge as the shortest decimal that reads back to the same binary64.

    The form is ECMAScript's Number-to-string (RFC 8785): 10, 0.5, 1e+21, 1e-7.
    """
    mantissa, _, exponent = repr(abs(float(edge))).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = (whole + fraction).lstrip("0").rstrip("0")
    if not digits:
        return "0"
    point = int(exponent or 0) + (
        len(whole) if whole != "0" else len(fraction.lstrip("0")) - len(fraction)
    )
    return ("-" if edge < 0 else "") + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """Write 0.digits times 10^point as ECMAScript does."""
    if point > 21 or point <= -6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{point - 1:+d}"
    if point <= 0:
        return "0." + "0" * -point + digits
    if len(digits) <= point:
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"


def _check_edges(edges: Sequence[str]) -> None:
    try:
        numbers = [float(edge) for edge in edges]
    except ValueError:
        raise ParamsError("edges must be decimal numbers") from None
    if not all(math.isfinite(number) for number in numbers):
        raise ParamsError("edges must be finite")
    if any(low >= high for low, high in itertools.pairwise(numbers)):
        raise ParamsError("edges must increase")
    if any(edge != edge_text(number) for edge, number in zip(edges, numbers, strict=True)):
        raise ParamsError("edges must be written as shortest decimals; use edge_text")
