"""White-box audit: compare an encoder's outputs with the protocol, bit by bit.

Authors of an encoder use this audit if the encoder takes its fresh coins as an argument. With fixed
coins and secret the protocol determines every output bit, so no statistics are needed: one
differing bit is a fault. This finds faults that no black-box audit can see, such as `<=` in place
of `<`, which changes one coin of 2^32.

The input is the encoder, as a function from `DeviceInputs` to `DeviceOutputs` or as a command. The
output is an `Audit` with one check. The inputs are drawn over random parameters, metrics, epochs
and values. Half of the fresh coins lie at a threshold or just below a threshold, where `<` and `<=`
differ. The coins of a permanent response follow from the secret and cannot be chosen, so a `<=`
there is missed.

Under generalized randomized response a report names one of k buckets. All of its coins follow from
the secret, so the fresh coins of these inputs have no effect. The inputs are sets with fewer, as
many and more items than are reported, and values outside all categories. They show how an encoder
pads, cuts and draws. The black-box audit of an encoder tests separate bits, so it refuses metrics
with such reports (`check_separate_bits`). The audit of a client (`rappor.auditing.device`) tests
them by statistics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rappor.auditing.auditor import Audit
from rappor.auditing.check import check_condition
from rappor.auditing.encoder_under_test import JsonLines
from rappor.auditing.pairs import draw_random_values
from rappor.auditing.reference_encoder import DeviceInputs, DeviceOutputs, compute_reference_outputs
from rappor.base.ranges import read_count
from rappor.protocol.encodings import ENCODINGS, Encoding, get_encoding
from rappor.protocol.normalizers import NORMALIZERS
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.protocol.responses.rappor_response import Noise
from rappor.protocol.thresholds import ONE
from rappor.protocol.tuples import (
    MAX_FIELDS,
    MIN_FIELDS,
    combine_categories,
    join_normalizers,
)
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_EPOCHS: Final = ("", "2026", "2026-Q4", "2026-11")
"""Epochs that inputs have: one of each kind, life, year, quarter and month."""

_BUCKET_SHARE: Final = 0.3
"""Share of the random parameter sets whose reports name one bucket.

A convention: of the default 500 inputs, 375 have random parameters. About 110 of these name one
bucket, so each of the encodings of categories, numbers and sets gets dozens.
"""

_FIELD_SHARE: Final = 0.25
"""Share of the random parameter sets of strings and of categories whose values are tuples.

A convention: of the default 500 inputs, about 50 are tuples of strings and 25 of categories.
"""

_FIELD_NAMES: Final = ("a", "b2", "site", "country_code", "z", "k", "m", "v")
"""Names of fields of drawn tuples. Some equal keys of parameters, which an encoder may mix up."""

_NAME_LETTERS: Final = tuple("abc019_.-")
"""Drawn metric names consist of these characters: letters, digits and all special characters that
names allow."""

_NORMALIZERS: Final = tuple(name for name in NORMALIZERS if name != "domain")
"""Parameters are drawn with every normalizer except `domain`, which needs an extra to be
installed."""

_NOT_EXAMINED: Final = (
    "Coins: the audit passed the fresh coins and did not test the program's own generator.",
    "Permanent coins: they follow from the secret. A <= in place of < changes one coin of 2^32.",
    "Parts: the choice of a device's part was not tested, only the outputs for each part.",
    "Normalizers: domain was not tested, because it depends on a list of public suffixes.",
    "Clients: epochs, consent, the ledger of losses and uploads are not part of an encoder.",
)
"""Limits of the audit, one sentence each, for `Audit.not_examined`.

