"""The noise of google/rappor's clients: their rounding of f, and their recorded responses."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from rappor import ParamsError
from rappor.google.effective_noise import Client, compute_effective_f, count_randomizing_values

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8")
)["vectors"]
"""Vectors that contain responses of the clients of google/rappor. Their unmodified code made
them."""


def respond(stream: bytes, row: dict[str, Any], bits: int, client: Client) -> int:
    """Return the permanent response of a client of google/rappor to the Bloom bits `bits`.

    Byte i of the hash `stream` decides on bit i. Its upper seven bits decide whether the bit is
    forced, and its lowest bit is the forced response.
    """
    response = 0
    for i, byte in enumerate(stream[: row["k"]]):
        is_forced = byte >> 1 < count_randomizing_values(row["f"], client)
        response |= (byte & 1 if is_forced else bits >> i & 1) << i
    return response


def test_recorded_responses_have_the_computed_f() -> None:
    """With the computed f, the recorded permanent responses of two clients are reproduced.

    A wrong f would change some of the responses. The Python client has no responses of more than 32
    bits, so these vectors are left out, and 144 remain. The C++ client has two responses in each
    vector: in the cohort that it derives from its secret, and in the cohort that it is given.
    """
    rows = [row for row in RECORDED if "python" in row]
    assert len(rows) == 144
    for row in rows:
        secret, bits = bytes.fromhex(row["secret"]), int(row["bloom"], 2)
        stream = hmac.digest(secret, bits.to_bytes(4, "big"), "sha256")
        assert respond(stream, row, bits, "python") == int(row["python"]["prr"], 16)
        for responses in (row["cpp_hmac_sha256"]["derived"], row["cpp_hmac_sha256"]["given"]):
            bits, permanent = (int(response, 16) for response in responses)
            key = b"\x01" + row["encoder_id"].encode() + bits.to_bytes(4, "big")
            assert respond(hmac.digest(secret, key, "sha256"), row, bits, "cpp") == permanent


@pytest.mark.parametrize(
    ("f", "levels"),
    [(0.0, (0, 0, 0)), (0.5, (64, 64, 64)), (0.3, (39, 38, 38)), (0.45, (58, 57, 58))],
)
def test_each_client_rounds_f_in_its_own_way(f: float, levels: tuple[int, int, int]) -> None:
    """The clients in Python, C++ and Java round 128 f up, down and to the nearest integer.

    They agree if 128 f is an integer. A decode with the f of the file has biased estimates.
    """
    for client, level in zip(("python", "cpp", "java"), levels, strict=True):
        assert compute_effective_f(f, client) == level / 128  # type: ignore[arg-type]


def test_other_clients_and_numbers_are_refused() -> None:
    """Another client, or an f that is no number, is an error that names the argument."""
    with pytest.raises(ParamsError, match="client"):
        compute_effective_f(0.5, "rust")  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="f must be"):
        compute_effective_f(float("nan"), "java")
