"""The files of google/rappor: read what its clients and tools wrote, write what they read.

Its hash layout has a name of its own (`rappor.candidates.google_hashing`), so its counts never
mix with ours. Bits have the same numbers; only the text form is written from bit k - 1 down to
bit 0. Errors that its own readers ignore are refused here: probabilities out of range or swapped,
more ones than reports, cohorts that do not exist, rows of another width.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.atomic_files import read_text, replace_file
from rappor.base.errors import FileError, ParamsError, ReportError
from rappor.base.text_lines import WHITE_SPACE, read_whole_number, split_lines
from rappor.candidates.candidates import Candidates
from rappor.candidates.google_hashing import LAYOUT
from rappor.candidates.texts import Texts
from rappor.counts.counts import Counts
from rappor.google.effective_noise import Client, effective_f
from rappor.protocol.params import Params

PathLike = str | os.PathLike[str]

_PARAMS_HEADER: Final = ["k", "h", "m", "p", "q", "f"]
_REPORT_COLUMNS: Final = 5
_NA: Final = ("NA", "")
"""Cells of a map that R reads as missing."""


class MappedCandidates(Candidates):
    """Candidates whose bits come from a map.csv, whatever hash layout made it."""

    __slots__ = ("_cells", "_shape")

    def __init__(
        self,
        strings: tuple[str, ...],
        cells: NDArray[np.int32],
        *,
        shape: tuple[int, int, int],
        n_duplicates: int = 0,
    ) -> None:
        """Keep (n, m * h) cells, -1 for none, and k, h, m that they are numbered by."""
        super().__init__(Texts.of([text.encode() for text in strings]), name="map.csv")
        self.n_duplicates = n_duplicates
        self._cells = cells
        self._shape = shape

    def cells(self, params: Params, start: int, stop: int) -> NDArray[np.int32]:
        """Return the map's cells of the candidates start to stop - 1."""
        if (params.k, params.h, params.m) != self._shape:
            raise ParamsError(f"k, h, m must be the map's {self._shape}")
        return self._cells[start:stop]

    def subset(self, chosen: Sequence[int]) -> MappedCandidates:
        """Return the chosen candidates with their cells."""
        strings = tuple(self._whole.take(np.array(chosen, dtype=np.int64)).pick())
        return MappedCandidates(strings, self._cells[list(chosen)], shape=self._shape)


def read_params(path: PathLike, *, client: Client | None = None) -> Params:
    """Read params.csv: the header k,h,m,p,q,f and one row.

    Their clients round f to 1/128, each in its own way. `client` names the one that sent the
    reports ("python", "cpp" or "java") and gives its effective f; without it f is as written.
    Raises FileError for any other file, and ParamsError where a parameter is outside its range.
    """
    rows = list(_rows(path))
    if not rows or [cell.strip(WHITE_SPACE) for cell in rows[0][1]] != _PARAMS_HEADER:
        raise FileError(path, f"the header must be {','.join(_PARAMS_HEADER)}", line=1)
    if len(rows) != 2:
        raise FileError(path, f"there must be one row of parameters, got {len(rows) - 1}")
    line, row = rows[1]
    try:
        k, h, m = (read_whole_number(cell) for cell in row[:3])
        p, q, f = (float(cell) for cell in row[3:])
    except ValueError:
        raise FileError(path, "k, h, m must be integers and p, q, f numbers", line=line) from None
    if client is not None:
        f = effective_f(f, client)
    return Params(k=k, h=h, m=m, f=f, p=p, q=q, layout=LAYOUT)


def write_params(path: PathLike, params: Params) -> None:
    """Write params.csv; probabilities as the effective ones, to 10 digits.

    Raises ParamsError where f forces other shares of bits to 1 and to 0: the file has no g.
    """
    _check_forced(params)
    row = [params.k, params.h, params.m, *(f"{x:.10g}" for x in (params.p, params.q, params.f))]
    _write(path, [_PARAMS_HEADER, row])


def read_counts(path: PathLike, params: Params) -> Counts:
    """Read counts.csv: for each cohort its reports, then the ones of bit 0 to k - 1.

    Raises FileError where a row has another width, a cell is no count, rows are missing or too
    many, or a bit has more ones than its cohort has reports.
    """
    table = []
    for line, row in _rows(path):
        if len(row) != params.k + 1:
            wanted = params.k + 1
            raise FileError(path, f"a row must have {wanted} cells, got {len(row)}", line=line)
        try:
            table.append([read_whole_number(cell) for cell in row])
        except ValueError:
            raise _not_whole(path, row, line) from None
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
    """Write counts.csv; the hash layout must be theirs.

    Raises ParamsError for counts of another layout, which their decoder would misread, or of
    parameters that params.csv cannot say.
    """
    _check_layout(counts.params)
    _check_forced(counts.params)
    _write(path, np.column_stack([counts.cohort_reports, counts.bit_counts]).tolist())


