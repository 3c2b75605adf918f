"""Segments: told in the clear by the fingerprint, and without any effect on noise and cohort."""

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
from rappor.protocol.segments import Dimension, choose_segment, segment_name, segments_of
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

PARAMS = Params(k=16, h=2, m=8, f=0.5, p=0.25, q=0.75)
SEGMENT = (("country", "de"), ("version", "2"))
REGISTRY = toml_of(epoch='"quarter"', segments='{version = ["1", "2"], country = ["de"]}')


def metric() -> Metric:
    return Registry.loads(REGISTRY)["page"]


def test_the_segment_is_in_the_fingerprint_as_the_document_says() -> None:
    """The canonical JSON with one key more; without a segment nothing changes."""
    told = PARAMS.in_segment(SEGMENT)
    document = json.loads(PARAMS.to_json())
    document["segment"] = {"country": "de", "version": "2"}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert told.to_json() == text
    assert told.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert "segment" not in PARAMS.to_json()
    assert told.unsegmented == PARAMS


def test_noise_and_cohort_are_the_same_in_every_segment() -> None:
    """One permanent fingerprint, one cohort, one permanent response; another fingerprint."""
    told = metric().in_segment({"version": "2"})
    plain = metric()
    one, two = (
        encode_value(b"s" * 32, each, "value", epoch="2026-Q4", coins=lambda n: [0] * n)
        for each in (plain, told)
    )
    assert told.params.permanent_fingerprint == plain.params.permanent_fingerprint
    assert (one.cohort, one.bits, one.permanent) == (two.cohort, two.bits, two.permanent)
    assert one.report.params == plain.fingerprint != two.report.params
    assert two.report.params in plain.accepted


def test_json_is_read_back_and_only_as_it_is_written() -> None:
    """A doubled key, an empty object, a number and a wrong name are refused."""
    told = PARAMS.in_segment(SEGMENT)
    assert Params.from_json(told.to_json()) == told
    for wrong in ("{}", "[]", "3", '{"A":"x"}', '{"a":3}', '{"a":""}', '{"a":"\\u0007"}', "null"):
        text = told.to_json().replace('{"country":"de","version":"2"}', wrong)
        assert text != told.to_json()
        with pytest.raises(ParamsError):
            Params.from_json(text)


def test_a_device_tells_a_listed_value_or_other() -> None:
    """For every dimension, whatever it is called or is not told."""
    dimensions = metric().segments
    assert choose_segment(dimensions, {"version": "2", "country": "de", "more": "x"}) == SEGMENT
    others = (("country", "other"), ("version", "other"))
    assert choose_segment(dimensions, {"version": "3"}) == others
    assert set(segments_of(dimensions)) == {
        (("country", country), ("version", version))
        for country, version in itertools.product(("de", "other"), ("1", "2", "other"))
    }


def test_all_segments_of_all_parts_are_accepted_and_none_twice() -> None:
    """Six segments and none; with two parts twice as many."""
    assert metric().n_segments == 6
    assert len(metric().accepted) == 7
    assert metric().in_segment({"version": "2"}).accepted == metric().accepted
    parts = REGISTRY + 'parts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]\n'
    divided = Registry.loads(parts)["page"]
    assert len(divided.accepted) == 14
    assert len(divided.part_sets) == 2


def test_only_metrics_with_segments_tell_one() -> None:
    """The others of a registry stay, and so does what has expired before this year."""
    told = metric()
    plain = dataclasses.replace(told, name="plain", segments=())
    old = dataclasses.replace(told, name="old", expires=datetime.date(2026, 5, 20))
    registry = Registry([told, plain, old], total=32, today=datetime.date(2027, 1, 1))
    own = registry.in_segment({"version": "2", "country": "de"})
    assert own["plain"] == plain
    assert own["page"].params.segment == SEGMENT


def test_segments_cost_no_budget() -> None:
    """The price is that of the metric without them, and names the same scopes."""
    plain = Registry.loads(REGISTRY.replace("segments", "#"))
    told = Registry.loads(REGISTRY)
    assert told.reserved == plain.reserved
    assert told.in_segment({"version": "1"})["page"].params.segment == (
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
    """In one sentence that names the metric."""
    text = REGISTRY.replace('{version = ["1", "2"], country = ["de"]}', entry)
    with pytest.raises(MetricError, match=reason) as caught:
        Registry.loads(text)
    assert "page" in str(caught.value)


def test_a_segment_of_its_own_must_be_listed() -> None:
    """A device's own metric tells one of the metric's segments."""
    told = PARAMS.in_segment((("version", "9"),))
    with pytest.raises(MetricError, match="params must name a segment of its segments"):
        dataclasses.replace(metric(), params=told)
    with pytest.raises(ParamsError, match="distinct and in order"):
        PARAMS.in_segment((("b", "1"), ("a", "1")))
    with pytest.raises(ParamsError, match="pairs of a name and a value"):
        PARAMS.in_segment((("b",),))  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="must list its values"):
        Dimension("a", ())


def test_two_segments_have_two_names() -> None:
    """Also where a value looks like the beginning of another one."""
    one, two = (("a", "1, b=2"),), (("a", "1"), ("b", "2"))
    assert (segment_name(one), segment_name(two)) == ('a="1, b=2"', "a=1, b=2")
    assert segment_name(()) == "not told"
