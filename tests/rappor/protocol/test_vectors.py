"""The test vectors (tests/vectors/*.json): production code agrees with each of them.

A vector is a known answer of one step of the protocol, computed by the reference implementation.
Clients in other languages run the same vectors. `make_vectors` explains which cases each file has.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial
from typing import Any

import make_vectors
import pytest
import reference
from enumeration import choose_own_buckets
from places import VECTORS

from rappor import Params, Report, ReportError, Upload, parse_upload
from rappor.protocol.encodings.encodings_by_name import get_encoder
from rappor.protocol.normalizers import normalize
from rappor.protocol.parts import Part, choose_part
from rappor.protocol.randomizer import (
    derive_cohort,
    derive_part_coin,
    derive_permanent_coins,
    derive_permanent_response,
    derive_report_day,
    derive_sampling_coin,
    draw_instantaneous_response,
)
from rappor.protocol.responses.rappor_response import compute_noise
from rappor.protocol.thresholds import ONE, compute_threshold

FOLDER = VECTORS


def load(name: str) -> Any:
    """Return the content of a vector file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))


def make_params(row: dict[str, Any], **more: Any) -> Params:
    """Return the parameter set of a row, which contains probabilities."""
    letters = {key: row[key] for key in ("k", "h", "m", "f", "p", "q")}
    return Params(**letters, **more, insecure=True)


