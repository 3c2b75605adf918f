"""Populations: values and weights from lists, single values and CSV tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rappor.base.errors import FileError, ParamsError
from rappor.simulation.population import Population, english_words


def test_weights_are_normalised_and_read_only() -> None:
    """Weights of any scale become shares, even if their sum is beyond the range of a float."""
    population = Population(["a", "b", "c"], [1, 0, 3])
    assert population.values == ("a", "b", "c")
    assert population.weights.tolist() == [0.25, 0.0, 0.75]
    assert Population(["a", "b"], [1e308, 1e308]).weights.tolist() == [0.5, 0.5]
    assert Population(["a", "b"], [5e-324, 5e-324]).weights.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        population.weights[0] = 1


@pytest.mark.parametrize(
    ("values", "weights", "reason"),
    [
        (["a", "b"], [1], r"weights must be one for each of 2 values, got \(1,\)"),
        (["a"], [[1]], "weights must be one for each"),
        ([], [], "weights must be one for each of 0 values"),
        (["a", "b"], [1, -1], "weights must be finite and at least 0"),
        (["a", "b"], [1, math.nan], "weights must be finite and at least 0"),
        (["a", "b"], [1, math.inf], "weights must be finite and at least 0"),
        (["a", "b"], [0, 0], "weights must not all be 0"),
        (["a", "b"], np.ma.masked_array([3, 1], [True, False]), "must not be a masked array"),
        (["a", "b"], ["x", "y"], "weights must be numbers"),
        (["a", "a"], [1, 1], "values must be distinct"),
        (["a", 1], [1, 1], "values must be texts"),
    ],
)
def test_wrong_lists_are_refused(values: Any, weights: Any, reason: str) -> None:
    """Values must be distinct texts. Weights must be finite, at least 0 and not all 0."""
    with pytest.raises(ParamsError, match=reason):
        Population(values, weights)


def test_weights_of_single_values_are_their_counts() -> None:
    """The weight of a value is the number of its occurrences."""
    population = Population.from_values(iter(["b", "a", "b", "b"]))
    assert population.values == ("b", "a")
    assert population.weights.tolist() == [0.75, 0.25]


@pytest.mark.parametrize("header", ["value,weight", "value,count"])
def test_a_table_is_read(tmp_path: Path, header: str) -> None:
    """Quoted values may have commas and line ends, and a byte-order mark is dropped."""
    path = tmp_path / "p.csv"
    path.write_bytes(f'\ufeff{header}\r\n"a,b",1\r\n"c\nd",2.5e0\r\n,0.5\r\n'.encode())
    population = Population.from_csv(path)
    assert population.values == ("a,b", "c\nd", "")
    assert population.weights.tolist() == [0.25, 0.625, 0.125]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1: header must be value,weight or value,count"),
        (b"a,1\n", "line 1: header must be"),
        (b"value,weight\na,1\nb\n", "line 3: fields must number 2, got 1"),
        (b"value,weight\na,1\n\nb,1\n", "line 3: fields must number 2, got 0: the line is blank"),
        (b"value,weight\na,1\n \t\n", "line 3: fields must number 2, got 1: the line is blank"),
        (b"value,weight\na,1_0\n", "line 2: a weight must be a number .* got '1_0'"),
        (b"value,weight\na,1e400\n", "line 2: a weight must be a number .* got '1e400'"),
        (b"value,weight\na,1\nb,x\n", "line 3: a weight must be a number .* got 'x'"),
        (b"value,weight\na,1\nb,nan\n", "line 3: a weight must be a number .* got 'nan'"),
        (b"value,weight\na,1\nb,-1\n", "line 3: a weight must be a number .* got '-1'"),
        (b"value,weight\na,inf\n", "line 2: a weight must be a number .* got 'inf'"),
        (b"value,weight\na,1\na,1\n", "line 3: values must be distinct"),
        (b"value,weight\na,0\n", "weights must not all be 0"),
        (b"value,weight\n", "it has a header and no values"),
        (b"value,weight\na,1\n\xff,1\n", "line 3: it is not UTF-8"),
        (b'value,weight\na,1\n"b,1\n', "line 3: "),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path, data: bytes, reason: str) -> None:
    """Errors of header, fields, numbers and encoding have the line."""
    path = tmp_path / "p.csv"
    path.write_bytes(data)
    with pytest.raises(FileError, match=reason):
        Population.from_csv(path)


def test_the_list_of_english_words_is_complete() -> None:
    """The list has 49,912 distinct words, most frequent first, without swear words.

    "the" has between 5 and 6 % of the weight.
    """
    words = english_words()
    assert len(words) == 49_912
    assert not {"fuck", "shit", "ass", "bitch"} & set(words.values)
    assert words.values[:3] == ("the", "to", "and")
    assert np.all(np.diff(words.weights) <= 0)
    assert 0.05 < words.weights[0] < 0.06


def test_the_repr_shows_no_value() -> None:
    """The repr has the number of values only, because a population may contain real values."""
    assert repr(Population(["secret"], [1])) == "Population(n=1)"
