"""One aggregation in a fresh process: seconds of its runs and peak memory, as JSON.

The first argument is the engine:

    kernel               one thread, one file after the other
    files:THREADS        one process with several threads
    classic:EXECUTORS    Spark on this machine, whose workers open the files
    bytes:EXECUTORS      the same, but Spark passes the files to the workers
    frame:EXECUTORS      the same, but Spark reads the files into a data frame
    connect:THREADS      a server of Spark Connect, whose workers open the files

The other arguments are folders of reports. The reports of each folder are added once. Before that,
the first folder is added once without a measurement.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.engines_data import REGISTRY
from rappor.engines import aggregate_files, aggregate_parquet
from rappor.engines.files import find_files
from rappor.registry.registry import Registry

Run = Callable[[str], int]
"""Function of a folder. It adds the reports of the folder, and returns their number."""


def main() -> None:
    """Add up every folder, the first one twice, and print the figures."""
    name, _, size = sys.argv[1].partition(":")
    registry = Registry.loads(REGISTRY)
    # Workers run the interpreter of this process, which has the libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with ENGINES[name](registry, int(size or 1)) as run:
        # The first run starts sessions, compiles loops and sends the package to the workers.
        run(sys.argv[2])
        results = []
        for folder in sys.argv[2:]:
            start = time.perf_counter()
            n_reports = run(folder)
            results.append({"reports": n_reports, "seconds": time.perf_counter() - start})
        peak = _sum_peaks()
    sys.stdout.write(json.dumps({"runs": results, "peak": peak}) + "\n")


@contextlib.contextmanager
def kernel(registry: Registry, size: int) -> Iterator[Run]:
    """Return the run with one process and one thread, one file after the other."""
    del size
    metric = registry["page"]

    def run(folder: str) -> int:
        paths = [file.path for file in find_files([folder])]
        collections = (
            aggregate_parquet(path, params=metric.params, metric="page") for path in paths
        )
        return sum(counts.n_reports for counts in collections)

    yield run


@contextlib.contextmanager
def files(registry: Registry, threads: int) -> Iterator[Run]:
    """Return the run with one process and several threads."""
    yield lambda folder: aggregate_files([folder], registry, threads=threads).n_reports


@contextlib.contextmanager
def classic(registry: Registry, executors: int, *, frame: bool = False) -> Iterator[Run]:
    """Start a local cluster of executors. Each executor is a process with one core."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra

    # One core and 1,024 MB of memory for each executor.
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]")
    # Mount /tmp as the file system viewfs://lake, for `read_bytes`.
    mount = "spark.hadoop.fs.viewfs.mounttable.lake.link./tmp"
    builder = builder.config("spark.ui.enabled", "false").config(mount, "file:///tmp")
    with _open_session(builder, registry, frame=frame) as run:
        yield run


@contextlib.contextmanager
def read_bytes(registry: Registry, executors: int) -> Iterator[Run]:
    """Let the cluster read from a file system that its workers cannot open by path.

    Spark then reads the files and passes their bytes to the workers, as with a remote store.
    """
    with classic(registry, executors) as run:
        yield lambda folder: run(f"viewfs://lake{folder}")


@contextlib.contextmanager
def connect(registry: Registry, threads: int) -> Iterator[Run]:
    """Start a Spark Connect server with several threads in its own process."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra

    with _open_session(SparkSession.builder.remote(f"local[{threads}]"), registry) as run:
        yield run


@contextlib.contextmanager
def _open_session(builder: object, registry: Registry, *, frame: bool = False) -> Iterator[Run]:
    """Start a Spark session, and stop it when the block ends.

    If `frame`, Spark reads the files into a data frame. Otherwise the workers open the files.
    """
    from rappor.engines import spark  # noqa: PLC0415  # an extra

    session = builder.getOrCreate()  # type: ignore[attr-defined]
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(1 << 18))
    session.conf.set("spark.sql.shuffle.partitions", "4")

    def run(folder: str) -> int:
        if not frame:
            return spark.aggregate_paths(session, [folder], registry).n_reports
        sums = spark.aggregate(session.read.parquet(folder), registry)
        return sum(counts.n_reports for counts in spark.to_counts(sums, registry).values())

    yield run
    session.stop()


def _sum_peaks() -> int:
    """Return the sum of the peak memories of this process and all its descendants, in bytes."""
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid="],  # noqa: S607  # the system's
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = (line.split() for line in listed.stdout.splitlines())
    parents = {int(pid): int(parent) for pid, parent in pairs}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() and pid != ancestor:
            total += _read_peak_bytes(pid)
    return total


def _read_peak_bytes(pid: int) -> int:
    """Return the largest resident size of a process in bytes, 0 if it has ended (Linux)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


# Each engine is a function of the registry and of the number of threads or executors. It returns a
# context manager, whose value adds the reports of a folder.
ENGINES: dict[str, Callable[[Registry, int], contextlib.AbstractContextManager[Run]]] = {
    "kernel": kernel,
    "files": files,
    "classic": classic,
    "connect": connect,
    "frame": functools.partial(classic, frame=True),
    "bytes": read_bytes,
}

if __name__ == "__main__":
    main()
