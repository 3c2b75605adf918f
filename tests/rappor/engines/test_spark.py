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
OVER_CONNECT = "sums_are or every_key or missing_column or statement or command"
"""What differs between the two kinds of sessions; the rest over Connect is in the full counts."""


def run_suite(session: str, env: dict[str, str], *, names: str = "") -> None:
    """Run the suite's tests of these names in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", SUITE]
    command += ["-k", names, "-n", "0", "--timeout", "0"]
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


def test_without_spark_the_extra_is_named() -> None:
    """Importing the engine says what to install."""
    program = (
        "import sys\nsys.modules['pyspark'] = None\n"
        "from rappor import MissingExtraError\n"
        "try:\n    from rappor.engines import spark\n"
        "except MissingExtraError as error:\n    print(error.extra)\n"
    )
    assert run_python("-c", program).stdout == "spark\n"


@pytest.mark.slow
def test_the_suite_holds_in_a_classic_session(tmp_path: Path) -> None:
    """On a local cluster of two executors; its workers have neither compiler nor pandas."""
    need("java")
    need("pyspark")
    run_suite("classic", environment(tmp_path / "workers", hidden=("numba", "pandas")))


@pytest.mark.parametrize(
    ("names", "cluster"),
    [
        pytest.param(OVER_CONNECT, "local[2]", marks=pytest.mark.slow),
        pytest.param("", CLUSTER, marks=[pytest.mark.acceptance, pytest.mark.timeout(1800)]),
    ],
    ids=["what differs", "all"],
)
def test_the_suite_holds_over_connect(names: str, cluster: str, tmp_path: Path) -> None:
    """Against a server in another process; its workers have the compiler."""
    need("java")
    need("pyspark")
    with connect_server(tmp_path / "workers", master=cluster) as address:
        run_suite(address, dict(os.environ), names=names)
