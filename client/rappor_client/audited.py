"""The client as `rappor audit --client` asks it: `python -m rappor_client.audited`.

Each line of standard input is an event on some device, a JSON object of `folder`, `registry`,
`metric`, `value` (a text) and `now` (seconds since 1970). It is answered with a line: the reports
that wait in the folder, the oldest first, and the nats that they can cost at most.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from rappor.protocol.encodings import parse_value
from rappor.protocol.wire import encode_base64url
from rappor.registry.registry import Registry
from rappor_client.client import Client
from rappor_client.person.contents import read_contents
from rappor_client.settings import Policy


def main() -> None:
    """Answer every line of standard input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")


def answer(*, folder: str, registry: str, metric: str, value: str, now: float) -> dict[str, Any]:
    """Record a value on the folder's device at a moment, and return what it holds then."""
    declared = _load(registry)
    policy = Policy(clock=lambda: now, background=False, strict=True)
    with Client.open(folder, registry=declared, consent=True, policy=policy) as client:
        client.record(metric, parse_value(declared.metric(metric).params, value))
    contents = read_contents(folder)
    waiting = [
        {"params": each.params, "cohort": each.cohort, "bits": encode_base64url(each.bits)}
        for each in contents.waiting
    ]
    return {"waiting": waiting, "spent": contents.spent.nats}


_load = functools.cache(Registry.load)


if __name__ == "__main__":
    main()
