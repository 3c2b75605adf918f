"""Adapter between `rappor audit --client` and the client: `python -m rappor_client.audited`.

The audit plays the lives of many devices and compares their reports. It writes one line for each
run of a program, and reads one line. Both are JSON objects (times in seconds since 1970):

    in    folder      path of the device's folder; a new folder is a new device
          registry    path of the registry
          metric      name of the metric
          now         time at which the program starts
          events      list of [time, value as a text], in the order of recording

    out   waiting     list of the queued reports, the oldest first: metric, params (fingerprint),
                      cohort, bits (base64url), and due: the time from which a report may leave
          spent       upper bound on the privacy loss of all scopes so far, in nats

Nothing is sent. The output contains no failures: the audit sees them in the reports.
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
    """Run the program of each line of standard input, and write its result."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_program(**json.loads(line))) + "\n")


def run_program(
    *, folder: str, registry: str, metric: str, now: float, events: Sequence[tuple[float, str]]
) -> dict[str, Any]:
    """Record events on the device of a folder, and return its queued reports and privacy loss.

    The head of this module describes arguments and result.
    """
    loaded = _load_registry(registry)
    times = [now]
    options = ClientOptions(clock=lambda: times[-1], background=False, raise_errors=True)
    with Client.open(folder, registry=loaded, consent=True, options=options) as client:
        for time, value in events:
            times.append(time)
            client.record(metric, parse_value(loaded.metric(metric).params, value))
    contents = read_contents(folder)
    waiting = [
        {
            "metric": report.metric,
            "params": report.params,
            "cohort": report.cohort,
            "bits": encode_base64url(report.bits),
            "due": send_after,
        }
        for report, send_after in zip(contents.queued_reports, contents.send_after, strict=True)
    ]
    return {"waiting": waiting, "spent": contents.spent.nats}


# An audit has thousands of runs with the same registry.
_load_registry = functools.cache(Registry.load)


if __name__ == "__main__":
    main()
