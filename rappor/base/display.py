"""Records with an HTML view for notebooks, a chart, and a table for other libraries.

`rappor.reporting` renders records and imports their classes, so the classes must not import
`rappor.reporting`. A class therefore contains only the name of its renderer. This module imports
the renderer when a notebook, or a call of `plot`, needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from rappor.base.errors import MissingExtraError


class DisplayedRecord:
    """Base class of records with an HTML view, a chart and a table.

    A subclass sets `_renderer` and defines `_table`. With `_renderer = "plan"`, the HTML view is
    the result of `rappor.reporting.notebook.plan_html`, and the chart is the result of
    `rappor.reporting.plots.plan_plot`.
    """

    __slots__ = ()

    _renderer: ClassVar[str]

    def _table(self) -> Mapping[str, Any]:
        """Return the columns of the table by name. All columns have the same length."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the HTML view. Jupyter calls this method."""
        return str(call_renderer("notebook", f"{self._renderer}_html", self))

    def plot(self, **options: Any) -> Any:
        """Draw the chart of the record.

        Parameters
        ----------
        options : options of the renderer, such as `top` for estimates.

        Returns
        -------
        A chart. A notebook shows it, and its method `save` writes .svg, .html or .png.
        """
        return call_renderer("plots", f"{self._renderer}_plot", self, **options)

    def to_arrow(self) -> Any:
        """Return the table as a pyarrow.Table. Raises MissingExtraError without the extra."""
        return _load_library("pyarrow", extra="arrow").table(dict(self._table()))

    def to_pandas(self) -> Any:
        """Return the table as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return _load_library("pandas").DataFrame(dict(self._table()))

    def to_polars(self) -> Any:
        """Return the table as a polars.DataFrame. Raises MissingExtraError without polars."""
        return _load_library("polars").DataFrame(dict(self._table()))


def call_renderer(module: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Import a module of `rappor.reporting`, and call one of its functions."""
    # AttributeError is not caught: a name that does not exist is a fault of the record's class.
    return getattr(importlib.import_module(f"rappor.reporting.{module}"), function)(
        *arguments, **options
    )


def _load_library(name: str, *, extra: str = "") -> Any:
    """Import a library at the first request of a table, because it takes a second to load.

    `extra` is the extra of this distribution that contains the library; empty if no extra does.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(extra or name, is_library=not extra) from None