A part is the piece of a string that a device reports, such as the first three characters. The
ledger of losses is the record of the privacy loss that a device has spent.
"""


def audit_exactly(
    encoder: Callable[[DeviceInputs], DeviceOutputs] | JsonLines,
    metric: Metric,
    *,
    vectors: int = 500,
    seed: int | None = None,
) -> Audit:
    """Compare an encoder's outputs with the protocol, field by field and bit by bit.

    Every fourth input uses the parameters of the metric, the others random parameters. The sentence
    of the single check names the first field on the way from value to report in which any output
    differs, and the first differing bit. The sentence never contains the value.

    Parameters
    ----------
    encoder : callable or JsonLines
        Maps `DeviceInputs` to `DeviceOutputs`, or a command that does.
    metric : Metric
        The metric whose parameters are tested most.
    vectors : int
        Number of inputs.
    seed : int, optional
        Seed of the inputs.

    Returns
    -------
    Audit
        With one check, `protocol: exact`.

    Raises
    ------
    ParamsError
        If `vectors` is not a positive integer.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric, Params
    >>> from rappor.auditing import audit_exactly, compute_reference_outputs
    >>> metric = Metric(
    ...     name="page",
    ...     params=Params.profile("balanced"),
    ...     description="Home page",
    ...     owner="a@example.org",
    ...     expires=datetime.date(2030, 1, 1),
    ...     epoch="year",
    ... )
    >>> audit_exactly(compute_reference_outputs, metric, vectors=20, seed=1).passed
    True
    """
    vectors = read_count("vectors", vectors)
    rng = Keystream(seed).generator()
    all_inputs = [
        _draw_inputs(rng, metric.params, metric.name) if number % 4 == 0 else _draw_any_inputs(rng)
        for number in range(vectors)
    ]
    if isinstance(encoder, JsonLines):
        outputs: Sequence[DeviceOutputs] = encoder.compute_outputs(all_inputs)
    else:
        outputs = [encoder(inputs) for inputs in all_inputs]
    wrong = [
        difference
        for inputs, output in zip(all_inputs, outputs, strict=True)
        if (difference := _find_first_difference(inputs, output)) is not None
    ]
    # `min` takes the difference in the earliest field: a wrong cohort changes all later fields.
    detail = f"all {vectors:,} outputs equal the protocol's"
    if wrong:
        _, where = min(wrong)
        detail = f"{len(wrong):,} of {vectors:,} outputs differ, the first in {where}"
    return Audit(
        metric=metric,
        trials=vectors,
        n_reports=1,
        level=0.0,
        checks=(check_condition("protocol: exact", detail, is_fault=bool(wrong)),),
        not_examined=_NOT_EXAMINED,
    )


def _find_first_difference(inputs: DeviceInputs, output: DeviceOutputs) -> tuple[int, str] | None:
    """Return the index of the first differing field and its description, or None.

    The fields are, in the order of the encoder's steps: cohort, true bits, permanent response,
    report. The description names the lowest differing bit and never contains the value.
    """
    params, expected = inputs.params, compute_reference_outputs(inputs)
    for number, (expected_field, actual_field) in enumerate(zip(expected, output, strict=True)):
        if expected_field == actual_field:
            continue
        description = DeviceOutputs._fields[number]
        if isinstance(expected_field, bytes) and isinstance(actual_field, bytes):
            differing = int.from_bytes(expected_field, "little") ^ int.from_bytes(
                actual_field, "little"
            )
            # n & -n is the lowest binary digit that is set.
            description += f", bit {(differing & -differing).bit_length() - 1}"
        dimensions = ", ".join(
            f"{name} = {getattr(params, name)}" for name in params.response.dimensions
        )
        return number, f"{description} ({params.encoding}, {dimensions})"
    return None


def _draw_any_inputs(rng: np.random.Generator) -> DeviceInputs:
    """Draw inputs with a random metric name and random parameters.

    Some inputs have a *part*: the piece of the value that the device reports. It is a prefix, such
    as the first seven characters ("prefix:7"), or the whole value ("whole").
    """
    name = "q" + "".join(rng.choice(_NAME_LETTERS, size=int(rng.integers(0, 20))))
    is_bucket = rng.random() < _BUCKET_SHARE
    params = _draw_bucket_params(rng) if is_bucket else draw_random_params(rng)
    # Tuples have no parts.
    if get_encoding(params).supports_parts and not params.field_names:
        part = str(rng.choice(("", "", "prefix:1", "prefix:7", "whole")))
        params = dataclasses.replace(params, part=part)
    return _draw_inputs(rng, params, name)


def _draw_inputs(rng: np.random.Generator, params: Params, metric: str) -> DeviceInputs:
    """Draw secret, epoch, value and coins for a metric with these parameters."""
    thresholds = [params.t_p, params.t_q]
    # A coin just below a threshold sets the bit, and the coin at the threshold does not. These two
    # coins distinguish `<` from `<=`.
    edges = [max(0, min(t - below, ONE - 1)) for t in thresholds for below in (0, 1)]
    anywhere = rng.integers(0, ONE, size=params.k)
    coins = np.where(rng.random(params.k) < 0.5, rng.choice(edges, size=params.k), anywhere)
    return DeviceInputs(
        secret=rng.bytes(SECRET_BYTES),
        metric=metric,
        # Reports of one bucket are sent once an epoch, so the first epoch, "life", is impossible.
        epoch=str(rng.choice(_EPOCHS[1:] if params.response.is_exclusive else _EPOCHS)),
        value=_draw_value(rng, params),
        params=params,
        coins=tuple(coins.tolist()),
    )


def draw_random_params(rng: np.random.Generator) -> Params:
    """Draw parameters of any encoding with any noise; most have few bits."""
    p = rng.uniform(0.01, 0.5)
    noise: Noise = {
        "f": rng.uniform(0.01, 0.9),
        "g": rng.choice([0.5, rng.uniform(0.01, 0.99)]),
        "p": p,
        "q": rng.uniform(p + 0.01, 0.99),
    }
    names_of_kinds = [name for name, kind in ENCODINGS.items() if kind.supports_rappor]
    kind = ENCODINGS[str(rng.choice(names_of_kinds))]
    k = int(rng.integers(2, 64))
    fields = _draw_field_names(rng, kind)
    if kind.is_hashed:
        return Params(
            encoding=kind.name,
            # 128 is the number of bits of the profiles, and 2,040 is the largest number of bits.
            k=int(rng.choice([k, 128, 2040], p=[0.8, 0.15, 0.05])),
            h=int(rng.integers(1, 17)),
            m=int(rng.choice([1, 2, 128, int(rng.integers(1, 65537))])),
            field_names=fields,
            normalize=_draw_normalizers(rng, fields),
            **noise,
        )
    names = _draw_categories(rng, k, fields) if kind.categories_key else ()
    # `count_bits` returns None for an encoding whose number of bits is free.
    k = kind.count_bits(names) or k
    return Params(k=k, encoding=kind.name, categories=names, field_names=fields, **noise)


def _draw_field_names(rng: np.random.Generator, kind: type[Encoding]) -> tuple[str, ...]:
    """Draw the names of the fields of a tuple; empty for most parameters."""
    if not kind.supports_fields or rng.random() >= _FIELD_SHARE:
        return ()
    # Tuples of categories have a combination for each category of every field.
    most = MAX_FIELDS if kind.is_hashed else 3
    n_fields = int(rng.integers(MIN_FIELDS, most + 1))
    return tuple(str(name) for name in rng.permutation(_FIELD_NAMES)[:n_fields])


def _draw_normalizers(rng: np.random.Generator, fields: tuple[str, ...]) -> str:
    """Draw a normalizer for each field, or one normalizer for values without fields."""
    return join_normalizers([str(rng.choice(_NORMALIZERS)) for _ in fields or ("",)])


def _draw_categories(rng: np.random.Generator, n: int, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return n categories, or all combinations of 2 to 5 categories of each field."""
    # Texts such as "1" and "2" are valid categories of one-hot and valid edges of buckets.
    if not fields:
        return tuple(str(number) for number in range(1, n + 1))
    numbers = [range(1, int(rng.integers(3, 7))) for _ in fields]
    return combine_categories(
        {field: list(map(str, listed)) for field, listed in zip(fields, numbers, strict=True)}
    )


