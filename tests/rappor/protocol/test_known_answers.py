"""Known answers of the protocol by an implementation that shares no code with this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import reference

from rappor.protocol.encodings import encoder
from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, choose_part
from rappor.protocol.randomizer import cohort, part_coin, permanent

KNOWN = json.loads(
    (Path(__file__).parent / "data" / "known_answers.json").read_text(encoding="ascii")
)


def params_of(stated: dict[str, Any], **more: Any) -> Params:
    """Make a parameter set as it is stated, edges as numbers."""
    fields = dict(stated)
    if edges := fields.pop("edges", None):
        fields["categories"] = [edge_text(edge) for edge in edges]
    fields["categories"] = tuple(fields.get("categories", ()))
    return Params(**fields | more, insecure=True)


@pytest.mark.parametrize("row", KNOWN["bloom"])
def test_bits_of_a_string(row: dict[str, Any]) -> None:
    """Each value sets the stated bits in the stated cohort."""
    params = Params(k=row["k"], h=row["h"], m=row["cohort"] + 1, f=0.5, p=0.25, q=0.75)
    bits = reference.unpack(encoder(params).encode(row["value"], row["cohort"]), row["k"])
    assert [i for i, bit in enumerate(bits) if bit] == row["set"]


@pytest.mark.parametrize("row", KNOWN["devices"], ids=lambda row: row["metric"])
def test_a_device(row: dict[str, Any]) -> None:
    """Fingerprints, cohort, bits and permanent response agree."""
    params, secret = params_of(row["params"]), bytes.fromhex(row["secret"])
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
