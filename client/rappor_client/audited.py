"""The client as `rappor audit --client` asks it: `python -m rappor_client.audited`.

Each line of standard input is one run of a program on some device, a JSON object of `folder`,
`registry`, `metric`, `now` and `events`, a list of pairs of a moment and a value (a text). Moments
are seconds since 1970, and the program starts `now`. It is answered with a line: the reports that
wait in the folder, the oldest first, each with the moment from which it may leave, and the nats
that they can cost at most.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

from rappor.protocol.encodings import parse_value
from rappor.protocol.wire import encode_base64url
from rappor.registry.registry import Registry
from rappor_client.client import Client
from rappor_client.person.contents import read_contents
from rappor_client.settings import ClientOptions


def main() -> None:
    """Answer every line of standard input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")


def answer(
    *, folder: str, registry: str, metric: str, now: float, events: Sequence[tuple[float, str]]
) -> dict[str, Any]:
    """Record values on the folder's device, and return what it holds then."""
    declared = _load(registry)
    moments = [now]
    policy = ClientOptions(clock=lambda: moments[-1], background=False, raise_errors=True)
    with Client.open(folder, registry=declared, consent=True, options=policy) as client:
        for moment, value in events:
            moments.append(moment)
            client.record(metric, parse_value(declared.metric(metric).params, value))
    contents = read_contents(folder)
    waiting = [
        {
            "metric": each.metric,
            "params": each.params,
            "cohort": each.cohort,
            "bits": encode_base64url(each.bits),
            "due": due,
        }
        for each, due in zip(contents.queued_reports, contents.send_after, strict=True)
    ]
    return {"waiting": waiting, "spent": contents.spent.nats}


_load = functools.cache(Registry.load)


if __name__ == "__main__":
    main()
