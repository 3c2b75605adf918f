"""Version of the installed distribution, for the header User-Agent and the command line."""

from __future__ import annotations

import importlib.metadata


def installed_version() -> str:
    """Return the version; empty if the package runs from a folder without being installed."""
    try:
        return importlib.metadata.version("rappor")
    except importlib.metadata.PackageNotFoundError:
        return ""
