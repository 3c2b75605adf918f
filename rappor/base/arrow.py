"""pyarrow, which is an extra, and its files of Parquet."""

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
    """Open a pyarrow.parquet.ParquetFile.

    By its path: reading through a Python file object can abort the process at its exit. Where its
    pages have checksums, they are verified.

    Raises FileError where the file cannot be read as Parquet, also later within the block, and
    MissingExtraError where the extra 'arrow' is not installed.
    """
    pa, parquet = load_pyarrow(), load_pyarrow("pyarrow.parquet")
    try:
        with parquet.ParquetFile(os.fspath(path), page_checksum_verification=True) as file:
            yield file
    except (OSError, UnicodeEncodeError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(path, f"it cannot be read as Parquet: {reason}") from None


def load_pyarrow(module: str = "pyarrow") -> ModuleType:
    """Return pyarrow or a module of it, or raise MissingExtraError for the extra 'arrow'."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("arrow") from None
