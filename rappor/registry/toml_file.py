"""Read a registry's TOML file: its short tables, and a table for each metric, checked key by key.

`registry/README.md` explains every key. This module checks what only the file can get wrong:
unknown keys, missing keys, keys that contradict each other, and values that `Params` accepts but an
entry must not have, such as f = 0 beside keep. `Metric` and `Params` check ranges.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from rappor.base.errors import FileError, MetricError, ParamsError
from rappor.base.ranges import check_choice, format_value
from rappor.protocol.encodings import Encoding, get_encoding_class
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.encodings.encoding import check_category_name
from rappor.protocol.encodings.sets import DEFAULT_ITEMS
from rappor.protocol.normalizers import NORMALIZERS
from rappor.protocol.params import LETTERS, NOISE_LETTERS, Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.protocol.tuples import check_field_names, combine_categories, join_normalizers

_Entry = Mapping[str, Any]

_INTEGER_BITS: Final = 63
"""Bits, without the sign, of the largest integer that TOML 1.0 requires readers to accept. Python
reads longer integers, which other readers of the file would refuse."""

_REQUIRED: Final = ("description", "owner", "expires", "encoding", "epoch")
"""Keys that every entry must have."""
_OPTIONAL: Final = (
    "interval",
    "sampling_rate",
    "candidates",
    "ranked",
    "min_reports",
    "min_cohort",
    "retention",
    "complete",
    "durable",
)
"""Optional keys of an entry. The value of each key goes to the argument of `Metric` with the same
name. `Metric` has a default for each, so an absent key is not passed."""

_BUCKET_LETTERS: Final = ("items", "keep")
"""Keys of generalized randomized response, beside k and m. A report of this response names one
bucket. `items` is the number of buckets of a value, and `keep` is the probability that the report
is drawn from them."""

KEYS: Final = (
    *_REQUIRED,
    *LETTERS,
    *_BUCKET_LETTERS,
    "profile",
    "categories",
    "edges",
    "fields",
    "normalize",
    "insecure",
    "parts",
    "segments",
    *_OPTIONAL,
)
"""All keys that an entry may have."""

_ADVICE: Final = {
    "epoch": (
        '; add a line epoch = "quarter" (or "year", "month") so that a device reports one value '
        'in each, or epoch = "life" if one permanent response is meant to last'
    )
}
"""Advice for each required key that older registries do not have."""

_TEXT_TABLES: Final = {"program": "name", "installations": "metric"}
"""Optional tables with one text each, and the key of the text. [program] has the name of the
program that the metrics are about. [installations] has the name of the metric whose reports are
counted as active installations. Pages show both, and devices ignore both."""

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
"""Advice for each key that older registries have and that an entry must not have any more."""


def read_entries(document: _Entry, path: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `Metric` for each entry of a document.

    Parameters
    ----------
    document : the parsed TOML file.
    path : name of the file in messages.

    Raises
    ------
    MetricError
        A key is unknown, missing or of the wrong kind.
    """
    # A misspelt table, such as [metric.a], would otherwise be an empty registry.
    for key in document:
        check_known(key, ("budget", "metrics", *_TEXT_TABLES), "key", prefix=f"{path}: ")
    tables = document.get("metrics")
    if not isinstance(tables, dict) or not tables:
        shown_value = "nothing" if tables is None else format_value(tables)
        raise MetricError(
            f"{path}: metrics must be at least one table [metrics.NAME], got {shown_value}"
        )
    for name, entry in tables.items():
        try:
            yield _read_entry(name, entry)
        except ParamsError as error:
            raise MetricError(f"metric {format_value(name)}: {error}") from None


def read_budget(document: _Entry, path: str) -> float | None:
    """Return the total of the budget in nats, or None if the document has no budget.

    Raises
    ------
    MetricError
        The budget is not a table with a positive total.
    """
    if (budget := document.get("budget")) is None:
        return None
    if not isinstance(budget, dict) or list(budget) != ["total"]:
        raise MetricError(
            f"{path}: budget must be a table with the one key total, got {format_value(budget)}"
        )
    total = budget["total"]
    if not isinstance(total, int | float) or isinstance(total, bool) or not total > 0:
        raise MetricError(
            f"{path}: total must be a number above 0, in nats, got {format_value(total)}"
        )
    # A longer integer could exceed a float, and the conversion would raise OverflowError.
    if isinstance(total, int) and total.bit_length() > _INTEGER_BITS:
        raise MetricError(f"{path}: total must be below 2^{_INTEGER_BITS} nats if it is an integer")
    return float(total)


