"""Import of the modules of the benchmarks, which are not installed with the packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from places import ROOT


def import_benchmark(name: str) -> ModuleType:
    """Import a module of the folder `benchmarks`, such as `import_benchmark("atlas")`."""
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    if "benchmarks" not in sys.modules:
        sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"benchmarks.{name}")
