"""Segments: public properties of a device, such as its version, that a report names without noise.

A segment is part of the fingerprint, so that each segment has counts of its own. It has no effect
on noise and cohort.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import json

import pytest
from registries import format_registry

from rappor import encode_value
from rappor.base.errors import MetricError, ParamsError
from rappor.protocol.params import Params
from rappor.protocol.segments import Dimension, choose_segment, format_segment, list_segments
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

PARAMS = Params(k=16, h=2, m=8, f=0.5, p=0.25, q=0.75)
SEGMENT = (("country", "de"), ("version", "2"))
REGISTRY = format_registry(epoch='"quarter"', segments='{version = ["1", "2"], country = ["de"]}')


def load_metric() -> Metric:
    """Return the metric of `REGISTRY`, which has two dimensions."""
    return Registry.loads(REGISTRY)["page"]


def test_the_fingerprint_hashes_the_segment() -> None:
    """The canonical JSON has the segment under the key "segment", and no such key without segment.

    The fingerprint is the hash of this JSON, as the specification says. A metric without segments
    keeps its fingerprint.
    """
    segmented = PARAMS.with_segment(SEGMENT)
    document = json.loads(PARAMS.to_json())
    document["segment"] = {"country": "de", "version": "2"}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert segmented.to_json() == text
    assert segmented.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert "segment" not in PARAMS.to_json()
    assert segmented.without_segment == PARAMS


def test_noise_and_cohort_are_the_same_in_every_segment() -> None:
    """A segment changes the fingerprint, and changes neither cohort nor permanent response.

    A device that is updated to another version keeps its permanent noise. Otherwise each update
    would reveal as much about the value as a new epoch.
    """
    segmented = load_metric().in_segment({"version": "2"})
    plain = load_metric()
    plain_value, segmented_value = (
        encode_value(b"s" * 32, metric, "value", epoch="2026-Q4", coins=lambda n: [0] * n)
        for metric in (plain, segmented)
    )
    assert segmented.params.permanent_fingerprint == plain.params.permanent_fingerprint
    assert (plain_value.cohort, plain_value.bits, plain_value.permanent) == (
        segmented_value.cohort,
        segmented_value.bits,
        segmented_value.permanent,
    )
    assert plain_value.report.params == plain.fingerprint != segmented_value.report.params
    assert segmented_value.report.params in plain.accepted


def test_the_json_of_a_segment_is_read_back() -> None:
    """from_json reads the segment that to_json writes, and refuses every other form.

    A second form would be a second fingerprint of the same parameters.
    """
    segmented = PARAMS.with_segment(SEGMENT)
    assert Params.from_json(segmented.to_json()) == segmented
    for wrong in ("{}", "[]", "3", '{"A":"x"}', '{"a":3}', '{"a":""}', '{"a":"\\u0007"}', "null"):
        text = segmented.to_json().replace('{"country":"de","version":"2"}', wrong)
        assert text != segmented.to_json()
        with pytest.raises(ParamsError):
            Params.from_json(text)


def test_a_device_sends_a_listed_value_or_other() -> None:
    """A property that is missing or not listed becomes "other" in its dimension.

    Devices would otherwise reveal rare properties, and with them perhaps who they are.
    """
    dimensions = load_metric().segments
    assert choose_segment(dimensions, {"version": "2", "country": "de", "more": "x"}) == SEGMENT
    unlisted_values = (("country", "other"), ("version", "other"))
    assert choose_segment(dimensions, {"version": "3"}) == unlisted_values
    assert set(list_segments(dimensions)) == {
        (("country", country), ("version", version))
        for country, version in itertools.product(("de", "other"), ("1", "2", "other"))
    }


def test_all_segments_of_all_parts_are_accepted() -> None:
    """A collector accepts the fingerprint of every segment, and the fingerprint without a segment.

    The metric has (2 + 1) (1 + 1) segments, "other" included. Two parts double the number.
    """
    assert load_metric().n_segments == 6
    assert len(load_metric().accepted) == 7
    assert load_metric().in_segment({"version": "2"}).accepted == load_metric().accepted
    parts = REGISTRY + 'parts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]\n'
    divided = Registry.loads(parts)["page"]
    assert len(divided.accepted) == 14
    assert len(divided.part_sets) == 2


def test_only_metrics_with_dimensions_get_a_segment() -> None:
    """Only metrics with dimensions get a segment. An expired metric does not make this fail.

    A program sets the segment of the whole registry once, whatever metrics the registry has.
    """
    segmented = load_metric()
    plain = dataclasses.replace(segmented, name="plain", segments=())
    old = dataclasses.replace(segmented, name="old", expires=datetime.date(2026, 5, 20))
    registry = Registry([segmented, plain, old], total=32, today=datetime.date(2027, 1, 1))
    with_segment = registry.in_segment({"version": "2", "country": "de"})
    assert with_segment["plain"] == plain
    assert with_segment["page"].params.segment == SEGMENT


def test_segments_cost_no_budget() -> None:
    """A metric with segments reserves the same budget as without segments.

    The budget limits the loss about the value. A segment is not the value, and a device has one
    segment at a time.
    """
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
    """Wrong segments of an entry are refused, and the message has the metric and the reason."""
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
    """Two segments have two names. Quotes mark a value that looks like another dimension."""
    one_property, two_properties = (("a", "1, b=2"),), (("a", "1"), ("b", "2"))
    assert (format_segment(one_property), format_segment(two_properties)) == (
        'a="1, b=2"',
        "a=1, b=2",
    )
    assert format_segment(()) == "not sent"
