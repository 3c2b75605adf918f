"""Cells of two fields of a tuple: which rows of the estimates belong to which cell.

The input is the table of a decode, whose candidates are tuples: texts of all fields, joined by
U+001F. The output is the joint table of two of the fields. The other fields are summed over.

*Example.* A metric has the fields editor (vim, code), system (linux, mac) and theme (dark, light),
so there are eight tuples. For the fields editor and system there are four cells: 0 is vim with
linux, 1 is vim with mac, 2 is code with linux, and 3 is code with mac. The tuples "vim, mac, dark"
and "vim, mac, light" both belong to cell 1, whose share is the sum of their shares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.association.joint_table import JointTable
from rappor.base.errors import DecodeError
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Integers
from rappor.decoding.estimates import Estimates
from rappor.protocol.normalizers import FIELD_SEPARATOR
from rappor.protocol.params import Params
from rappor.protocol.tuples import format_fields, split_fields

MOST_CELLS: Final = 2048
"""Largest number of cells, and of combinations of all fields. The covariance of the cells and its
inverse take 34 MB each, and a test takes a few seconds. The time grows with the third power of the
number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldCells:
    """The cells of two fields, and the rows of the estimates in each cell.

    Attributes
    ----------
    row_field, column_field : names of the two fields.
    row_values, column_values : the A and B listed values of each field.
    cell : (c,) int64. For each row of the estimates, the index of its cell, in [0, A B): the index
        of the row value times B, plus the index of the column value.
    """

    row_field: str
    column_field: str
    row_values: tuple[str, ...]
    column_values: tuple[str, ...]
    cell: Integers

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns, (A, B)."""
        return len(self.row_values), len(self.column_values)


def find_field_names(params: Iterable[Params]) -> tuple[str, ...]:
    """Return the names of the fields of a metric.

    Parameters
    ----------
    params : parameter sets of the metric's collections, at least one.

    Raises
    ------
    DecodeError
        The metric has no fields, or the collections have different fields.
    """
    names = {collection_params.field_names for collection_params in params}
    if len(names) > 1:
        raise DecodeError("counts must share their fields, got several lists of fields")
    (field_names,) = names
    if not field_names:
        raise DecodeError(
            "the metric must be a tuple, got one without fields: an association needs fields in "
            'the metric\'s entry, such as fields = ["site", "country"]'
        )
    return field_names


def choose_fields(field_names: Sequence[str], requested: Sequence[str] | None) -> tuple[str, str]:
    """Return the two fields whose association is estimated.

    Parameters
    ----------
    field_names : names of all fields of the metric.
    requested : the two fields that a person named, rows first. None chooses the fields of a metric
        that has exactly two.

    Raises
    ------
    DecodeError
        The metric has more than two fields and none are requested, or the request is not two
        different fields of the metric.
    """
    listed = ", ".join(field_names)
    if requested is None:
        if len(field_names) != 2:
            raise DecodeError(f"fields must be two of {listed}: name the two to compare")
        requested = field_names
    # A text is a sequence of letters, and would pass for many fields of one letter.
    names = [requested] if isinstance(requested, str) else list(requested)
    if len(names) != 2 or len(set(names)) != 2 or not set(names) <= set(field_names):
        raise DecodeError(
            f"fields must be two different ones of {listed}, got {', '.join(map(str, names))}"
        )
    return names[0], names[1]


def load_combinations(candidates: Candidates) -> Candidates:
    """Return the candidates in memory, or refuse a list that is too long for an association.

    The command `rappor associate` calls this function before the decode, because the decode of a
    long list takes hours, and `find_cells` would refuse its result.

    The lists of two fields may have a billion combinations. Such candidates are computed when they
    are read, and are not in memory. At most `MOST_CELLS` + 1 of them are read.

    Raises
    ------
    DecodeError
        There are too many combinations for one covariance.
    """
    loaded = candidates.load_into_memory(MOST_CELLS)
    if loaded is None:
        # The number of candidates is known if they are in memory. Candidates of a file, or computed
        # combinations, are read only up to the limit, so only "more" is known.
        raise _make_size_error(f"{len(candidates):,}" if candidates.is_in_memory else "more")
    return loaded


def _make_size_error(number: str) -> DecodeError:
    """Return the error for too many combinations of all fields."""
    return DecodeError(
        f"combinations must number at most {MOST_CELLS:,} for an association, got {number}: list "
        "fewer values of each field"
    )


def find_cells(estimates: Estimates, fields: tuple[str, str]) -> FieldCells:
    """Find the rows of the estimates that belong to each cell of two fields.

    The values of categories keep the order of the registry. The values of strings are sorted by
    their shares, largest first.

    Raises
    ------
    DecodeError
        There are too many combinations, or the candidates are not all combinations of one list for
        each field.
    """
    if estimates.n_candidates > MOST_CELLS:
        raise _make_size_error(f"{estimates.n_candidates:,}")
    params = estimates.collections[0].params
    tuples = [split_fields(candidate) for candidate in estimates.candidates]
    lists = params.field_categories or _list_values(estimates, tuples)
    _check_complete(params, lists, tuples)
    axes = [params.field_names.index(name) for name in fields]
    row_values, column_values = (lists[axis] for axis in axes)
    row_index, column_index = (
        {value: number for number, value in enumerate(values)}
        for values in (row_values, column_values)
    )
    cell = [
        row_index[texts[axes[0]]] * len(column_values) + column_index[texts[axes[1]]]
        for texts in tuples
    ]
    return FieldCells(
        row_field=fields[0],
        column_field=fields[1],
        row_values=row_values,
        column_values=column_values,
        cell=np.array(cell, dtype=np.int64),
    )


def compute_joint_table(estimates: Estimates, cells: FieldCells) -> JointTable:
    """Compute the share of each cell, and the joint covariance of all cells.

    Raises
    ------
    DecodeError
        The counts do not determine a cell: they contain no information about a candidate, for
        example because its cohorts have no reports (`compute_contrasts` raises this error), or
        candidates of two cells have the same bits in every cohort with reports.
    """
    _check_groups(estimates, cells)
    # Row c of `weights` adds up the candidates of cell c. A candidate belongs to exactly one cell.
    rows = np.arange(len(cells.cell))
    weights = np.zeros((math.prod(cells.shape), len(rows)))
    weights[cells.cell, rows] = 1.0
    share, covariance = estimates.covariance.compute_contrasts(rows, weights)
    return JointTable(
        share=share.reshape(cells.shape),
        covariance=covariance,
        # Reports of one device are not independent, so the tests count devices. A device sends
        # `reports_per_device` reports to a collection on average.
        devices=sum(
            summary.n_reports / summary.repetition.reports_per_device
            for summary in estimates.collections
        ),
    )


def _check_groups(estimates: Estimates, cells: FieldCells) -> None:
    """Raise DecodeError if candidates of two cells have the same bits in every cohort.

    Such candidates form an identifiability group, which `estimates.group` numbers from 1. The
    number 0 marks candidates outside any group. The counts contain only the total of a group, so
    the share of neither cell is known. A group within one cell has a known total.
    """
    for group in np.unique(estimates.group[estimates.group > 0]).tolist():
        members = np.flatnonzero(estimates.group == group)
        is_elsewhere = cells.cell[members] != cells.cell[members[0]]
        if is_elsewhere.any():
            # The message names a candidate of each cell. Two members of one cell would be no reason
            # to refuse.
            examples = members[0], members[is_elsewhere][0]
            first, second = (format_fields(estimates.candidates[i]) for i in examples)
            raise DecodeError(
                f"cells must have different bits, got {first} and {second} with the same bits in "
                "every cohort: more cohorts would separate them"
            )


def _list_values(
    estimates: Estimates, tuples: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Return the distinct values of each field of hashed tuples, largest share first."""
    lists = []
    for texts in zip(*tuples, strict=True):
        totals: dict[str, float] = dict.fromkeys(texts, 0.0)
        for text, share in zip(texts, estimates.share.tolist(), strict=True):
            totals[text] += share
        lists.append(tuple(sorted(totals, key=lambda text: -totals[text])))
    return tuple(lists)


def _check_complete(
    params: Params, lists: Sequence[Sequence[str]], tuples: Sequence[tuple[str, ...]]
) -> None:
    """Raise DecodeError unless the candidates are all combinations of the values of the fields.

    A missing combination has an unknown share. With the share 0, a table of independent fields
    would look dependent: no product of a positive row share and column share is 0.
    """
    for name, values in zip(params.field_names, lists, strict=True):
        if len(values) < 2:
            raise DecodeError(f"field {name} must have at least 2 values, got {len(values)}")
    # Candidates are distinct, and each is a combination of values of the lists. So there are never
    # more candidates than combinations, and with fewer candidates a combination is missing.
    n_combinations = math.prod(map(len, lists))
    if n_combinations != len(tuples):
        candidate_tuples = set(tuples)
        missing = next(
            texts for texts in itertools.product(*lists) if texts not in candidate_tuples
        )
        raise DecodeError(
            f"candidates must be all {n_combinations:,} combinations of the values of the fields, "
            f"got {len(tuples):,}: {format_fields(FIELD_SEPARATOR.join(missing))} is missing"
        )
