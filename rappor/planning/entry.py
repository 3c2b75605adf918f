"""Planned parameters as lines of a registry: a new entry, or changed lines of an existing entry.

A registry is a TOML file. The entry of a metric is the table [metrics.NAME]. A plan determines the
dimensions and the noise of an entry. Its other lines and comments belong to people and stay. TOML
libraries do not preserve comments, so this module replaces lines by regular expressions, and then
reads the changed text back to check that nothing else changed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from rappor.base.errors import FileError, MetricError
from rappor.planning.noise import format_forced_probabilities, format_probability
from rappor.protocol import loss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import LETTERS, Params
from rappor.protocol.parts import Part
from rappor.protocol.tuples import list_normalizers
from rappor.registry.budget import reserve
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

DESCRIPTION: Final = "say here, for the people concerned, what is collected"
"""Placeholder of the description in a new entry. The author of the entry replaces it."""

OWNER: Final = "you@example.org"
"""Placeholder of the owner in a new entry. The author of the entry replaces it."""

_PLANNED_KEYS: Final = ("profile", *LETTERS, "items", "keep")
"""Keys of an entry that a plan replaces. Encoding, categories and all other keys stay. A profile is
a name for the numbers, so it is replaced, too."""

_KEY: Final = re.compile(r"\s*['\"]?([\w-]+)['\"]?\s*=")
"""Matches a line that sets a key. Group 1 is the key."""

_TABLE: Final = re.compile(r"\s*\[")
"""Matches a line that begins a table."""


def format_header(name: str) -> str:
    """Return the first line of a metric's entry."""
    return f'[metrics."{name}"]' if "." in name else f"[metrics.{name}]"


def write_registry(metric: Metric) -> str:
    """Return the text of a registry with one metric.

    Reading the text returns exactly the same parameters.
    """
    name, epoch = metric.name, metric.epoch
    # Case: one report an epoch. The registry refuses such a metric for life.
    choices = ("quarter", "month", "year", *(() if metric.interval == "epoch" else ("life",)))
    epochs = ", ".join(f'"{choice}"' for choice in choices if choice != epoch)
    return "\n".join(
        [
            *_format_budget(metric),
            format_header(name),
            f"description = {json.dumps(metric.description, ensure_ascii=False)}",
            f"owner = {json.dumps(metric.owner, ensure_ascii=False)}",
            f"expires = {metric.expires.isoformat()}",
            f'epoch = "{epoch}"  # or {epochs}: a device reports one value in each',
            f'interval = "{metric.interval}"  # a device reports once in each',
            *format_params_lines(metric.params),
            *_format_parts(metric.parts),
            "",
        ]
    )


def _format_budget(metric: Metric) -> list[str]:
    """Return the lines of the budget that the metric needs by itself."""
    total = reserve(metric).total
    return ["[budget]", f"total = {total:g}  # nats in a calendar year, this metric alone", ""]


def _format_parts(parts: Sequence[Part]) -> list[str]:
    """Return the line with the parts of a string. Each device reports one part."""
    if not parts:
        return []
    entries = [
        f'{{name = "{part.name}"'
        + ("" if part.share is None else f", share = {part.share!r}")
        + "}"
        for part in parts
    ]
    return [f"parts = [{', '.join(entries)}]"]


def format_params_lines(params: Params) -> list[str]:
    """Return the lines of an entry that set its parameters.

    Reading the lines returns exactly the same parameters.
    """
    lines = [f'encoding = "{params.encoding}"']
    lines += _format_fields(params) if params.field_names else _format_values(params)
    return [*lines, *_format_numbers(params)]


def _format_values(params: Params) -> list[str]:
    """Return the lines of categories or edges, and of the normalizer."""
    key = get_encoding(params).categories_key
    lines = []
    if key == "edges":
        lines.append(f"edges = [{', '.join(params.categories)}]")
    elif key is not None:
        lines.append(f"{key} = {json.dumps(params.categories, ensure_ascii=False)}")
    if params.normalize != "none":
        lines.append(f'normalize = "{params.normalize}"')
    return lines


def _format_fields(params: Params) -> list[str]:
    """Return the lines of the fields of a tuple, and of their categories and normalizers."""
    names = params.field_names
    lines = [f"fields = {json.dumps(names)}"]
    if lists := params.field_categories:
        entries = (
            f"{name} = {json.dumps(categories, ensure_ascii=False)}"
            for name, categories in zip(names, lists, strict=True)
        )
        lines = [f"categories = {{{', '.join(entries)}}}"]
    if params.normalize != "none":
        normalizers = zip(names, list_normalizers(params.normalize, len(names)), strict=True)
        entries = (f'{name} = "{normalizer}"' for name, normalizer in normalizers)
        lines.append(f"normalize = {{{', '.join(entries)}}}")
    return lines


def _format_numbers(params: Params) -> list[str]:
    """Return the lines of dimensions and noise, with the losses as comments."""
    # Only strings have dimensions. The categories of other encodings determine k.
    is_hashed = get_encoding(params).is_hashed
    if params.response.is_exclusive:
        assert params.keep is not None
        letters = ("k", "m", "items") if is_hashed else ()
        return [
            *(f"{letter} = {getattr(params, letter)}" for letter in letters),
            f"keep = {format_probability(params.keep)}  # epsilon_1 {loss.epsilon_1(params):.4f}",
        ]
    letters = ("k", "h", "m") if is_hashed else ()
    f, g = format_forced_probabilities(params)
    return [
        *(f"{letter} = {getattr(params, letter)}" for letter in letters),
        f"f = {f}  # epsilon_inf {loss.epsilon_inf(params):.4f}",
        *([] if params.t_1 == params.t_0 else [f"g = {g}"]),
        f"p = {format_probability(params.p)}  # epsilon_1 {loss.epsilon_1(params):.4f}",
        f"q = {format_probability(params.q)}",
    ]


