"""Import of pyarrow, which is an optional library, and opening of Parquet files."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rappor.base.errors import FileError, MissingExtraError


@contextlib.contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a Parquet file as a pyarrow.parquet.ParquetFile, for a `with` block.

    Checksums of pages are verified if the file contains checksums.

    Raises
    ------
    FileError
        The file cannot be read as Parquet. The error may also come from a read inside the block.
    MissingExtraError
        The extra "arrow" is not installed.
    """
    pa, parquet = load_pyarrow(), load_pyarrow("pyarrow.parquet")
    try:
        # pyarrow gets the path and not a Python file object. Its threads could still read from a
        # Python file object while the interpreter ends, and the process would abort.
        with parquet.ParquetFile(os.fspath(path), page_checksum_verification=True) as file:
            yield file
    except (OSError, UnicodeEncodeError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(path, f"it cannot be read as Parquet: {reason}") from None


def load_pyarrow(module: str = "pyarrow") -> ModuleType:
    """Import pyarrow or one of its modules; raise MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("arrow") from None
