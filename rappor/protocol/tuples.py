"""Tuples: values of several fields, which a device reports as one value.

A metric of the fields `editor` and `system` shows which editors people use on which system. A
program records a mapping such as {"editor": "vim", "system": "linux"}. The device sends one report
of both fields together, with the whole privacy budget of the metric. There are two forms:

- Closed lists: each field has a list of categories, and the one-hot encoding has one category for
  each combination. The combinations stand in the order of the fields. The last field varies
  fastest. Example: the lists (vim, code) and (linux, mac) have the combinations vim/linux,
  vim/mac, code/linux and code/mac.
- Strings: the Bloom encoding hashes the normalized fields as one string.

Both forms join the texts of the fields by U+001F, the unit separator of ASCII. The joined text is
the name of a category or of a candidate. A field that contains U+001F itself is replaced by the
empty text before it is joined (`join_fields`). So each U+001F in a joined text ends a field, and
the text can be split in one way only. Screens show " | " in place of U+001F.

Each field may have a normalizer of its own. `Params.normalize` then contains the normalizers in the
order of the fields, separated by commas, such as "domain,none". If no field has a normalizer, it is
"none".
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from rappor.base.errors import ParamsError, ReportError
from rappor.base.ranges import check_choice, format_value
from rappor.protocol.normalizers import (
    FIELD_SEPARATOR,
    NORMALIZERS,
    normalize,
    split_normalizers,
)

MIN_FIELDS: Final = 2
MAX_FIELDS: Final = 8
"""Smallest and largest number of fields of a tuple. The number of combinations is the product of
the numbers of values of all fields: eight fields of two values have 256 combinations. A share is
estimated for each combination, so each needs many devices. With more fields the combinations would
be too rare to be detected."""

MAX_COMBINATIONS: Final = 2040
"""Largest number of combinations of categories: the largest number of bits of a report. The number
is checked before the combinations are built, because eight lists of a registry could have more
combinations than fit into memory."""

_FIELD_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Matches the name of a field, at most 32 characters."""


def check_field_names(names: object) -> None:
    """Raise ParamsError unless names are a tuple of 2 to 8 distinct valid names of fields."""
    if not isinstance(names, tuple) or not MIN_FIELDS <= len(names) <= MAX_FIELDS:
        raise ParamsError(
            f"fields must be a tuple of {MIN_FIELDS} to {MAX_FIELDS} names, "
            f"got {format_value(names)}"
        )
    for name in names:
        if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
            raise ParamsError(
                f"the name of a field must match {_FIELD_NAME.pattern}, got {format_value(name)}"
            )
    if len(set(names)) < len(names):
        raise ParamsError(f"fields must have distinct names, got {', '.join(names)}")


def check_normalizers(normalizer: object, n_fields: int) -> None:
    """Raise ParamsError unless a normalizer is "none" or names one normalizer for each field."""
    if normalizer == "none":
        return
    names = split_normalizers(normalizer) if isinstance(normalizer, str) else ()
    if len(names) != n_fields:
        raise ParamsError(
            f"normalize must name one normalizer for each of {n_fields} fields, separated by "
            f"commas, got {format_value(normalizer)}"
        )
    for name in names:
        check_choice("normalize", name, NORMALIZERS)
    # "none,none" means the same as "none". Both are part of the fingerprint. If both were allowed,
    # one parameter set would have two fingerprints, and its reports two separate counts.
    if set(names) == {"none"}:
        raise ParamsError(f"normalize must be none if no field has one, got {normalizer!r}")


def list_normalizers(normalizer: str, n_fields: int) -> tuple[str, ...]:
    """Return the normalizer of each field."""
    return ("none",) * n_fields if normalizer == "none" else split_normalizers(normalizer)


def join_normalizers(names: Sequence[str]) -> str:
    """Return the value of `Params.normalize` for the normalizers of the fields, in their order.

    Examples
    --------
    >>> join_normalizers(["domain", "none"]), join_normalizers(["none", "none"])
    ('domain,none', 'none')
    """
    return "none" if set(names) == {"none"} else ",".join(names)


