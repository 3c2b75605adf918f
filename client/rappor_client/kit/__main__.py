"""The process that `worker.py` starts: it records one use of a program, and sends what is due."""

from __future__ import annotations

import sys

from rappor_client.kit.host import Host

if __name__ == "__main__":
    folder, registry, collector, consents, *variables = sys.argv[1:]
    Host(
        "",
        folder=folder,
        registry=registry,
        collector=collector or None,
        consents=consents,
        variables=variables,
    ).work(sys.stdin.read())
