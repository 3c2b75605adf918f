"""Planned parameters as lines of a registry: a new entry, or an entry that is there."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from rappor.base.errors import FileError, MetricError
from rappor.planning.noise import shortest, shortest_forced
from rappor.protocol import loss
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import LETTERS, Params
from rappor.protocol.parts import Part
from rappor.registry.budget import reserve
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

DESCRIPTION: Final = "say here, for the people concerned, what is collected"
OWNER: Final = "you@example.org"

_KEYS: Final = ("profile", *LETTERS)
"""The keys of an entry that a plan decides; encoding, categories and all else stay."""

_KEY: Final = re.compile(r"\s*['\"]?([\w-]+)['\"]?\s*=")
_TABLE: Final = re.compile(r"\s*\[")


def header(name: str) -> str:
    """Write the first line of a metric's entry."""
    return f'[metrics."{name}"]' if "." in name else f"[metrics.{name}]"


def write_registry(metric: Metric) -> str:
    """Write a registry of one metric; its parameters read back to the last bit."""
    name, epoch = metric.name, metric.epoch
    epochs = ", ".join(f'"{other}"' for other in ("quarter", "month", "year") if other != epoch)
    return "\n".join(
        [
            *_budget_lines(metric),
            header(name),
            f"description = {json.dumps(metric.description, ensure_ascii=False)}",
            f"owner = {json.dumps(metric.owner, ensure_ascii=False)}",
            f"expires = {metric.expires.isoformat()}",
            f'epoch = "{epoch}"  # or {epochs}: devices answer for one value in each',
            f'interval = "{metric.interval}"  # a device reports once in each',
            *params_lines(metric.params),
            *_parts_lines(metric.parts),
            "",
        ]
    )


def _budget_lines(metric: Metric) -> list[str]:
    """Write the budget that a metric needs alone."""
    total = reserve(metric).total
    return ["[budget]", f"total = {total:g}  # nats in a calendar year, this metric alone", ""]


def _parts_lines(parts: Sequence[Part]) -> list[str]:
    """Write the line that says which part of a string each device answers for."""
    if not parts:
        return []
    entries = [
        f'{{name = "{part.name}"'
        + ("" if part.share is None else f", share = {part.share!r}")
        + "}"
        for part in parts
    ]
    return [f"parts = [{', '.join(entries)}]"]


def params_lines(params: Params) -> list[str]:
    """Write the lines of an entry that say its parameters, which read back to the last bit."""
    key = encoding_of(params).categories_key
    lines = [f'encoding = "{params.encoding}"']
    if key == "edges":
        lines.append(f"edges = [{', '.join(params.categories)}]")
    elif key is not None:
        lines.append(f"{key} = {json.dumps(params.categories, ensure_ascii=False)}")
    if params.normalize != "none":
        lines.append(f'normalize = "{params.normalize}"')
    return [*lines, *_numbers(params)]


def _numbers(params: Params) -> list[str]:
    """Write the lines of dimensions and noise."""
    letters = "khm" if encoding_of(params).hashed else ""
    f, g = shortest_forced(params)
    return [
        *(f"{letter} = {getattr(params, letter)}" for letter in letters),
        f"f = {f}  # epsilon_inf {loss.epsilon_inf(params):.4f}",
        *([] if params.t_1 == params.t_0 else [f"g = {g}"]),
        f"p = {shortest(params.p)}  # epsilon_1 {loss.epsilon_1(params):.4f}",
        f"q = {shortest(params.q)}",
    ]


def replace_numbers(text: str, name: str, params: Params) -> str:
    """Return a registry in which a metric has other dimensions and noise; all else stays as it is.

    Raises MetricError if the registry has no such metric, the numbers of its entry are not a line
    each, or its budget cannot pay the new loss.
    """
    old = Registry.loads(text).metric(name)
    changed = "\n".join(_replaced(text, name, params).lines)
    if _read(changed, name) != dataclasses.replace(old, params=with_numbers(old.params, params)):
        raise MetricError(f"metric {name}: its entry must be a table with a line for each number")
    return changed


def replaced_entry(text: str, name: str, params: Params) -> str:
    """Return a registry of one metric of another registry, as `replace_numbers` would write it.

    Where that one's lines cannot be changed, the entry is written anew.
    """
    old = Registry.loads(text).metric(name)
    new = dataclasses.replace(old, params=with_numbers(old.params, params))
    head = _budget_lines(new)
    try:
        lines, first, last = _replaced(text, name, params)
    except MetricError:
        return write_registry(new)
    while last < len(lines) and (not _TABLE.match(lines[last]) or _is_below(lines[last], name)):
        last += 1
    shown = "\n".join([*head, *lines[first:last]]).rstrip() + "\n"
    return shown if _read(shown, name) == new else write_registry(new)


class _Replaced(NamedTuple):
    """Lines of a registry, and where the table of the changed entry begins and ends."""

    lines: list[str]
    first: int
    last: int


def _replaced(text: str, name: str, params: Params) -> _Replaced:
    """Replace the numbers of an entry."""
    lines = text.split("\n")
    first = _first_line(lines, name)
    last = next((i for i in range(first + 1, len(lines)) if _TABLE.match(lines[i])), len(lines))
    kept = [line for line in lines[first + 1 : last] if not _is_replaced(line)]
    end = max((i + 1 for i, line in enumerate(kept) if line.strip()), default=0)
    entry = [lines[first], *kept[:end], *_numbers(params), *kept[end:]]
    return _Replaced([*lines[:first], *entry, *lines[last:]], first, first + len(entry))


def with_numbers(params: Params, planned: Params) -> Params:
    """Return parameters with the planned dimensions and noise."""
    numbers = {letter: getattr(planned, letter) for letter in LETTERS}
    return dataclasses.replace(params, **numbers, insecure=True)


def _read(text: str, name: str) -> Metric | None:
    """Read a metric of a registry whose lines were changed; None where that is no TOML any more."""
    try:
        return Registry.loads(text)[name]
    except FileError:
        return None


def _first_line(lines: list[str], name: str) -> int:
    """Return the line of the entry's header."""
    found = [i for i, line in enumerate(lines) if re.match(_table_of(name) + r"\]", line)]
    if len(found) != 1:
        raise MetricError(f"metric {name}: the registry must have one line {header(name)}")
    return found[0]


def _is_below(line: str, name: str) -> bool:
    """Return whether a line is the header of a table inside the entry, as of its segments."""
    return re.match(_table_of(name) + r"\.", line) is not None


def _table_of(name: str) -> str:
    """Return a pattern of the beginning of the entry's header."""
    quoted = re.escape(name)
    return rf"\s*\[\s*metrics\s*\.\s*(?:{quoted}|\"{quoted}\"|'{quoted}')\s*"


def _is_replaced(line: str) -> bool:
    key = _KEY.match(line)
    return key is not None and key[1] in _KEYS
