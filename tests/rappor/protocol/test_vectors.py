"""The golden vectors: made anew they are the same, and production code agrees with each."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import Any

import make_vectors
import pytest
import reference
from places import VECTORS

from rappor import Params, Report, ReportError, Upload, parse_upload
from rappor.protocol.encodings.catalogue import encoder
from rappor.protocol.normalizers import normalize
from rappor.protocol.params import noise_of, threshold
from rappor.protocol.parts import Part, choose_part
from rappor.protocol.randomizer import (
    cohort,
    drawn_day,
    instantaneous_response,
    part_coin,
    permanent,
    sample_coin,
)

FOLDER = VECTORS


def load(name: str) -> Any:
    """Read one vector file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))


def params_of(row: dict[str, Any], **more: Any) -> Params:
    """Make the parameter set that a row states in letters."""
    letters = {key: row[key] for key in ("k", "h", "m", "f", "p", "q")}
    return Params(**letters, **more, insecure=True)


def test_asymmetric_responses() -> None:
    """Both forced probabilities are in the fingerprints, and one coin decides between them."""
    for row in load("asymmetric"):
        params, secret = params_of(row, g=row["g"]), bytes.fromhex(row["secret"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        assert {key: json.loads(params.to_json())[key] for key in row["document"]} == row[
            "document"
        ]
        bits = encoder(params).encode(row["value"], row["cohort"])
        scope = (secret, row["metric"], row["epoch"], params)
        assert (bits.hex(), cohort(*scope)) == (row["bits"], row["cohort"])
        assert permanent(*scope, bits).hex() == row["permanent"]


def test_days() -> None:
    """Every secret draws the stated day of an epoch."""
    for row in load("day"):
        params, secret = params_of_document(row["document"]), bytes.fromhex(row["secret"])
        day = drawn_day(secret, row["metric"], row["epoch"], params, row["days"])
        assert day == row["day"]


def params_of_document(document: dict[str, Any], categories: list[str] | None = None) -> Params:
    """Make the parameter set that a fingerprint's document states in thresholds."""
    fields = {key: value for key, value in document.items() if key != "v"}
    fields["segment"] = tuple(sorted(fields.get("segment", {}).items()))
    t_1 = fields["f"]
    fields |= noise_of(t_1, fields.pop("f0", t_1), fields["p"], fields["q"])
    return Params(**fields, categories=tuple(categories or ()), insecure=True)


def lookup_of(documents: list[dict[str, Any]]) -> Any:
    """Know the stated parameter sets under the vectors' metric."""
    known = {reference.fingerprint(d): params_of_document(d) for d in documents}
    return lambda metric, fingerprint: (
        known.get(fingerprint) if metric == make_vectors.METRIC else None
    )


def test_files_are_what_the_script_writes() -> None:
    """Regenerated vectors equal the stored ones byte for byte, and no file is left over."""
    rendered = make_vectors.render()
    stored = {path.name: path.read_text(encoding="ascii") for path in FOLDER.iterdir()}
    assert stored == rendered


def test_reference_hash_knows_published_digests() -> None:
    """The second implementation's MurmurHash3 gives the digests of mmh3's own documentation."""
    assert reference.murmur3_x86_32(b"", 0) == 0
    # mmh3.hash("foo"), printed there as a signed integer; with seed 42 unsigned.
    assert reference.murmur3_x86_32(b"foo", 0) == -156908512 % 2**32
    assert reference.murmur3_x86_32(b"foo", 42) == -1322301282 % 2**32


def test_bloom_bits_on_the_device() -> None:
    """Every value sets the stated bits in every stated cohort."""
    for row in load("hashing"):
        params = Params(k=row["k"], h=row["h"], m=row["m"], f=0.5, p=0.25, q=0.75)
        assert encoder(params).encode(row["value"], row["cohort"]).hex() == row["bits"]


def test_hosts() -> None:
    """Every text has the stated host."""
    for row in load("host"):
        assert normalize("host", row["text"]) == row["host"], row["text"]


def test_long_values() -> None:
    """A text beyond the limit, before or after normalising, is hashed as the empty one."""
    for row in load("long_value"):
        shape = {key: row[key] for key in ("k", "h", "m", "normalize")}
        params = Params(**shape, f=0.5, p=0.25, q=0.75)
        value = row["unit"] * row["times"]
        assert encoder(params).encode(value, row["cohort"]).hex() == row["bits"]
        assert encoder(params).fits(value) == row["fits"]


def test_cohorts() -> None:
    """Every secret falls into the stated cohort of every scope."""
    for row in load("cohort"):
        params = params_of_document(row["params"])
        secret = bytes.fromhex(row["secret"])
        assert cohort(secret, row["metric"], row["epoch"], params) == row["cohort"]


def test_parts() -> None:
    """Every secret answers for the stated part, whose bits and fingerprint are its own."""
    seen = set()
    for row in load("part"):
        base, secret = params_of_document(row["params"]), bytes.fromhex(row["secret"])
        parts = [Part(name, share) for name, share in row["parts"]]
        name = choose_part(parts, part_coin(secret, row["metric"], row["epoch"], base))
        assert name == row["part"]
        own = dataclasses.replace(base, part=name, insecure=True)
        assert own.fingerprint == row["fingerprint"]
        here = cohort(secret, row["metric"], row["epoch"], own)
        assert here == row["cohort"]
        assert encoder(own).encode(row["value"], here).hex() == row["bits"]
        seen.add(name)
    assert seen == {"prefix:2", "prefix:5", "whole"}


def test_samples() -> None:
    """Every secret is in the samples that the vectors say, and in no other."""
    seen = set()
    for row in load("sample"):
        base, secret = params_of_document(row["params"]), bytes.fromhex(row["secret"])
        u = sample_coin(secret, row["metric"], row["epoch"], base)
        for share, is_in in row["samples"]:
            assert (u < threshold(share)) is is_in
            seen.add((share, is_in))
    assert {(0.1, True), (0.1, False), (0.9, True), (0.9, False), (1.0, True)} <= seen


def test_permanent_responses_and_reports() -> None:
    """Bits, permanent response and the report for the stated coins agree, row by row."""
    for row in load("response"):
        params = params_of(row, encoding=row["encoding"])
        secret = bytes.fromhex(row["secret"])
        assert cohort(secret, row["metric"], row["epoch"], params) == row["cohort"]
        bits = encoder(params).encode(row["value"], row["cohort"])
        assert bits.hex() == row["bits"]
        memoised = permanent(secret, row["metric"], row["epoch"], params, bits)
        assert memoised.hex() == row["permanent"]
        seed = bytes.fromhex(row["coins_seed"])
        report = instantaneous_response(memoised, params, partial(make_vectors.coins, seed))
        assert report.hex() == row["report"]


def test_segments() -> None:
    """A set that tells a segment has a fingerprint of its own, and the same permanent one."""
    rows = load("segment")
    for row in rows:
        params = params_of_document(row["document"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]
        assert params.unsegmented.permanent_fingerprint == row["permanent_fingerprint"]
    assert len({row["fingerprint"] for row in rows}) == len(rows)


def test_fingerprints() -> None:
    """Every parameter set has the stated fingerprint."""
    for row in load("fingerprint"):
        params = params_of_document(row["document"], row["categories"])
        assert params.fingerprint == row["fingerprint"]
        assert params.permanent_fingerprint == row["permanent_fingerprint"]


def test_uploads_are_read_and_written_back() -> None:
    """A good upload is read whole, and writing it gives the same bytes."""
    for row in load("upload"):
        body = row["body"].encode()
        upload_id, reports = parse_upload(body, lookup_of(row["params"]))
        assert all(isinstance(report, Report) for report in reports)
        good = tuple(report for report in reports if isinstance(report, Report))
        assert Upload(id=upload_id, reports=good).to_json() == body


def bad_report_ids() -> list[str]:
    """Name the bad reports."""
    return [row["reason"] for row in load("bad_report")["bad"]]


@pytest.mark.parametrize("number", range(len(bad_report_ids())), ids=bad_report_ids())
def test_bad_reports_are_refused_and_sink_no_other(number: int) -> None:
    """The fault is found, and the good reports on both sides of it stand."""
    vectors = load("bad_report")
    reports = [vectors["good"], vectors["bad"][number]["report"], vectors["good"]]
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": reports}).encode()
    _, parsed = parse_upload(body, lookup_of([vectors["params"]]))
    assert [type(report) for report in parsed] == [Report, ReportError, Report]


@pytest.mark.parametrize("row", load("bad_upload"), ids=lambda row: row["reason"])
def test_bad_uploads_are_refused_whole(row: dict[str, Any]) -> None:
    """The body is refused with one sentence."""
    body = bytes.fromhex(row["body"]) * int(row.get("repeat", 1))
    document = load("bad_report")["params"]
    with pytest.raises(ReportError) as refusal:
        parse_upload(body, lookup_of([document]))
    assert len(str(refusal.value).splitlines()) == 1


def test_bits_of_every_other_encoding() -> None:
    """Every yes or no, category and number sets the stated bits."""
    for row in load("encoding"):
        params = Params(
            k=row["k"],
            f=0.5,
            p=0.25,
            q=0.75,
            encoding=row["encoding"],
            categories=tuple(row["categories"]),
        )
        assert encoder(params).encode(row["value"], 0).hex() == row["bits"]