def replace_numbers(text: str, name: str, params: Params) -> str:
    """Return a registry text with other dimensions and noise for one metric.

    All other lines and comments stay as they are.

    Raises
    ------
    MetricError
        The registry lacks the metric, the numbers of its entry do not have a line each, or its
        budget is too small for the new loss.
    """
    old = Registry.loads(text).metric(name)
    changed = "\n".join(_replace_lines(text, name, params).lines)
    if _read_metric(changed, name) != dataclasses.replace(
        old, params=apply_numbers(old.params, params)
    ):
        # Case: the entry is an inline table, or a line sets several keys. The regular expressions
        # of lines then change another entry, or nothing.
        raise MetricError(f"metric {name}: its entry must be a table with a line for each number")
    return changed


def write_changed_entry(text: str, name: str, params: Params) -> str:
    """Return the text of a registry that contains only the changed entry of one metric.

    The entry has the same lines as after `replace_numbers`. If the lines cannot be replaced, the
    entry is written anew, without its comments. A new entry lacks candidates, segments and all
    other keys that a plan does not determine. A comment at its end reminds the author of them.
    """
    old = Registry.loads(text).metric(name)
    new = dataclasses.replace(old, params=apply_numbers(old.params, params))
    budget_lines = _format_budget(new)
    try:
        lines, first, last = _replace_lines(text, name, params)
    except MetricError:
        return _write_entry_anew(new)
    # Tables inside the entry, such as its segments, belong to the entry.
    while last < len(lines) and (
        not _TABLE.match(lines[last]) or _is_nested_table(lines[last], name)
    ):
        last += 1
    entry_text = "\n".join([*budget_lines, *lines[first:last]]).rstrip() + "\n"
    return entry_text if _read_metric(entry_text, name) == new else _write_entry_anew(new)


def _write_entry_anew(metric: Metric) -> str:
    """Return a registry with one metric, and a comment if it lacks keys of the old entry."""
    text = write_registry(metric)
    if _read_metric(text, metric.name) == metric:
        return text
    # Case: an inline table with a list of candidates. Without the comment, the author would replace
    # the entry by the text, and lose the list.
    return text + "# Keep the other keys of the old entry, such as candidates and min_reports.\n"


class _ChangedLines(NamedTuple):
    """Lines of a registry after the replacement.

    Attributes
    ----------
    lines : all lines.
    first : index of the header line of the changed entry.
    last : index of the line after the entry's last line.
    """

    lines: list[str]
    first: int
    last: int


def _replace_lines(text: str, name: str, params: Params) -> _ChangedLines:
    """Replace the lines of dimensions and noise of an entry."""
    lines = text.split("\n")
    first = _find_header(lines, name)
    last = next((i for i in range(first + 1, len(lines)) if _TABLE.match(lines[i])), len(lines))
    other_lines = [line for line in lines[first + 1 : last] if not _is_planned_line(line)]
    # The new lines come after the last line with text, before the blank lines that end the entry.
    end = max((i + 1 for i, line in enumerate(other_lines) if line.strip()), default=0)
    entry = [lines[first], *other_lines[:end], *_format_numbers(params), *other_lines[end:]]
    return _ChangedLines([*lines[:first], *entry, *lines[last:]], first, first + len(entry))


def apply_numbers(params: Params, planned: Params) -> Params:
    """Return parameters with the planned dimensions and noise, and all other fields unchanged."""
    # Parameters of one mechanism have values without an effect for the letters of the other one.
    numbers = {letter: getattr(planned, letter) for letter in (*LETTERS, "items", "keep")}
    return dataclasses.replace(params, **numbers, insecure=True)


def _read_metric(text: str, name: str) -> Metric | None:
    """Read a metric of a changed registry text; return None if the text is not TOML any more."""
    try:
        return Registry.loads(text)[name]
    except FileError:
        return None


def _find_header(lines: list[str], name: str) -> int:
    """Return the index of the entry's header line."""
    headers = [
        index
        for index, line in enumerate(lines)
        if re.match(_build_header_pattern(name) + r"\]", line)
    ]
    if len(headers) != 1:
        raise MetricError(f"metric {name}: the registry must have one line {format_header(name)}")
    return headers[0]


def _is_nested_table(line: str, name: str) -> bool:
    """Return whether a line is the header of a table inside the entry, such as its segments."""
    return re.match(_build_header_pattern(name) + r"\.", line) is not None


def _build_header_pattern(name: str) -> str:
    """Return a regular expression of the beginning of the entry's header, without the bracket.

    TOML allows quotation marks around the name, and spaces around the dots.
    """
    quoted = re.escape(name)
    return rf"\s*\[\s*metrics\s*\.\s*(?:{quoted}|\"{quoted}\"|'{quoted}')\s*"


def _is_planned_line(line: str) -> bool:
    """Return whether a line sets a key that a plan replaces."""
    key = _KEY.match(line)
    return key is not None and key[1] in _PLANNED_KEYS