def _draw_bucket_params(rng: np.random.Generator) -> Params:
    """Draw parameters whose reports name one bucket: of categories, numbers or sets.

    `items` is the number of own buckets (n) that a set is padded or cut to, and `keep` is the
    probability that a report names one of them. More than n buckets are needed, so k is drawn from
    n + 1 to n + 63.
    """
    kinds = [kind for kind in ENCODINGS.values() if kind.supports_grr]
    kind, keep = kinds[int(rng.integers(len(kinds)))], rng.uniform(0.01, 0.99)
    if not kind.categories_key:
        items = int(rng.choice([1, 2, 3, 8, 64]))
        return Params(
            encoding=kind.name,
            k=items + int(rng.integers(1, 64)),
            # No cohorts, two, the cohorts of the profiles, and any number that is allowed.
            m=int(rng.choice([1, 2, 128, int(rng.integers(1, 65537))])),
            items=items,
            keep=keep,
            normalize=str(rng.choice(_NORMALIZERS)),
        )
    fields = _draw_field_names(rng, kind)
    names = _draw_categories(rng, int(rng.integers(2, 63)), fields)
    k = kind.count_bits(names)
    assert k is not None
    # One more bucket, for values outside all categories.
    return Params(encoding=kind.name, k=k + 1, keep=keep, categories=names, field_names=fields)


def _draw_set(rng: np.random.Generator, params: Params) -> str:
    """Draw a set as text: 0 to `items` + 3 items, separated by tabs.

    The first item is repeated and an empty item is added. Neither may change the report.
    """
    items = draw_random_values(params, int(rng.integers(0, params.items + 4)), rng)
    return "\t".join([*items, *items[:1], ""])


def _draw_value(rng: np.random.Generator, params: Params) -> str:
    """Draw a value that the encoding accepts, as text."""
    encoding = get_encoding(params)
    if encoding.supports_items:
        return _draw_set(rng, params)
    if encoding.is_hashed:
        return draw_random_values(params, 1, rng)[0]
    # `params.categories` contains the categories of one-hot or the edges of buckets. A category is
    # a value, and an edge is a number, which is a value of a bucket. Unlisted values are outside
    # all categories or buckets. They are drawn only if the parameters have a bucket for them.
    # `most_different_pairs` has pairs of texts whose true bits differ most, such as "true" and
    # "false" of an encoding of booleans.
    texts = [text for pair in encoding.most_different_pairs for text in pair]
    unlisted = encoding.unlisted_values if params.has_other_bucket else ()
    return str(rng.choice([*texts, *params.categories, *unlisted]))
