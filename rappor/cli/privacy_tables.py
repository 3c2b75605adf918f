"""What `rappor privacy` prints for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from rappor.cli.console import output
from rappor.privacy.notice import at_most
from rappor.protocol.loss import belief_bound

_SUSPICION = 0.5


def print_facts(facts: dict[str, Any]) -> None:
    """Print one section after the other."""
    console = output()
    shape = ", ".join(f"{key} = {facts[key]:.6g}" for key in ("k", "h", "m", "f", "p", "q"))
    console.print(f"{facts['encoding']}, {shape}")
    console.print(
        f"effective p* = {facts['p_star']:.6f}, q* = {facts['q_star']:.6f}; "
        f"fingerprint {facts['fingerprint']}"
    )
    _section(console, "What reports of one value can make of a belief", _beliefs(facts))
    if facts["promise"]:
        _section(console, "Which promise", facts["promise"])
    if facts["changes"]:
        _section(console, "How visible it is that the value changed, half way", _changes(facts))
        _print(
            console,
            "An account shows the sum of both values' losses. But a new permanent response follows "
            "the change, in all bits: the worst reports tell it by so many nats, those of a device "
            "whose value changed by the mean. Epochs hide it.",
        )
    _section(console, _batch(facts["shuffled"]), _shuffled(facts["shuffled"]))
    _section(console, "What links reports of one device", "\n".join(_links(facts)))
    if "account" in facts:
        _section(console, _person(facts["account"]), _account(facts["account"]))
    if "changed" in facts:
        _section(console, "If the parameters change", "\n".join(_changed(facts["changed"])))


def _section(console: Console, title: str, body: Table | str) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    _print(console, body)


def _print(console: Console, body: Table | str) -> None:
    console.print(Padding(body, (0, 0, 0, 2), expand=False))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="none")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    return table


def _beliefs(facts: dict[str, Any]) -> Table:
    priors = list(dict.fromkeys(row["prior"] for row in facts["beliefs"]))
    table = _table("reports", "loss, nats", *(f"from {prior:.0%}" for prior in priors))
    for n in dict.fromkeys(row["reports"] for row in facts["beliefs"]):
        rows = [row for row in facts["beliefs"] if row["reports"] == n]
        cells = (f"{_at_least(row['low'])} .. {at_most(row['high'])}" for row in rows)
        table.add_row("for ever" if n is None else str(n), _nats(rows[0]["epsilon"]), *cells)
    return table


def _at_least(belief: float) -> str:
    """Write a belief in per cent, rounded down: what is promised must hold."""
    return f"{math.floor(1000 * belief) / 10:g}"


def _nats(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"


def _changes(facts: dict[str, Any]) -> Table:
    table = _table("reports", "sum of losses, nats", "worst, nats", "mean, nats")
    for row in facts["changes"]:
        table.add_row(str(row["reports"]), *(_nats(row[key]) for key in ("sum", "worst", "mean")))
    return table


def _batch(shuffled: dict[str, Any]) -> str:
    kind = "the smallest cohort has" if shuffled["actual"] else "no cohort is likely below"
    return (
        f"In a shuffled batch of {shuffled['devices']:,} devices ({kind} "
        f"{shuffled['smallest_cohort']:,}), but for a chance of {shuffled['delta']:g}"
    )


def _shuffled(shuffled: dict[str, Any]) -> Table | str:
    if not shuffled["rows"]:
        return "Some cohort may be empty but for one device: shuffling promises nothing."
    table = _table("reports", "alone, nats", "bound of 2021", "bound of 2023", "holds, nats")
    for row in shuffled["rows"]:
        bounds = (
            _nats(row[f"bound_{year}"])
            if row[f"bound_{year}"] is not None
            else _condition(row[f"most_{year}"])
            for year in (2021, 2023)
        )
        table.add_row(str(row["reports"]), _nats(row["local"]), *bounds, _nats(row["epsilon"]))
    return table


def _condition(most: float) -> str:
    return f"up to {most:.2f} alone" if most > 0 else "too few reports"


def _links(facts: dict[str, Any]) -> Iterator[str]:
    linking = facts["linking"]
    bits = linking["cohort_bits"]
    yield f"Its cohort, the same in all reports and epochs, tells {bits:.3g} bits."
    if facts["f"] == 0:
        yield "No permanent noise: reports of one value have the value itself in common."
    else:
        scores = ", ".join(f"{z:.2f} with {n} in each" for n, z in linking["score"].items())
        yield (
            "Two sets of reports of one value agree more than those of two devices, in standard "
            f"deviations: {scores}."
        )
    needed = linking["reports_to_recover"]
    if needed is None:
        yield "No 10,000 reports of a value show its whole permanent response."
    else:
        shown = "its whole permanent response" if facts["f"] else "all of its bits"
        yield f"{needed:,} reports of a value show {shown} (99 %)."
    yield "Other metrics have other cohorts and permanent responses: only an upload links them."


def _person(person: dict[str, Any]) -> str:
    values = "1 value (epoch)" if person["values"] == 1 else f"{person['values']} values (epochs)"
    return f"One person: {values} of each metric, {person['reports']} reports of each"


def _account(person: dict[str, Any]) -> Table:
    now = f"after {person['reports']} reports, nats"
    table = _table("metric", "promise", now, "for ever, nats", "50 % becomes at most")
    for row in person["metrics"]:
        kind = f"by {row['epoch']}" if row["epoch"] else "for life"
        table.add_row(row["metric"], kind, *_losses(row["epsilon"], row["ever"]))
    table.add_row("all", "", *_losses(person["epsilon"], person["ever"]))
    group = f"all, {person['group']} people as one"
    table.add_row(group, "", *_losses(person["group_epsilon"], person["group_ever"]))
    return table


def _losses(now: float, ever: float) -> tuple[str, str, str]:
    return _nats(now), _nats(ever), at_most(belief_bound(now, _SUSPICION)[1])


def _changed(change: dict[str, Any]) -> Iterator[str]:
    old, new = change["epoch"]
    n = change["reports"]
    if change["same"]:
        start = "Nothing changes: the parameters and the epochs are the same."
    elif old or new:
        start = f"It takes effect with the next {old or new}; each epoch's loss adds as before."
    elif change["kept"]:
        start = "Only p and q change: devices keep their permanent responses."
    else:
        start = "Devices draw new permanent responses, and the losses add."
    yield start
    yield (
        f"{n} reports of a value before and {n} after lose {_nats(change['epsilon'])} nats, any "
        f"number {_nats(change['epsilon_inf'])}."
    )
    if not change["decode_together"]:
        yield "Counts before and after answer different questions and are decoded apart."
        return
    error = change["std_error"]
    yield (
        "Give the counts before and after to one decode: they are rows of one regression. Standard "
        f"error of a rare string's share from {change['devices']:,} reports each: before "
        f"{error['before']:.4%}, after {error['after']:.4%}, together {error['together']:.4%}."
    )
    if change["kept"]:
        yield (
            f"If the same devices report in both it is {error['same_devices']:.4%}: the permanent "
            "response that they keep is the same noise twice, which the decoder cannot know."
        )
