"""Distribution of this package to the workers of a Spark session.

Workers run functions of this package on their rows, so they must be able to import it. The package
is sent as a .zip file. Other libraries (numpy, mmh3) must be installed on the workers. A local
session, whose workers are processes of the same machine, also gets the interpreter of this process.
"""

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
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

_SHIPPED: Final = weakref.WeakSet[SparkSession]()
"""Sessions whose workers have this package already.

The references are weak, so that a session that has ended is freed.
"""


def ship(session: SparkSession) -> None:
    """Send this package to the workers of a session, once for each session.

    Local workers also get the interpreter of this process.
    """
    if session not in _SHIPPED:
        _use_own_interpreter(session)
        session.addArtifacts(str(zip_package()), pyfile=True)
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
    has_choice = "PYSPARK_PYTHON" in os.environ or bool(
        session.conf.get("spark.pyspark.python", None)
    )
    # Masters such as "local", "local[4]" and "local-cluster[...]" start workers on this machine.
    if str(context.master).startswith("local") and not has_choice:
        # PySpark has no public setting for a session that runs already. Every function that is sent
        # to workers from now on names this interpreter.
        context.pythonExec = sys.executable


@functools.cache
def zip_package() -> Path:
    """Write this package into a .zip file that workers can import, and return its path.

    The name contains a digest of the contents, because a session refuses a second file of one name
    with other contents. The file is removed at the end of the process.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        _add_sources(archive, files("rappor"), "rappor")
    # 48 bits distinguish the few versions that one session may get.
    digest = hashlib.sha256(data.getvalue()).hexdigest()[:12]
    folder = Path(tempfile.mkdtemp(prefix="rappor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"rappor-{digest}.zip"
    path.write_bytes(data.getvalue())
    return path


def _add_sources(archive: zipfile.ZipFile, folder: Traversable, path: str) -> None:
    """Add the modules of a package to an archive. Data files are left out: workers use none.

    Parameters
    ----------
    folder : the folder of the package.
    path : the path of the folder in the archive.
    """
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inner_path = f"{path}/{entry.name}"
        if entry.is_dir():
            _add_sources(archive, entry, inner_path)
        elif entry.name.endswith((".py", ".pyi")):
            # The time of a ZipInfo is 1980 by default, so equal sources make equal archives. Its
            # compression does not follow the archive: without this argument nothing is compressed.
            archive.writestr(
                zipfile.ZipInfo(inner_path), entry.read_bytes(), compress_type=zipfile.ZIP_DEFLATED
            )