def read_texts(document: _Entry, path: str) -> dict[str, str]:
    """Return the text of each table of `_TEXT_TABLES` that the document has, by the table's name.

    Raises
    ------
    MetricError
        A table has another key, or its value is no text of one line.
    """
    texts = {}
    for table, key in _TEXT_TABLES.items():
        if (entry := document.get(table)) is None:
            continue
        if not isinstance(entry, dict) or list(entry) != [key]:
            raise MetricError(f"{path}: {table} must be a table with the one key {key}")
        if not isinstance(text := entry[key], str) or not text.strip() or not text.isprintable():
            raise MetricError(
                f"{path}: {key} of {table} must be a non-empty text of one line, "
                f"got {format_value(text)}"
            )
        texts[table] = text
    return texts


def check_known(name: str, known_names: Collection[str], noun: str, *, prefix: str = "") -> None:
    """Raise MetricError unless a name is in `known_names`. The message contains similar names.

    Parameters
    ----------
    name : the name.
    known_names : all known names.
    noun : the noun for such a name, such as "key".
    prefix : text at the beginning of the message.
    """
    if name not in known_names:
        raise MetricError(f"{prefix}{describe_unknown(name, known_names, noun)}")


def describe_unknown(name: object, known_names: Collection[str], noun: str) -> str:
    """Write a sentence about an unknown name, with similar names or all known names."""
    import difflib  # noqa: PLC0415 - a device loads it for mistakes only

    similar = difflib.get_close_matches(name, known_names) if isinstance(name, str) else []
    hint = f"expected one of {', '.join(known_names)}"
    if similar:
        hint = f"did you mean {' or '.join(map(repr, similar))}?"
    return f"unknown {noun} {format_value(name)}; {hint}"


def metric_error(name: str, key: str, constraint: str, value: object) -> MetricError:
    """Return the error for a key of a metric that violates a constraint."""
    shown_value = "nothing" if value is None else format_value(value)
    return MetricError(
        f"metric {format_value(name)}: {key} must be {constraint}, got {shown_value}"
    )


