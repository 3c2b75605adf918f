"""What a session's workers run: this interpreter if they are local, and this package as a .zip."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import os
import shutil
import sys
import tempfile
import weakref
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

_SHIPPED: Final = weakref.WeakSet[SparkSession]()
"""Sessions whose workers have this package."""


def ship(session: SparkSession) -> None:
    """Send this package to the session's workers, once however often it is called."""
    if session not in _SHIPPED:
        _use_own_interpreter(session)
        session.addArtifacts(str(kernel_zip()), pyfile=True)
        _SHIPPED.add(session)


def _use_own_interpreter(session: SparkSession) -> None:
    """Let workers on this machine run the interpreter of this process.

    Spark would run the `python3` of the PATH. Unless the environment is activated, that one has
    neither this package's libraries nor always the same version. A choice of the user's stays.
    """
    try:
        context = session.sparkContext
    except AttributeError:  # Spark Connect: the workers are the server's
        return
    is_chosen = "PYSPARK_PYTHON" in os.environ or session.conf.get("spark.pyspark.python", None)
    if str(context.master).startswith("local") and not is_chosen:
        context.pythonExec = sys.executable


@functools.cache
def kernel_zip() -> Path:
    """Write this package into a .zip that workers can import, and return its path.

    Its name tells its contents, so that a session never holds two of one name that differ. It is
    removed when the process ends.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, files("rappor"), "rappor")
    digest = hashlib.sha256(data.getvalue()).hexdigest()[:12]
    folder = Path(tempfile.mkdtemp(prefix="rappor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"rappor-{digest}.zip"
    path.write_bytes(data.getvalue())
    return path


def _add(archive: zipfile.ZipFile, folder: Any, name: str) -> None:
    """Add the sources of a package; the time of each is the same, so that equal ones are."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            _add(archive, entry, inner)
        elif entry.name.endswith((".py", ".pyi")):
            archive.writestr(zipfile.ZipInfo(inner), entry.read_bytes())
