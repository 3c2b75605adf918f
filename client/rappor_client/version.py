"""The version of the installed distribution."""

from __future__ import annotations

import importlib.metadata


def installed_version() -> str:
    """Return the version, an empty text where the package runs from a folder, not installed."""
    try:
        return importlib.metadata.version("rappor")
    except importlib.metadata.PackageNotFoundError:
        return ""
