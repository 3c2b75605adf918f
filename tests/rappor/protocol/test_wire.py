"""Reports and uploads as JSON: properties that no list of examples can show.

Any upload is read back, any other bytes are refused, a bad report does not harm its neighbours, and
no message contains what was received. The good and bad examples are in `test_vectors`.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rappor import Params, Report, ReportError, Upload, parse_upload
from rappor.protocol.wire import decode_base64url, encode_base64url

PARAMS = Params(k=12, h=1, m=4, f=0.5, p=0.25, q=0.75)


def lookup(metric: str, fingerprint: str) -> Params | None:
    """Return the parameters of the metric "page", and None for anything else."""
    return PARAMS if (metric, fingerprint) == ("page", PARAMS.fingerprint) else None


def make_report(cohort: int = 0, bits: bytes = b"\x01\x02") -> Report:
    """Return a report of the metric "page", the only metric of `lookup`."""
    return Report(metric="page", params=PARAMS.fingerprint, cohort=cohort, bits=bits)


reports = st.builds(
    make_report,
    cohort=st.integers(0, 3),
    bits=st.integers(0, 2**12 - 1).map(lambda n: n.to_bytes(2, "little")),
)
ids = st.binary(min_size=16, max_size=16).map(encode_base64url)
uploads = st.builds(Upload, id=ids, reports=st.lists(reports, min_size=1, max_size=5).map(tuple))


@given(uploads)
def test_an_upload_is_read_back(upload: Upload) -> None:
    """Parsing the JSON of any upload returns its id and its reports."""
    upload_id, parsed = parse_upload(upload.to_json(), lookup)
    assert (upload_id, tuple(parsed)) == (upload.id, upload.reports)


bodies = uploads.map(Upload.to_json)
tails = st.binary(min_size=1, max_size=5).filter(lambda tail: tail.strip(b" \t\n\r"))
# Uploads that are cut, uploads with a tail that is not white space, and random bytes.
malformed_bodies = st.one_of(
    st.builds(lambda body, n: body[:-n], bodies, st.integers(1, 400)),
    st.builds(lambda body, tail: body + tail, bodies, tails),
    st.binary(max_size=200),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(malformed_bodies)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    """A truncated upload, an upload with a tail, and random bytes raise ReportError.

    Another exception would end the request with status 500, and the device would send the same
    bytes again and again.
    """
    with pytest.raises(ReportError):
        parse_upload(body, lookup)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_any_json_in_place_of_a_report_is_one_error(entries: list[object]) -> None:
    """Each entry that is not a report becomes one ReportError, in the order of the entries.

    The collector answers with one status for each report, which devices match by position.
    """
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": entries}).encode()
    _, parsed = parse_upload(body, lookup)
    assert [type(entry) for entry in parsed] == [ReportError] * len(entries)


@given(st.binary(max_size=50))
def test_base64url_has_one_spelling(data: bytes) -> None:
    """Bytes are read back, and a text with another last character never gives the same bytes.

    The last character of base64 may have bits that belong to no byte. A parser that ignored these
    bits would accept one report in several spellings, and count a repeated upload again.
    """
    text = encode_base64url(data)
    assert decode_base64url("bits", text) == data
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for last in alphabet if text else "":
        respelled = text[:-1] + last
        if respelled != text:
            try:
                assert decode_base64url("bits", respelled) != data
            except ReportError:
                continue


def test_fresh_ids_are_canonical_and_differ() -> None:
    """A thousand new ids of 128 random bits are distinct and can be parsed.

    Two of them are equal with a probability of 2^-109 (500,000 pairs).
    """
    fresh = {Upload.new_id() for _ in range(1000)}
    assert len(fresh) == 1000
    for upload_id in fresh:
        body = Upload(id=upload_id, reports=(make_report(),)).to_json()
        assert parse_upload(body, lookup)[0] == upload_id


def test_nothing_of_a_report_shows_in_repr_or_errors() -> None:
    """No representation contains the bits, and no message contains a refused field.

    Both enter logs, which are read by more people than reports. A device may also send a true value
    by mistake, such as in the name of a metric.
    """
    report = make_report(bits=b"\xab\x0c")
    texts = repr(report) + repr(Upload(id="A" * 22, reports=(report,)))
    assert encode_base64url(report.bits) not in texts
    assert "\\xab" not in texts
    fields = {"metric": "page", "params": PARAMS.fingerprint, "cohort": 0, "bits": "qww"}
    for key, value in (
        ("metric", "telltale"),
        ("params", "telltale"),
        ("cohort", "telltale"),
        ("bits", "telltale"),
        ("telltale", 1),
    ):
        entries = [fields | {key: value}]
        body = json.dumps({"v": 1, "id": "A" * 22, "reports": entries}).encode()
        ((_, (error,)),) = [parse_upload(body, lookup)]
        assert isinstance(error, ReportError)
        assert "telltale" not in str(error)


@pytest.mark.parametrize("tail", ["", "\n", " ", "x" * 64, "Ä", "\0"])
@pytest.mark.parametrize("key", ["metric", "params"])
def test_names_are_checked_before_the_lookup(key: str, tail: str) -> None:
    """The lookup gets well-formed names only: malformed names are refused before it is called.

    A collector looks names up in a database or a dictionary, where a name with a line feed or of
    any length could do harm.
    """
    entry = {"metric": "page", "params": PARAMS.fingerprint, "cohort": 0, "bits": "qww"}
    entry[key] = f"{entry[key]}{tail}"
    body = json.dumps({"v": 1, "id": "A" * 22, "reports": [entry]}).encode()
    requested: list[tuple[str, str]] = []

    def find_any(metric: str, fingerprint: str) -> Params:
        requested.append((metric, fingerprint))
        return PARAMS

    _, (parsed,) = parse_upload(body, find_any)
    assert type(parsed) is (ReportError if tail else Report)
    assert requested == ([] if tail else [("page", PARAMS.fingerprint)])
