"""Three hundred people use greet for a month; each device sends what it drew, with its noise.

A month passes in seconds: each device has a clock of its own. On the last day but one of a month
every device has reached the day that it drew, so one use there is enough. The report leaves on the
last day. A use of the last day is not reported, because its report would leave in the next month.
"""

import calendar
import datetime
import os
import random
import tempfile
from pathlib import Path

from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock

COLLECTOR = os.environ["GREET_COLLECTOR"]
REGISTRY = Path(__file__).with_name("metrics.toml")
USES = {"hello": 120, "hello --loud": 90, "bye": 60, "wave": 30}
"""What is used, by how many of them."""


def live(use: str, day: datetime.date, folder: Path) -> int:
    """Let a person agree, use the tool once, and send; return how many reports left."""
    clock = FixedClock(f"{day}T20:00:00")
    person = Host("greet", registry=REGISTRY, collector=COLLECTOR, folder=folder, clock=clock)
    person.agree()
    person.record_and_send(use)
    clock.advance(days=1)
    return int(person.send().sent)


def main() -> None:
    """Let all of them live through the last two days of this month."""
    today = datetime.datetime.now(datetime.UTC).date()
    n_days = calendar.monthrange(today.year, today.month)[1]
    day = today.replace(day=n_days - 1)
    uses = random.sample(list(USES), 300, counts=list(USES.values()))
    with tempfile.TemporaryDirectory() as home:
        n = sum(live(use, day, Path(home, f"{i}")) for i, use in enumerate(uses))
    print(f"{n} reports of {len(uses)} devices")


if __name__ == "__main__":
    main()
