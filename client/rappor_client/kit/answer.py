"""A person's answer to the one question: a line in the program's folder.

`yes DAY METRICS...`, `no DAY`, or `asked DAY [DAY]` where the question was put and not answered. A
line that cannot be read is no consent, and nobody is asked again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

NAME: Final = "answer"
EVERY: Final = "*"
"""Stands for every metric, where the operator of a server has agreed to them in advance."""
_WEEK: Final = 7
_WORDS: Final = ("yes", "no", "asked")


class Answer(NamedTuple):
    """What a person said: `days` since 1970 of each time, `metrics` that they agreed to."""

    word: str = ""
    days: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()

    def refused(self, metrics: Iterable[str]) -> set[str]:
        """Return those of the metrics that the person has not agreed to."""
        return set() if EVERY in self.metrics else set(metrics) - set(self.metrics)

    def may_be_asked(self, today: int) -> bool:
        """Return whether the question may be put: once, and once more if it was not answered."""
        again = self.word == "asked" and len(self.days) == 1 and today >= self.days[0] + _WEEK
        return not self.word or again


def read(folder: str) -> Answer:
    """Return the answer that a folder holds; the word "lost" for one that cannot be read."""
    try:
        with open(os.path.join(folder, NAME), encoding="ascii") as file:
            word, *rest = file.read().split()
    except FileNotFoundError:
        return Answer()
    except (OSError, ValueError):
        return Answer("lost")
    days = tuple(int(each) for each in rest if each.isdigit())
    metrics = tuple(each for each in rest if not each.isdigit())
    return Answer(word, days, metrics) if word in _WORDS and days else Answer("lost")


def write(folder: str, answer: Answer) -> None:
    """Keep an answer; OSError if the disk does not take it."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, NAME)
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w", encoding="ascii") as file:
            file.write(" ".join([answer.word, *map(str, answer.days), *answer.metrics]) + "\n")
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def is_own(folder: str) -> bool:
    """Return whether the folder, or the nearest one above it that exists, is the user's own."""
    place = os.path.abspath(folder)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return not hasattr(os, "geteuid") or os.stat(place).st_uid == os.geteuid()
