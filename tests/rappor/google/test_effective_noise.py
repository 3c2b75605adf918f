"""The clients of google/rappor, imitated: every recorded answer comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google_clients import (
    bloom,
    cohort_cpp,
    cohort_cpp_drbg,
    instantaneous,
    permanent_cpp,
    permanent_cpp_drbg,
    permanent_python,
)

from rappor import ParamsError
from rappor.google.effective_noise import effective_f

KNOWN_ANSWERS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8")
)["vectors"]


def test_python_clients_permanent_responses_and_reports() -> None:
    """All vectors of at most 32 bits, its fixed seven bits of f included."""
    vectors = [row for row in KNOWN_ANSWERS if "python" in row]
    assert len(vectors) == 144
    for row in vectors:
        k, secret = row["k"], bytes.fromhex(row["secret"])
        bits = bloom(row["value"].encode(), row["cohort"], k=k, h=row["h"])
        assert bits == int(row["bloom"], 2)
        permanent = permanent_python(secret, bits, k=k, f=row["f"])
        assert permanent == int(row["python"]["prr"], 16)
        p_mask, q_mask = (int.from_bytes(bytes([mask]) * (k // 8), "big") for mask in (0x55, 0x33))
        report = instantaneous(permanent, p_mask=p_mask, q_mask=q_mask)
        assert report == int(row["python"]["irr"], 16)


@pytest.mark.parametrize(
    ("mode", "cohort_of", "permanent_of", "n"),
    [
        ("cpp_hmac_sha256", cohort_cpp, permanent_cpp, 144),
        ("cpp_hmac_drbg", cohort_cpp_drbg, permanent_cpp_drbg, 240),
    ],
)
def test_cpp_clients_cohorts_and_permanent_responses(
    mode: str, cohort_of: Any, permanent_of: Any, n: int
) -> None:
    """All vectors of both modes, in the derived cohort and in the one that was given."""
    vectors = [row for row in KNOWN_ANSWERS if mode in row]
    assert len(vectors) == n
    for row in vectors:
        recorded = row[mode]
        secret, encoder_id = bytes.fromhex(row["secret"]), row["encoder_id"].encode()
        derived = cohort_of(secret, row["m"])
        assert derived == recorded["derived_cohort"]
        for cohort, answers in ((derived, recorded["derived"]), (row["cohort"], recorded["given"])):
            bits = bloom(row["value"].encode(), cohort, k=row["k"], h=row["h"])
            permanent = permanent_of(secret, encoder_id, bits, k=row["k"], f=row["f"])
            assert [bits, permanent] == [int(answer, 16) for answer in answers]


def test_report_of_their_own_test() -> None:
    """rappor_test.py: the masks are built from the cycle 0, .6, 0 of random numbers."""
    cycle = [0.0, 0.6, 0.0]
    p_mask, q_mask = (
        sum((cycle[i % 3] < chance) << i for i in range(16)) for chance in (0.5, 0.75)
    )
    permanent = permanent_python(b"secret", bloom(b"abc", 0, k=16, h=2), k=16, f=0.5)
    assert instantaneous(permanent, p_mask=p_mask, q_mask=q_mask) == 64493


@pytest.mark.parametrize(
    ("f", "levels"),
    [(0.0, (0, 0, 0)), (0.5, (64, 64, 64)), (0.3, (39, 38, 38)), (0.45, (58, 57, 58))],
)
def test_each_client_rounds_f_in_its_own_way(f: float, levels: tuple[int, int, int]) -> None:
    """They agree only where 128 f is whole."""
    for client, level in zip(("python", "cpp", "java"), levels, strict=True):
        assert effective_f(f, client) == level / 128  # type: ignore[arg-type]


@pytest.mark.parametrize("secret", [bytes([i]) * 16 for i in range(3)])
def test_portion_of_randomized_bits_is_the_effective_f(secret: bytes) -> None:
    """Every value of seven bits is equally likely: over many filters .3 is 39 of 128."""
    n = 4000
    kept = 0
    for bits in range(n):
        # A bit is randomized with the effective f; half of those then differ from the true one.
        kept += (permanent_python(secret, bits, k=16, f=0.3) ^ bits).bit_count()
    expected = effective_f(0.3, "python") / 2
    deviation = (expected * (1 - expected) / (16 * n)) ** 0.5
    assert abs(kept / (16 * n) - expected) < 6.2 * deviation  # false alarm 1e-9


def test_what_the_originals_could_not_do_is_refused() -> None:
    """More bits than one hash serves, cohorts that are no power of two, unknown clients."""
    with pytest.raises(ParamsError, match="at most 32"):
        permanent_python(b"s", 1, k=64, f=0.5)
    with pytest.raises(ParamsError, match="at most 32"):
        permanent_cpp(b"s", b"id", 1, k=40, f=0.5)
    with pytest.raises(ParamsError, match="multiple of 8"):
        permanent_cpp_drbg(b"s", b"id", 1, k=12, f=0.5)
    with pytest.raises(ParamsError, match="power of two"):
        cohort_cpp(b"s", 3)
    with pytest.raises(ParamsError, match="client"):
        effective_f(0.5, "rust")  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="f must be"):
        effective_f(float("nan"), "java")
