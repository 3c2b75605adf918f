"""Environments in which a device cannot work, or in which no person can respond.

The program does its work in silence. The environments are closed streams, full and read-only disks,
folders of other users, other versions of the program, and Windows.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from kit_tools import Tool
from programs import wait_until
from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock, MemoryTransport, peek

READ_ONLY: Final = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && "$@"'
"""Shell line that makes the folder "$0" read-only and runs the program "$@"."""
FULL: Final = 'mount -t tmpfs -o nr_inodes=1 none "$0" && "$@"'
"""Shell line that mounts a disk without room for a file on the folder "$0" and runs the program."""
MOUNTED: Final = "unshare --mount sh -c '{}' {} \"$@\""
"""Template: runs a shell line on a folder, with mounts that no other process sees."""

CASES: Final = {
    "input of a file": ('"$@" < /dev/null', True),
    "output in a pipe": ('"$@" | cat', True),
    "errors in a file": ('"$@" 2> errors; cat errors', True),
    "closed input": ('"$@" <&-', True),
    "closed errors": ('"$@" 2>&-', True),
    "everything closed": ('"$@" <&- >&- 2>&- && echo built', True),
    "background": ('set -m; "$@" & wait', True),
    "continuous integration": ('TF_BUILD=1 "$@"', False),
    "an environment that refuses": ('DO_NOT_TRACK=1 "$@"', False),
    "the tool's own variable": ('MYTOOL_NO_TELEMETRY=true "$@"', False),
    "a container": ('touch container; "$@"', True),
    "another user's home": ('chown -R 12345 data; "$@"', False),
    "a file in place of the home": ('mv data kept; touch data; "$@"', False),
    "a read-only home": (MOUNTED.format(READ_ONLY, "data"), False),
    "a read-only disk": (MOUNTED.format(READ_ONLY, "."), False),
    "a full disk": (MOUNTED.format(FULL, "data"), False),
}
"""Environments by name. Each is a shell line that runs the program "$@" in the parent of the folder
`data`, and whether a device with consent can work there."""


@pytest.mark.slow
@pytest.mark.parametrize("has_consent", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_program_works_anywhere(tool: Tool, case: str, *, has_consent: bool) -> None:
    """The program prints its own output only. With consent the device works, wherever it can."""
    shell_line, can_work = CASES[case]
    if os.geteuid() != 0 and ("mount" in shell_line or "chown" in shell_line):
        pytest.skip("needs to be root, as in a container")
    text = tool.program.read_text().replace("containers=()", 'containers=["container"]')
    tool.program.write_text(text)
    tool.data.mkdir()
    if has_consent:
        tool.agree()
    before = sorted(tool.data.rglob("*"))
    start = f"cd {tool.data.parent} && {shell_line}"
    assert tool.run_on_terminal("build", around=["sh", "-c", start, "sh"]) == "built\n"
    if has_consent and can_work:
        wait_until(lambda: peek(tool.folder).has_secret)
    elif tool.data.is_dir():
        assert sorted(tool.data.rglob("*")) == before


@pytest.mark.parametrize(("first", "sender"), [*itertools.product(("old", "new"), repeat=2)])
def test_versions_of_a_tool_share_a_folder(tool: Tool, first: str, sender: str) -> None:
    """Two versions of one tool are one device: one budget, and one report a month.

    The new version has one command more. `first` is the version that records first, `sender` the
    version that sends the report.
    """
    newer = tool.registry.with_name("newer.toml")
    text = tool.registry.read_text()
    newer.write_text(text.replace('  "check",\n', '  "check",\n  "deploy",\n'))
    clock, transport = FixedClock("2026-12-30T12:00:00"), MemoryTransport()
    versions = {
        name: tool.host(Host, registry=registry, clock=clock)
        for name, registry in (("old", tool.registry), ("new", newer))
    }
    versions["old"].agree()
    for name in (first, "new", "old"):
        versions[name].record_and_send("deploy" if name == "new" else "build")
    clock.advance(days=1)
    versions[sender].collector = transport
    versions[sender].send()
    assert [report.metric for report in transport.reports] == ["command"]
    assert peek(tool.folder).spent.nats == 4  # the cost of one report


WINDOWS: Final = """
import fcntl, os, subprocess, sys, types

from rappor_client.folder import system

system.SYSTEM = system.Windows(types.SimpleNamespace(
    LK_NBLCK=1, locking=lambda file, _, n: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)))
del os.geteuid, os.getpgrp, os.tcgetpgrp, os.WNOHANG, os.fchdir
sys.platform = "win32"
from rappor_client.kit import consent_question, recording_process
from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock, peek

clock = FixedClock("2026-12-30T12:00:00")
host = Host("my-tool", registry=sys.argv[1], collector=None, clock=clock)
assert host.folder == os.path.join(os.environ["LOCALAPPDATA"], "my-tool", "telemetry")
assert not host.find_obstacle() and not consent_question.is_answerable()
host.agree()
host.record_and_send("build")
assert len(peek(host.folder).pending_reports) == 1
assert host.refuse()
assert not peek(host.folder).has_secret
assert recording_process.start_process([host.folder, sys.argv[1], "", ""], "build")
host.finish_run()
print(*sorted(os.listdir(host.folder)))
"""
"""Source of a program with a host on a substitute for Windows, which has no owners of files, no
process groups and other locks. Its argument is the registry."""


@pytest.mark.slow
def test_host_works_on_a_substitute_for_windows(tool: Tool, tmp_path: Path) -> None:
    """The device is in the local data folder of the user, whose path has a space."""
    home = tmp_path / "Ada Lovelace" / "AppData" / "Local"
    process = subprocess.run(
        [sys.executable, "-c", WINDOWS, str(tool.registry)],
        env=tool.build_environment({"LOCALAPPDATA": str(home)}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert process.stdout == "answer budget lock\n"
