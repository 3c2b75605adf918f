"""The file that stores a person's consent: one line in the folder of the program.

    yes DAY METRICS...     the person agreed on DAY to these metrics
    no DAY                 the person refused on DAY
    asked DAY [DAY]        the question was shown on these days, and the person did not respond

DAY is a number of days since 1970. Transitions:

    no file  --question shown-->  asked DAY  --response-->  yes or no, for good
                                  asked DAY  --no response, 7 days or more later-->  asked DAY DAY
    any line --`telemetry on` or `telemetry off`-->  yes or no

The question is therefore shown twice at most. A line that cannot be read counts as "lost": it is no
consent, and the question is not shown again, because the person may have refused.

A start of the program reads this file, so the module imports little.
"""

from __future__ import annotations

import _thread  # `threading` would delay every start of the program
import contextlib
import itertools
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

FILE_NAME: Final = "answer"
"""Name of the file. The name is documented for users, and must not change."""
ALL_METRICS: Final = "*"
"""Stands for every metric if the operator of a server has agreed for the server."""
_REPEAT_DAYS: Final = 7
"""Smallest number of days between the two times that the question is shown. Fewer days annoy."""
_DAY_DIGITS: Final = 6
"""Largest number of digits of a day. Day 999999 is in the year 4707."""
_WORDS: Final = ("yes", "no", "asked")
"""First words of a line that can be read."""

_numbers: Final = itertools.count()
"""Numbers of the writes of this process, in the order of the person's responses."""
_newest: Final[dict[str, int]] = {}
"""Largest number that was written, by folder."""
_locks: Final[dict[int, _thread.LockType]] = {}
"""Lock of the writes, by process id."""


class Consent(NamedTuple):
    """Consent of a person.

    Attributes
    ----------
    word
        "yes", "no", "asked", "lost" for a file that cannot be read, "" without a file.
    days
        Day of the response, or of each time that the question was shown, in days since 1970.
    metrics
        Metrics to which the person has agreed.
    """

    word: str = ""
    days: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()

    def refused_metrics(self, metrics: Iterable[str]) -> set[str]:
        """Return the metrics of a registry to which the person has not agreed.

        A later version of a program may have metrics that its users have never seen.
        """
        return set() if ALL_METRICS in self.metrics else set(metrics) - set(self.metrics)

    def may_ask(self, today: int) -> bool:
        """Return whether the question may be shown: once, and once more without a response."""
        is_repeat = self.word == "asked" and len(self.days) == 1
        return not self.word or (is_repeat and today >= self.days[0] + _REPEAT_DAYS)


def read_consent(folder: str) -> Consent:
    """Read the consent in a folder; the word is "lost" for a file that cannot be read."""
    try:
        with open(os.path.join(folder, FILE_NAME), encoding="ascii") as file:
            word, *days_and_metrics = file.read().split()
    except FileNotFoundError:
        return Consent()
    except (OSError, ValueError):
        return Consent("lost")
    numbers = [text for text in days_and_metrics if text.isdigit()]
    metrics = tuple(text for text in days_and_metrics if not text.isdigit())
    # A damaged file may contain a number that no calendar has, and `telemetry status` prints the
    # day. The length is checked first, because `int` refuses a text of more than 4,300 digits.
    is_readable = word in _WORDS and numbers and all(len(text) <= _DAY_DIGITS for text in numbers)
    return Consent(word, tuple(map(int, numbers)), metrics) if is_readable else Consent("lost")


def write_consent(folder: str, consent: Consent) -> None:
    """Write the consent, whole or not at all; OSError if the disk fails or hangs.

    After a disk has hung, the newest consent of the process is in the file.
    """
    from rappor_client.kit.limited_writes import write_within_limit

    number = next(_numbers)
    write_within_limit(lambda: _replace_in_turn(folder, consent, number))


def _replace_in_turn(folder: str, consent: Consent, number: int) -> None:
    """Replace the file, unless a write with a larger number has replaced it.

    Bad case: a yes and then a no waited for a disk that hung. The disk answered, the yes was
    written last, and the person had refused.
    """
    # The child of a fork needs a lock of its own: a thread of its parent may hold this one.
    with _locks.setdefault(os.getpid(), _thread.allocate_lock()):
        if number > _newest.get(folder, -1):
            _replace_file(folder, consent)
            _newest[folder] = number


def _replace_file(folder: str, consent: Consent) -> None:
    """Replace the file with the consent, in one step."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, FILE_NAME)
    # A rename is atomic. A program that is killed during the write leaves the old consent.
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w", encoding="ascii") as file:
            file.write(" ".join([consent.word, *map(str, consent.days), *consent.metrics]) + "\n")
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def is_owned_by_user(folder: str) -> bool:
    """Return whether the user owns the folder, or the nearest existing folder above it.

    With sudo, a program runs as root in the home of a user. A file that root writes there could
    not be changed by the user afterwards.
    """
    path = os.path.abspath(folder)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return not hasattr(os, "geteuid") or os.stat(path).st_uid == os.geteuid()
