"""The sealed JSON of a registry, which devices in other languages read: numbers, order and seal.

The JSON contains everything that a device computes from a registry in Python, such as thresholds
and notices, so that a client in another language needs no reader of TOML. The seal is a hash that
shows whether a document was changed by accident.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math

import pytest
from registries import build_metric

from rappor import Metric, Params, Registry, combine_categories
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.sealed_json import format_sealed_json

METRIC = build_metric(
    Params(k=8, h=2, m=4, f=0.5, p=0.25, q=0.75), description="Häufige Seiten", epoch="quarter"
)


def seal_registry(*metrics: Metric, total: float = 100.0) -> str:
    """Return the sealed JSON of metrics whose notices are short texts."""
    registry = Registry(metrics, total=total)
    return format_sealed_json(registry, {name: f"about {name}" for name in registry})


@pytest.mark.parametrize(
    ("total", "text"), [(100.0, "100"), (24.5, "24.5"), (1e21, "1e+21"), (math.inf, "Infinity")]
)
def test_the_total_is_written_as_in_ecmascript(total: float, text: str) -> None:
    """The total of a device is a text, as ECMAScript writes the number.

    So every language reads the same total. An infinite total is the text "Infinity", because JSON
    has no infinite number.
    """
    assert json.loads(seal_registry(METRIC, total=total))["total"] == text


def test_the_seal_is_the_hash_of_the_document_before_it() -> None:
    """The seal is the last key: the SHA-256 of the document without the seal, byte by byte.

    A reader removes the seal from the text and hashes the remaining bytes. Letters beyond ASCII are
    written as they are, because languages escape them in different ways.
    """
    text = seal_registry(METRIC)
    assert list(json.loads(text)) == ["v", "total", "metrics", "seal"]
    before, _, seal = text.partition(',"seal":"')
    assert seal == hashlib.sha256(f"{before}}}".encode()).hexdigest() + '"}'
    assert "Häufige Seiten" in text


def test_fields_are_a_list_in_their_order() -> None:
    """Fields of a tuple are a list. The order of the fields decides the bits of a value.

    JavaScript would sort the keys of an object that look like integers.
    """
    params = Params.profile("balanced", field_names=("b", "a"), normalize="none,strip")
    (entry,) = json.loads(seal_registry(dataclasses.replace(METRIC, params=params)))["metrics"]
    assert entry["params"]["fields"] == ["b", "a"]
    assert entry["params"]["normalize"] == "none,strip"
    lists = {"size": ("10", "9"), "colour": ("red", "blue")}
    params = Params.profile(
        "balanced",
        encoding="onehot",
        categories=combine_categories(lists),
        field_names=tuple(lists),
    )
    (entry,) = json.loads(seal_registry(dataclasses.replace(METRIC, params=params)))["metrics"]
    assert entry["params"]["fields"] == ["size", "colour"]
    expected = ["10\x1fred", "10\x1fblue", "9\x1fred", "9\x1fblue"]
    assert entry["params"]["categories"] == expected


def test_an_entry_has_all_that_devices_need() -> None:
    """The entry of a metric has exactly these keys, and the document has a format version.

    The sampling rate is a threshold, so that a device compares integers and rounds nothing.
    """
    dimensions = (Dimension("version", ("1", "2")), Dimension("country", ("de",)))
    metric = dataclasses.replace(METRIC, interval="week", sampling_rate=0.5, segments=dimensions)
    document = json.loads(seal_registry(metric))
    assert document["v"] == 1
    assert document["metrics"] == [
        {
            "name": "page",
            "description": "Häufige Seiten",
            "owner": "b",
            "expires": "2999-01-01",
            "epoch": "quarter",
            "interval": "week",
            "durable": False,
            "sampling_rate": 1 << 31,
            "params": json.loads(metric.params.to_json()),
            "fingerprint": metric.fingerprint,
            "parts": [],
            "segments": [["country", ["de"]], ["version", ["1", "2"]]],
            "notice": "about page",
        }
    ]


def test_each_metric_has_its_own_notice() -> None:
    """Each metric has its own notice, and metrics are in the order of the registry."""
    metrics = json.loads(seal_registry(METRIC, dataclasses.replace(METRIC, name="age")))["metrics"]
    notices = [(metric["name"], metric["notice"]) for metric in metrics]
    assert notices == [("page", "about page"), ("age", "about age")]


def test_the_last_part_has_no_threshold() -> None:
    """The last part has no threshold: devices that draw no earlier part report the last part."""
    metric = dataclasses.replace(METRIC, parts=(Part("prefix:2", 0.25), Part("whole")))
    (entry,) = json.loads(seal_registry(metric))["metrics"]
    fingerprints = [params.fingerprint for params in metric.part_sets]
    assert entry["parts"] == [
        {"name": "prefix:2", "threshold": 1 << 30, "fingerprint": fingerprints[0]},
        {"name": "whole", "fingerprint": fingerprints[1]},
    ]
