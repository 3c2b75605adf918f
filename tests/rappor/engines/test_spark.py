"""Apache Spark in real processes: `spark_suite.py` in a classic session and over Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from programs import run_python
from spark_servers import CLUSTER, SHORT_JOB_OPTIONS, build_environment, run_connect_server
from tools import need

SUITE = "tests/rappor/engines/spark_suite.py"
ALL = "acceptance or not acceptance"
OVER_CONNECT = "sums_are or every_key or missing_column or statement or command"
"""Words in the names of tests. Sessions over Connect run other code than classic ones in these
tests. The acceptance stage runs all tests over Connect."""


def run_suite(
    session: str, env: dict[str, str], *, stage: str = "not acceptance", names: str = ""
) -> None:
    """Run the tests of the suite with these marks and names in a new process."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", SUITE]
    command += ["-m", stage, "-k", names]
    command += ["-n", "0", "--timeout", "0"]
    command += ["-W", "ignore:PySpark does not yet fully support pandas"]
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=env | {"SPARK_SESSION": session},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]


@pytest.mark.slow
def test_without_spark_the_extra_is_named() -> None:
    """Importing the engine raises an error that names the extra to install."""
    program = (
        "import sys\nsys.modules['pyspark'] = None\n"
        "from rappor import MissingExtraError\n"
        "try:\n    from rappor.engines import spark\n"
        "except MissingExtraError as error:\n    print(error.extra)\n"
    )
    assert run_python("-c", program).stdout == "spark\n"


@pytest.mark.slow
def test_local_workers_run_this_interpreter(tmp_path: Path) -> None:
    """Local workers run the interpreter of the session, unless PYSPARK_PYTHON names another.

    The PATH has a `python3` that fails, so a worker that searches the PATH fails too. The other
    interpreter is a script that sets IS_OURS and starts this one. Both sessions run in one process
    of Java, because its start takes longer than the jobs.
    """
    need("java")
    need("pyspark")
    program = (
        "import os, sys\nfrom pyspark.sql import SparkSession\n"
        "from rappor.engines.shipping import ship\n"
        "def name(batches):\n    import os, sys, pyarrow\n    for _ in batches:\n"
        "        yield pyarrow.RecordBatch.from_pydict({'e': [os.environ.get('IS_OURS', 'no')"
        " + ' ' + sys.executable]})\n"
        "for chosen in ({}, {'PYSPARK_PYTHON': sys.argv[1]}):\n"
        "    os.environ.update(chosen)\n"
        "    session = SparkSession.builder.master('local[1]')"
        ".config('spark.ui.enabled', 'false').getOrCreate()\n"
        "    ship(session)\n"
        "    rows = session.range(1, numPartitions=1).mapInArrow(name, 'e string').collect()\n"
        "    print(rows[0][0])\n"
        "    session.stop()\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nIS_OURS=yes exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    env |= {"PATH": f"{tools}:{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"JAVA_TOOL_OPTIONS": SHORT_JOB_OPTIONS}
    command = [sys.executable, "-c", program, str(python)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-5_000:]
    assert ended.stdout.splitlines() == [f"no {sys.executable}", f"yes {sys.executable}"]


STAGES = pytest.mark.parametrize(
    "is_large",
    [
        pytest.param(False, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        pytest.param(True, marks=[pytest.mark.acceptance, pytest.mark.timeout(1800)]),
    ],
)
"""Stages of the suite. The large tests add 20 million reports and kill an executor. Java and Python
share the processors with all other tests, so a busy machine takes many minutes."""


@STAGES
def test_the_suite_holds_in_a_classic_session(is_large: bool, tmp_path: Path) -> None:
    """The suite passes on a local cluster of two executors, without numba and pandas on workers.

    The acceptance stage has both packages.
    """
    need("java")
    need("pyspark")
    if is_large:
        run_suite("classic", build_environment(tmp_path / "workers", java=""), stage="acceptance")
    else:
        run_suite("classic", build_environment(tmp_path / "workers", hidden=("numba", "pandas")))


@STAGES
def test_the_suite_holds_over_connect(is_large: bool, tmp_path: Path) -> None:
    """The suite passes against a Connect server in another process, with numba on its workers."""
    need("java")
    need("pyspark")
    session: dict[str, str] = (
        {"master": CLUSTER, "java": ""} if is_large else {"master": "local[2]"}
    )
    with run_connect_server(tmp_path / "workers", **session) as address:
        selection = {"stage": ALL} if is_large else {"names": OVER_CONNECT}
        run_suite(address, dict(os.environ), **selection)
