"""Populations to simulate: values, and the share of devices that have each."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError, ParamsError

_HEADERS: Final = (["value", "weight"], ["value", "count"])


class Population:
    """Distinct values, as texts, each with the share of devices that have it.

    Parameters
    ----------
    values : distinct texts; the simulation encodes them as a device would.
    weights : (n,) finite and non-negative, not all 0, on any scale.

    Attributes are `values`, a tuple, and `weights`, (n,) float64 that sum to one, read-only.

    Raises
    ------
    ParamsError
        Values and weights are not such lists.
    """

    __slots__ = ("values", "weights")

    def __init__(self, values: Sequence[str], weights: ArrayLike) -> None:
        """Check both lists and normalise the weights."""
        self.values = tuple(values)
        if not all(isinstance(value, str) for value in self.values):
            raise ParamsError("values must be texts")
        if len(set(self.values)) != len(self.values):
            raise ParamsError("values must be distinct")
        self.weights = _shares(weights, len(self.values))

    @classmethod
    def from_values(cls, values: Iterable[str]) -> Population:
        """Count plain values, one for each device, in the order of their first appearance."""
        counted = Counter(values)
        return cls(tuple(counted), list(counted.values()))

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Population:
        """Read a UTF-8 table with the header value,weight or value,count.

        Raises
        ------
        FileError
            The file is not such a table; the message has path and line.
        """
        return cls._from_text(read_text(path), path)

    @classmethod
    def _from_text(cls, text: str, path: str | os.PathLike[str]) -> Population:
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        shares: dict[str, float] = {}
        try:
            if (header := next(rows, [])) not in _HEADERS:
                raise ParamsError(f"header must be value,weight or value,count, got {header}")
            for row in rows:
                value, share = _parse_row(row)
                if value in shares:
                    raise ParamsError("values must be distinct, got one for the second time")
                shares[value] = share
        except (ParamsError, csv.Error) as error:
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

    From wordfreq 3.1.1 by Robyn Speer, CC BY-SA 4.0; see data/ATTRIBUTION.md.
    """
    table = resources.files("rappor.simulation").joinpath("data", "words_en.csv.gz")
    return Population._from_text(gzip.decompress(table.read_bytes()).decode(), "words_en.csv.gz")


def _shares(weights: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return checked weights, (n,) float64, divided by their sum."""
    try:
        numbers = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("weights must be numbers") from None
    if numbers.shape != (n,) or n == 0:
        raise ParamsError(f"weights must be one for each of {n} values, got {numbers.shape}")
    if not np.all((numbers >= 0) & (numbers < math.inf)):  # a NaN fails both
        raise ParamsError("weights must be finite and at least 0")
    if not numbers.any():
        raise ParamsError("weights must not all be 0")
    shares: NDArray[np.float64] = np.ldexp(numbers, -np.frexp(numbers.max())[1])  # exact
    shares /= shares.sum()  # which is finite now
    shares.flags.writeable = False
    return shares


def _parse_row(row: list[str]) -> tuple[str, float]:
    if len(row) != 2:
        raise ParamsError(f"fields must number 2, got {len(row)}")
    try:
        share = float(row[1])
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise ParamsError(f"a weight must be a number in [0, infinity), got {row[1][:40]!r}")
    return row[0], share
