"""Simulate people who use greet for a month, and send the report of each device.

Each device draws a day of the month, and reports one use of the first day with a use from then on.
The drawn day is never one of the last eight days of the month. So on the last day but one every
device has reached its drawn day, and a single use on that day is reported. The report leaves on the
last day. A use of the last day is not reported, because its report would leave in the next month.

Each simulated device has a clock of its own, so the program takes seconds.
"""

import calendar
import datetime
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

from rappor_client import FlushResult
from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock

COLLECTOR = os.environ["GREET_COLLECTOR"]
REGISTRY = Path(__file__).with_name("metrics.toml")
USES = {"hello": 120, "hello --loud": 90, "bye": 60, "wave": 30}
"""Counts the people by the use that they make: a command, or a command with a flag. The results
show nothing below 100 reports, unless the registry has another `min_reports`."""


def simulate_person(use: str, day: datetime.date, folder: Path) -> FlushResult:
    """Let a person agree and use the tool once on a day, and send the report on the next day."""
    clock = FixedClock(f"{day}T20:00:00")
    person = Host("greet", registry=REGISTRY, collector=COLLECTOR, folder=folder, clock=clock)
    person.agree()
    person.record_and_send(use)
    clock.advance(days=1)
    result: FlushResult = person.send()
    return result


def main() -> None:
    """Simulate the last two days of this month for all people, and print the number of reports."""
    today = datetime.datetime.now(datetime.UTC).date()
    n_days = calendar.monthrange(today.year, today.month)[1]
    day = today.replace(day=n_days - 1)
    uses = random.sample(list(USES), sum(USES.values()), counts=list(USES.values()))
    with tempfile.TemporaryDirectory() as home:
        results = [simulate_person(use, day, Path(home, f"{i}")) for i, use in enumerate(uses)]
    print(f"{sum(result.sent for result in results)} reports of {len(uses)} devices")
    # The reasons are printed without the times of the next attempts, which all differ.
    failures = (result.detail or result.reason.value for result in results if not result.sent)
    for reason, n_devices in Counter(failures).items():
        print(f"{n_devices} devices: {reason}")


if __name__ == "__main__":
    main()
