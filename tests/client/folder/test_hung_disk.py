"""Calls of the client on a disk that hangs: every call returns while the disk hangs.

A program makes one call on a folder whose writes hang. The disk is thawed after the call has
returned. No time is measured: a call that waits for the disk never returns, and the test ends it
after a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from rappor_client.outbox.flush_result import FlushReason
from tools import need

SUPPORT: Final = Path(__file__).parents[2] / "support"
SECONDS: Final = 60.0
"""Longest duration of a call, in seconds. The limits of the client are 5 seconds and less."""


@dataclass(frozen=True)
class HungDisk:
    """A folder whose disk hangs from `freeze` to `thaw`, and the environment of its programs."""

    folder: Path
    freeze: Callable[[], object]
    thaw: Callable[[], object]
    environment: dict[str, str]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the compiled library that lets system calls on a folder hang."""
    if sys.platform != "linux":
        pytest.skip("the library reads /proc and is preloaded as on Linux")
    path = tmp_path_factory.mktemp("library") / "hung_disk.so"
    source = SUPPORT / "hung_disk.c"
    command = [str(need("gcc")), "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def preloaded(library: Path, tmp_path: Path) -> HungDisk:
    """A disk that hangs because a preloaded library blocks the calls."""
    folder, flag = tmp_path / "disk", tmp_path / "flag"
    folder.mkdir()
    environment = {
        "LD_PRELOAD": str(library), "HUNG_FOLDER": str(folder), "HUNG_FLAG": str(flag)
    }  # fmt: skip
    return HungDisk(folder, flag.touch, lambda: flag.unlink(missing_ok=True), environment)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[HungDisk]:
    """A disk that hangs because the kernel freezes its file system."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(bytes(16 << 20))

    def run(*command: str, at: Path = folder) -> None:
        subprocess.run([*command, str(at)], check=True, capture_output=True)

    def thaw() -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is not frozen
            run("fsfreeze", "--unfreeze")

    try:
        run("mkfs.ext4", "-q", at=image)
        run("mount", "-o", "loop", str(image))
        run("fsfreeze", "--freeze")
        run("fsfreeze", "--unfreeze")
    except (OSError, subprocess.CalledProcessError):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            run("umount")
        pytest.skip("this machine allows no file system of our own")
    try:
        yield HungDisk(folder, lambda: run("fsfreeze", "--freeze"), thaw, {})
    finally:
        thaw()
        run("umount")


def call(disk: HungDisk, name: str) -> tuple[Any, Any]:
    """Make a call in a program while the disk hangs.

    Returns the result of the call, and the contents of the device after the thaw.
    """
    program = subprocess.Popen(
        [sys.executable, str(SUPPORT / "hung_child.py"), name, str(disk.folder / "device")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        | disk.environment,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    output = program.stdout
    lines = queue.SimpleQueue[str]()
    reader = threading.Thread(target=lambda: [*map(lines.put, output)])
    reader.start()
    try:
        assert lines.get(timeout=SECONDS) == "here\n"
        disk.freeze()
        print(file=program.stdin)
        # The process ends while the disk hangs, so it prints no result.
        if name == "exit":
            return program.wait(SECONDS), None
        try:
            returned = json.loads(lines.get(timeout=SECONDS))
        except queue.Empty:
            pytest.fail(f"{name} waits for the disk")
        disk.thaw()
        print(file=program.stdin)
        after = json.loads(lines.get(timeout=SECONDS))
        assert program.wait(SECONDS) == 0
        return returned, after
    finally:
        disk.thaw()
        program.kill()
        program.wait()
        reader.join()
        program.stdin.close()
        output.close()


ONE_WAITS: Final = [True, 1, [], 0]
"""Is the device after the thaw: has_secret, number of queued and pending reports, statuses of the
log, number of reports that the collector received."""
TWO_WAIT: Final = [True, 2, [], 0]
SENT_ONCE: Final = [True, 0, ["accepted"], 1]
NOTHING: Final = [False, 0, [], 0]
TIMEOUT: Final = FlushReason.TIMEOUT.name
UNVERIFIED: Final = (
    "Nothing could be verified; maybe still there: everything, because the disk did not answer in "
    "time."
)
CASES: Final = {
    "close": (None, ONE_WAITS),
    "close after a record": (None, TWO_WAIT),
    "the end of a with block": (None, TWO_WAIT),
    # After the thaw the program flushes again and sends the report.
    "flush": ([TIMEOUT, 0, 1], SENT_ONCE),
    # The collector has the report. Its response is written after the thaw, so the second flush does
    # not send the report again.
    "flush while the collector answers": ([TIMEOUT, 1, 0], SENT_ONCE),
    "looks": ([True, 1, []], TWO_WAIT),
    "opt_out": (None, [True, 0, [], 0]),
    "withdraw": (UNVERIFIED, NOTHING),
    "durable record": ("failed: the disk failed", TWO_WAIT),
    "fork": (0, ONE_WAITS),
    "open": ("", ONE_WAITS),
    "open of a new folder": ("the disk did not answer within 2.5 seconds", ONE_WAITS),
    "open without consent": ("", NOTHING),
}
"""Calls of `hung_child.py` by name. Each has its result during the freeze and the contents of the
device after the thaw."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_call_returns_while_the_disk_hangs(name: str, preloaded: HungDisk) -> None:
    """The requested change is made when the disk answers, and no report leaves twice."""
    assert call(preloaded, name) == CASES[name]


def test_a_program_ends_while_the_disk_hangs(preloaded: HungDisk) -> None:
    """The events in memory are lost."""
    assert call(preloaded, "exit") == (0, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_call_returns_while_a_file_system_is_frozen(name: str, frozen: HungDisk) -> None:
    """A frozen file system ends no system call, whatever signal arrives."""
    assert call(frozen, name) == CASES[name]
