"""Populations to simulate: values, and the share of the devices that have each value.

A `Population` is made from lists, from one value for each device, or from a CSV file.
`english_words` returns a population of English words. Every simulation takes a `Population`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError, ParamsError
from rappor.base.ranges import check_integer, check_number
from rappor.base.text_lines import is_blank_row, read_decimal
from rappor.protocol.normalizers import FIELD_SEPARATOR
from rappor.simulation.keystream import Keystream

_Texts = TypeVar("_Texts", bound=Sequence[str])
"""Type of a tuple of texts. Keys of a Mapping are invariant, so a caller's type of keys must be a
variable."""

_HEADERS: Final = (["value", "weight"], ["value", "count"])
"""Allowed headers of a CSV file. The meaning is the same: numbers are divided by their sum."""


class Population:
    """Distinct values, each with the share of the devices that have it.

    Parameters
    ----------
    values : distinct texts. A simulation encodes them as a device would. The fields of a tuple are
        separated by tabs or by U+001F, and the items of a set by tabs.
    weights : (n,) finite and non-negative numbers on any scale, not all 0.

    Attributes
    ----------
    values : tuple of texts.
    weights : (n,) float64 with the sum 1, read-only.

    Raises
    ------
    ParamsError
        The values are not distinct texts, or the weights are not such numbers.

    Examples
    --------
    >>> editors = Population(["vim", "emacs"], [3, 1])
    >>> editors.weights.tolist()
    [0.75, 0.25]
    """

    __slots__ = ("values", "weights")

    def __init__(self, values: Sequence[str], weights: ArrayLike) -> None:
        """Check values and weights, and divide the weights by their sum."""
        # A text is a sequence, too. Its letters would silently become the values.
        if isinstance(values, str):
            raise ParamsError("values must be a list of texts, got one text")
        self.values = tuple(values)
        if not all(isinstance(value, str) for value in self.values):
            raise ParamsError("values must be texts")
        if len(set(self.values)) != len(self.values):
            raise ParamsError("values must be distinct")
        self.weights = _compute_shares(weights, len(self.values))

    @classmethod
    def from_values(cls, values: Iterable[str]) -> Population:
        """Count values, one for each device. Values keep the order in which they appear first.

        Parameters
        ----------
        values : the value of each device, as text.

        Examples
        --------
        >>> Population.from_values(["vim", "emacs", "vim"]).values
        ('vim', 'emacs')
        """
        numbers = Counter(values)
        return cls(tuple(numbers), list(numbers.values()))

    @classmethod
    def of_tuples(cls, weights: Mapping[_Texts, float]) -> Population:
        r"""Return tuples with a joint distribution, for metrics with fields.

        Parameters
        ----------
        weights : weight of each tuple. A key has a text for each field, in the order of the fields.

        Returns
        -------
        Population
            A value is the texts of a tuple joined by U+001F, as candidates of tuples are.

        Raises
        ------
        ParamsError
            A text contains U+001F, the tuples have different lengths, or the weights are wrong.

        Examples
        --------
        >>> Population.of_tuples({("vim", "linux"): 3, ("code", "mac"): 1}).values
        ('vim\x1flinux', 'code\x1fmac')
        """
        if len({len(texts) for texts in weights}) > 1:
            raise ParamsError("tuples must have one number of fields, got several")
        if any(FIELD_SEPARATOR in text for texts in weights for text in texts):
            raise ParamsError("the texts of tuples must be without U+001F")
        values = [FIELD_SEPARATOR.join(texts) for texts in weights]
        return cls(values, list(weights.values()))

    @classmethod
    def of_independent_items(
        cls, shares: Mapping[str, float], *, n_sets: int, seed: int | None = None
    ) -> Population:
        """Draw sets whose items are independent, for metrics of sets.

        Parameters
        ----------
        shares : share of the sets that contain each item, in [0, 1], by item.
        n_sets : number of drawn sets. The share of an item in the population differs from `shares`
            by the sampling error of this number.
        seed : the same seed gives the same sets; None for different sets in every call.

        Returns
        -------
        Population
            The distinct sets. A value is the text of the items of a set, separated by tabs.

        Examples
        --------
        >>> Population.of_independent_items({"git": 1.0, "vim": 0.0}, n_sets=3, seed=1).values
        ('git',)
        """
        check_integer("n_sets", n_sets, 1)
        for share in shares.values():
            check_number("a share", share, "[0, 1]")
        rng = Keystream(seed).generator()
        items = list(shares)
        # The sets are filled item by item, because a table of all sets and items would be large.
        sets: list[list[str]] = [[] for _ in range(n_sets)]
        for item in items:
            for number in np.flatnonzero(rng.random(n_sets) < shares[item]).tolist():
                sets[number].append(item)
        return cls.from_values("\t".join(set_) for set_ in sets)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Population:
        """Read a CSV table in UTF-8 with the header value,weight or value,count.

        Parameters
        ----------
        path : path of the file. Each row contains a distinct value and a number of at least 0.

        Raises
        ------
        FileError
            The file cannot be read, or is not such a table. The message contains path and line.
        """
        return cls._from_text(read_text(path), path)

    @classmethod
    def _from_text(cls, text: str, path: str | os.PathLike[str]) -> Population:
        """Parse the text of a CSV table. `path` is for messages."""
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        shares: dict[str, float] = {}
        try:
            if (header := next(rows, [])) not in _HEADERS:
                raise ParamsError(f"header must be value,weight or value,count, got {header}")
            for row in rows:
                value, share = _parse_row(row)
                # A dictionary would silently keep the last weight of a repeated value.
                if value in shares:
                    raise ParamsError("values must be distinct, got one for the second time")
                shares[value] = share
        except (ParamsError, csv.Error) as error:
            # An empty file has no line yet.
            raise FileError(path, str(error), line=max(rows.line_num, 1)) from None
        if not shares:
            raise FileError(path, "it has a header and no values")
        try:
            return cls(tuple(shares), list(shares.values()))
        except ParamsError as error:
            raise FileError(path, str(error)) from None

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Population(n={len(self)})"


def english_words() -> Population:
    """Return 49,912 English words with their frequencies: the most frequent, without swear words.

    The data is from wordfreq 3.1.1 by Robyn Speer, CC BY-SA 4.0; see data/ATTRIBUTION.md.

    Examples
    --------
    >>> english_words()
    Population(n=49912)
    """
    table = resources.files("rappor.simulation").joinpath("data", "words_en.csv.gz")
    return Population._from_text(gzip.decompress(table.read_bytes()).decode(), "words_en.csv.gz")


def _compute_shares(weights: ArrayLike, n: int) -> NDArray[np.float64]:
    """Check weights, and return them divided by their sum, (n,) float64."""
    # numpy would copy the numbers under the mask, which the caller has declared invalid.
    if isinstance(weights, np.ma.MaskedArray):
        raise ParamsError("weights must not be a masked array: fill or leave out what it masks")
    try:
        numbers = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("weights must be numbers") from None
    if numbers.shape != (n,) or n == 0:
        raise ParamsError(f"weights must be one for each of {n} values, got {numbers.shape}")
    # Both comparisons are false for NaN.
    if not np.all((numbers >= 0) & (numbers < math.inf)):
        raise ParamsError("weights must be finite and at least 0")
    if not numbers.any():
        raise ParamsError("weights must not all be 0")
    # The sum of large weights could exceed a float. Dividing all by a power of 2 first is exact.
    shares: NDArray[np.float64] = np.ldexp(numbers, -np.frexp(numbers.max())[1])
    shares /= shares.sum()
    shares.flags.writeable = False
    return shares


def _parse_row(row: list[str]) -> tuple[str, float]:
    """Return the value and the weight of a row. Raise ParamsError if the row is not valid."""
    if len(row) != 2:
        remedy = ": the line is blank, remove it" if is_blank_row(row) else ""
        raise ParamsError(f"fields must number 2, got {len(row)}{remedy}")
    try:
        share = read_decimal(row[1])
    except ValueError:
        share = math.nan
    # This comparison refuses negative weights, and the NaN of an unreadable weight.
    if not share >= 0:
        raise ParamsError(f"a weight must be a number in [0, infinity), got {row[1][:40]!r}")
    return row[0], share
