"""What is in `other`: the answer of the categories, and the texts that are in none of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict, Unpack

from scipy import special

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.detection import Detection
from rappor.decoding.estimates import Estimates
from rappor.discovery.discoveries import NamedOther, Share, TextInOther
from rappor.discovery.part_by_part import discover
from rappor.ground.errors import DecodeError
from rappor.ground.progress import Progress
from rappor.protocol.encodings import encoding_of


class Search(TypedDict, total=False):
    """What `discover` is told by name."""

    known: Iterable[str]
    longest: int | None
    keep: int | None
    detection: Detection
    progress: Progress


def name_other(
    counts: Iterable[Counts],
    alphabet: str | None = None,
    **search: Unpack[Search],
) -> NamedOther:
    """Decode a metric of categories, and name what is in its `other`.

    The devices of both metrics are the same, the noise of their two reports is not. So a share of
    `other` is the quotient of two estimates whose errors are independent, and its interval is
    Fieller's (1954); it has no end where `other` itself is not significant.

    `counts` are of the categories, and of every part of what is in `other`; `alphabet` and `search`
    are the arguments of `discover`. Raises DecodeError if the counts are not of such a pair, and
    what `decode` and `discover` raise.

    Examples
    --------
    >>> import dataclasses
    >>> from rappor import Params, Population
    >>> from rappor import name_other
    >>> from rappor.registry.other import DEFAULT_PARTS, with_other
    >>> from rappor.simulation import simulate_other
    >>> named = ("vscode", "vim")
    >>> strings = Params.profile("low-noise")
    >>> categories = dataclasses.replace(strings, encoding="onehot", k=2, m=1, categories=named)
    >>> editors = Population([*named, "helix", "zed"], [5, 2, 2, 1])
    >>> drawn = simulate_other(
    ...     editors, with_other(categories), DEFAULT_PARTS, n_reports=100_000, seed=1
    ... )
    >>> found = name_other(drawn, "abcdefghijklmnopqrstuvwxyz", longest=5, keep=20)
    >>> [f"{text.string} {text.of_other.proportion:.1f}" for text in found.strings]
    ['helix 0.7', 'zed 0.3']
    """
    categories, parts = split(counts)
    answers = decode(categories, detection=search.get("detection", Detection()))
    found = discover(parts, alphabet, **search)
    texts = found.estimates
    return NamedOther(
        categories=answers,
        found=found,
        strings=shares_of_other(answers, texts),
        unnamed=_quotient(
            texts.unallocated,
            texts.unallocated_std_error,
            answers,
            miss=1 - texts.detection.confidence,
        ),
    )


def split(counts: Iterable[Counts]) -> tuple[list[Counts], list[Counts]]:
    """Return the collections of the categories, and those of what is in `other`.

    Raises DecodeError where they do not go together.
    """
    collections = list(counts)
    categories = [each for each in collections if not encoding_of(each.params).hashed]
    parts = [each for each in collections if encoding_of(each.params).hashed]
    if not categories or not parts:
        raise DecodeError("counts must be of a metric of categories, and of what is in its other")
    for each in parts:
        if not all(encoding_of(each.params).names_other_of(own.params) for own in categories):
            raise DecodeError(
                "counts of what is in other must be of the same categories and normalizer as those "
                "of the categories"
            )
    return categories, parts


def shares_of_other(categories: Estimates, texts: Estimates) -> tuple[TextInOther, ...]:
    """Return the detected texts with their shares of all devices and of those in `other`."""
    # Of R detected rows each interval misses as rarely as the false coverage rate asks.
    chosen = max(int(texts.detected.sum()), 1) / texts.n_candidates
    return tuple(
        TextInOther(
            string=string,
            of_all=Share(
                proportion=float(texts.proportion[i]),
                std_error=float(texts.std_error[i]),
                low=float(texts.ci_low_adjusted[i]),
                high=float(texts.ci_high_adjusted[i]),
            ),
            of_other=_quotient(
                float(texts.proportion[i]),
                float(texts.std_error[i]),
                categories,
                miss=(1 - texts.detection.confidence) * chosen,
            ),
        )
        for i, string in enumerate(texts.candidates)
        if texts.detected[i]
    )


def _quotient(part: float, part_error: float, categories: Estimates, *, miss: float) -> Share:
    """Return a share as one of `other`, with the interval that misses with a probability.

    The ends solve (part - r whole)^2 = reach^2 (part_error^2 + r^2 whole_error^2).
    """
    whole, whole_error = float(categories.proportion[-1]), float(categories.std_error[-1])
    reach = float(-special.ndtri(miss / 2))
    a = whole**2 - (reach * whole_error) ** 2
    if not (a > 0 and whole > 0 and math.isfinite(part_error)):
        return Share(proportion=math.nan, std_error=math.inf, low=math.nan, high=math.nan)
    b, c = part * whole, part**2 - (reach * part_error) ** 2
    root = math.sqrt(max(b**2 - a * c, 0.0))
    ratio = part / whole
    return Share(
        proportion=ratio,
        std_error=math.hypot(part_error, ratio * whole_error) / whole,
        low=(b - root) / a,
        high=(b + root) / a,
    )
