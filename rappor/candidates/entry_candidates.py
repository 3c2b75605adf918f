"""Candidates of a metric's entry in a registry: a list, a file, or a table of fields.

An entry of a metric of strings lists its candidates or names a file with one candidate in each
line. An entry of a metric of tuples names a file whose lines have the fields separated by tabs, or
has a table with a list or a file for each field. All combinations of the table are candidates.
Names of files are relative to the folder of the registry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rappor.candidates.candidates import Candidates
from rappor.protocol.params import Params
from rappor.protocol.tuples import list_normalizers

EntryCandidates = str | tuple[str, ...] | Mapping[str, str | tuple[str, ...]]
"""The value of the key `candidates` is the name of a file or a list of candidates. For a tuple it
may map each field to a file or a list."""


def read_entry_candidates(
    candidates: EntryCandidates, folder: str | os.PathLike[str], params: Params
) -> Candidates:
    """Read the candidates of an entry.

    Parameters
    ----------
    candidates : the value of the key `candidates` of the entry.
    folder : folder of the registry, to which names of files are relative.
    params : parameters of the metric, with its normalizer and its fields.

    Raises
    ------
    FileError
        A file or a line cannot be read.
    ParamsError
        The table of fields has more than 1e9 combinations, or a file of it is empty or longer than
        64 MB.
    """
    if isinstance(candidates, Mapping):
        return _read_table(candidates, folder, params)
    normalizer, field_names = params.normalize, params.field_names
    if isinstance(candidates, str):
        path = Path(folder) / candidates
        return Candidates.from_file(path, normalize=normalizer, field_names=field_names)
    return Candidates.from_list(candidates, normalize=normalizer, field_names=field_names)


def list_files(candidates: EntryCandidates) -> list[str]:
    """Return the names of the files from which the candidates of an entry are read."""
    values = candidates.values() if isinstance(candidates, Mapping) else [candidates]
    return [value for value in values if isinstance(value, str)]


def _read_table(
    table: Mapping[str, str | tuple[str, ...]], folder: str | os.PathLike[str], params: Params
) -> Candidates:
    """Return all combinations of the candidates of the fields, in the order of the metric."""
    normalizers = list_normalizers(params.normalize, len(params.field_names))
    by_field = dict(zip(params.field_names, normalizers, strict=True))
    lists = {}
    for field in params.field_names:
        value = table[field]
        if isinstance(value, str):
            lists[field] = Candidates.from_file(Path(folder) / value, normalize=by_field[field])
        else:
            lists[field] = Candidates.from_list(value, normalize=by_field[field])
    return Candidates.from_fields(lists, normalize=by_field)
