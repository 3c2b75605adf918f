"""A program with the kit that makes one call of its host while its disk hangs.

Run as `python hung_host.py CALL FOLDER`, with the name of a call in `CALLS`. The program and the
test alternate as in `hung_child.py`. At the end the program prints the word of the stored consent,
whether the folder has a secret, and whether it has a cooldown.

The call `exit` starts the recording process and ends the program, without output.
"""

from __future__ import annotations

import datetime
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hung_child import print_json, wait_for_freeze
from rappor_client.kit.consent_file import read_consent
from rappor_client.kit.consent_question import ask_consent
from rappor_client.kit.host import Host
from rappor_client.kit.init_command import format_registry
from rappor_client.testing import FixedClock, MemoryTransport, peek


def name_failure(call: Callable[[], object]) -> str:
    """Return the result of a call as a text, or the name of its exception."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 - the test compares its name
        return type(error).__name__


CALLS: dict[str, Callable[[Host], object]] = {
    "record": lambda host: host.record(["build"]),
    "agree": lambda host: host.agree(),
    "refuse": lambda host: host.refuse(),
    "erase": lambda host: host.erase(),
    "ask": lambda host: ask_consent("?", host.folder, host.today),
}
"""Calls that the program makes, by name."""


def main(name: str, folder: Path) -> None:
    """Make a call while the disk hangs."""
    registry = folder.parents[1] / "metrics.toml"  # not on the disk that hangs
    # With a transport in memory the host starts no process.
    host = Host(
        "x",
        registry=registry,
        collector=None if name == "exit" else MemoryTransport(),
        folder=folder,
        clock=FixedClock("2026-12-30T12:00:00"),
    )
    host.find_obstacle = lambda: ""  # type: ignore[method-assign]  # the environment of a test
    expires = datetime.date(2099, 12, 31)
    text = format_registry(host, ["build", "check"], owner="a", expires=expires, devices=None)
    registry.write_text(text)
    if name != "ask":
        host.agree()
    if name in ("refuse", "erase"):
        host.record_and_send("build")
        assert peek(folder).has_secret
    wait_for_freeze()
    if name == "exit":
        host.record(["build"])
        return
    print_json(name_failure(lambda: CALLS[name](host)))
    sys.stdin.readline()  # the test has thawed the disk
    end = time.monotonic() + 60.0
    while any(thread.name.startswith("rappor") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread did not end after the thaw"
        time.sleep(0.01)
    has_cooldown = (folder / "cooldown").exists()
    print_json([read_consent(host.folder).word, peek(folder).has_secret, has_cooldown])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
