"""The bucket encoding of numbers: one bit for each range between given edges."""

from __future__ import annotations

import bisect
import itertools
import math
import numbers
from collections.abc import Sequence

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings.encoding import (
    Encoding,
    EncodingParams,
    check_category_names,
    describe_value,
    list_unlisted_bits,
    pair_neighbours,
)


class Buckets(Encoding):
    """Numbers: one bit for each range (-inf, e1), [e1, e2), ..., [en, inf) of the n edges."""

    name = "buckets"
    single_value_noun = "bucket"
    supports_grr = True
    categories_key = "edges"

    @classmethod
    def check_params(cls, params: EncodingParams) -> None:
        """Raise ParamsError unless the edges are valid and k is the number of edges plus one."""
        super().check_params(params)
        check_category_names(cls, params, 1)
        _check_edges(params.categories)

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> int:
        """Return the number of edges plus one: the first and last bucket have one edge each."""
        return len(categories) + 1

    def parse_value(self, text: str) -> float:
        """Convert a decimal text to a number."""
        try:
            return float(text)
        except ValueError:
            raise ReportError(f"a value must be a number, got {describe_value(text)}") from None

    def find_set_bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bit of the bucket that contains a number.

        NaN sets the bit of the bucket for other values, or no bit if there is no such bucket.
        """
        if not self.is_representable(value):
            return list_unlisted_bits(self.params)
        return [bisect.bisect_right(self.edges, _convert_number(value))]

    def _convert_value(self, value: object) -> int | float:
        """Convert a number to Python's int or float."""
        return _convert_number(value)

    def is_representable(self, value: object) -> bool:
        """Return whether a number is not NaN."""
        number = _convert_number(value)
        # math.isnan would overflow for an integer that is too large for a float.
        return number == number  # noqa: PLR0124  (only NaN differs from itself)

    @property
    def true_bit_counts(self) -> range:
        """One bit; or no bit for NaN without a bucket for it."""
        return range(int(self.params.has_other_bucket), 2)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the loss between two buckets, in nats: one bit differs in each direction."""
        return up + down

    @property
    def category_labels(self) -> tuple[str, ...]:
        """The buckets as intervals, from the lowest to the highest."""
        edges = self.params.categories
        inner = (f"[{low}, {high})" for low, high in itertools.pairwise(edges))
        return (f"(-inf, {edges[0]})", *inner, f"[{edges[-1]}, inf)")

    @property
    def description(self) -> str:
        """The number of buckets, and the edges between them."""
        edges = ", ".join(self.params.categories)
        n_ranges = len(self.params.categories) + 1
        return f"which of {n_ranges} ranges a number is in, divided at {edges}"

    @property
    def most_different_pairs(self) -> list[tuple[str, str]]:
        """A number of each bucket, paired with a number of the next bucket."""
        # Each edge is the lowest number of the bucket above it. Bad cases of other numbers: the
        # middle of two edges overflows or equals an edge, and 1e17 - 1 equals 1e17.
        below_edges = math.nextafter(self.edges[0], -math.inf)
        return pair_neighbours([repr(number) for number in (below_edges, *self.edges)])

    @property
    def unlisted_values(self) -> tuple[str, ...]:
        """NaN, the only number outside all buckets."""
        return ("nan",)

    @property
    def edges(self) -> tuple[float, ...]:
        """Numbers between the buckets, increasing. An edge belongs to the bucket above it."""
        return tuple(float(edge) for edge in self.params.categories)


def _convert_number(value: object) -> int | float:
    """Convert a recorded number to Python's int or float.

    The abstract classes of `numbers` include the numbers of numpy. numpy compares a float32 with an
    edge in single precision, so the float32 nearest to 0.1 would equal the edge 0.1 and change its
    bucket. Conversion to a Python float prevents this.

    Raises
    ------
    ReportError
        The value is not a real number. Booleans and fractions are refused as well.
    """
    match value:
        case bool():  # Python counts True as an integer; a program that records it made a mistake
            pass
        case numbers.Integral():
            return int(value)
        case numbers.Rational():  # no program measures a Fraction
            pass
        case numbers.Real():
            return float(value)
    raise ReportError(f"a value must be an int or a float, got {describe_value(value)}")


def format_edge(edge: float) -> str:
    """Write the edge of a bucket as the shortest decimal that reads back to the same binary64.

    The form is ECMAScript's Number-to-string (RFC 8785 section 3.2.2.3), so that Python and
    JavaScript compute equal fingerprints.

    Examples
    --------
    >>> [format_edge(edge) for edge in (10, 0.5, 1e21, 1e-7, -0.0)]
    ['10', '0.5', '1e+21', '1e-7', '0']
    """
    # `repr` already has the shortest digits. Only the form of the exponent differs. So the text is
    # divided into `digits`, without zeros at either end, and the position `point` of the decimal
    # point: the number is 0.digits * 10^point.
    mantissa, _, exponent = repr(abs(float(edge))).partition("e")
    integer_digits, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = (integer_digits + fraction).lstrip("0").rstrip("0")
    if not digits:
        return "0"
    # Below 1, each zero after the decimal point moves the point to the left: 0.005 = 0.5 * 10^-2.
    n_leading_zeros = len(fraction) - len(fraction.lstrip("0"))
    point = len(integer_digits) if integer_digits != "0" else -n_leading_zeros
    point += int(exponent or 0)
    return ("-" if edge < 0 else "") + _write_decimal(digits, point)


def _write_decimal(digits: str, point: int) -> str:
    """Write the number 0.digits * 10^point in the form of ECMAScript.

    Numbers from 10^21 on, and numbers below 10^-6, have an exponent.
    """
    if point > 21 or point <= -6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{point - 1:+d}"
    if point <= 0:
        return "0." + "0" * -point + digits
    if len(digits) <= point:
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"


def _check_edges(edges: Sequence[str]) -> None:
    """Raise ParamsError unless the edges are finite increasing numbers in their shortest form.

    The fingerprint hashes the texts, so each edge must have exactly one text.
    """
    try:
        values = [float(edge) for edge in edges]
    except ValueError:
        raise ParamsError("edges must be decimal numbers") from None
    if not all(math.isfinite(value) for value in values):
        raise ParamsError("edges must be finite")
    if any(low >= high for low, high in itertools.pairwise(values)):
        raise ParamsError("edges must increase")
    if any(edge != format_edge(value) for edge, value in zip(edges, values, strict=True)):
        raise ParamsError("edges must be written as shortest decimals; use format_edge")
