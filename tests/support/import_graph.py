"""Graph of the imports in the three packages, read from their source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

from places import ROOT

from rappor.base.lazy_exports import read_stub

PACKAGES: Final = {
    "rappor": ROOT / "rappor",
    "rappor_client": ROOT / "client" / "rappor_client",
    "rappor_server": ROOT / "server" / "rappor_server",
}


@cache
def list_modules() -> dict[str, Path]:
    """Return the path of every module of the three packages, by its dotted name.

    The examples are left out.
    """
    paths = {}
    for package, folder in PACKAGES.items():
        for path in set(folder.rglob("*.py")) - set((folder / "examples").rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            paths[name] = path
    return paths


@cache
def read_public_names(package: str) -> dict[str, str]:
    """Return the module of each name that a package exports lazily.

    A stub (`__init__.pyi`) lists these names. A package without a stub exports nothing lazily.
    """
    stub = list_modules()[package].with_suffix(".pyi")
    return read_stub(package) if stub.exists() else {}


def find_package(module: str) -> str:
    """Return the package of a module, for the rules about imports between packages.

    The package of a module of `rappor` is its folder below `rappor`, or the module itself if it
    stands beside the folders. `rappor` itself is "api". `rappor_client` and `rappor_server` are
    one package each.
    """
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or "api" if package == "rappor" else package


@cache
def read_imports(name: str) -> frozenset[str]:
    """Return the names of the modules that a module imports.

    Imports inside functions and imports for type checkers count. An attribute of a lazy package,
    such as `rappor.Counts`, counts as an import of the module that has the name.
    """
    imported: set[str] = set()
    for node in ast.walk(ast.parse(list_modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            imported |= {_find_module(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute):
            package, _, attribute = ast.unparse(node).rpartition(".")
            if _is_lazy_export(package, attribute):
                imported |= {read_public_names(package)[attribute]} & set(list_modules())
    return frozenset(imported)


def _find_module(module: str, name: str) -> str:
    """Return the module that `from module import name` loads."""
    if f"{module}.{name}" in list_modules():
        return f"{module}.{name}"
    return read_public_names(module)[name] if _is_lazy_export(module, name) else module


def _is_lazy_export(package: str, name: str) -> bool:
    """Return whether a package loads the module of a public name at the first use of the name."""
    return package in list_modules() and name in read_public_names(package)


def list_project_imports(name: str) -> set[str]:
    """Return the modules of this project that a module imports directly."""
    return {target for target in read_imports(name) if target.split(".")[0] in PACKAGES}


def list_foreign_imports(name: str) -> set[str]:
    """Return the names of the other packages that a module imports, such as numpy."""
    return {target.split(".")[0] for target in read_imports(name)} - set(PACKAGES)


def list_reachable_modules(name: str) -> set[str]:
    """Return all modules of the project that a module imports, directly or indirectly."""
    visited: set[str] = set()
    pending = [name]
    while pending:
        module = pending.pop()
        if module not in visited:
            visited.add(module)
            pending += list_project_imports(module)
    return visited


def map_imports_by_module(packages: set[str]) -> dict[str, set[str]]:
    """Return, for every module of these packages, the other packages of the project it imports."""
    return {
        name: {find_package(target) for target in list_project_imports(name)} - {find_package(name)}
        for name in list_modules()
        if find_package(name) in packages
    }
