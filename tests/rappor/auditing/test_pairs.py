"""The values that an audit sends: pairs, random values, special values and other spellings."""

from __future__ import annotations

import numpy as np
import pytest
from audits import ENCODINGS, SMALL_METRIC, build_audited_metric

from rappor import Metric
from rappor.auditing.pairs import (
    TrueBits,
    choose_pairs,
    choose_spellings,
    draw_random_values,
    list_special_values,
)
from rappor.protocol.encodings import get_encoder
from rappor.protocol.normalizers import MAX_TEXT_BYTES, normalize


@pytest.mark.parametrize("audited", ENCODINGS.values(), ids=ENCODINGS)
def test_pairs_differ_most_and_set_every_bit(audited: Metric) -> None:
    """In every cohort, the two values of a pair differ in as many bits as values can differ.

    Over all cohorts and pairs, every bit is set. Strings with h bits each differ in up to 2 h bits.
    """
    params = audited.params
    truth = TrueBits(params, [value for pair in choose_pairs(params) for value in pair])
    is_set = np.zeros(params.k, dtype=np.bool_)
    most = {"bloom": 2 * params.h, "boolean": 1}.get(params.encoding, 2)
    for cohort in range(params.m):
        positions = np.arange(len(truth.values))
        bits = truth.bits(positions, np.full(len(positions), cohort))
        assert ((bits[0::2] ^ bits[1::2]).sum(axis=1) == most).all()
        is_set |= bits.any(axis=0)
    assert is_set.all()


@pytest.mark.parametrize("normalizer", ["nfc", "casefold", "strip", "host"])
def test_each_normalizer_has_another_spelling(normalizer: str) -> None:
    """The audit has two different texts that the normalizer makes equal."""
    spellings = choose_spellings(build_audited_metric(normalize=normalizer).params)
    assert spellings
    for text, respelled in spellings:
        assert text != respelled
        assert normalize(normalizer, text) == normalize(normalizer, respelled)


def test_empty_and_long_texts_are_sent() -> None:
    """The special texts are the empty text, one of 257 bytes, and the longest text."""
    texts = list_special_values(SMALL_METRIC.params, np.random.default_rng(1))
    assert [len(text.encode()) for text in texts] == [0, 257, MAX_TEXT_BYTES]


@pytest.mark.parametrize("kind", ["pair", "choice"])
def test_values_of_tuples_have_every_field(kind: str) -> None:
    """Values of tuple metrics have two fields. Another spelling changes the normalized field only.

    Both spellings have equal true bits.
    """
    params = ENCODINGS[kind].params
    encoder, rng = get_encoder(params), np.random.default_rng(1)
    values = [text for pair in choose_pairs(params) for text in pair]
    values += draw_random_values(params, 5, rng) + list_special_values(params, rng)
    assert all(len(text.split("\x1f")) == 2 for text in values)
    spellings = choose_spellings(params)
    assert spellings
    for text, respelled in spellings:
        is_changed = [
            a != b for a, b in zip(text.split("\x1f"), respelled.split("\x1f"), strict=True)
        ]
        assert is_changed == [kind == "pair", kind == "choice"]
        bits = [encoder.encode(encoder.parse_value(value), 0) for value in (text, respelled)]
        assert bits[0] == bits[1]
