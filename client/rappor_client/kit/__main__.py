"""Main program of the process that `recording_process.start_process` starts.

It records one use of a program and sends the reports that may leave. The name of the use arrives
on the standard input as UTF-8, because every user of a machine can read the arguments of a process.
"""

from __future__ import annotations

import sys

from rappor_client.kit.host import Host

if __name__ == "__main__":
    folder, registry, collector, consents, *variables = sys.argv[1:]
    host = Host(
        "",
        folder=folder,
        registry=registry,
        collector=collector or None,
        consents=consents,
        variables=variables,
    )
    # `sys.stdin` would decode by the locale. Under latin-1, and on Windows, the name of a command
    # with an umlaut became another name, which no registry lists.
    use = sys.stdin.buffer.read().decode()
    if host.start_cooldown():
        host.record_and_send(use)
