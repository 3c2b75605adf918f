"""Segments: part of the fingerprint, without any effect on noise and cohort."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import json

import pytest
from registries import toml_of

from rappor import encode_value
from rappor.base.errors import MetricError, ParamsError
from rappor.protocol.params import Params
from rappor.protocol.segments import Dimension, choose_segment, format_segment, list_segments
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

PARAMS = Params(k=16, h=2, m=8, f=0.5, p=0.25, q=0.75)
SEGMENT = (("country", "de"), ("version", "2"))
REGISTRY = toml_of(epoch='"quarter"', segments='{version = ["1", "2"], country = ["de"]}')


def load_metric() -> Metric:
    """Return the metric of `REGISTRY`, which has two dimensions."""
    return Registry.loads(REGISTRY)["page"]


def test_the_segment_is_in_the_fingerprint_as_the_document_says() -> None:
    """The canonical JSON has the key "segment"; without a segment it has not."""
    segmented = PARAMS.with_segment(SEGMENT)
    document = json.loads(PARAMS.to_json())
    document["segment"] = {"country": "de", "version": "2"}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert segmented.to_json() == text
    assert segmented.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert "segment" not in PARAMS.to_json()
    assert segmented.without_segment == PARAMS


def test_noise_and_cohort_are_the_same_in_every_segment() -> None:
    """A segment changes the fingerprint, and neither cohort nor permanent response."""
    segmented = load_metric().in_segment({"version": "2"})
    plain = load_metric()
    one, two = (
        encode_value(b"s" * 32, metric, "value", epoch="2026-Q4", coins=lambda n: [0] * n)
        for metric in (plain, segmented)
    )
    assert segmented.params.permanent_fingerprint == plain.params.permanent_fingerprint
    assert (one.cohort, one.bits, one.permanent) == (two.cohort, two.bits, two.permanent)
    assert one.report.params == plain.fingerprint != two.report.params
    assert two.report.params in plain.accepted


def test_json_is_read_back_and_only_as_it_is_written() -> None:
    """from_json refuses an empty object, numbers, and wrong names or values of a segment."""
    segmented = PARAMS.with_segment(SEGMENT)
    assert Params.from_json(segmented.to_json()) == segmented
    for wrong in ("{}", "[]", "3", '{"A":"x"}', '{"a":3}', '{"a":""}', '{"a":"\\u0007"}', "null"):
        text = segmented.to_json().replace('{"country":"de","version":"2"}', wrong)
        assert text != segmented.to_json()
        with pytest.raises(ParamsError):
            Params.from_json(text)


def test_a_device_sends_a_listed_value_or_other() -> None:
    """A value that is missing or not listed becomes "other" in its dimension."""
    dimensions = load_metric().segments
    assert choose_segment(dimensions, {"version": "2", "country": "de", "more": "x"}) == SEGMENT
    others = (("country", "other"), ("version", "other"))
    assert choose_segment(dimensions, {"version": "3"}) == others
    assert set(list_segments(dimensions)) == {
        (("country", country), ("version", version))
        for country, version in itertools.product(("de", "other"), ("1", "2", "other"))
    }


def test_all_segments_of_all_parts_are_accepted() -> None:
    """Six segments and the empty segment are accepted; two parts double the number."""
    assert load_metric().n_segments == 6
    assert len(load_metric().accepted) == 7
    assert load_metric().in_segment({"version": "2"}).accepted == load_metric().accepted
    parts = REGISTRY + 'parts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]\n'
    divided = Registry.loads(parts)["page"]
    assert len(divided.accepted) == 14
    assert len(divided.part_sets) == 2


def test_only_metrics_with_dimensions_get_a_segment() -> None:
    """Metrics without dimensions stay as they are; expired metrics are no problem."""
    segmented = load_metric()
    plain = dataclasses.replace(segmented, name="plain", segments=())
    old = dataclasses.replace(segmented, name="old", expires=datetime.date(2026, 5, 20))
    registry = Registry([segmented, plain, old], total=32, today=datetime.date(2027, 1, 1))
    with_segment = registry.in_segment({"version": "2", "country": "de"})
    assert with_segment["plain"] == plain
    assert with_segment["page"].params.segment == SEGMENT


def test_segments_cost_no_budget() -> None:
    """The reserved budget is that of the metric without segments."""
    plain = Registry.loads(REGISTRY.replace("segments", "#"))
    segmented = Registry.loads(REGISTRY)
    assert segmented.reserved == plain.reserved
    assert segmented.in_segment({"version": "1"})["page"].params.segment == (
        ("country", "other"),
        ("version", "1"),
    )


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ('{version = "1"}', "segments must be a table of lists"),
        ("[]", "segments must be a table of lists"),
        ("{version = []}", "must list its values"),
        ('{version = ["1", "1"]}', "must be distinct"),
        ('{version = ["other"]}', "other must not be listed"),
        ('{Version = ["1"]}', "a dimension's name must match"),
        ("{version = [1]}", "must be 1 to 64 visible characters"),
        ('{version = [" "]}', "without spaces at its ends"),
        (f"{{version = {[str(i) for i in range(256)]}}}", "at most 256, other included, got 257"),
    ],
)
def test_wrong_segments_are_refused(entry: str, reason: str) -> None:
    """The message names the metric and the reason."""
    text = REGISTRY.replace('{version = ["1", "2"], country = ["de"]}', entry)
    with pytest.raises(MetricError, match=reason) as caught:
        Registry.loads(text)
    assert "page" in str(caught.value)


def test_the_segment_of_a_metric_must_be_listed() -> None:
    """A metric refuses parameters with a segment that its dimensions do not have."""
    segmented = PARAMS.with_segment((("version", "9"),))
    with pytest.raises(MetricError, match="params must name a segment of its segments"):
        dataclasses.replace(load_metric(), params=segmented)
    with pytest.raises(ParamsError, match="distinct and in order"):
        PARAMS.with_segment((("b", "1"), ("a", "1")))
    with pytest.raises(ParamsError, match="pairs of a name and a value"):
        PARAMS.with_segment((("b",),))  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="must list its values"):
        Dimension("a", ())


def test_two_segments_have_two_names() -> None:
    """Quotes distinguish a value that looks like another dimension."""
    one, two = (("a", "1, b=2"),), (("a", "1"), ("b", "2"))
    assert (format_segment(one), format_segment(two)) == ('a="1, b=2"', "a=1, b=2")
    assert format_segment(()) == "not sent"
