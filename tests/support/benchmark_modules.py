"""Import of the modules of the benchmarks, which are not installed with the packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from places import ROOT


def benchmark(name: str) -> ModuleType:
    """Import a module of the benchmarks."""
    home = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", home / "__init__.py", submodule_search_locations=[str(home)]
    )
    assert spec is not None
    if "benchmarks" not in sys.modules:
        sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"benchmarks.{name}")
