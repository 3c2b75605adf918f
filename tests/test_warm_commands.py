"""Commands that scripts of the tests run as forks behave as commands of a shell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from collectors import run_script

PROGRAM = """
import atexit
import os
import sys

atexit.register(print, "at the end")
print(sys.argv, __name__, __file__, sys.path[0], os.getcwd(), os.environ["FRUIT"])
print(sys.stdin.read().upper(), end="")
print("to the log", file=sys.stderr)
import beside
sys.exit(beside.CODE)
"""
SCRIPT = """
mkdir -p inner && cd inner
echo 'CODE = 3' > ../beside.py
export FRUIT=pear
echo text | PYTHON ../program.py one 'two words' 2> ../log || echo "code $?"
cat ../log
PYTHON ../sleep.py & pid=$!
until test -e started; do sleep 0.01; done
kill $pid
wait $pid || echo "code $?"
PYTHON ../fail.py 2> ../log || echo "code $?"
tail -n 1 ../log
"""


@pytest.mark.slow
def test_a_forked_program_behaves_as_in_an_interpreter(tmp_path: Path) -> None:
    """Words, folder, environment, files, exit codes and signals reach a forked program."""
    results = []
    for name, python in (("real", shlex.quote(sys.executable)), ("forked", "python3")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        sleep = "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(600)\n"
        (folder / "sleep.py").write_text(sleep)
        (folder / "fail.py").write_text("raise ValueError('plum')\n")
        result = run_script(SCRIPT.replace("PYTHON", python), folder)
        assert result.returncode == 0, result.stderr
        results.append(result.stdout.replace(str(folder), "FOLDER"))
    real, forked = results
    assert forked == real
    end = ["at the end", "code 3", "to the log", "code 143", "code 1", "ValueError: plum"]
    assert real.splitlines()[-len(end) :] == end


@pytest.mark.slow
def test_commands_of_the_project_run_by_their_names(tmp_path: Path) -> None:
    """Commands of the project give their exit codes, and `python -c` starts an interpreter."""
    script = (
        "rappor nonsense 2> log || echo code $?\nrappor-client --version\npython -c 'print(7)'\n"
    )
    result = run_script(script, tmp_path)
    assert result.stdout.startswith("code 2\nrappor-client ")
    assert result.stdout.endswith("\n7\n")
