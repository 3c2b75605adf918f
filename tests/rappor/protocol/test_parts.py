"""Parts: the part of a string that a device reports, such as its first three letters."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from rappor.base.errors import ParamsError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, check_parts, choose_part, extract_part

BASE = Params(k=64, h=2, m=8, f=0.5, p=0.25, q=0.75, normalize="casefold")
PARTS = (Part("prefix:2", 0.25), Part("prefix:5", 0.5), Part("whole"))


@pytest.mark.parametrize(
    ("u", "name"),
    [
        (0, "prefix:2"),
        (2**30 - 1, "prefix:2"),
        (2**30, "prefix:5"),
        (3 * 2**30 - 1, "prefix:5"),
        (3 * 2**30, "whole"),
        (2**32 - 1, "whole"),
    ],
)
def test_each_part_has_a_range_of_coins(u: int, name: str) -> None:
    """A coin u draws the part in whose range it is. Each range is as wide as the part's share.

    The ranges follow each other in the order of the registry, and the last part has the remaining
    coins. Every implementation must have the same order, or a device would report two parts.
    """
    assert choose_part(PARTS, u) == name


def test_a_prefix_is_counted_in_characters_after_normalising() -> None:
    """A prefix has N Unicode scalar values; a shorter value is its own prefix."""
    assert extract_part("prefix:2", "日本語") == "日本"
    assert extract_part("prefix:2", "🎈🎈🎈") == "🎈🎈"
    assert extract_part("prefix:5", "abc") == "abc"
    assert extract_part("whole", "abc") == extract_part("", "abc") == "abc"
    part = dataclasses.replace(BASE, part="prefix:2")
    for cohort in range(8):
        assert get_encoder(part).encode("Straße", cohort) == get_encoder(BASE).encode("st", cohort)
        assert get_encoder(part).encode("ßx", cohort) == get_encoder(BASE).encode("ss", cohort)


def test_each_part_has_fingerprints_of_its_own() -> None:
    """Two parts have different fingerprints, so they share neither counts nor permanent noise."""
    sets = [BASE, *(dataclasses.replace(BASE, part=part.name) for part in PARTS)]
    for first, second in itertools.combinations(sets, 2):
        assert first.fingerprint != second.fingerprint
        assert first.permanent_fingerprint != second.permanent_fingerprint
    assert [Params.from_json(params.to_json()) for params in sets] == sets


@pytest.mark.parametrize(
    "name", ["prefix:0", "prefix:256", "prefix:01", "prefix:", "suffix:2", "Whole", 3, "prefix:2\n"]
)
def test_another_name_is_refused(name: Any) -> None:
    """A part and a parameter set refuse every name but `whole` and `prefix:N` in its only spelling.

    Two spellings of one part would have two fingerprints.
    """
    with pytest.raises(ParamsError, match="a part must be prefix:N with N in"):
        Part(name, 0.5)
    with pytest.raises(ParamsError, match="a part must be prefix:N with N in"):
        dataclasses.replace(BASE, part=name)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "one prefix or more, and then whole"),
        ([Part("whole")], "one prefix or more, and then whole"),
        ([Part("prefix:2", 0.5)], "one prefix or more, and then whole"),
        ([Part("prefix:5", 0.1), Part("prefix:2", 0.1), Part("whole")], "increasing length"),
        ([Part("prefix:2", 0.1), Part("prefix:2", 0.1), Part("whole")], "increasing length"),
        ([Part("prefix:2", 0.5), Part("prefix:3", 0.5), Part("whole")], "less than 1 in sum"),
        ([Part("prefix:2", 1e-12), Part("whole")], "at least 2\\^-32 each"),
    ],
)
def test_parts_that_do_not_divide_the_devices_are_refused(parts: list[Part], reason: str) -> None:
    """Parts are prefixes of increasing length, then the whole, which needs a remaining share."""
    with pytest.raises(ParamsError, match=reason):
        check_parts(parts)


@pytest.mark.parametrize("share", [None, 0, 1, -0.1, float("nan"), True])
def test_a_prefix_has_a_share(share: Any) -> None:
    """A prefix has a share in (0, 1), the whole has none, and a boolean has no parts."""
    with pytest.raises(ParamsError, match="share must be"):
        Part("prefix:2", share)
    with pytest.raises(ParamsError, match="not for whole"):
        Part("whole", 0.5)
    with pytest.raises(ParamsError, match="part must be absent for encoding boolean"):
        Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean", part="whole")
