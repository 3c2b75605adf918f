"""Code for the workers of a Spark session: this package as a .zip file, and the interpreter."""

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
"""Sessions whose workers have this package already."""


def ship(session: SparkSession) -> None:
    """Send this package to the workers of a session, once for each session."""
    if session not in _SHIPPED:
        _use_own_interpreter(session)
        session.addArtifacts(str(kernel_zip()), pyfile=True)
        _SHIPPED.add(session)


def _use_own_interpreter(session: SparkSession) -> None:
    """Let workers on this machine run the interpreter of this process.

    Spark runs the `python3` of the PATH. Unless the virtual environment is activated, that
    interpreter lacks the libraries of this package, and may have another version. A choice of the
    user (PYSPARK_PYTHON or spark.pyspark.python) is not changed.
    """
    try:
        context = session.sparkContext
    except AttributeError:
        # A session of Spark Connect has no context. Its workers belong to the server.
        return
    is_chosen = "PYSPARK_PYTHON" in os.environ or session.conf.get("spark.pyspark.python", None)
    if str(context.master).startswith("local") and not is_chosen:
        context.pythonExec = sys.executable


@functools.cache
def kernel_zip() -> Path:
    """Write this package into a .zip file that workers can import, and return its path.

    The name contains a digest of the contents, because a session refuses two files of one name. The
    file is removed at the end of the process.
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
    """Add the sources of a package to an archive.

    All files have the same time, so that equal sources make equal archives.
    """
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            _add(archive, entry, inner)
        elif entry.name.endswith((".py", ".pyi")):
            archive.writestr(zipfile.ZipInfo(inner), entry.read_bytes())
