"""A white-box audit: with coins and secret given, the protocol leaves one answer, to the bit.

The questions are drawn over random parameters, metrics, epochs and values. Half of the fresh
coins lie at a threshold or just below it, where `<` and `<=` differ. The coins of a permanent
response follow from the secret and cannot be chosen.
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
from rappor.protocol.encodings import ENCODINGS, encoding_of
from rappor.protocol.normalizers import NORMALIZERS
from rappor.protocol.params import ONE, Noise, Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_EPOCHS: Final = ("", "2026", "2026-Q4", "2026-11")
_NAME_LETTERS: Final = tuple("abc019_.-")
_NORMALIZERS: Final = tuple(name for name in NORMALIZERS if name != "domain")
"""Without the one that needs an extra."""

_NOT_EXAMINED: Final = (
    "Coins: the audit gave fresh ones and did not test the program's own.",
    "Permanent coins: they follow from the secret; a <= for < there differs once in 2^32 coins.",
    "Parts: the choice of a device's part was not tested, only the answers for each part.",
    "Normalizers: domain was not tested, because it depends on a list.",
    "Clients: epochs, consent, the ledger and uploads are no part of an encoder.",
)


def audit_exactly(
    encoder: Callable[[DeviceInputs], DeviceOutputs] | JsonLines,
    metric: Metric,
    *,
    vectors: int = 500,
    seed: int | None = None,
) -> Audit:
    """Compare a encoder's answers with the protocol's, field by field and bit by bit.

    Every fourth question is about the metric, the others about random parameters. The one check's
    sentence names the first field, on the way from value to report, in which any answer differs,
    and where, but never the value.

    Raises ParamsError for a number of vectors that is no count.
    """
    vectors = read_count("vectors", vectors)
    rng = Keystream(seed).generator()
    questions = [
        _question(rng, metric.params, metric.name) if number % 4 == 0 else _any_question(rng)
        for number in range(vectors)
    ]
    if isinstance(encoder, JsonLines):
        answers: Sequence[DeviceOutputs] = encoder.compute_outputs(questions)
    else:
        answers = [encoder(question) for question in questions]
    wrong = [
        found
        for question, answer in zip(questions, answers, strict=True)
        if (found := _first_difference(question, answer)) is not None
    ]
    detail = f"all {vectors:,} answers are the protocol's"
    if wrong:
        _, where = min(wrong)
        detail = f"{len(wrong):,} of {vectors:,} answers differ, the first in {where}"
    return Audit(
        metric=metric,
        trials=vectors,
        n_reports=1,
        level=0.0,
        checks=(check_condition("protocol: exact", detail, is_fault=bool(wrong)),),
        not_examined=_NOT_EXAMINED,
    )


def _first_difference(question: DeviceInputs, answer: DeviceOutputs) -> tuple[int, str] | None:
    """Return which field differs first, on the way from value to report, and where."""
    params, expected = question.params, compute_reference_outputs(question)
    for number, (own, other) in enumerate(zip(expected, answer, strict=True)):
        if own == other:
            continue
        what = DeviceOutputs._fields[number]
        if isinstance(own, bytes) and isinstance(other, bytes):
            differing = int.from_bytes(own, "little") ^ int.from_bytes(other, "little")
            what += f", bit {(differing & -differing).bit_length() - 1}"
        return number, f"{what} ({params.encoding}, k = {params.k}, h = {params.h}, m = {params.m})"
    return None


def _any_question(rng: np.random.Generator) -> DeviceInputs:
    name = "q" + "".join(rng.choice(_NAME_LETTERS, size=int(rng.integers(0, 20))))
    params = random_params(rng)
    if encoding_of(params).hashed:
        part = str(rng.choice(("", "", "prefix:1", "prefix:7", "whole")))
        params = dataclasses.replace(params, part=part)
    return _question(rng, params, name)


def _question(rng: np.random.Generator, params: Params, metric: str) -> DeviceInputs:
    thresholds = [params.t_p, params.t_q]
    edges = [max(0, min(t - below, ONE - 1)) for t in thresholds for below in (0, 1)]
    anywhere = rng.integers(0, ONE, size=params.k)
    coins = np.where(rng.random(params.k) < 0.5, rng.choice(edges, size=params.k), anywhere)
    return DeviceInputs(
        secret=rng.bytes(SECRET_BYTES),
        metric=metric,
        epoch=str(rng.choice(_EPOCHS)),
        value=_any_value(rng, params),
        params=params,
        coins=tuple(coins.tolist()),
    )


def random_params(rng: np.random.Generator) -> Params:
    """Return parameters of any encoding, with any noise; mostly few bits."""
    p = rng.uniform(0.01, 0.5)
    noise: Noise = {
        "f": rng.uniform(0.01, 0.9),
        "g": rng.choice([0.5, rng.uniform(0.01, 0.99)]),
        "p": p,
        "q": rng.uniform(p + 0.01, 0.99),
    }
    kind = ENCODINGS[str(rng.choice(list(ENCODINGS)))]
    k = int(rng.integers(2, 64))
    if kind.hashed:
        return Params(
            encoding=kind.name,
            k=int(rng.choice([k, 128, 2040], p=[0.8, 0.15, 0.05])),
            h=int(rng.integers(1, 17)),
            m=int(rng.choice([1, 2, 128, int(rng.integers(1, 65537))])),
            normalize=str(rng.choice(_NORMALIZERS)),
            **noise,
        )
    # Numbers are names of categories as well as edges.
    names = tuple(str(number) for number in range(1, k + 1)) if kind.categories_key else ()
    k = kind.implied_bits(names) or k
    return Params(k=k, encoding=kind.name, categories=names, **noise)


def _any_value(rng: np.random.Generator, params: Params) -> str:
    encoding = encoding_of(params)
    if encoding.hashed:
        return draw_random_values(params, 1, rng)[0]
    texts = [text for pair in encoding.contrasts for text in pair]
    return str(rng.choice([*texts, *params.categories]))  # categories and edges are values too
