"""Records that show themselves: in a notebook, as a chart, as a table of another library.

The room that draws, `rappor.reporting`, stands above the records that it draws. So a record only
names what it is; the drawing is found by that name, and loaded when somebody looks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from rappor.base.errors import MissingExtraError


class DisplayedRecord:
    """A record with a picture, a chart and a table; `_renderer` names its functions there."""

    __slots__ = ()

    _renderer: ClassVar[str]

    def _table(self) -> Mapping[str, Any]:
        """Return the columns of the table by name, all of one length."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return str(call_renderer("notebook", f"{self._renderer}_html", self))

    def plot(self, **options: Any) -> Any:
        """Return the chart: a notebook shows it, `save` writes it as .svg, .html or .png."""
        return call_renderer("plots", f"{self._renderer}_plot", self, **options)

    def to_arrow(self) -> Any:
        """Return the table as a pyarrow.Table. Raises MissingExtraError without the extra."""
        return _library("pyarrow", extra="arrow").table(dict(self._table()))

    def to_pandas(self) -> Any:
        """Return the table as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return _library("pandas").DataFrame(dict(self._table()))

    def to_polars(self) -> Any:
        """Return the table as a polars.DataFrame. Raises MissingExtraError without polars."""
        return _library("polars").DataFrame(dict(self._table()))


def call_renderer(module: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of a module of `rappor.reporting`."""
    return getattr(importlib.import_module(f"rappor.reporting.{module}"), function)(
        *arguments, **options
    )


def _library(name: str, *, extra: str = "") -> Any:
    """Import a library that an extra contains, or that is the user's own."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(extra or name, library=not extra) from None
