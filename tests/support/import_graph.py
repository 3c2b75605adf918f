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
def modules() -> dict[str, Path]:
    """Return every module of the three packages by its dotted name; without the examples."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in set(folder.rglob("*.py")) - set((folder / "examples").rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = path
    return found


@cache
def public_names_of(package: str) -> dict[str, str]:
    """Return the module of each name that a package exports lazily; empty without a stub."""
    stub = modules()[package].with_suffix(".pyi")
    return read_stub(package) if stub.exists() else {}


def package_of(module: str) -> str:
    """Return the folder of the first level, or the file beside the folders, that a module is in.

    A module of the device or of the collector belongs to its top-level package.
    """
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or "api" if package == "rappor" else package


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return the names of the modules that a module imports.

    Imports inside functions count, and imports for type checkers, and attributes of lazy packages.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found |= {_home(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute):
            package, _, attribute = ast.unparse(node).rpartition(".")
            found |= (
                {public_names_of(package)[attribute]} & set(modules())
                if _is_behind(package, attribute)
                else set()
            )
    return frozenset(found)


def _home(module: str, name: str) -> str:
    """Return the module that `from module import name` loads."""
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    return public_names_of(module)[name] if _is_behind(module, name) else module


def _is_behind(package: str, name: str) -> bool:
    return package in modules() and name in public_names_of(package)


def project_imports(name: str) -> set[str]:
    """Return the modules of the project that a module imports."""
    return {target for target in imports_of(name) if target.split(".")[0] in PACKAGES}


def foreign_imports(name: str) -> set[str]:
    """Return the top-level names of the imported modules that are not of the project."""
    return {target.split(".")[0] for target in imports_of(name)} - set(PACKAGES)


def reachable(name: str) -> set[str]:
    """Return all modules of the project that a module imports, directly or indirectly."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += project_imports(current)
    return seen


def imports_by_module(packages: set[str]) -> dict[str, set[str]]:
    """Return, for every module of these packages, the packages that it imports."""
    return {
        name: {package_of(target) for target in project_imports(name)} - {package_of(name)}
        for name in modules()
        if package_of(name) in packages
    }
