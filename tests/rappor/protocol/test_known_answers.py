"""Known answers of the protocol by an implementation that shares no code with this one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import reference

from rappor.protocol.encodings import encoder
from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, choose_part
from rappor.protocol.randomizer import choose_day, cohort, drawn_day, part_coin, permanent

KNOWN = json.loads(
    (Path(__file__).parent / "data" / "known_answers.json").read_text(encoding="ascii")
)


LENGTHS = (28, 29, 30, 31, 90, 91, 92, 365, 366)
"""Days of a month, a quarter and a year."""


def params_of(stated: dict[str, Any], **more: Any) -> Params:
    """Make a parameter set as it is stated, edges as numbers."""
    fields = dict(stated)
    if edges := fields.pop("edges", None):
        fields["categories"] = [edge_text(edge) for edge in edges]
    fields["categories"] = tuple(fields.get("categories", ()))
    return Params(**fields | more, insecure=True)


ASYMMETRIC = {row["metric"]: params_of(row["params"]) for row in KNOWN["asymmetric"]}


@pytest.mark.parametrize("row", KNOWN["bloom"])
def test_bits_of_a_string(row: dict[str, Any]) -> None:
    """Each value sets the stated bits in the stated cohort."""
    params = Params(k=row["k"], h=row["h"], m=row["cohort"] + 1, f=0.5, p=0.25, q=0.75)
    bits = reference.unpack(encoder(params).encode(row["value"], row["cohort"]), row["k"])
    assert [i for i, bit in enumerate(bits) if bit] == row["set"]


@pytest.mark.parametrize("row", KNOWN["devices"], ids=lambda row: row["metric"])
def test_a_device(row: dict[str, Any]) -> None:
    """Fingerprints, cohort, bits and permanent response agree."""
    alone, secret = params_of(row["params"]), bytes.fromhex(row["secret"])
    params = alone
    if "interval" in row:
        params = params_of(row["params"], interval=row["interval"], epoch=row["epoch_length"])
        assert alone.fingerprint == row["fingerprint_of_params_alone"]
        assert alone.permanent_fingerprint == row["permanent_fingerprint"]
    assert params.fingerprint == row["fingerprint"]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    own = cohort(secret, row["metric"], row["epoch"], params)
    assert own == row["cohort"]
    bits = reference.pack(list(map(int, row["bits"])))
    if "value" in row:
        assert encoder(params).encode(row["value"], own) == bits
    memoised = permanent(secret, row["metric"], row["epoch"], params, bits)
    shown = reference.unpack(memoised, params.k)
    assert "".join(map(str, shown)) == row["permanent"]


@pytest.mark.parametrize("row", KNOWN["parts"], ids=lambda row: row["secret"][:8])
def test_the_part_of_a_device(row: dict[str, Any]) -> None:
    """The secret chooses the stated part, whose fingerprints are its own."""
    base, secret = params_of(row["params"]), bytes.fromhex(row["secret"])
    assert base.permanent_fingerprint == row["base"]
    parts = [Part("prefix:3", row["shares"][0]), Part("prefix:6", row["shares"][1]), Part("whole")]
    name = choose_part(parts, part_coin(secret, row["metric"], row["epoch"], base))
    assert name == row["part"]
    own = params_of(row["params"], part=name)
    assert own.fingerprint == row["fingerprint"]
    assert own.permanent_fingerprint == row["permanent_fingerprint"]


@pytest.mark.parametrize("row", KNOWN["days"], ids=lambda row: row["metric"])
def test_the_day_of_a_device(row: dict[str, Any]) -> None:
    """The secret draws the stated day, and the largest coin the last one that is ever drawn."""
    params = ASYMMETRIC[row["metric"]]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    secret = bytes.fromhex(row["secret"])
    days = row["days"]
    assert drawn_day(secret, row["metric"], row["epoch"], params, days) == row["day"]
    assert choose_day(2**32 - 1, days) == row["last_day_drawn"]


@pytest.mark.parametrize("days", LENGTHS)
def test_every_coin_draws_one_of_the_first_days_alike(days: int) -> None:
    """Over all 2^32 coins: each day but the last eight has the same number of coins, or one more.

    The day never falls as the coin grows, so the first coin of each day gives all of them.
    """
    drawn = days - 8
    first = [-(-(day * 2**32) // drawn) for day in range(drawn + 1)]
    for day, start in enumerate(first[:-1]):
        assert choose_day(start, days) == choose_day(first[day + 1] - 1, days) == day
    sizes = {end - start for start, end in itertools.pairwise(first)}
    assert (first[0], first[-1]) == (0, 2**32)
    assert max(sizes) - min(sizes) <= 1
