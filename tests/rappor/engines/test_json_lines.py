"""Aggregation of uploads, one JSON document a line, to Counts."""

from __future__ import annotations

from rappor.counts.counts import Counts
from rappor.engines.json_lines import Aggregation, Refusal, aggregate_jsonl
from rappor.protocol.params import Params
from rappor.protocol.wire import Report, Upload

PARAMS = Params(k=12, m=4, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=12, m=4, f=0.5, p=0.25, q=0.8)
KNOWN = {("page", p.fingerprint): p for p in (PARAMS, OTHER)} | {
    ("site", PARAMS.fingerprint): PARAMS
}


def lookup(metric: str, fingerprint: str) -> Params | None:
    """Return the parameters of a collection, or None if it is unknown."""
    return KNOWN.get((metric, fingerprint))


def report(
    cohort: int = 0, bits: bytes = b"\x05\x08", *, metric: str = "page", params: Params = PARAMS
) -> Report:
    """Return a report whose bits 0, 2 and 11 are 1, unless other bits are given."""
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=bits)


def line(number: int, *reports: Report) -> bytes:
    """Return an upload as a line of JSON. The number makes its id unique."""
    upload_id = f"{number:021d}A"
    return Upload(id=upload_id, reports=reports).to_json() + b"\n"


def aggregate(*lines: bytes) -> Aggregation:
    """Add the reports of the lines."""
    return aggregate_jsonl(iter(lines), lookup)


def test_collections_have_separate_sums() -> None:
    """Each metric and fingerprint has its own sum over all lines."""
    reports = [
        report(0),
        report(3, b"\x01\x00"),
        report(1, metric="site"),
        report(2, params=OTHER),
        report(0),
    ]
    result = aggregate(line(1, *reports[:3]), line(2, reports[3]), line(3, reports[4]))
    pages = [reports[0], reports[1], reports[4]]
    assert result.counts == {
        ("page", PARAMS.fingerprint): Counts.from_reports(pages, PARAMS, "page"),
        ("site", PARAMS.fingerprint): Counts.from_reports(reports[2:3], PARAMS, "site"),
        ("page", OTHER.fingerprint): Counts.from_reports(reports[3:4], OTHER, "page"),
    }
    assert (result.n_uploads, result.n_repeated, result.n_reports) == (3, 0, 5)
    assert result.refused == {}


def test_many_reports_are_summed_in_batches() -> None:
    """Reports of more than one batch are added, and the incomplete last batch too.

    34 uploads have 1,000 reports each, and each report has three ones.
    """
    result = aggregate(*(line(i, *[report(i % 4)] * 1000) for i in range(34)))
    (counts,) = result.counts.values()
    assert counts.cohort_reports.tolist() == [9000, 9000, 8000, 8000]
    assert counts.bit_counts.sum() == 3 * 34_000


def test_empty_lines_give_an_empty_aggregation() -> None:
    """Lines without any text are no uploads."""
    result = aggregate(b"\n", b"", b" \r\n")
    assert (result.counts, result.refused, result.n_uploads) == ({}, {}, 0)


def test_a_retry_is_counted_once() -> None:
    """An upload with a known id and the same body adds nothing, and is counted as repeated."""
    first = line(1, report())
    result = aggregate(first, line(2, report()), first.rstrip(), first)
    assert (result.n_uploads, result.n_repeated, result.n_reports) == (4, 2, 2)
    assert result.refused == {}


def test_a_known_id_with_another_body_is_refused() -> None:
    """The first body with an id is counted, and the second is refused."""
    result = aggregate(line(1, report()), line(1, report(1)))
    reason = "id must be new in each upload, got the id of an earlier upload with another body"
    assert result.refused == {reason: Refusal(n=1, first_line=2)}
    assert result.n_reports == 1


def test_a_line_without_an_upload_is_counted_by_reason() -> None:
    """Such a line is counted by its reason, with the number of the first line of this reason."""
    result = aggregate(b"\n", b"{\n", line(1, report()), b"not json\n", b"[]\n", b"\xff\n")
    assert result.n_reports == 1
    assert result.n_uploads == 5
    assert [(r.n, r.first_line) for r in result.refused.values()] == [(2, 2), (1, 5), (1, 6)]
    assert "an upload must be JSON" in result.refused


def test_a_bad_report_leaves_the_other_reports_of_its_upload() -> None:
    """A refused report is counted by its reason, and the other reports of the upload are added."""
    bad = [
        report(4),
        report(bits=b"\x00\x10"),
        report(bits=b"\x00"),
        report(metric="unknown"),
        report(params=Params.profile("strict")),
    ]
    result = aggregate(line(1, report()), line(2, bad[0], report(), *bad), line(3, bad[1]))
    assert result.n_reports == 2
    assert sum(refusal.n for refusal in result.refused.values()) == 7
    assert {refusal.first_line for refusal in result.refused.values()} == {2}
    assert result.refused["cohort must be an integer in [0, 3]"] == Refusal(n=2, first_line=2)
    assert result.refused["bits must be 0 past bit k - 1"] == Refusal(n=2, first_line=2)
