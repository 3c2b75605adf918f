"""The cost of the kit for a command-line tool: the same run with and without the kit.

The kit (`rappor_client.kit`) adds telemetry to a tool of the library click. If a run of the tool
has something to record, the kit starts another process that records it, and does not wait for it.
Then a cooldown begins, in which further runs start no process. It ends after ten seconds, unless
the started process extends it until midnight (UTC), because the device has nothing to record today.

The benchmark measures the additional time of each run of the tool: for a user with consent, after a
refusal, and without a decision. Every case runs in fresh processes, in turn with the tool without
the kit. Each case has a home folder of its own, which contains the user's decision.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.tables import Table

_EXAMPLE: Final = Path(__file__).resolve().parents[1] / "client" / "examples" / "kit" / "greet.py"
"""The example's tool, which uses the kit, has this path."""
_IMPORT: Final = "from rappor_client.kit.click import telemetry"
"""Line of the example that imports the kit. The tool without the kit has `_REPLACEMENT` instead."""
_REPLACEMENT: Final = "def telemetry(*_, **__): pass"
"""Line that defines a function without effect in place of `telemetry`."""
_REMOVED_VARIABLES: Final = (
    "CI",
    "DO_NOT_TRACK",
    "PYTHONDONTWRITEBYTECODE",
    "BUILD_NUMBER",
    "JENKINS_URL",
)
"""Environment variables that would change a run: a build server, a refusal, missing bytecode."""
_CASES: Final = {
    "without kit": "the tool alone",
    "silent": "nobody has agreed, no terminal",
    "no": "the person has said no",
    "variable": "they have said yes, and DO_NOT_TRACK is set",
    "cooldown": "they have said yes, and a cooldown is running",
    "records": "they have said yes, and a process is started that records",
    "worker": "that process, for which nobody waits",
}
"""Description of each case, as the table shows it. In the case "cooldown", an earlier run of the
tool has started a cooldown. The case "worker" runs the process that records, which the kit starts
in the case "records".
"""


class _Cost(NamedTuple):
    """Milliseconds of one process: processor time, and time until its end."""

    cpu: float
    wall: float


def kit(*, quick: bool) -> list[Table]:
    """Measure a run of the example's tool in fresh processes."""
    n = 5 if quick else 100
    with tempfile.TemporaryDirectory() as home:
        tool = _Tool(Path(home))
        # The first run of each case compiles the modules, and does not count.
        for case in _CASES:
            tool.measure(case)
        rounds = [{case: tool.measure(case) for case in _CASES} for _ in range(n)]
    table = Table(
        title="kit: a run of a tool of click, milliseconds",
        columns=("what", "CPU", "CPU more", "time more", "time more, 90 %"),
        note=f"Medians of {n} runs in turn. More: difference from the run without the kit in the "
        "same round. 90 %: nine of ten differences are smaller.",
    )
    for case, label in _CASES.items():
        cpu = statistics.median(costs[case].cpu for costs in rounds)
        more = statistics.median(costs[case].cpu - costs["without kit"].cpu for costs in rounds)
        waits = sorted(costs[case].wall - costs["without kit"].wall for costs in rounds)
        table.rows.append([label, cpu, more, statistics.median(waits), waits[int(0.9 * n)]])
    return [table]


class _Tool:
    """The example's tool, with and without the kit, and a home folder for each case.

    Creating the object writes the decision of each user: yes, no, or nothing.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._tool = Path(shutil.copy(_EXAMPLE, home))
        self._without_kit = home / "without_kit.py"
        self._without_kit.write_text(_EXAMPLE.read_text().replace(_IMPORT, _REPLACEMENT))
        self._run("records", "telemetry", "init", "--owner", "a@example.org")
        for case in ("variable", "cooldown", "records", "worker"):
            self._run(case, "telemetry", "on")
        self._run("no", "telemetry", "off")
        # This run starts the cooldown of the case. The process that it starts finds that today is
        # not the day of the month on which the device reports, and extends the cooldown until
        # midnight. On that one day of a month, a cooldown lasts ten seconds, and later rounds of
        # the case start a process.
        self.measure("cooldown")

    def measure(self, case: str) -> _Cost:
        """Run one case once."""
        if case == "records":
            # The file contains the end of the cooldown. Without it, the run starts a process.
            (self._locate_folder(case) / "cooldown").unlink(missing_ok=True)
        cost = self._run(case, "wave")
        if case == "records":
            # Wait for the process that the run has started: it would slow down the next case.
            time.sleep(0.5)
        return cost

    def _run(self, case: str, *words: str) -> _Cost:
        """Run the tool with arguments as the user of a case, and return the cost."""
        program = [str(self._without_kit if case == "without kit" else self._tool), *words]
        if case == "worker" and words == ("wave",):
            # The arguments of `rappor_client.kit.__main__`: folder, registry, address of the
            # collector, and variable of an operator's consent. Without an address nothing is sent.
            paths = [str(self._locate_folder(case)), str(self._home / "metrics.toml")]
            program = ["-P", "-m", "rappor_client.kit", *paths, "", ""]
        variables = {
            name: text for name, text in os.environ.items() if name not in _REMOVED_VARIABLES
        }
        variables["XDG_DATA_HOME"] = str(self._home / case)
        if case == "variable" and words == ("wave",):
            variables["DO_NOT_TRACK"] = "1"
        start = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=variables,
        )
        assert process.stdin is not None
        # The process of the case "worker" reads the name of the recorded command here. The tool
        # itself reads no input.
        process.stdin.write(b"wave")
        process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, case
        return _Cost(cpu=1e3 * (used.ru_utime + used.ru_stime), wall=1e3 * wall)

    def _locate_folder(self, case: str) -> Path:
        """Return the folder in which the kit stores the device of a case."""
        return self._home / case / "greet" / "telemetry"
