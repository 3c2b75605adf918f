"""Sends what waits in a folder, if the person's answer is still a yes; `sending.py` starts it."""

from __future__ import annotations

import sys

from rappor_client.kit.host import Host

if __name__ == "__main__":
    folder, registry, collector, *variables = sys.argv[1:]
    Host("", folder=folder, registry=registry, collector=collector, variables=variables).send()
