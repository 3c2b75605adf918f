"""Registry of the demo, and the values of its simulated devices in each week.

Four metrics show what the pages can show:

| metric        | encoding              | reports a day | what the dashboard shows               |
|---------------|-----------------------|--------------:|----------------------------------------|
| search_engine | bloom, list in a file |         1,000 | duckduckgo.com rises, google.com falls |
| editor        | bloom, with parts     |         2,000 | zed appears, which no list contains    |
| theme         | onehot, two segments  |     2 x 400   | phones turn dark, desktops do not      |
| plugins       | set, once a quarter   |           600 | ai-assistant rises                     |

Devices report `search_engine`, `editor` and `theme` once a week, so their reports of a day are a
seventh of their devices. A device reports `plugins` once a quarter, as a set of several items. The
share of a plugin is the share of the devices that have it, and the shares do not add to 100 %.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WEEKS: Final = 8
"""Largest number of whole weeks of simulated reports, and the default. The overview page shows at
most eight weeks. More weeks take longer to simulate."""

_REGISTRY: Final = """\
[program]
name = "Sketch"

[installations]
metric = "search_engine"

[budget]
total = 65             # nats that a device may lose in a calendar year. The metrics reserve 64:
                       # each of the four metrics costs 4 nats in each of the four quarters

[metrics.search_engine]
description = "Which search engine a typed query goes to"
owner = "search-team@example.org"
expires = 2099-12-31
encoding = "bloom"
k = 128                # the numbers of the profile "balanced", written out as an example. The
h = 1                  # last digits of p and q are rounded towards more noise. m is small, so
m = 32                 # that a thousand reports a day are enough reports for each cohort
f = 0.426739
g = 0.062659
p = 0.101442
q = 0.765705
normalize = "domain"
epoch = "quarter"
interval = "week"
candidates = "engines.txt"

[metrics.editor]
description = "Which editor people write code in"
owner = "tools-team@example.org"
expires = 2099-12-31
encoding = "bloom"
candidates = ["vscode", "vim", "intellij", "emacs"]
parts = [{name = "prefix:3", share = 0.3}, {name = "whole"}]  # for editors that nobody listed
profile = "balanced"
m = 16
epoch = "quarter"
interval = "week"

[metrics.theme]
description = "Light, dark, or as the system has it"
owner = "design-team@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = ["light", "dark", "system"]
profile = "balanced"
epoch = "quarter"
interval = "week"
segments = {platform = ["desktop", "phone"]}

[metrics.plugins]
description = "Which plugins are installed"
owner = "plugin-team@example.org"
expires = 2099-12-31
encoding = "set"       # a device has several plugins. It reports one of 464 buckets, from the
                       # hash of one plugin or at random
items = 8
candidates = ["git", "spell-check", "python", "markdown", "vim-mode", "ai-assistant", "docker"]
profile = "once"
m = 32
epoch = "quarter"
interval = "epoch"     # one report of a device in a quarter, on a random day
"""

# Two cases that the pages show: the file of candidates contains strings that no device reports,
# such as mojeek.com, and lacks a string that some devices report, somewhere.example.
_ENGINES: Final = """\
google.com bing.com duckduckgo.com ecosia.org yahoo.com qwant.com startpage.com brave.com \
yandex.com baidu.com naver.com ask.com mojeek.com swisscows.com kagi.com"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Simulated devices of one kind, which report the same metric.

    Attributes
    ----------
    metric : name of the metric
    reports : number of reports on each day
    weights : weight of each value in the first week. The share of a value is its weight divided by
        the sum of all weights. For sets: the probability of each item that a device has it, in per
        cent
    steps : change of a weight from one week to the next, in the unit of the weights. A value that
        is not in `steps` keeps its weight
    segment : segment of the devices such as "platform=phone", or an empty text
    has_sets : whether a value is a set of independent items
    """

    metric: str
    reports: int
    weights: Mapping[str, float]
    steps: Mapping[str, float] = field(default_factory=dict)
    segment: str = ""
    has_sets: bool = False

    def format_population(self, week: int) -> str:
        """Return the values and weights of a week (from 0) as CSV for `rappor simulate`."""
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(["value", "weight"])
        weights = {
            value: first_weight + week * self.steps.get(value, 0.0)
            for value, first_weight in self.weights.items()
        }
        for value, weight in (_weigh_sets(weights) if self.has_sets else weights).items():
            # A falling weight may become negative, which `rappor simulate` refuses.
            if weight > 0:
                table.writerow([value, f"{weight:g}"])
        return text.getvalue()


def _weigh_sets(percentages: Mapping[str, float]) -> dict[str, float]:
    """Return the probability of each set, for devices that have each item independently.

    Parameters
    ----------
    percentages : the probability that a device has each item, in per cent.

    Returns
    -------
    The probabilities by set. A set is the text of its items, separated by tabs, as `rappor
    simulate` reads it. n items have 2^n sets. The probability of a set is the product of the
    probabilities of its items and of the complements (1 - probability) of all other items.
    """
    # One tuple for each set, with a boolean for each item: whether the set contains it.
    selections = itertools.product((True, False), repeat=len(percentages))
    return {
        "\t".join(itertools.compress(percentages, selection)): math.prod(
            percentage / 100 if is_in_set else 1 - percentage / 100
            for percentage, is_in_set in zip(percentages.values(), selection, strict=True)
        )
        for selection in selections
    }


STREAMS: Final = (
    Stream(
        metric="search_engine",
        reports=1000,
        weights={
            "google.com": 62, "bing.com": 12, "duckduckgo.com": 6, "ecosia.org": 5,
            "yahoo.com": 4, "qwant.com": 3, "startpage.com": 2, "somewhere.example": 6,
        },
        steps={"google.com": -1.2, "duckduckgo.com": 1.4},
    ),
    Stream(
        metric="editor",
        reports=2000,
        weights={
            "vscode": 48, "vim": 14, "intellij": 12, "emacs": 6, "sublime": 7, "helix": 6,
            "nano": 5, "zed": 2,
        },
        steps={"vscode": -1.6, "zed": 1.8},
    ),
    Stream(
        metric="theme",
        reports=400,
        weights={"light": 40, "dark": 35, "system": 25},
        segment="platform=desktop",
    ),
    Stream(
        metric="theme",
        reports=400,
        weights={"light": 30, "dark": 38, "system": 32},
        steps={"light": -1.5, "dark": 1.5},
        segment="platform=phone",
    ),
    Stream(
        metric="plugins",
        reports=600,
        weights={
            "git": 82, "spell-check": 61, "python": 45, "markdown": 38, "vim-mode": 14,
            "ai-assistant": 12,
        },
        steps={"ai-assistant": 5},
        has_sets=True,
    ),
)  # fmt: skip


def write_registry(folder: Path) -> Path:
    """Write the registry and its file of candidates; return the path of the registry."""
    lines = "".join(f"{word}\n" for word in _ENGINES.split())
    (folder / "engines.txt").write_text(lines, "utf-8")
    path = folder / "metrics.toml"
    path.write_text(_REGISTRY, "utf-8")
    return path


def write_populations(folder: Path, weeks: int) -> Iterator[tuple[int, Stream, Path]]:
    """Write the population of each stream in each of some weeks; yield week, stream and path."""
    for number, stream in enumerate(STREAMS):
        for week in range(weeks):
            path = folder / f"population-{number}-{week}.csv"
            path.write_text(stream.format_population(week), "utf-8")
            yield week, stream, path
