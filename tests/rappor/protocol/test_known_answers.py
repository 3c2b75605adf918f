"""Known answers of the protocol, computed by an implementation that shares no code with this one.

The implementation was written from the specification alone (rappor/protocol/README.md). If both
agree, the specification is complete and both have read it in the same way. In the file, bits are
lists of the indices that are 1 ("set"), or texts of 0 and 1 with bit 0 first.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import reference

from rappor.protocol.encodings import get_encoder
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, choose_part
from rappor.protocol.randomizer import (
    choose_day,
    derive_cohort,
    derive_part_coin,
    derive_permanent_response,
    derive_report_day,
)

KNOWN = json.loads(
    (Path(__file__).parent / "data" / "known_answers.json").read_text(encoding="ascii")
)
"""Maps each step of the protocol to its known answers, one row for each input."""

LENGTHS = (28, 29, 30, 31, 90, 91, 92, 365, 366)
"""Lengths of months, quarters and years, in days. `choose_day` receives no other lengths."""


def make_params(row: dict[str, Any], **more: Any) -> Params:
    """Return the parameter set of a row. The file has edges as numbers, and `Params` as texts."""
    fields = dict(row)
    if edges := fields.pop("edges", None):
        fields["categories"] = [format_edge(edge) for edge in edges]
    fields["categories"] = tuple(fields.get("categories", ()))
    return Params(**fields | more, insecure=True)


ASYMMETRIC = {row["metric"]: make_params(row["params"]) for row in KNOWN["asymmetric"]}
"""Parameter sets by the name of their metric. The rows of report days refer to these names."""


@pytest.mark.parametrize("row", KNOWN["bloom"])
def test_bits_of_a_string(row: dict[str, Any]) -> None:
    """Each string sets the known bits in a cohort.

    An analyst hashes candidates on another machine. If both disagree, the string is never found.
    """
    params = Params(k=row["k"], h=row["h"], m=row["cohort"] + 1, f=0.5, p=0.25, q=0.75)
    bits = reference.unpack(get_encoder(params).encode(row["value"], row["cohort"]), row["k"])
    assert [i for i, bit in enumerate(bits) if bit] == row["set"]


@pytest.mark.parametrize("row", KNOWN["devices"], ids=lambda row: row["metric"])
def test_the_permanent_response_of_a_device(row: dict[str, Any]) -> None:
    """A device has the known fingerprints, cohort, true bits and permanent response.

    Otherwise an update of the software, or another implementation, draws the noise of a scope
    again, and an observer can average two permanent responses.
    """
    plain, secret = make_params(row["params"]), bytes.fromhex(row["secret"])
    params = plain
    # Interval and epoch change the fingerprint, and not the permanent fingerprint.
    if "interval" in row:
        params = make_params(row["params"], interval=row["interval"], epoch=row["epoch_length"])
        assert plain.fingerprint == row["fingerprint_of_params_alone"]
        assert plain.permanent_fingerprint == row["permanent_fingerprint"]
    assert params.fingerprint == row["fingerprint"]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    cohort = derive_cohort(secret, row["metric"], row["epoch"], params)
    assert cohort == row["cohort"]
    bits = reference.pack(list(map(int, row["bits"])))
    if "value" in row:
        assert get_encoder(params).encode(row["value"], cohort) == bits
    permanent = derive_permanent_response(secret, row["metric"], row["epoch"], params, bits)
    permanent_bits = reference.unpack(permanent, params.k)
    assert "".join(map(str, permanent_bits)) == row["permanent"]


@pytest.mark.parametrize("row", KNOWN["tuples"], ids=lambda row: row["fingerprint"])
def test_bits_of_a_tuple(row: dict[str, Any]) -> None:
    """A tuple has the known fingerprints, cohort and bits, whose rules differ from a string's."""
    more = {
        "field_names": tuple(row["fields"]),
        "categories": tuple(row.get("categories", ())),
        "normalize": row.get("normalize", "none"),
    }
    params = Params(**row["params"], **more, interval=row["interval"], epoch=row["epoch_length"])
    assert params.fingerprint == row["fingerprint"]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    if "values" in row:
        secret = bytes.fromhex(row["secret"])
        cohort = derive_cohort(secret, row["metric"], row["epoch"], params)
        value = dict(zip(row["fields"], row["values"], strict=True))
        bits = reference.unpack(get_encoder(params).encode(value, cohort), params.k)
        assert (cohort, [i for i, bit in enumerate(bits) if bit]) == (row["cohort"], row["set"])


@pytest.mark.parametrize("row", KNOWN["parts"], ids=lambda row: row["secret"][:8])
def test_the_part_of_a_device(row: dict[str, Any]) -> None:
    """The secret of a device draws the known part of a string, with the known fingerprints.

    Two implementations that draw different parts would make a device report two parts, which costs
    the budget twice.
    """
    base, secret = make_params(row["params"]), bytes.fromhex(row["secret"])
    assert base.permanent_fingerprint == row["base"]
    parts = [Part("prefix:3", row["shares"][0]), Part("prefix:6", row["shares"][1]), Part("whole")]
    name = choose_part(parts, derive_part_coin(secret, row["metric"], row["epoch"], base))
    assert name == row["part"]
    with_part = make_params(row["params"], part=name)
    assert with_part.fingerprint == row["fingerprint"]
    assert with_part.permanent_fingerprint == row["permanent_fingerprint"]


@pytest.mark.parametrize("row", KNOWN["days"], ids=lambda row: row["metric"])
def test_the_report_day_of_a_device(row: dict[str, Any]) -> None:
    """The secret draws the known report day, and the largest coin draws the last possible day."""
    params = ASYMMETRIC[row["metric"]]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    secret = bytes.fromhex(row["secret"])
    days = row["days"]
    assert derive_report_day(secret, row["metric"], row["epoch"], params, days) == row["day"]
    assert choose_day(2**32 - 1, days) == row["last_day_drawn"]


@pytest.mark.parametrize("days", LENGTHS)
def test_all_days_but_the_last_eight_are_equally_likely(days: int) -> None:
    """Each day but the last eight has the same number of the 2^32 coins, or one coin more.

    So reports come evenly over the epoch. The last eight days are left for sending the report and
    for retries. A larger coin never draws an earlier day. It is therefore enough to test the
    smallest and the largest coin of each day.
    """
    drawn = days - 8
    first = [-(-(day * 2**32) // drawn) for day in range(drawn + 1)]
    for day, start in enumerate(first[:-1]):
        assert choose_day(start, days) == choose_day(first[day + 1] - 1, days) == day
    sizes = {end - start for start, end in itertools.pairwise(first)}
    assert (first[0], first[-1]) == (0, 2**32)
    assert max(sizes) - min(sizes) <= 1
