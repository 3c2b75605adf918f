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


def respond(stream: bytes, row: dict[str, Any], bits: int, client: Client) -> int:
    """Return the permanent response: byte i of a hash decides on bit i and is its response."""
    response = 0
    for i, byte in enumerate(stream[: row["k"]]):
        is_random = byte >> 1 < count_randomizing_values(row["f"], client)
        response |= (byte & 1 if is_random else bits >> i & 1) << i
    return response


def test_recorded_responses_have_the_noise_that_is_told() -> None:
    """All vectors of at most 32 bits of the Python and the C++ client have the computed f."""
    rows = [row for row in RECORDED if "python" in row]
    assert len(rows) == 144
    for row in rows:
        secret, bits = bytes.fromhex(row["secret"]), int(row["bloom"], 2)
        stream = hmac.digest(secret, bits.to_bytes(4, "big"), "sha256")
        assert respond(stream, row, bits, "python") == int(row["python"]["prr"], 16)
        for answers in (row["cpp_hmac_sha256"]["derived"], row["cpp_hmac_sha256"]["given"]):
            bits, permanent = (int(answer, 16) for answer in answers)
            key = b"\x01" + row["encoder_id"].encode() + bits.to_bytes(4, "big")
            assert respond(hmac.digest(secret, key, "sha256"), row, bits, "cpp") == permanent


@pytest.mark.parametrize(
    ("f", "levels"),
    [(0.0, (0, 0, 0)), (0.5, (64, 64, 64)), (0.3, (39, 38, 38)), (0.45, (58, 57, 58))],
)
def test_each_client_rounds_f_in_its_own_way(f: float, levels: tuple[int, int, int]) -> None:
    """The clients agree only if 128 f is a whole number."""
    for client, level in zip(("python", "cpp", "java"), levels, strict=True):
        assert compute_effective_f(f, client) == level / 128  # type: ignore[arg-type]


def test_other_clients_and_numbers_are_refused() -> None:
    """The error names the client or the number."""
    with pytest.raises(ParamsError, match="client"):
        compute_effective_f(0.5, "rust")  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="f must be"):
        compute_effective_f(float("nan"), "java")
