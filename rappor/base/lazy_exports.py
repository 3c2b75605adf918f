"""Lazy exports: a package imports the module of a public name at the first use of the name.

A package lists its public names once, in the stub `__init__.pyi`. Type checkers read the stub, and
so does this module at run time. A device that imports `rappor` therefore loads no array library,
and a collector never loads the module that draws random noise.

Example: `import rappor` runs only this module and `rappor.base.errors`. `rappor.decode` finds the
line `from rappor.decoding.decoder import decode as decode` in the stub, imports the module, and
stores the function in the package.
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
"""Extra of this distribution that contains a library, by the import name of the library."""


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` for the `__init__.py` of a package.

    Parameters
    ----------
    package : import name of the package, which must have a stub `__init__.pyi`.

    Returns
    -------
    __getattr__
        Returns the object of a public name, and the sorted list of all public names for "__all__".
        It raises AttributeError for other names, and MissingExtraError if the module needs an extra
        that is not installed.
    __dir__
        Returns the sorted list of all public names.
    """
    modules = functools.cache(lambda: read_stub(package))

    def get_name(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        # The import system requests names such as __path__. They are never public, and reading the
        # stub for them would take time.
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(_import_module(modules()[name]), name)
        # Python calls `__getattr__` only for a missing attribute, so the next access is direct.
        setattr(sys.modules[package], name, value)
        return value

    return get_name, lambda: sorted(modules())


def read_stub(package: str) -> dict[str, str]:
    """Read the public names of a package from its stub, each with the module that defines it.

    Every line of a stub is `from MODULE import NAME as NAME`, so the words of a line are enough. A
    parser would take longer to import than all other modules of a device.
    """
    module = importlib.import_module(package)
    # The loader also reads packages inside a zip file, where `open` would fail.
    loader: Any = module.__loader__
    stub = loader.get_data(f"{module.__path__[0]}/__init__.pyi").decode()
    return {words[-1]: words[1] for words in map(str.split, stub.splitlines())}


def _import_module(module: str) -> Any:
    """Import a module; raise MissingExtraError if it needs a library of an extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        # Case: a required library or a module of the project is missing. No extra contains it.
        if extra is None:
            raise
        raise MissingExtraError(extra) from None