def read_toml(text: str, path: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises
    ------
    FileError
        The text is not TOML. The error contains the line.
    MetricError
        A metric is declared twice.
    """
    import tomllib  # noqa: PLC0415 - a device loads it only to open a registry

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, position = str(error).partition(" (at ")
    except (RecursionError, ValueError):
        # Python raises ValueError for integers with more than 4,300 digits.
        raise FileError(path, "it must be TOML of reasonable depth and numbers") from None
    match = re.match(r"line (\d+)", position)
    # Without a line tomllib writes "end of document".
    line = int(match[1]) if match else text.count("\n") + 1
    duplicate = re.fullmatch(r"Cannot declare \('metrics', ('.*')\) twice", reason)
    if duplicate:
        raise MetricError(f"{path}, line {line}: metric {duplicate[1]} must be declared once")
    raise FileError(path, f"it is not TOML: {reason}", line=line)


def _read_entry(name: str, entry: object) -> dict[str, Any]:
    """Return the arguments of `Metric` for one table."""
    if not isinstance(entry, dict):
        raise MetricError(
            f"metric {format_value(name)} must be a table [metrics.NAME], got {format_value(entry)}"
        )
    _check_keys(name, entry)
    params = _read_params(name, entry)
    # Without instantaneous noise (p = 0 and q = 1), every report of an epoch is the permanent
    # response. A second report would contain no new information, and an observer would recognise
    # with certainty that both reports come from one device.
    is_once = entry.get("interval") == "epoch"
    if not (params.has_instantaneous_noise or is_once or entry.get("insecure")):
        noise = "keep" if params.response.needs_interval_epoch else "p = 0 with q = 1"
        if entry.get("profile") == "once":
            noise = "profile = 'once'"
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
    if "candidates" in fields:
        fields["candidates"] = _freeze_lists(fields["candidates"])
    return fields


def _freeze_lists(value: object) -> object:
    """Return a list as a tuple, also in a table. Other values are unchanged."""
    if isinstance(value, dict):
        return {key: _freeze_lists(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _check_keys(name: str, entry: _Entry) -> None:
    """Check that an entry has all required keys and no unknown key."""
    for key, value in entry.items():
        # TOML reads [metrics.a.b] as the metric `a` with a table `b`.
        if isinstance(value, dict) and key not in KEYS:
            raise MetricError(
                f"metric {format_value(name)}: {key} must not be a table; "
                f"a name with a dot is quoted, as in [metrics.{json.dumps(f'{name}.{key}')}]"
            )
        if key in _REPLACEMENTS:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be absent: {_REPLACEMENTS[key]}"
            )
        check_known(key, KEYS, "key", prefix=f"metric {format_value(name)}: ")
    for key in _REQUIRED:
        if key not in entry:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be given{_ADVICE.get(key, '')}"
            )


def _read_parts(name: str, entries: object) -> tuple[Part, ...]:
    """Read the parts of an entry; raise MetricError if they are not a list of tables."""
    tables = entries if isinstance(entries, list) else [None]
    parts = []
    for table in tables:
        if not isinstance(table, dict) or not {"name"} <= table.keys() <= {"name", "share"}:
            raise metric_error(name, "parts", "a list of {name = ..., share = ...}", entries)
        with _name_key("parts"):
            parts.append(Part(table["name"], table.get("share")))
    return tuple(parts)


def _read_segments(name: str, entries: object) -> tuple[Dimension, ...]:
    """Read the dimensions of an entry; raise MetricError if they are not a table of lists."""
    if not isinstance(entries, dict) or not all(
        isinstance(values, list) for values in entries.values()
    ):
        raise metric_error(name, "segments", "a table of lists, as {version = [...]}", entries)
    with _name_key("segments"):
        return tuple(Dimension(dimension, tuple(values)) for dimension, values in entries.items())


@contextlib.contextmanager
def _name_key(key: str) -> Iterator[None]:
    """Add the key of an entry to the message of a ParamsError, which names a part of its value."""
    try:
        yield
    except ParamsError as error:
        raise ParamsError(f"{key}: {error}") from None


def _read_date(value: object) -> object:
    """Return the date of an ISO text, and any other value unchanged.

    A date of TOML is a date already, but people also write a date between quotation marks. `Metric`
    refuses a value that is no date.
    """
    try:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _read_params(name: str, entry: _Entry) -> Params:
    """Read the parameter set of an entry."""
    encoding = get_encoding_class(entry["encoding"])
    if not isinstance(insecure := entry.get("insecure", False), bool):
        raise metric_error(name, "insecure", "true or false", insecure)
    categories = _read_categories(name, entry, encoding)
    field_names = _read_field_names(name, entry, encoding)
    return Params(
        **_read_letters(name, entry, encoding, categories, field_names),
        encoding=entry["encoding"],
        categories=categories,
        field_names=field_names,
        normalize=_read_normalizer(name, entry, field_names),
        insecure=insecure,
    )


def _read_letters(
    name: str,
    entry: _Entry,
    encoding: type[Encoding],
    categories: tuple[str, ...],
    field_names: tuple[str, ...],
) -> dict[str, Any]:
    """Return the numbers of a parameter set from the entry, from a profile, or from the encoding.

    RAPPOR's responses, which randomize each bit, have the numbers k, h, m, f, g, p and q.
    Generalized randomized response, whose reports name one bucket, has k, m, items and keep.
    """
    letters = {key: entry[key] for key in (*LETTERS, *_BUCKET_LETTERS) if key in entry}
    if encoding.supports_items:
        letters.setdefault("items", DEFAULT_ITEMS)
    if "profile" in entry:
        profile = Params.profile(
            entry["profile"],
            encoding=encoding.name,
            categories=categories,
            field_names=field_names,
            items=letters.get("items", DEFAULT_ITEMS),
        )
        return _read_profile(name, encoding, profile, letters)
    if (k := encoding.count_bits(categories)) is not None:
        # The categories determine k, unless the entry has a k, which `Params` checks. Generalized
        # randomized response (key keep) has one more bucket, for values outside the categories.
        has_other_bucket = "keep" in letters
        letters.setdefault("k", k + has_other_bucket)
    required = ("k", "f", "p", "q") if encoding.supports_rappor else ("k", "keep")
    if "keep" in letters:
        required = ("k", "keep")
        # `Params` accepts the values of a response that changes no bit (f = 0, p = 0, q = 1) beside
        # keep, because `dataclasses.replace` passes them. An entry must not contain them.
        for key in letters:
            if key in ("h", *NOISE_LETTERS):
                raise MetricError(f"metric {format_value(name)}: {key} must be absent beside keep")
    for key in required:
        if key not in letters:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be given, or a profile instead"
            )
    return letters


def _read_profile(
    name: str, encoding: type[Encoding], profile: Params, letters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the numbers of a profile, and the numbers that may stand beside it.

    - m may stand beside a profile of strings or sets: the losses of a profile do not depend on the
      number of cohorts, and small collections need fewer cohorts.
    - items may stand beside a profile of sets, and decides k and keep.
    - k may stand beside a profile of categories and buckets. `Params` compares it with their
      number.
    """
    allowed = {"m", "items"} if encoding.is_hashed else {"k", "h", "m", "items"}
    for key in letters:
        if key not in allowed:
            raise MetricError(f"metric {format_value(name)}: {key} must be absent with a profile")
    return {**profile.letters, **letters}


def _read_categories(name: str, entry: _Entry, encoding: type[Encoding]) -> tuple[str, ...]:
    """Return the argument `categories` of `Params`: categories, or edges of buckets as texts."""
    categories_key = encoding.categories_key
    for key in ("categories", "edges"):
        if key != categories_key and key in entry:
            raise MetricError(
                f"metric {format_value(name)}: {key} must be absent for encoding "
                f"{entry['encoding']}"
            )
    # Bloom filters and booleans have neither categories nor edges.
    if categories_key is None:
        return ()
    items = entry.get(categories_key)
    # A table has one list for each field of a tuple.
    if encoding.supports_fields and isinstance(items, dict):
        lists = {field: _read_list(name, field, listed) for field, listed in items.items()}
        check_field_names(tuple(lists))
        return combine_categories(lists)
    if not isinstance(items, list):
        raise metric_error(name, categories_key, "a list", items)
    read_item = _read_edge if categories_key == "edges" else _read_category
    return tuple(read_item(name, item) for item in items)


def _read_list(name: str, field: str, categories: object) -> list[str]:
    """Return the categories of a field of a tuple."""
    if not isinstance(categories, list):
        raise metric_error(name, f"categories of field {field}", "a list", categories)
    for category in categories:
        check_category_name(_read_category(name, category), "categories")
    return categories


def _read_field_names(name: str, entry: _Entry, encoding: type[Encoding]) -> tuple[str, ...]:
    """Return the names of the fields of a tuple; empty for other metrics.

    The table of categories names the fields of a tuple of categories. A tuple of strings has the
    key fields.
    """
    if isinstance(categories := entry.get("categories"), dict):
        if "fields" in entry:
            raise MetricError(
                f"metric {format_value(name)}: fields must be absent beside a table of categories, "
                "whose keys are the fields"
            )
        return tuple(categories)
    if "fields" not in entry:
        return ()
    if not encoding.supports_fields or encoding.categories_key is not None:
        remedy = ": give a table of categories, such as {editor = [...], system = [...]}"
        raise MetricError(
            f"metric {format_value(name)}: fields must be absent for encoding {encoding.name}"
            f"{remedy if encoding.supports_fields else ''}"
        )
    if not isinstance(fields := entry["fields"], list) or not fields:
        raise metric_error(name, "fields", "a list of names", fields)
    return tuple(fields)


def _read_normalizer(name: str, entry: _Entry, field_names: tuple[str, ...]) -> Any:
    """Return the argument `normalize` of `Params`.

    An entry without fields has one normalizer. With fields, it has a table of normalizers, and a
    field that the table does not name has none.
    """
    normalizer = entry.get("normalize", "none")
    if not field_names or normalizer == "none":
        return normalizer
    if not isinstance(normalizer, dict):
        example = f'{{{field_names[0]} = "casefold"}}'
        raise metric_error(
            name, "normalize", f"a table of the normalizers of fields, as {example}", normalizer
        )
    for field, field_normalizer in normalizer.items():
        check_known(field, field_names, "field", prefix=f"metric {format_value(name)}: normalize: ")
        check_choice(f"normalize of field {field}", field_normalizer, NORMALIZERS)
    return join_normalizers([normalizer.get(field, "none") for field in field_names])


def _read_category(name: str, category: object) -> str:
    """Return a category of an entry; raise MetricError if it is not a text."""
    if not isinstance(category, str):
        raise metric_error(name, "categories", "a list of texts", category)
    return category


def _read_edge(name: str, edge: object) -> str:
    """Format an edge of buckets as a text; raise MetricError if it is not a finite number."""
    try:
        if isinstance(edge, int | float) and not isinstance(edge, bool) and math.isfinite(edge):
            return format_edge(edge)
    except OverflowError:
        # An integer beyond the range of a float has no edge, like an infinite number.
        pass
    raise metric_error(name, "edges", "a list of finite numbers", edge)
