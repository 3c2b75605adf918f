"""Spark in real processes: settings of small clusters, a Connect server, and strict workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.codegen.wholeStage": "false",  # compiling costs more than small jobs
    "spark.sql.execution.arrow.maxRecordsPerBatch": "262144",
    # A file system whose paths no worker of Python can open.
    "spark.hadoop.fs.viewfs.mounttable.lake.link./tmp": "file:///tmp",
}

CLUSTER: Final = "local-cluster[2,1,1024]"
"""Two executors in processes of their own, one core and 1 GB each."""

SHORT_LIVES: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java with which small jobs take half as long: little is compiled."""

_STRICT: Final = """\
import sys
from zipimport import zipimporter

HIDDEN = {hidden!r}


class Strict:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name, name=name)
        if name != "rappor":
            return None
        for entry in sys.path:
            if entry.endswith(".zip") and "/rappor-" in entry:
                return zipimporter(entry).find_spec(name)
        raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, Strict())
"""


def environment(
    folder: Path, *, hidden: tuple[str, ...] = (), java: str = SHORT_LIVES
) -> dict[str, str]:
    """Return the environment of Spark's processes; `java` are options of Java.

    Its Python workers import this package from the .zip that was sent to them and from nowhere
    else, and find none of the hidden libraries.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_STRICT.format(hidden=hidden))
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
def connect_server(folder: Path, *, master: str, java: str = SHORT_LIVES) -> Iterator[str]:
    """Run a Spark Connect server in a process of its own; yield its address."""
    import pyspark  # noqa: PLC0415  # not on every person's machine

    home = Path(pyspark.__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = SETTINGS | {"spark.connect.grpc.binding.port": str(port)}
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", master),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    env = environment(folder, java=java) | {"SPARK_HOME": str(home)}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
