"""Records with a picture for notebooks, a chart, and a table for other libraries.

`rappor.reporting` draws records and imports their classes. A record must not import
`rappor.reporting` in turn. A record therefore contains only the name of its renderer, and this
module imports the renderer when somebody looks at the record.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from rappor.base.errors import MissingExtraError


class DisplayedRecord:
    """A record with a picture, a chart and a table.

    A subclass sets `_renderer` and defines `_table`. With `_renderer = "plan"`, the picture is
    `rappor.reporting.notebook.plan_html` and the chart is `rappor.reporting.plots.plan_plot`.
    """

    __slots__ = ()

    _renderer: ClassVar[str]

    def _table(self) -> Mapping[str, Any]:
        """Return the columns of the table by name. All columns have the same length."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the picture that a notebook shows."""
        return str(call_renderer("notebook", f"{self._renderer}_html", self))

    def plot(self, **options: Any) -> Any:
        """Draw the chart of the record.

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
    # A name that does not exist is a mistake in a record, so AttributeError is not caught.
    return getattr(importlib.import_module(f"rappor.reporting.{module}"), function)(
        *arguments, **options
    )


def _load_library(name: str, *, extra: str = "") -> Any:
    """Import a library. Without `extra`, no extra contains the library: users install it."""
    # The import waits until a table is requested: these libraries take a second to load.
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(extra or name, is_library=not extra) from None
