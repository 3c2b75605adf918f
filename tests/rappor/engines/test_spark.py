"""Apache Spark in real processes: `spark_suite.py` in a classic session and over Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from programs import run_python
from spark_servers import CLUSTER, connect_server, environment
from tools import need

SUITE = "tests/rappor/engines/spark_suite.py"
ALL = "acceptance or not acceptance"
OVER_CONNECT = "sums_are or every_key or missing_column or statement or command"
"""What differs between the two kinds of sessions; the rest over Connect is in the full counts."""


def run_suite(
    session: str, env: dict[str, str], *, stage: str = "not acceptance", names: str = ""
) -> None:
    """Run tests of the suite by their names, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", SUITE]
    command += ["-m", stage, "-k", names]
    command += ["-n", "0", "--timeout", "0"]
    command += ["-W", "ignore:PySpark does not yet fully support pandas"]
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env=env | {"SPARK_SESSION": session},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]


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
@pytest.mark.parametrize("is_chosen", [False, True])
def test_local_workers_run_this_interpreter(is_chosen: bool, tmp_path: Path) -> None:
    """Local workers run this interpreter, unless PYSPARK_PYTHON names another."""
    need("java")
    need("pyspark")
    program = (
        "import sys\nfrom pyspark.sql import SparkSession\n"
        "from rappor.engines.shipping import ship\n"
        "session = SparkSession.builder.master('local[1]')"
        ".config('spark.ui.enabled', 'false').getOrCreate()\nship(session)\n"
        "def name(batches):\n    import os, sys, pyarrow\n    for _ in batches:\n"
        "        yield pyarrow.RecordBatch.from_pydict({'e': [os.environ.get('IS_OURS', 'no')"
        " + ' ' + sys.executable]})\n"
        "print(session.range(1, numPartitions=1).mapInArrow(name, 'e string').collect()[0][0])\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nIS_OURS=yes exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    tools = tmp_path / "tools"  # a PATH without any Python but one that cannot run
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    env |= {"PATH": f"{tools}:{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYSPARK_PYTHON": str(python)} if is_chosen else {}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5_000:]
    chosen, interpreter = ended.stdout.split()
    assert chosen == ("yes" if is_chosen else "no")
    assert interpreter == sys.executable


STAGES = pytest.mark.parametrize(
    "is_large",
    [
        pytest.param(False, marks=pytest.mark.slow),
        pytest.param(True, marks=[pytest.mark.acceptance, pytest.mark.timeout(1800)]),
    ],
)
"""20 million reports, and an executor that is killed in the middle, are large."""


@STAGES
def test_the_suite_holds_in_a_classic_session(is_large: bool, tmp_path: Path) -> None:
    """On a local cluster of two executors; its workers have neither compiler nor pandas."""
    need("java")
    need("pyspark")
    if is_large:
        run_suite("classic", environment(tmp_path / "workers", java=""), stage="acceptance")
    else:
        run_suite("classic", environment(tmp_path / "workers", hidden=("numba", "pandas")))


@STAGES
def test_the_suite_holds_over_connect(is_large: bool, tmp_path: Path) -> None:
    """Against a server in another process; its workers have the compiler."""
    need("java")
    need("pyspark")
    session: dict[str, str] = (
        {"master": CLUSTER, "java": ""} if is_large else {"master": "local[2]"}
    )
    with connect_server(tmp_path / "workers", **session) as address:
        selection = {"stage": ALL} if is_large else {"names": OVER_CONNECT}
        run_suite(address, dict(os.environ), **selection)