def test_asymmetric_responses() -> None:
    """A permanent response may force ones and zeros with different probabilities.

    Canonical JSON, fingerprints, cohort, bits and permanent response are as in the vector.
    """
    for row in load("asymmetric"):
        params, secret = make_params(row, g=row["g"]), bytes.fromhex(row["secret"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        assert {key: json.loads(params.to_json())[key] for key in row["document"]} == row[
            "document"
        ]
        bits = get_encoder(params).encode(row["value"], row["cohort"])
        scope = (secret, row["metric"], row["epoch"], params)
        assert (bits.hex(), derive_cohort(*scope)) == (row["bits"], row["cohort"])
        assert derive_permanent_response(*scope, bits).hex() == row["permanent"]


def test_report_days() -> None:
    """A device draws the day of the vector, on which it may report once in an epoch."""
    for row in load("day"):
        params, secret = read_params(row["document"]), bytes.fromhex(row["secret"])
        day = derive_report_day(secret, row["metric"], row["epoch"], params, row["days"])
        assert day == row["day"]


def read_params(document: dict[str, Any], categories: list[str] | None = None) -> Params:
    """Return the parameter set of a canonical object, which contains thresholds."""
    fields = {key: value for key, value in document.items() if key != "v"}
    fields["segment"] = tuple(sorted(fields.get("segment", {}).items()))
    fields["field_names"] = tuple(fields.pop("fields", ()))
    if "keep" in fields:
        fields["keep"] /= ONE
    else:
        t_1 = fields["f"]
        fields |= compute_noise(t_1, fields.pop("f0", t_1), fields["p"], fields["q"])
    return Params(**fields, categories=tuple(categories or ()), insecure=True)


def make_lookup(documents: list[dict[str, Any]]) -> Any:
    """Return a lookup that knows these parameter sets for the metric of the vectors."""
    known = {reference.compute_fingerprint(d): read_params(d) for d in documents}
    return lambda metric, fingerprint: (
        known.get(fingerprint) if metric == make_vectors.METRIC else None
    )


@pytest.mark.slow
def test_files_are_what_the_script_writes() -> None:
    """Vectors that the script writes again equal the stored files byte for byte.

    So nobody has edited a file by hand, and the reference implementation has not changed. The
    folder contains no other files.
    """
    rendered = make_vectors.render()
    stored = {path.name: path.read_text(encoding="ascii") for path in FOLDER.iterdir()}
    assert stored == rendered


def test_the_hash_of_the_reference_gives_published_digests() -> None:
    """MurmurHash3 of the reference implementation agrees with the documentation of mmh3.

    Otherwise reference and production code might share a mistake about the hash function.
    """
    assert reference.hash_murmur3(b"", 0) == 0
    # mmh3.hash("foo"), printed there as a signed integer; with seed 42 unsigned.
    assert reference.hash_murmur3(b"foo", 0) == -156908512 % 2**32
    assert reference.hash_murmur3(b"foo", 42) == -1322301282 % 2**32


def test_bloom_bits_on_the_device() -> None:
    """A device sets the bits of the vector for a string in a cohort."""
    for row in load("hashing"):
        params = Params(k=row["k"], h=row["h"], m=row["m"], f=0.5, p=0.25, q=0.75)
        assert get_encoder(params).encode(row["value"], row["cohort"]).hex() == row["bits"]


def test_hosts() -> None:
    """The normalizer `host` finds the host of the vector in a text."""
    for row in load("host"):
        assert normalize("host", row["text"]) == row["host"], row["text"]


def test_long_values() -> None:
    """A text beyond the limit, before or after normalizing, is hashed as the empty text."""
    for row in load("long_value"):
        shape = {key: row[key] for key in ("k", "h", "m", "normalize")}
        params = Params(**shape, f=0.5, p=0.25, q=0.75)
        value = row["unit"] * row["times"]
        assert get_encoder(params).encode(value, row["cohort"]).hex() == row["bits"]
        assert get_encoder(params).is_representable(value) == row["fits"]


def test_cohorts() -> None:
    """A device has the cohort of the vector in a scope."""
    for row in load("cohort"):
        params = read_params(row["params"])
        secret = bytes.fromhex(row["secret"])
        assert derive_cohort(secret, row["metric"], row["epoch"], params) == row["cohort"]


def test_parts() -> None:
    """A device draws the part of the vector, with the bits and the fingerprint of the part.

    The vectors contain every part.
    """
    part_names = set()
    for row in load("part"):
        base, secret = read_params(row["params"]), bytes.fromhex(row["secret"])
        parts = [Part(name, share) for name, share in row["parts"]]
        name = choose_part(parts, derive_part_coin(secret, row["metric"], row["epoch"], base))
        assert name == row["part"]
        params = dataclasses.replace(base, part=name, insecure=True)
        assert params.fingerprint == row["fingerprint"]
        cohort = derive_cohort(secret, row["metric"], row["epoch"], params)
        assert cohort == row["cohort"]
        assert get_encoder(params).encode(row["value"], cohort).hex() == row["bits"]
        part_names.add(name)
    assert part_names == {"prefix:2", "prefix:5", "whole"}


def test_sampling_rates() -> None:
    """A device takes part in a metric at exactly the sampling rates of the vector.

    The vectors contain devices that take part and devices that do not, at rates 0.1 and 0.9.
    """
    cases = set()
    for row in load("sample"):
        base, secret = read_params(row["params"]), bytes.fromhex(row["secret"])
        u = derive_sampling_coin(secret, row["metric"], row["epoch"], base)
        for share, is_in in row["samples"]:
            assert (u < compute_threshold(share)) is is_in
            cases.add((share, is_in))
    assert {(0.1, True), (0.1, False), (0.9, True), (0.9, False), (1.0, True)} <= cases


def test_permanent_responses_and_reports() -> None:
    """Cohort, true bits and permanent response are as in the vector.

    The report is as in the vector, too, if its fresh coins are the coins of the vector.
    """
    for row in load("response"):
        params = make_params(row, encoding=row["encoding"])
        secret = bytes.fromhex(row["secret"])
        assert derive_cohort(secret, row["metric"], row["epoch"], params) == row["cohort"]
        bits = get_encoder(params).encode(row["value"], row["cohort"])
        assert bits.hex() == row["bits"]
        permanent = derive_permanent_response(secret, row["metric"], row["epoch"], params, bits)
        assert permanent.hex() == row["permanent"]
        seed = bytes.fromhex(row["coins_seed"])
        report = draw_instantaneous_response(
            permanent, params, partial(make_vectors.make_coins, seed)
        )
        assert report.hex() == row["report"]


def test_reports_of_one_bucket() -> None:
    """Own buckets, padded or cut buckets, and the bucket of the report are as in the vector.

    A report of generalized randomized response has no instantaneous noise.
    """
    for row in load("bucket"):
        params = read_params(row["document"], row["categories"])
        secret = bytes.fromhex(row["secret"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        scope = (secret, row["metric"], row["epoch"], params)
        assert derive_cohort(*scope) == row["cohort"]
        value = math.nan if row["value"] == "NaN" else row["value"]
        bits = get_encoder(params).encode(value, row["cohort"])
        assert bits == reference.pack([int(i in row["own"]) for i in range(params.k)])
        coins = derive_permanent_coins(*scope, bits)
        assert choose_own_buckets(params, bits, coins) == row["chosen"]
        permanent = derive_permanent_response(*scope, bits)
        assert permanent.hex() == row["report"]
        assert draw_instantaneous_response(permanent, params) == permanent
        # The threshold of `keep` is the largest with this loss. A threshold that is too large by 1
        # breaks the promise, and no test of random reports could detect it.
        assert params.response.compute_loss(None) <= 4


def test_tuples() -> None:
    """Fingerprints, cohort and bits of a tuple are as in the vector.

    `is_representable` returns whether the tuple fits, as the vector says.
    """
    for row in load("tuple"):
        params = read_params(row["document"], row["categories"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        scope = (bytes.fromhex(row["secret"]), row["metric"], row["epoch"], params)
        assert derive_cohort(*scope) == row["cohort"]
        encoder = get_encoder(params)
        assert encoder.encode(row["value"], row["cohort"]).hex() == row["bits"]
        assert encoder.is_representable(row["value"]) == row["fits"]
        assert Params.from_json(params.to_json()) == params


@pytest.mark.parametrize("row", load("bad_tuple")["bad"], ids=lambda row: row["reason"])
def test_bad_tuples_are_of_the_wrong_kind(row: dict[str, Any]) -> None:
    """A value that is no mapping from each field to a text is refused in every step.

    The message contains no text of the value.
    """
    encoder = get_encoder(read_params(load("bad_tuple")["document"]))
    encoder.read_value(load("bad_tuple")["good"])
    steps = (
        encoder.read_value,
        encoder.is_representable,
        lambda value: encoder.encode(value, 0),
    )
    for step in steps:
        with pytest.raises(ReportError) as refusal:
            step(row["value"])
        for secret in ("Bonn", "example", "land", "Country", "\x1f"):
            assert secret not in str(refusal.value)


def test_segments() -> None:
    """Each segment has its own fingerprint; all have the same permanent fingerprint."""
    rows = load("segment")
    for row in rows:
        params = read_params(row["document"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        assert params.without_segment.permanent_fingerprint == row["permanent_fingerprint"]
    assert len({row["fingerprint"] for row in rows}) == len(rows)


def test_fingerprints() -> None:
    """A parameter set has the fingerprint and the permanent fingerprint of the vector."""
    for row in load("fingerprint"):
        params = read_params(row["document"], row["categories"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]


def test_uploads_are_read_and_written_back() -> None:
    """A good upload is parsed without errors, and writing it gives the same bytes."""
    for row in load("upload"):
        body = row["body"].encode()
        upload_id, reports = parse_upload(body, make_lookup(row["params"]))
        assert all(isinstance(report, Report) for report in reports)
        good = tuple(report for report in reports if isinstance(report, Report))
        assert Upload(id=upload_id, reports=good).to_json() == body


BAD_REPORTS = [
    (name, row["report"], row["reason"])
    for name in ("bad_report", "bad_bucket_report")
    for row in load(name)["bad"]
]


@pytest.mark.parametrize(
    ("name", "bad"),
    [(name, report) for name, report, _ in BAD_REPORTS],
    ids=[reason for *_, reason in BAD_REPORTS],
)
def test_a_bad_report_is_refused_and_its_neighbours_are_not(name: str, bad: Any) -> None:
    """A bad report is refused, and the good reports before and after it are accepted.

    A collector would otherwise lose the reports of all metrics if one metric changes.
    """
    vectors = load(name)
    reports = [vectors["good"], bad, vectors["good"]]
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": reports}).encode()
    _, parsed = parse_upload(body, make_lookup([vectors["params"]]))
    assert [type(report) for report in parsed] == [Report, ReportError, Report]


@pytest.mark.parametrize("row", load("bad_upload"), ids=lambda row: row["reason"])
def test_a_bad_upload_is_refused_as_a_whole(row: dict[str, Any]) -> None:
    """A bad upload raises ReportError with one sentence, and no report of it is accepted."""
    body = bytes.fromhex(row["body"]) * int(row.get("repeat", 1))
    document = load("bad_report")["params"]
    with pytest.raises(ReportError) as refusal:
        parse_upload(body, make_lookup([document]))
    assert len(str(refusal.value).splitlines()) == 1


def test_bits_of_every_other_encoding() -> None:
    """A boolean, a category and a number set the bits of the vector."""
    for row in load("encoding"):
        params = Params(
            k=row["k"],
            f=0.5,
            p=0.25,
            q=0.75,
            encoding=row["encoding"],
            categories=tuple(row["categories"]),
        )
        assert get_encoder(params).encode(row["value"], 0).hex() == row["bits"]
