"""Reads a registry's TOML: the budget, and one table for each metric, checked key by key.

`registry/README.md` explains every key.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from rappor.base.errors import FileError, MetricError, ParamsError
from rappor.base.ranges import format_value
from rappor.protocol.encodings import Encoding, encoding_named
from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.params import LETTERS, NOISE, Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension

_Entry = Mapping[str, Any]

_INTEGER_BITS: Final = 63
"""What TOML 1.0 asks of readers, beside the sign; Python reads longer integers."""

_REQUIRED: Final = ("description", "owner", "expires", "encoding", "epoch")
_OPTIONAL: Final = (
    "interval",
    "sampling_rate",
    "candidates",
    "min_reports",
    "min_cohort",
    "complete",
    "durable",
)
KEYS: Final = (
    *_REQUIRED,
    *LETTERS,
    "profile",
    "categories",
    "edges",
    "normalize",
    "insecure",
    "parts",
    "segments",
    *_OPTIONAL,
)


_ADVICE: Final = {
    "epoch": (
        '; add a line epoch = "quarter" (or "year", "month") so that devices answer for one value '
        'in each, or epoch = "life" if one permanent response is meant to last'
    )
}
"""What to write, for keys that older registries do not have."""

_REPLACEMENTS: Final = {
    "other": (
        'list the common values as candidates of encoding = "bloom", whose results end with the '
        "share of all others; parts find values that nobody listed"
    ),
    "keep_reports": "a collector stores sums only, and `rappor-server export` writes them",
    "patterns": (
        "a device reports one value in each epoch; for a value that changes, choose a shorter "
        'epoch, such as epoch = "month"'
    ),
}
"""The replacement of each key that a registry must not have any more."""


def read_entries(document: _Entry, path: str) -> Iterator[dict[str, Any]]:
    """Yield the fields of each Metric that a document declares; `path` is for messages."""
    for key in document:
        check_known(key, ("budget", "metrics"), "key", place=f"{path}: ")
    tables = document.get("metrics")
    if not isinstance(tables, dict) or not tables:
        raise MetricError(f"{path}: metrics must be at least one table [metrics.NAME]")
    for name, entry in tables.items():
        try:
            yield _read_entry(name, entry)
        except ParamsError as error:
            raise MetricError(f"metric {format_value(name)}: {error}") from None


def read_budget(document: _Entry, path: str) -> float | None:
    """Return the total of the budget, None where no budget is written."""
    if (budget := document.get("budget")) is None:
        return None
    if not isinstance(budget, dict) or list(budget) != ["total"]:
        raise MetricError(f"{path}: budget must be a table with the one key total")
    total = budget["total"]
    if not isinstance(total, int | float) or isinstance(total, bool) or not total > 0:
        raise MetricError(
            f"{path}: total must be a number above 0, in nats, got {format_value(total)}"
        )
    if isinstance(total, int) and total.bit_length() > _INTEGER_BITS:
        raise MetricError(f"{path}: total must be below 2^{_INTEGER_BITS} nats if it is an integer")
    return float(total)


def check_known(name: str, known: Collection[str], what: str, *, place: str = "") -> None:
    """Raise MetricError, with the names that come close, unless the name is a known one.

    `what` is the noun for such a name; the message begins with `place`.
    """
    if name not in known:
        import difflib  # noqa: PLC0415 - for mistakes only

        close = " or ".join(map(repr, difflib.get_close_matches(name, known)))
        hint = f"did you mean {close}?" if close else f"expected one of {', '.join(known)}"
        raise MetricError(f"{place}unknown {what} {format_value(name)}; {hint}")


def metric_error(name: str, key: str, constraint: str, got: object) -> MetricError:
    """Return the error that says what is wrong with one key of one metric."""
    value = "nothing" if got is None else format_value(got)
    return MetricError(f"metric {format_value(name)}: {key} must be {constraint}, got {value}")


def read_toml(text: str, path: str) -> dict[str, Any]:
    """Return a document; FileError, with the line, for what is not TOML."""
    import tomllib  # noqa: PLC0415 - not before a registry is opened

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at ")
    except (RecursionError, ValueError):  # ValueError: a number of more digits than Python reads
        raise FileError(path, "it must be TOML of reasonable depth and numbers") from None
    found = re.match(r"line (\d+)", place)
    line = int(found[1]) if found else text.count("\n") + 1  # else "end of document"
    twice = re.fullmatch(r"Cannot declare \('metrics', ('.*')\) twice", reason)
    if twice:
        raise MetricError(f"{path}, line {line}: metric {twice[1]} must be declared once")
    raise FileError(path, f"it is not TOML: {reason}", line=line)


def _read_entry(name: str, entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise MetricError(
            f"metric {format_value(name)} must be a table [metrics.NAME], got {format_value(entry)}"
        )
    _check_keys(name, entry)
    params = _read_params(name, entry)
    if params.is_bare and entry.get("interval") != "epoch" and not entry.get("insecure"):
        noise = "profile = 'once'" if entry.get("profile") == "once" else "p = 0 with q = 1"
        raise MetricError(f"metric {format_value(name)}: {noise} needs interval = 'epoch'")
    fields = {
        "name": name,
        "params": params,
        "expires": _read_date(entry["expires"]),
        "parts": _read_parts(name, entry.get("parts", [])),
        "segments": _read_segments(name, entry.get("segments", {})),
    }
    fields |= {
        key: entry[key] for key in ("description", "owner", "epoch", *_OPTIONAL) if key in entry
    }
    if isinstance(listed := fields.get("candidates"), list):
        fields["candidates"] = tuple(listed)
    return fields


def _check_keys(name: str, entry: _Entry) -> None:
    for key, value in entry.items():
        if isinstance(value, dict) and key not in KEYS:
            raise MetricError(
                f"metric {format_value(name)}: {key} must not be a table; a name with a "
                f"dot is quoted, "
                f"as in [metrics.{json.dumps(f'{name}.{key}')}]"
            )
        if key in _REPLACEMENTS:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be absent: {_REPLACEMENTS[key]}"
            )
        check_known(key, KEYS, "key", place=f"metric {format_value(name)}: ")
    for key in _REQUIRED:
        if key not in entry:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be given{_ADVICE.get(key, '')}"
            )


def _read_parts(name: str, entries: object) -> tuple[Part, ...]:
    tables = entries if isinstance(entries, list) else [None]
    parts = []
    for table in tables:
        if not isinstance(table, dict) or not {"name"} <= table.keys() <= {"name", "share"}:
            raise metric_error(name, "parts", "a list of {name = ..., share = ...}", entries)
        parts.append(Part(table["name"], table.get("share")))
    return tuple(parts)


def _read_segments(name: str, entries: object) -> tuple[Dimension, ...]:
    if not isinstance(entries, dict) or not all(isinstance(v, list) for v in entries.values()):
        raise metric_error(name, "segments", "a table of lists, as {version = [...]}", entries)
    return tuple(Dimension(each, tuple(values)) for each, values in entries.items())


def _read_date(value: object) -> object:
    """Return an ISO text as the date that it is; Metric refuses whatever else."""
    try:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _read_params(name: str, entry: _Entry) -> Params:
    encoding = encoding_named(entry["encoding"])
    if not isinstance(insecure := entry.get("insecure", False), bool):
        raise metric_error(name, "insecure", "true or false", insecure)
    categories = _read_categories(name, entry, encoding)
    return Params(
        **_read_letters(name, entry, encoding, categories),
        encoding=entry["encoding"],
        categories=categories,
        normalize=entry.get("normalize", "none"),
        insecure=insecure,
    )


def _read_letters(
    name: str, entry: _Entry, encoding: type[Encoding], categories: tuple[str, ...]
) -> dict[str, Any]:
    """Return dimensions and noise as given, from a profile, or as the encoding implies them."""
    letters = {key: entry[key] for key in LETTERS if key in entry}
    if "profile" in entry:
        profile = Params.profile(
            entry["profile"], encoding=entry["encoding"], categories=categories
        )
        for key in LETTERS if encoding.hashed else NOISE:
            if key == "m" and key in letters:  # no profile's loss depends on the cohorts
                continue
            if key in letters:
                raise MetricError(
                    f"metric {format_value(name)}: {key} must be absent with a profile"
                )
            letters[key] = getattr(profile, key)
    if (k := encoding.implied_bits(categories)) is not None:
        letters.setdefault("k", k)  # Params compares an explicit k with what the categories need
    for key in ("k", "f", "p", "q"):
        if key not in letters:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be given, or a profile instead"
            )
    return letters


def _read_categories(name: str, entry: _Entry, encoding: type[Encoding]) -> tuple[str, ...]:
    """Return what Params calls categories, from the key where the encoding has them."""
    own = encoding.categories_key
    for key in ("categories", "edges"):
        if key != own and key in entry:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be absent for encoding "
                f"{entry['encoding']}"
            )
    if own is None:
        return ()
    if not isinstance(items := entry.get(own), list):
        raise metric_error(name, own, "a list", items)
    read = _read_edge if own == "edges" else _read_category
    return tuple(read(name, item) for item in items)


def _read_category(name: str, category: object) -> str:
    if not isinstance(category, str):
        raise metric_error(name, "categories", "a list of texts", category)
    return category


def _read_edge(name: str, edge: object) -> str:
    try:
        if isinstance(edge, int | float) and not isinstance(edge, bool) and math.isfinite(edge):
            return edge_text(edge)
    except OverflowError:  # an integer beyond binary64
        pass
    raise metric_error(name, "edges", "a list of finite numbers", edge)
