"""What is in `other`: a metric of categories, and a second one that names what is in none of them.

An entry of the registry with `other = "discover"` is two metrics. The first one has the categories
and "other"; the second one, whose name ends in ".other", has the texts that are in no category, by
parts, so that they can be found without a list. A device answers both or neither: a text that is in
a category answers the second metric with the empty text. Each is a scope of its own, with a price.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.ground.errors import MetricError, ParamsError
from rappor.ground.ranges import shown
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.protocol.parts import Part

DISCOVER: Final = "discover"
OTHER_NAME: Final = ".other"
"""What the name of the second metric adds to that of the first."""

DEFAULT_PARTS: Final = (Part("prefix:3", 0.2), Part("whole"))

_CATEGORY: Final = "other"
_Fields = Mapping[str, Any]


def split_entry(
    fields: _Fields, other: object, *, parts: tuple[Part, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of both metrics, from those of an entry without its `other`.

    Raises MetricError for another word than "discover", and ParamsError where the entry has no
    categories.
    """
    name, params = fields["name"], fields["params"]
    if other != DISCOVER:
        raise MetricError(f"metric {shown(name)}: other must be {DISCOVER!r}, got {shown(other)}")
    if _CATEGORY in params.categories:
        raise MetricError(
            f"metric {shown(name)}: categories must not name {_CATEGORY!r} beside other = "
            f"{DISCOVER!r}, which adds it"
        )
    first, second = with_other(params)
    description = f"What is in no category of {name}: {fields['description']}"
    yield dict(fields) | {"params": first, "candidates": None}
    yield dict(fields) | {
        "name": f"{name}{OTHER_NAME}",
        "params": second,
        "description": description,
        "parts": parts,
    }


def with_other(params: Params) -> tuple[Params, Params]:
    """Return the parameters of both metrics, from those of the categories alone."""
    if not encoding_of(params).names_values or not encoding_of(params).exclusive:
        raise ParamsError(f"other must be absent for encoding {params.encoding}")
    categories = (*params.categories, _CATEGORY)
    first = dataclasses.replace(
        params, categories=categories, k=len(categories), other=True, insecure=True
    )
    return first, texts_of(first)


def texts_of(categories: Params) -> Params:
    """Return the parameters of what is in the last category of others.

    The noise is the same; strings have the shape of the named profiles.
    """
    shape = Params.profile("balanced")
    return dataclasses.replace(
        categories,
        k=shape.k,
        h=shape.h,
        m=shape.m,
        encoding=shape.encoding,
        categories=categories.categories[:-1],
        insecure=True,
    )
