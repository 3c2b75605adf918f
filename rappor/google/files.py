"""Readers and writers of the files of google/rappor, the reference implementation.

google/rappor has five kinds of files, all CSV or lines of text:

    params.csv      k, h, m, p, q, f of a collection
    counts.csv      for each cohort its number of reports, then the number of ones of each bit
    reports         one report in each row: client, cohort, and three patterns of bits
    candidates.txt  one candidate in each line
    map.csv         for each candidate the bits that it sets, numbered from 1 over all cohorts

params.csv has one probability f of permanent noise: a bit is forced to 1 with probability f/2, and
to 0 with probability f/2. Parameters of this package have a second letter g (`Params.g`): a bit is
forced to 1 with probability f g, and to 0 with probability f (1 - g). So params.csv can express
g = .5 only.

google/rappor hashes strings with MD5. Its hash layout has a name (`Params.layout`). The name is
part of the fingerprint, so counts of google/rappor are never added to counts of this package. Both
number bits in the same way, from 0. Only a pattern in a reports file is written from bit k - 1 down
to bit 0.

The readers refuse errors that google/rappor ignores: probabilities that are out of range or
swapped, a bit with more ones than its cohort has reports, cohorts that do not exist, and rows of
another width.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.atomic_files import read_text, replace_file
from rappor.base.errors import FileError, ParamsError, ReportError
from rappor.base.text_lines import (
    WHITE_SPACE,
    is_blank_row,
    read_decimal,
    read_whole_number,
    split_lines,
)
from rappor.candidates.candidates import Candidates
from rappor.candidates.google_hashing import GOOGLE_LAYOUT
from rappor.candidates.texts import Texts
from rappor.counts.counts import Counts
from rappor.google.effective_noise import Client, compute_effective_f
from rappor.protocol.params import Params

PathLike = str | os.PathLike[str]

_PARAMS_HEADER: Final = ["k", "h", "m", "p", "q", "f"]
"""Header that params.csv must have."""

_REPORT_COLUMNS: Final = 5
"""A row of a reports file has five columns: client, cohort, bloom (true bits), prr (permanent
response) and irr (instantaneous response)."""

_SHOWN_CHARACTERS: Final = 40
"""Largest number of characters of a cell that a message shows. Longer cells are cut."""

_NO_COHORT: Final = 1 << 63
"""Cohort number that replaces a cell without a number. No collection has this cohort."""

_NA: Final = ("NA", "")
"""R reads these cells of a map as missing, also between white space. The example map of
google/rappor has an empty cell."""


class MappedCandidates(Candidates):
    """Candidates whose bits come from a map.csv, so that no hash is computed.

    A map may come from any hash layout. Its bits belong to one k, h and m.
    """

    __slots__ = ("_cells", "_shape")

    def __init__(
        self,
        strings: tuple[str, ...],
        cells: NDArray[np.int32],
        *,
        shape: tuple[int, int, int],
        n_duplicates: int = 0,
    ) -> None:
        """Store candidates and their bits.

        Parameters
        ----------
        strings : the n distinct candidates
        cells : (n, m * h) int32. The bits that each candidate sets, numbered from 0 over all
            cohorts. The value -1 marks an unused cell.
        shape : k, h and m of the numbering
        n_duplicates : number of rows of the map that repeat a candidate
        """
        super().__init__(Texts.from_bytes([text.encode() for text in strings]), name="map.csv")
        self.n_duplicates = n_duplicates
        self._cells = cells
        self._shape = shape

    def compute_cells(self, params: Params, start: int, stop: int) -> NDArray[np.int32]:
        """Return the cells of the candidates start to stop - 1.

        Raises ParamsError if k, h or m differs from the map's.
        """
        if (params.k, params.h, params.m) != self._shape:
            raise ParamsError(f"k, h, m must be the map's {self._shape}")
        return self._cells[start:stop]

    def select(self, chosen: Sequence[int]) -> MappedCandidates:
        """Return some candidates with their cells. `chosen` contains their indices."""
        strings = tuple(self._texts_in_memory.select(np.array(chosen, dtype=np.int64)).to_strings())
        return MappedCandidates(strings, self._cells[list(chosen)], shape=self._shape)


def read_params(path: PathLike, *, client: Client | None = None) -> Params:
    """Read params.csv: the header k,h,m,p,q,f and one row.

    Parameters
    ----------
    path : path
        Path of the file.
    client : {"python", "cpp", "java"}, optional
        The client that sent the reports. Its rounding of f is applied
        (`rappor.google.effective_noise`). Without a client, f is used as written.

    Returns
    -------
    Params

    Raises
    ------
    FileError
        If the header is another, there is not exactly one row, or a cell is not a number.
    ParamsError
        If a parameter is outside its range.
    """
    rows = list(_read_rows(path))
    if not rows or [cell.strip(WHITE_SPACE) for cell in rows[0][1]] != _PARAMS_HEADER:
        raise FileError(path, f"the header must be {','.join(_PARAMS_HEADER)}", line=1)
    if len(rows) != 2:
        raise FileError(path, f"there must be one row of parameters, got {len(rows) - 1}")
    line, row = rows[1]
    try:
        k, h, m = (read_whole_number(cell) for cell in row[:3])
        p, q, f = (read_decimal(cell) for cell in row[3:])
    except ValueError:
        raise FileError(path, "k, h, m must be integers and p, q, f numbers", line=line) from None
    if client is not None:
        f = compute_effective_f(f, client)
    return Params(k=k, h=h, m=m, f=f, p=p, q=q, layout=GOOGLE_LAYOUT)


def write_params(path: PathLike, params: Params) -> None:
    """Write params.csv with the effective probabilities of the 32-bit thresholds, to 10 digits.

    Parameters
    ----------
    path : path
        Path of the file. An existing file is replaced.
    params : Params
        The parameters.

    Raises
    ------
    ParamsError
        If g, the share of the permanent noise that forces a bit to 1, is not .5. The file has no
        column for g, and google/rappor always computes with g = .5.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Params
    >>> from rappor.google.files import read_params, write_params
    >>> params = Params(k=16, h=2, m=8, f=0.5, p=0.25, q=0.75, layout="google")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "params.csv")
    ...     write_params(path, params)
    ...     read_params(path) == params
    True
    """
    _check_forced(params)
    row = [params.k, params.h, params.m, *(f"{x:.10g}" for x in (params.p, params.q, params.f))]
    _write_rows(path, [_PARAMS_HEADER, row])


def read_counts(path: PathLike, params: Params) -> Counts:
    """Read counts.csv: a row for each cohort, with its reports and the ones of bits 0 to k - 1.

    Parameters
    ----------
    path : path
        Path of the file.
    params : Params
        The parameters of the collection.

    Returns
    -------
    Counts

    Raises
    ------
    FileError
        If a row does not have k + 1 cells, a cell is not a whole number, the number of rows is not
        m, or a bit has more ones than its cohort has reports.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Params
    >>> from rappor.google.files import read_counts
    >>> params = Params(k=2, h=1, m=2, f=0.5, p=0.25, q=0.75, layout="google")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "counts.csv")
    ...     with path.open("w") as file:
    ...         print("10,4,6", "20,9,11", sep=chr(10), file=file)
    ...     counts = read_counts(path, params)
    >>> counts.cohort_reports.tolist(), counts.bit_counts.tolist()
    ([10, 20], [[4, 6], [9, 11]])
    """
    table = []
    for line, row in _read_rows(path):
        if len(row) != params.k + 1:
            wanted = params.k + 1
            raise FileError(path, f"a row must have {wanted} cells, got {len(row)}", line=line)
        try:
            table.append([read_whole_number(cell) for cell in row])
        except ValueError:
            raise _make_number_error(path, row, line) from None
    if len(table) != params.m:
        raise FileError(
            path, f"there must be a row for each of {params.m} cohorts, got {len(table)}"
        )
    try:
        cells = np.array(table, dtype=np.int64)
        return Counts(params, cells[:, 1:], cells[:, 0])
    except (ReportError, OverflowError) as error:
        raise FileError(path, str(error)) from None


def write_counts(path: PathLike, counts: Counts) -> None:
    """Write counts.csv.

    Parameters
    ----------
    path : path
        Path of the file. An existing file is replaced.
    counts : Counts
        Counts with the hash layout of google/rappor.

    Raises
    ------
    ParamsError
        If the counts have another hash layout, which the decoder of google/rappor would
        misinterpret, or if params.csv cannot express the parameters.
    """
    _check_layout(counts.params)
    _check_forced(counts.params)
    _write_rows(path, np.column_stack([counts.cohort_reports, counts.bit_counts]).tolist())


def read_reports(path: PathLike, params: Params) -> Counts:
    """Read and add the reports of a file with the columns client, cohort, bloom, prr and irr.

    The first row must be a header. Only `irr`, the instantaneous response, was sent by the client.
    It has k characters 0 or 1, bit k - 1 first.

    Parameters
    ----------
    path : path
        Path of the file.
    params : Params
        The parameters of the collection.

    Returns
    -------
    Counts

    Raises
    ------
    FileError
        If a row does not have five cells, its cohort does not exist, its `irr` is malformed, or the
        first row is a report and not a header.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Params
    >>> from rappor.google.files import read_reports
    >>> params = Params(k=2, h=1, m=2, f=0.5, p=0.25, q=0.75, layout="google")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "reports.csv")
    ...     with path.open("w") as file:
    ...         print("client,cohort,bloom,prr,irr", "7,1,01,01,10", sep=chr(10), file=file)
    ...     counts = read_reports(path, params)
    >>> counts.bit_counts.tolist()  # irr has bit 1 first
    [[0, 0], [0, 1]]
    """
    cohorts, packed = [], []
    rows = _read_rows(path)
    _, header = next(rows, (1, []))
    # Bad case: a file without a header. Its first report would be skipped and not counted.
    if len(header) == _REPORT_COLUMNS and _is_whole(header[1]):
        raise FileError(path, "the first row must be a header, got a report", line=1)
    for line, row in rows:
        if len(row) != _REPORT_COLUMNS:
            raise FileError(
                path, f"a row must have {_REPORT_COLUMNS} cells, got {len(row)}", line=line
            )
        if (cohort := _read_cohort(row[1])) >= params.m:
            raise FileError(path, f"cohort must be in [0, {params.m - 1}]", line=line)
        if len(row[4]) != params.k or set(row[4]) - {"0", "1"}:
            raise FileError(path, f"irr must be {params.k} characters 0 or 1", line=line)
        cohorts.append(cohort)
        # The text has bit k - 1 first, so its value as a binary number has bit 0 lowest.
        packed.append(int(row[4], 2).to_bytes(params.n_bytes, "little"))
    bits = np.frombuffer(b"".join(packed), dtype=np.uint8).reshape(-1, params.n_bytes)
    return Counts.from_packed(bits, np.array(cohorts, dtype=np.int64), params)


def read_candidates(path: PathLike) -> Candidates:
    """Read candidates.txt as the tool hash_candidates of google/rappor does.

    White space of ASCII is removed from both ends of each line. An empty line is the empty string.

    Parameters
    ----------
    path : path
        Path of the file.

    Returns
    -------
    Candidates

    Raises
    ------
    FileError
        If the file cannot be read, or is not UTF-8.
    """
    lines = split_lines(read_text(path))
    return Candidates.from_list(line.strip(WHITE_SPACE) for line in lines)


def read_map(path: PathLike, params: Params) -> MappedCandidates:
    """Read map.csv: candidates with the bits that they set in all cohorts.

    The bits of a row are numbered from 1 and may have any order. Missing and repeated bits are
    ignored. A missing bit is an empty cell or NA, as in R. The text "Empty" is the empty string. A
    repeated string keeps its first row, and the others are counted (`n_duplicates`).

    Parameters
    ----------
    path : path
        Path of the file.
    params : Params
        The parameters of the collection.

    Returns
    -------
    MappedCandidates

    Raises
    ------
    FileError
        If a cell is not a whole number from 1 to m k, or a row has no bit or more than m h bits.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Params
    >>> from rappor.google.files import read_map
    >>> params = Params(k=2, h=1, m=2, f=0.5, p=0.25, q=0.75, layout="google")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "map.csv")
    ...     with path.open("w") as file:
    ...         print("vim,1,4", "emacs,2,3", sep=chr(10), file=file)
    ...     candidates = read_map(path, params)
    >>> candidates.compute_cells(params, 0, 2).tolist()  # bits are numbered from 0
    [[0, 3], [1, 2]]
    """
    width = params.m * params.h
    rows: dict[str, list[int]] = {}
    n_duplicates = 0
    for line, row in _read_rows(path):
        text = "" if row[0] == "Empty" else row[0]
        try:
            present = (cell for cell in row[1:] if cell.strip(WHITE_SPACE) not in _NA)
            cells = sorted({read_whole_number(cell) - 1 for cell in present})
        except ValueError:
            raise _make_number_error(path, row[1:], line) from None
        if not 1 <= len(cells) <= width:
            raise FileError(path, f"a string must have 1 to {width} cells", line=line)
        if cells[0] < 0 or cells[-1] >= params.m * params.k:
            raise FileError(path, f"a cell must be in [1, {params.m * params.k}]", line=line)
        n_duplicates += text in rows
        rows.setdefault(text, cells)
    # -1 fills the cells of a string that sets fewer than m h bits.
    table = np.full((len(rows), width), -1, dtype=np.int32)
    for table_row, cells in zip(table, rows.values(), strict=True):
        table_row[: len(cells)] = cells
    shape = (params.k, params.h, params.m)
    return MappedCandidates(tuple(rows), table, shape=shape, n_duplicates=n_duplicates)


def _make_number_error(path: PathLike, row: Sequence[str], line: int) -> FileError:
    """Return the error of a row. The message shows the first cell that is not a whole number."""
    wrong = next(cell for cell in row if not _is_whole(cell))
    # The files of google/rappor have no header. A spreadsheet program often adds one.
    is_header = line == 1 and wrong[:1].isalpha()
    remedy = "; a row of titles must be removed" if is_header else ""
    excerpt = wrong[:_SHOWN_CHARACTERS]
    return FileError(path, f"every cell must be a whole number, got {excerpt!r}{remedy}", line=line)


def _is_whole(cell: str) -> bool:
    """Return whether a cell is a whole number in any spelling, such as 1e+05."""
    try:
        read_whole_number(cell)
    except ValueError:
        return False
    return True


def _read_cohort(cell: str) -> int:
    """Return the number of a cohort, or `_NO_COHORT` if the cell is not a number."""
    return read_whole_number(cell) if _is_whole(cell) else _NO_COHORT


def _check_layout(params: Params) -> None:
    """Raise ParamsError if the bits were not hashed as google/rappor hashes."""
    if params.layout != GOOGLE_LAYOUT:
        raise ParamsError(
            f"layout must be {GOOGLE_LAYOUT} to be written for google/rappor, got {params.layout}"
        )


def _check_forced(params: Params) -> None:
    """Raise ParamsError if f forces different shares of bits to 1 and to 0."""
    if params.t_1 != params.t_0:
        raise ParamsError(f"g must be 0.5 to be written as params.csv, got {params.g:g}")


def _read_rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not blank, as R reads tables."""
    # newline="" keeps the line ends, so that a line end within a quoted cell stays in the cell.
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            if not is_blank_row(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise FileError(path, f"it is not CSV: {error}", line=reader.line_num) from None


def _write_rows(path: PathLike, rows: Sequence[Sequence[object]]) -> None:
    """Write rows as CSV. The file is replaced as a whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with replace_file(Path(path)) as file:
        file.write(text.getvalue().encode())
