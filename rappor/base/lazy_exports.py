"""The door of a package: public names whose modules are imported when they are first touched.

A package that uses it lists its public names once, in the stub `__init__.pyi` that type checkers
read too. So a device pays for no array library, and a collector never loads the randomizer.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

from rappor.base.errors import MissingExtraError

_ANALYSIS: Final = (
    "numpy",
    "scipy",
    "sklearn",
    "threadpoolctl",
    "cryptography",
    "numba",
    "llvmlite",
)
_EXTRAS: Final = dict.fromkeys(_ANALYSIS, "analysis") | {"pyarrow": "arrow", "pyspark": "spark"}
"""The extras that contain libraries, by the names that these are imported by."""


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package with a stub.

    `__all__` is answered too. A name whose module needs an extra that is not installed raises
    MissingExtraError; a name that the stub does not list, AttributeError.
    """
    homes = functools.cache(lambda: read_stub(package))

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(_import(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes())


def read_stub(package: str) -> dict[str, str]:
    """Return the public names of a package, each with the module that defines it.

    Every line of a stub is `from MODULE import NAME as NAME`: to split it takes no parser, whose
    import a device would pay for.
    """
    module = importlib.import_module(package)
    loader: Any = module.__loader__
    stub = loader.get_data(f"{module.__path__[0]}/__init__.pyi").decode()
    return {words[-1]: words[1] for words in map(str.split, stub.splitlines())}


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtraError(extra) from None
