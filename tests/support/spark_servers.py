"""Spark in real processes: small clusters, a Connect server, and workers without this package.

The workers of a user's cluster have Python, and not this package. `rappor` sends itself to them as
a .zip file. The environment of `build_environment` hides the package of the tests from workers, so
that a test fails if the .zip file lacks a module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TEMPORARY: Final = tempfile.gettempdir()

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    # The default of 200 partitions would start 200 tasks for a few rows.
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.codegen.wholeStage": "false",  # compiling costs more than small jobs
    "spark.sql.execution.arrow.maxRecordsPerBatch": "262144",
    # A file system whose paths only Spark can open. A worker that opens a path by `open` fails. It
    # contains the folder of temporary files, where tests write their inputs: /tmp, or a folder in
    # memory that `conftest` has chosen.
    f"spark.hadoop.fs.viewfs.mounttable.lake.link.{_TEMPORARY}": f"file://{_TEMPORARY}",
}

CLUSTER: Final = "local-cluster[2,1,1024]"
"""Two executors in processes of their own, one core and 1,024 MB each. Two are the smallest number
at which partial counts of several processes are added."""

SHORT_JOB_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java that halve the time of small jobs: Java compiles less, and collects garbage in
one thread."""

_SITE_CUSTOMIZE: Final = """\
import sys
from zipimport import zipimporter

HIDDEN = {hidden!r}


class ZipOnlyFinder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name, name=name)
        if name != "rappor":
            return None
        for entry in sys.path:
            if entry.endswith(".zip") and "/rappor-" in entry:
                return zipimporter(entry).find_spec(name)
        raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, ZipOnlyFinder())
"""
"""Source of the module `sitecustomize`, which Python imports when a worker starts. The finder
imports `rappor` from the .zip file that Spark has sent, and from no other place. It raises for
hidden libraries."""


def build_environment(
    folder: Path, *, hidden: tuple[str, ...] = (), java: str = SHORT_JOB_OPTIONS
) -> dict[str, str]:
    """Return the environment variables of Spark's processes.

    Parameters
    ----------
    folder : folder in which the function writes the program that starts the Python workers.
    hidden : names of libraries that the workers cannot import, as on a cluster without them.
    java : options of Java.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE_CUSTOMIZE.format(hidden=hidden))
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return os.environ | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": java,
    }


@contextlib.contextmanager
def run_connect_server(
    folder: Path, *, master: str, java: str = SHORT_JOB_OPTIONS
) -> Iterator[str]:
    """Run a Spark Connect server in a process of its own during a `with` block; yield its address.

    `master` is the address of the cluster on which the server runs its jobs, such as `CLUSTER`.
    """
    import pyspark  # noqa: PLC0415  # not on every person's machine

    home = Path(pyspark.__file__).parent
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    settings = SETTINGS | {"spark.connect.grpc.binding.port": str(port)}
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", master),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    env = build_environment(folder, java=java) | {"SPARK_HOME": str(home)}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_for_port(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        # spark-submit starts Java as a child, so the whole process group has to end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server accepts connections. Raise an error with its log if the server ends."""
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
