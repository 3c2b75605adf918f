"""`rappor demo --other`: what can be known of `other` in a chart of editors, and from how many."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.table import Table

from rappor.cli.console import Slow, section, show, table
from rappor.cli.other_table import share_cells
from rappor.ground.display import Displayed
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.reporting.numbers import percent, short_percent

if TYPE_CHECKING:
    from rappor.discovery.discoveries import NamedOther, Share, TextInOther

SIZES: Final = (9_000, 90_000, 900_000)
"""The published chart's week, and ten and a hundred times as many devices."""

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_LONGEST: Final = 6
_KEPT: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherOfSize:
    """What is found in `other` by a number of devices: without a list, and by a list of guesses."""

    devices: int
    named: NamedOther
    listed: tuple[TextInOther, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherDemo(Displayed):
    """The chart of editors at several sizes.

    `truth` is each common text's share of `other`, `rare` are the others that devices hold.
    """

    _drawn_as: ClassVar[str] = "other_demo"

    sizes: tuple[OtherOfSize, ...]
    truth: Mapping[str, float]
    rare: frozenset[str]
    other: float
    params: Params
    profile: str
    n_guesses: int

    def panels(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the title and the dots of each size's panel: what is found, and the truth."""
        for each in self.sizes:
            found = {text.string: text.of_other for text in each.named.strings}
            kind = (
                "found without a list, adjusted "
                f"{short_percent(each.named.categories.detection.confidence)} interval"
            )
            rows = []
            for name in dict.fromkeys([*self.truth, *found]):
                share = found.get(name)
                if share is not None and math.isfinite(share.low):
                    ends = {"low": max(share.low, 0.0), "high": share.high}
                    rows.append({"text": name, "what": kind, "share": share.proportion} | ends)
                if name in self.truth:
                    truth = {"what": "truth", "share": self.truth[name], "low": None, "high": None}
                    rows.append({"text": name} | truth)
            yield f"{each.devices:,} devices", rows

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `rappor demo --other --json` prints."""
        return {
            "truth": {"other": self.other, "of_other": dict(self.truth)},
            "sizes": [
                {
                    "devices": each.devices,
                    "without_a_list": each.named.to_dict(),
                    "by_a_list": [text.to_dict() for text in each.listed],
                }
                for each in self.sizes
            ],
            "epsilon_1": 2 * epsilon_1(self.params),
            "epsilon_inf": 2 * epsilon_inf(self.params),
        }


def play(profile: str, seed: int | None, slow: Slow, sizes: tuple[int, ...] = SIZES) -> OtherDemo:
    """Let as many devices as each size says report what they hold, and look what is found."""
    from rappor.simulation.editors import COMMON, GUESSES, NAMED, editors

    named = tuple(NAMED)
    strings = Params.profile(profile)  # one noise for both metrics: that of strings
    categories = dataclasses.replace(
        strings, encoding="onehot", k=len(named), m=1, categories=named
    )
    population = editors()
    shares = dict(zip(population.values, population.weights.tolist(), strict=True))
    other = 1 - sum(shares[name] for name in named)
    return OtherDemo(
        sizes=tuple(
            _at(size, categories, None if seed is None else seed + number, slow)
            for number, size in enumerate(sizes)
        ),
        truth={name: shares[name] / other for name in COMMON},
        rare=frozenset(population.values) - {*NAMED, *COMMON},
        other=other,
        params=categories,
        profile=profile,
        n_guesses=len(GUESSES),
    )


def _at(devices: int, categories: Params, seed: int | None, slow: Slow) -> OtherOfSize:
    from rappor.decoding.decoder import decode
    from rappor.discovery.other import name_other, shares_of_other
    from rappor.registry.other import DEFAULT_PARTS, with_other
    from rappor.simulation.editors import GUESSES, editors
    from rappor.simulation.other import simulate_other

    drawn = simulate_other(
        editors(), with_other(categories), DEFAULT_PARTS, n_reports=devices, seed=seed
    )
    named = name_other(drawn, _LETTERS, longest=_LONGEST, keep=_KEPT, progress=slow)
    listed = decode(drawn[-1], GUESSES)
    return OtherOfSize(
        devices=devices, named=named, listed=shares_of_other(named.categories, listed)
    )


def print_demo(demo: OtherDemo) -> None:
    """Print what was found at each size beside the truth."""
    show(
        f'A chart of editors: {percent(demo.other)} of the devices are in "other". Its size and '
        "that of VS Code are those of Go's telemetry in a week; all else is invented. Each device "
        f"sends two noisy reports (profile {demo.profile}): its category, and the first characters "
        "of its text, or all of it; a device with a category sends an empty text."
    )
    for each in demo.sizes:
        last = each.named.categories.row(len(each.named.categories) - 1)
        section(
            f"{each.devices:,} devices: other is {percent(last['proportion'])} "
            f"({percent(last['ci_low'])} to {percent(last['ci_high'])})",
            _rows(each, demo),
            _remark(each, demo),
        )
    one, every = 2 * epsilon_1(demo.params), 2 * epsilon_inf(demo.params)
    show(
        f"\nBoth reports of a value: epsilon_1 = {one:.2f}; any number of them: epsilon_inf = "
        f"{every:.2f}, in nats."
    )


def _rows(each: OtherOfSize, demo: OtherDemo) -> Table:
    confidence = short_percent(each.named.categories.detection.confidence)
    interval = f"{confidence} interval"
    shown = table("text", "truth", "no list", interval, f"{demo.n_guesses} guesses", interval)
    blind = {text.string: text.of_other for text in each.named.strings}
    listed = {text.string: text.of_other for text in each.listed}
    for name in dict.fromkeys([*demo.truth, *blind, *listed]):
        shown.add_row(name, _truth(name, demo), *_cells(blind.get(name)), *_cells(listed.get(name)))
    return shown


def _cells(share: Share | None) -> tuple[str, ...]:
    return ("-", "") if share is None else tuple(share_cells(share))


def _truth(name: str, demo: OtherDemo) -> str:
    if name in demo.truth:
        return percent(demo.truth[name])
    return percent(_of_each_rare(demo)) if name in demo.rare else "nobody"


def _remark(each: OtherOfSize, demo: OtherDemo) -> str:
    found = {text.string for text in each.named.strings}
    missed = [name for name in demo.truth if name not in found]
    rare = len(demo.rare - found)
    what = f"{', '.join(missed)}, and " if missed else ""
    return (
        f"Not found without a list: {what}{rare} rare ones, of which each is "
        f"{percent(_of_each_rare(demo))} of other."
    )


def _of_each_rare(demo: OtherDemo) -> float:
    return (1 - sum(demo.truth.values())) / len(demo.rare)