def combine_categories(lists: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    r"""Return all combinations of the categories of fields. The last field varies fastest.

    Parameters
    ----------
    lists : categories of each field, by the name of the field, in the order of the fields.

    Returns
    -------
    The argument `categories` of `Params`. The texts of a combination are joined by U+001F.

    Raises
    ------
    ParamsError
        A field has fewer than 2 categories, or there are more than 2,040 combinations.

    Examples
    --------
    >>> combine_categories({"editor": ["vim", "code"], "system": ["linux", "mac"]})
    ('vim\x1flinux', 'vim\x1fmac', 'code\x1flinux', 'code\x1fmac')
    """
    for name, categories in lists.items():
        if len(categories) < 2:
            raise ParamsError(
                f"categories of field {name} must number at least 2, got {len(categories)}"
            )
    n_combinations = math.prod(map(len, lists.values()))
    if n_combinations > MAX_COMBINATIONS:
        raise ParamsError(
            f"categories must have at most {MAX_COMBINATIONS:,} combinations, got "
            f"{n_combinations:,}: shorten the lists, or use encoding = 'bloom' with fields"
        )
    return tuple(map(FIELD_SEPARATOR.join, itertools.product(*lists.values())))


def separate_categories(combinations: Sequence[str], n_fields: int) -> tuple[tuple[str, ...], ...]:
    """Return the categories of each field, from the combinations of `combine_categories`.

    Raises
    ------
    ParamsError
        The combinations are not the product of one list for each field, in the order of
        `combine_categories`.
    """
    tuples = [text.split(FIELD_SEPARATOR) for text in combinations]
    if all(len(texts) == n_fields for texts in tuples):
        # A dictionary keeps each category once, in the order of its first combination.
        lists = tuple(tuple(dict.fromkeys(texts)) for texts in zip(*tuples, strict=True))
        # Bad case: eight fields with 20 categories each have 20^8 combinations, more than fit into
        # memory. So their number is compared before they are built.
        n_combinations = math.prod(map(len, lists))
        if n_combinations == len(tuples) and [*map(list, itertools.product(*lists))] == tuples:
            return lists
    raise ParamsError(
        "categories must be all combinations of the categories of the fields, as "
        "combine_categories returns them"
    )


def split_fields(text: str) -> tuple[str, ...]:
    r"""Return the texts of the fields of a candidate or of a category.

    Examples
    --------
    >>> split_fields("example.org\x1fde")
    ('example.org', 'de')
    """
    return tuple(text.split(FIELD_SEPARATOR))


def format_fields(text: str) -> str:
    r"""Return the name of a candidate or a category as screens show it.

    Examples
    --------
    >>> format_fields("example.org\x1fde")
    'example.org | de'
    """
    return text.replace(FIELD_SEPARATOR, " | ")


def parse_fields(field_names: Sequence[str], text: str) -> dict[str, str]:
    r"""Convert a text, for example a line of a file, to a recorded value.

    Parameters
    ----------
    field_names : names of the fields, in their order.
    text : the texts of the fields, separated by tabs, or joined by U+001F.

    Raises
    ------
    ReportError
        The text has another number of fields. The message does not contain the text.

    Examples
    --------
    >>> parse_fields(("editor", "system"), "vim\tlinux")
    {'editor': 'vim', 'system': 'linux'}
    """
    return dict(zip(field_names, split_fields(join_line(field_names, text)), strict=True))


def parse_assignments(field_names: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """Convert the arguments of a command line to a recorded value: FIELD=VALUE for each field.

    Raises
    ------
    ReportError
        A field is missing or repeated, or a text does not begin with a field and "=". The message
        contains no value.

    Examples
    --------
    >>> parse_assignments(("editor", "system"), ["system=linux", "editor=vim"])
    {'system': 'linux', 'editor': 'vim'}
    """
    value: dict[str, str] = {}
    for text in texts:
        name, equals, field_value = text.partition("=")
        # A text without a known field may be the value itself, so the message does not repeat it.
        if not equals or name not in field_names or name in value:
            reason = f"got {name} twice" if name in value else "got a text without a field's name"
            expected = " ".join(f"{field}=VALUE" for field in field_names)
            raise ReportError(f"a value must be {expected}, {reason}")
        value[name] = field_value
    if missing := [name for name in field_names if name not in value]:
        raise ReportError(f"a value must have every field, got none for {', '.join(missing)}")
    return value


def join_line(field_names: Sequence[str], text: object) -> str:
    r"""Join the texts of a line by U+001F. In the line they are separated by tabs or by U+001F.

    Raises
    ------
    ReportError
        The argument is not a text, or has another number of fields than the metric.

    Examples
    --------
    >>> join_line(("editor", "system"), "vim\tlinux")
    'vim\x1flinux'
    """
    if not isinstance(text, str):
        raise ReportError(f"a value must be a text, got {type(text).__name__}")
    # Results of this package join fields by U+001F, and people write tabs. In a text with U+001F, a
    # tab is therefore a part of a field.
    joined = text if FIELD_SEPARATOR in text else text.replace("\t", FIELD_SEPARATOR)
    n_fields = joined.count(FIELD_SEPARATOR) + 1
    if n_fields != len(field_names):
        raise ReportError(
            f"a value must have {len(field_names)} fields separated by tabs "
            f"({', '.join(field_names)}), got {n_fields}"
        )
    return joined


def read_fields(field_names: Sequence[str], value: object) -> dict[str, str]:
    """Return the texts of the fields of a recorded value, by field, in the order of the fields.

    Parameters
    ----------
    field_names : names of the fields, in their order.
    value : the recorded value, a mapping from the name of each field to a text.

    Raises
    ------
    ReportError
        The value is not a mapping with exactly the fields, or has a field that is not a text. The
        message contains no key and no text of the value.
    """
    expected = f"a value must be a mapping of the fields {', '.join(field_names)}"
    if not isinstance(value, Mapping):
        raise ReportError(f"{expected}, got {type(value).__name__}")
    copied = dict(value.items())
    texts = {name: copied[name] for name in field_names if name in copied}
    # A wrong key may be a value that stands in the wrong place, so no message contains a key.
    n_others = len(copied) - len(texts)
    if n_others or len(texts) < len(field_names):
        raise ReportError(f"{expected}, got {len(texts)} of them and {n_others} other keys")
    # The normalizer "none" returns a text as it is. It raises ReportError for a value that is no
    # text, or that contains half of a surrogate pair.
    return {field: _normalize_field(field, "none", text) for field, text in texts.items()}


def normalize_fields(field_names: Sequence[str], normalizer: str, value: object) -> tuple[str, ...]:
    """Return the normalized texts of the fields of a recorded value, in the order of the fields.

    Parameters
    ----------
    field_names : names of the fields, in their order.
    normalizer : `Params.normalize` of the metric.
    value : the recorded value, a mapping from the name of each field to a text.

    Raises
    ------
    ReportError
        The value is not a mapping with exactly the fields, or has a field that is not a text. The
        message contains no key and no text of the value.
    """
    texts = read_fields(field_names, value)
    normalizers = list_normalizers(normalizer, len(field_names))
    return tuple(
        _normalize_field(field, name, texts[field])
        for field, name in zip(field_names, normalizers, strict=True)
    )


def _normalize_field(field: str, normalizer: str, text: object) -> str:
    """Normalize the text of a field; raise ReportError with the name of the field."""
    try:
        return normalize(normalizer, text)
    except ReportError as error:
        # The message of `normalize` begins with "a value" and does not contain the value.
        reason = str(error).removeprefix("a value ")
        raise ReportError(f"the field {field} of a value {reason}") from None


def join_fields(texts: Sequence[str]) -> str:
    """Join normalized texts of fields to one text. A text that contains U+001F counts as empty.

    If U+001F of a text were kept, the joined text would have more fields than the metric, and two
    different tuples could have the same joined text.
    """
    return FIELD_SEPARATOR.join("" if FIELD_SEPARATOR in text else text for text in texts)
