"""Three hundred people use greet for a month; each device sends what it drew, with its noise.

A month passes in seconds: each device has a clock of its own. On the last day of a month every
device has drawn its day, so one use there is enough; it leaves on the next day.
"""

import calendar
import datetime
import random
import tempfile
from pathlib import Path

from greet import COLLECTOR
from rappor_client.kit.host import Host

USES = {"hello": 120, "hello --loud": 90, "bye": 60, "wave": 30}
"""What is used, by how many of them."""


def main() -> None:
    """Let each person agree, use one command, and send."""
    today = datetime.datetime.now(datetime.UTC)
    last = calendar.monthrange(today.year, today.month)[1]
    evening = today.replace(day=last, hour=20).timestamp()
    uses = random.sample(list(USES), 300, counts=list(USES.values()))
    n_sent = 0
    with tempfile.TemporaryDirectory() as home:
        for number, use in enumerate(uses):
            now = [evening]
            person = Host(
                "greet",
                registry=Path(__file__).with_name("metrics.toml"),
                collector=COLLECTOR,
                folder=Path(home, str(number)),
                clock=lambda now=now: now[0],
            )
            person.agree()
            with person.run(use):
                pass
            now[0] += 86400
            n_sent += person.send().sent
    print(f"{n_sent} reports of {len(uses)} devices")


if __name__ == "__main__":
    main()
