"""Calls of the client on a disk that hangs: every call returns while the disk hangs.

A program makes one call on a folder whose writes hang. The test thaws the disk after the call has
returned. A call that waited for the disk would never return, and the test would fail after a
minute. So no test measures a time.
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
    """A folder whose disk hangs from `freeze` to `thaw`.

    A program that uses the folder needs the variables of `environment`.
    """

    folder: Path
    freeze: Callable[[], object]
    thaw: Callable[[], object]
    environment: dict[str, str]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library that lets system calls on a folder hang, and return its path."""
    if sys.platform != "linux":
        pytest.skip("the library needs /proc and LD_PRELOAD of Linux")
    path = tmp_path_factory.mktemp("library") / "hung_disk.so"
    source = SUPPORT / "hung_disk.c"
    command = [str(need("gcc")), "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def preloaded(library: Path, tmp_path: Path) -> HungDisk:
    """Return a disk that hangs because a preloaded library blocks the system calls."""
    folder, flag = tmp_path / "disk", tmp_path / "flag"
    folder.mkdir()
    environment = {
        "LD_PRELOAD": str(library), "HUNG_FOLDER": str(folder), "HUNG_FLAG": str(flag)
    }  # fmt: skip
    return HungDisk(folder, flag.touch, lambda: flag.unlink(missing_ok=True), environment)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[HungDisk]:
    """Yield a disk that hangs because the kernel freezes its file system."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(bytes(16 << 20))

    def run(*command: str, path: Path = folder) -> None:
        subprocess.run([*command, str(path)], check=True, capture_output=True)

    def thaw() -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # the disk is not frozen
            run("fsfreeze", "--unfreeze")

    try:
        run("mkfs.ext4", "-q", path=image)
        run("mount", "-o", "loop", str(image))
        run("fsfreeze", "--freeze")
        run("fsfreeze", "--unfreeze")
    except (OSError, subprocess.CalledProcessError):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            run("umount")
        pytest.skip("this machine does not let a test mount and freeze a file system")
    try:
        yield HungDisk(folder, lambda: run("fsfreeze", "--freeze"), thaw, {})
    finally:
        thaw()
        run("umount")


def call(disk: HungDisk, name: str, program_name: str = "hung_child.py") -> tuple[Any, Any]:
    """Make a call of a program while the disk hangs.

    Returns the result of the call, and the contents of the device after the thaw.
    """
    program = subprocess.Popen(
        [sys.executable, str(SUPPORT / program_name), name, str(disk.folder / "device")],
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
            result = json.loads(lines.get(timeout=SECONDS))
        except queue.Empty:
            pytest.fail(f"{name} waits for the disk")
        disk.thaw()
        print(file=program.stdin)
        contents = json.loads(lines.get(timeout=SECONDS))
        assert program.wait(SECONDS) == 0
        return result, contents
    finally:
        disk.thaw()
        program.kill()
        program.wait()
        reader.join()
        program.stdin.close()
        output.close()


ONE_WAITING: Final = [True, 1, [], 0]
"""Contents of a device with one report after the thaw, as `hung_child.py` prints them: the value of
`has_secret`, the number of queued and pending reports, the statuses of the log, and the number of
uploads that the collector received. The next constants have the same form."""
TWO_WAITING: Final = [True, 2, [], 0]
ONE_SENT: Final = [True, 0, ["accepted"], 1]
ERASED: Final = [False, 0, [], 0]
TIMEOUT: Final = FlushReason.TIMEOUT.name
UNVERIFIED: Final = (
    "Nothing could be verified; maybe still there: everything, because the disk did not answer in "
    "time."
)
CASES: Final = {
    "close": (None, ONE_WAITING),
    "close after a record": (None, TWO_WAITING),
    "the end of a with block": (None, TWO_WAITING),
    # After the thaw the program flushes again and sends the report.
    "flush": ([TIMEOUT, 0, 1], ONE_SENT),
    # The collector has the report. Its response is written after the thaw, so the second flush does
    # not send the report again.
    "flush while the collector answers": ([TIMEOUT, 1, 0], ONE_SENT),
    "looks": ([True, 1, []], TWO_WAITING),
    "opt_out": (None, [True, 0, [], 0]),
    "withdraw": (UNVERIFIED, ERASED),
    "durable record": ("failed: the disk failed", TWO_WAITING),
    "fork": (0, ONE_WAITING),
    "open": ("", ONE_WAITING),
    "open of a new folder": ("the disk did not answer within 2.5 seconds", ONE_WAITING),
    "open without consent": ("", ERASED),
}
"""Each call of `hung_child.py` has two expectations: its result during the freeze, and the contents
of the device after the thaw."""


KIT_CASES: Final = {
    # Without a cooldown on the disk the use is not recorded.
    "record": ("None", ["yes", False, True]),
    "agree": ("TimeoutError", ["yes", False, False]),
    "refuse": ("TimeoutError", ["no", False, False]),
    "erase": (UNVERIFIED, ["yes", False, False]),
    # The question does not appear, because nobody could store that it was shown.
    "ask": ("None", ["asked", False, False]),
}
"""The same expectations for each call of `hung_host.py`. The contents after the thaw are the word
of the consent, whether the folder has a secret, and whether it has a cooldown."""


FROZEN: Final = ("durable record", "open of a new folder", "withdraw")
"""Calls that the second stage makes on a frozen file system. The acceptance stage makes all."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_call_returns_while_the_disk_hangs(name: str, preloaded: HungDisk) -> None:
    """The requested change is made after the thaw, and no report leaves twice."""
    assert call(preloaded, name) == CASES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", KIT_CASES)
def test_a_call_of_the_kit_returns_while_the_disk_hangs(name: str, preloaded: HungDisk) -> None:
    """A program with the kit goes on, and the requested change is made after the thaw.

    Bad case: a command waited without end for the file that ends the recording for ten seconds.
    """
    assert call(preloaded, name, "hung_host.py") == KIT_CASES[name]


def test_a_program_ends_while_the_disk_hangs(preloaded: HungDisk) -> None:
    """The end of a program does not wait for the disk. The events in memory are lost."""
    assert call(preloaded, "exit") == (0, None)


@pytest.mark.slow
def test_a_program_with_the_kit_ends_while_a_file_system_is_frozen(frozen: HungDisk) -> None:
    """A run that records ends at once, because another process writes.

    Bad case: a thread of the program wrote. No signal ends such a thread on a frozen file system,
    so the program could neither end nor be killed.
    """
    assert call(frozen, "exit", "hung_host.py") == (0, None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in FROZEN else pytest.mark.acceptance)
        for name in CASES
    ],
)
def test_a_call_returns_while_a_file_system_is_frozen(name: str, frozen: HungDisk) -> None:
    """Every call returns, although no signal ends a system call on a frozen file system.

    The library of the test above hangs in the system calls that its author knew, and the kernel in
    all of them. The second stage has one call that writes, one that opens and one that erases,
    which make the system calls of the others.
    """
    assert call(frozen, name) == CASES[name]