def read_reports(path: PathLike, params: Params) -> Counts:
    """Sum a reports CSV: client, cohort, bloom, prr, irr; the last one is what was sent.

    The first row is a header. irr has k characters, bit k - 1 first. Raises FileError where a row
    has another width, its cohort does not exist, or its irr is malformed.
    """
    cohorts, packed = [], []
    for line, row in itertools.islice(_rows(path), 1, None):
        if len(row) != _REPORT_COLUMNS:
            raise FileError(
                path, f"a row must have {_REPORT_COLUMNS} cells, got {len(row)}", line=line
            )
        if (cohort := _read_cohort(row[1])) >= params.m:
            raise FileError(path, f"cohort must be in [0, {params.m - 1}]", line=line)
        if len(row[4]) != params.k or set(row[4]) - {"0", "1"}:
            raise FileError(path, f"irr must be {params.k} characters 0 or 1", line=line)
        cohorts.append(cohort)
        packed.append(int(row[4], 2).to_bytes(params.n_bytes, "little"))
    bits = np.frombuffer(b"".join(packed), dtype=np.uint8).reshape(-1, params.n_bytes)
    return Counts.from_packed(bits, np.array(cohorts, dtype=np.int64), params)


def read_candidates(path: PathLike) -> Candidates:
    """Read candidates.txt as their hash_candidates does: stripped, a blank line is ""."""
    lines = split_lines(read_text(path))
    return Candidates.from_list(line.strip(WHITE_SPACE) for line in lines)


def read_map(path: PathLike, params: Params) -> MappedCandidates:
    """Read map.csv, which takes the place of candidates: strings with the cells that they set.

    The cells of a row may have any order. NA, an empty cell, which is R's NA, and repeated cells
    are ignored. "Empty" is the empty string. Strings stay text, leading zeros included. Of a
    repeated string the first row is kept and the others are counted.
    Raises FileError where a cell is no whole number from 1 to m k, or a row has none or more than
    m h.
    """
    width = params.m * params.h
    rows: dict[str, list[int]] = {}
    n_duplicates = 0
    for line, row in _rows(path):
        text = "" if row[0] == "Empty" else row[0]
        try:
            cells = sorted({read_whole_number(cell) - 1 for cell in row[1:] if cell not in _NA})
        except ValueError:
            raise _not_whole(path, row[1:], line) from None
        if not 1 <= len(cells) <= width:
            raise FileError(path, f"a string must have 1 to {width} cells", line=line)
        if cells[0] < 0 or cells[-1] >= params.m * params.k:
            raise FileError(path, f"a cell must be in [1, {params.m * params.k}]", line=line)
        n_duplicates += text in rows
        rows.setdefault(text, cells)
    table = np.full((len(rows), width), -1, dtype=np.int32)
    for place, cells in zip(table, rows.values(), strict=True):
        place[: len(cells)] = cells
    shape = (params.k, params.h, params.m)
    return MappedCandidates(tuple(rows), table, shape=shape, n_duplicates=n_duplicates)


def _not_whole(path: PathLike, row: Sequence[str], line: int) -> FileError:
    """Return the refusal of a row, by its first cell that is no whole number."""
    wrong = next(cell for cell in row if not _is_whole(cell))
    is_title = line == 1 and wrong[:1].isalpha()
    title = "; a row of titles must be removed" if is_title else ""
    return FileError(
        path, f"every cell must be a whole number, got {wrong[:40]!r}{title}", line=line
    )


def _is_whole(cell: str) -> bool:
    try:
        read_whole_number(cell)
    except ValueError:
        return False
    return True


def _read_cohort(cell: str) -> int:
    """Return a cohort's number; one that no collection has for a cell that is none."""
    return read_whole_number(cell) if _is_whole(cell) else 1 << 63


def _check_layout(params: Params) -> None:
    if params.layout != LAYOUT:
        raise ParamsError(
            f"layout must be {LAYOUT} to be written for google/rappor, got {params.layout}"
        )


def _check_forced(params: Params) -> None:
    if params.t_1 != params.t_0:
        raise ParamsError(f"g must be 0.5 to be written as params.csv, got {params.g:g}")


def _rows(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise FileError(path, f"it is not CSV: {error}", line=reader.line_num) from None


def _write(path: PathLike, rows: Iterator[Sequence[object]] | Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with replace_file(Path(path)) as file:
        file.write(text.getvalue().encode())
