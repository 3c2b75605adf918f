"""Counts: checked when they are made, added like numbers, and read back from files and tables.

Counts are all that an analyst has of the reports. Wrong counts that are not refused become wrong
estimates, which nobody can recognise as wrong.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import run_python

from rappor.base.errors import FileError, MetricError, ParamsError, ReportError
from rappor.counts.counts import Counts
from rappor.engines import write_parquet
from rappor.protocol.params import Params
from rappor.protocol.wire import Report

PARAMS = Params(k=3, m=2, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=3, m=2, f=0.5, p=0.25, q=0.8)
"""Parameters of the same size and another fingerprint, whose counts must not be added."""


def make_counts(metric: str = "page") -> Counts:
    """Return small counts of seven reports."""
    return Counts(PARAMS, [[1, 0, 5], [2, 2, 0]], [5, 2], metric)


@st.composite
def draw_counts(draw: st.DrawFn, limit: int = 2**40) -> Counts:
    """Draw counts with at most `limit` reports in each cohort."""
    reports = draw(st.lists(st.integers(0, limit), min_size=2, max_size=2))
    bit_counts = [[draw(st.integers(0, n)) for _ in range(3)] for n in reports]
    return Counts(PARAMS, bit_counts, reports, "page")


@given(draw_counts(), draw_counts(), draw_counts())
def test_counts_form_a_commutative_monoid(a: Counts, b: Counts, c: Counts) -> None:
    """Addition commutes and associates, zero counts are neutral, and subtraction is the inverse.

    So the sum of many files does not depend on their order, or on how machines share the work.
    """
    zero = Counts.zero(PARAMS, "page")
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + zero == a == zero + a
    assert (a + b) - b == a
    assert sum([a, b, c]) == a + b + c
    assert (a + b).n_reports == a.n_reports + b.n_reports


def test_values_are_compared_and_not_hashed() -> None:
    """Counts are equal if all their fields are equal, and have no hash.

    Two objects with equal values would need equal hashes, and arrays have none.
    """
    assert make_counts() == make_counts()
    assert make_counts() != make_counts("other")
    assert make_counts() != Counts(
        OTHER, make_counts().bit_counts, make_counts().cohort_reports, "page"
    )
    assert make_counts() != Counts(PARAMS, make_counts().bit_counts, [5, 3], "page")
    assert make_counts() != Counts(PARAMS, [[1, 1, 5], [2, 2, 0]], [5, 2], "page")
    assert make_counts() != 5
    with pytest.raises(TypeError):
        hash(make_counts())


def test_counts_are_immutable() -> None:
    """The arrays of counts are read-only copies, and no attribute can be set.

    Counts are checked once, when they are made. A later change could make them impossible.
    """
    bit_counts = np.array([[1, 0, 5], [2, 2, 0]])
    counts = Counts(PARAMS, bit_counts, [5, 2], "page")
    bit_counts[0, 0] = 4
    assert counts == make_counts()
    with pytest.raises(ValueError, match="read-only"):
        counts.bit_counts[0, 0] = 4
    for name in ("params", "ones", "reports", "metric"):
        with pytest.raises(AttributeError):
            setattr(counts, name, getattr(counts, name))


def test_counts_are_equal_after_pickling() -> None:
    """Counts are equal after pickling, by which Python processes exchange objects."""
    assert pickle.loads(pickle.dumps(make_counts())) == make_counts()  # noqa: S301  (our own bytes)


def test_the_repr_shows_no_counts() -> None:
    """The repr has the metric, the sizes and the number of reports, and no single count.

    So a log or a traceback contains no count of a cohort or of a bit.
    """
    fingerprint = PARAMS.fingerprint
    expected = f"Counts(metric='page', params={fingerprint}, m=2, k=3, n_reports=7)"
    assert repr(make_counts()) == expected


def test_another_collection_is_not_added() -> None:
    """Counts of another parameter set or metric are not added. The message has both.

    Bits of different parameter sets have different meanings, so their sum means nothing.
    """
    other_counts = Counts.zero(OTHER, "page")
    pair = f"parameters {PARAMS.fingerprint} and under parameters {OTHER.fingerprint}"
    with pytest.raises(ParamsError, match=f"{pair} cannot be added"):
        make_counts() + other_counts
    with pytest.raises(ParamsError, match=f"{pair} cannot be subtracted"):
        make_counts() - other_counts
    with pytest.raises(MetricError, match="metric 'page' and of metric 'site' cannot be added"):
        make_counts() + make_counts("site")
    with pytest.raises(TypeError):
        make_counts() + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        1 + make_counts()


def test_no_count_becomes_negative() -> None:
    """A subtraction whose result has negative counts, or more ones than reports, is refused.

    The subtracted counts are then not part of the counts.
    """
    with pytest.raises(
        ReportError, match=r"bit_counts must be whole numbers .* got -1 at cohort 0, bit"
    ):
        make_counts() - make_counts() - Counts(PARAMS, [[1, 0, 0], [0, 0, 0]], [1, 0], "page")
    with pytest.raises(ReportError, match="ones must be at most"):
        make_counts() - Counts(PARAMS, [[0, 0, 0], [0, 0, 0]], [1, 0], "page")


def test_sums_beyond_64_bits_are_refused() -> None:
    """A sum of 2^63 or more is refused. Integers of numpy would overflow without an error."""
    huge = Counts(PARAMS, np.zeros((2, 3), int), [2**63 - 1, 0], "page")
    assert (huge.n_reports, huge.cohort_reports.tolist()) == (2**63 - 1, [2**63 - 1, 0])
    with pytest.raises(ReportError, match="reports must be whole numbers"):
        huge + huge


@pytest.mark.parametrize(
    ("bit_counts", "reports", "reason"),
    [
        (np.zeros((3, 2), int), [0, 0], r"bit_counts must have shape \(2, 3\), got \(3, 2\)"),
        (np.zeros((2, 3), int), [0], r"reports must have shape \(2,\), got \(1,\)"),
        ([[0, 0, 0], [0, -1, 0]], [0, 0], "got -1 at cohort 1, bit 1"),
        (np.zeros((2, 3), int), [0, -5], "got -5 at cohort 1"),
        ([[0, 0, 0], [0, 4, 0]], [9, 3], "got 4 ones in 3 reports at cohort 1, bit 1"),
        ([[0, 0, 0], [0, 0.5, 0]], [9, 3], "got 0.5 at cohort 1, bit 1"),
        ([[0, 0, math.nan], [0, 0, 0]], [9, 3], "got nan at cohort 0, bit 2"),
        ([[0, 0, math.inf], [0, 0, 0]], [9, 3], "got inf at cohort 0, bit 2"),
        (np.zeros((2, 3)), [2.0**63, 0], "reports must be whole numbers"),
        (np.zeros((2, 3)), np.array([2**63, 0], dtype=np.uint64), "reports must be whole numbers"),
        (np.zeros((2, 3), bool), [0, 0], "bit_counts must be integers, got bool"),
        (np.zeros((2, 3), complex), [0, 0], "bit_counts must be integers, got complex"),
        ([["0"] * 3] * 2, [0, 0], "bit_counts must be integers"),
    ],
)
def test_impossible_tables_are_refused(bit_counts: Any, reports: Any, reason: str) -> None:
    """Wrong shapes, negative or fractional numbers, and more ones than reports are refused.

    The message has the cohort and the bit of the first wrong number.
    """
    with pytest.raises(ReportError, match=reason):
        Counts(PARAMS, bit_counts, reports)


def test_reports_of_one_bucket_have_one_1_each() -> None:
    """A report of generalized randomized response has one 1, so there are as many ones as reports.

    That holds in each cohort, and in sums of counts. Other counts are refused.
    """
    params = Params(k=3, m=2, items=1, keep=0.5, encoding="set")
    counts = Counts(params, [[1, 2, 0], [0, 0, 0]], [3, 0])
    assert (counts + counts).cohort_reports.tolist() == [6, 0]
    for wrong in ([[1, 1, 0], [0, 0, 0]], [[1, 2, 1], [0, 0, 0]], [[1, 2, 0], [1, 0, 0]]):
        with pytest.raises(ReportError, match="ones must"):
            Counts(params, wrong, [3, 0])


def test_integral_floats_are_counts() -> None:
    """Whole numbers are accepted as floats. Data frames store integers beside gaps as floats."""
    assert (
        Counts(PARAMS, make_counts().bit_counts.astype(float), [5.0, 2.0], "page") == make_counts()
    )


def test_the_metric_must_be_text() -> None:
    """A metric of another type is refused."""
    with pytest.raises(MetricError, match="metric must be a text, got int"):
        Counts(PARAMS, make_counts().bit_counts, make_counts().cohort_reports, 5)  # type: ignore[arg-type]


def make_report(cohort: int, bits: int, *, metric: str = "page", params: Params = PARAMS) -> Report:
    """Return a report whose one byte has these bits, bit 0 lowest."""
    return Report(metric=metric, params=params.fingerprint, cohort=cohort, bits=bytes([bits]))


def test_reports_are_counted() -> None:
    """Each report adds 1 to its cohort and to each bit that is 1."""
    reports = [make_report(0, 0b100)] * 4 + [make_report(0, 0b101)] + [make_report(1, 0b011)] * 2
    assert Counts.from_reports(iter(reports), PARAMS, "page") == make_counts()
    assert Counts.from_reports([], PARAMS, "page") == Counts.zero(PARAMS, "page")


def test_reports_of_several_batches_are_all_counted() -> None:
    """`from_reports` adds reports in batches, and loses none between two batches.

    70,000 reports are more than one batch.
    """
    counts = Counts.from_reports((make_report(1, 0b010) for _ in range(70_000)), PARAMS, "page")
    assert counts.bit_counts.tolist() == [[0, 0, 0], [0, 70_000, 0]]
    assert counts.cohort_reports.tolist() == [0, 70_000]


def test_a_report_of_another_collection_is_not_counted() -> None:
    """A report with another fingerprint or metric is refused.

    If the caller has passed no metric, the message proposes the metric of the report.
    """
    with pytest.raises(ReportError, match=f"params must be {PARAMS.fingerprint}, got a report"):
        Counts.from_reports([make_report(0, 0, params=OTHER)], PARAMS, "page")
    with pytest.raises(ReportError, match=r"metric must be 'page', got a report of 'site'$"):
        Counts.from_reports([make_report(0, 0, metric="site")], PARAMS, "page")
    with pytest.raises(ReportError, match="got a report of 'site'; give metric='site'"):
        Counts.from_reports([make_report(0, 0, metric="site")], PARAMS)


@given(counts=draw_counts(limit=2**62))
def test_a_saved_file_reads_back(tmp_path_factory: pytest.TempPathFactory, counts: Counts) -> None:
    """Loading a saved file returns equal counts."""
    path = tmp_path_factory.mktemp("counts") / "c.counts"
    counts.save(path)
    assert Counts.load(path) == counts


def test_large_and_named_counts_read_back(tmp_path: Path) -> None:
    """Names beyond ASCII, and counts that are large enough to be compressed, are read back.

    The file of zero counts is small, although it has 128 cohorts of 128 bits.
    """
    path = tmp_path / "c"
    params = Params(
        k=200,
        f=0.5,
        p=0.25,
        q=0.75,
        encoding="onehot",
        categories=tuple(f"größe {i}" for i in range(200)),
    )
    counts = Counts(params, np.arange(200)[None], [10**12], "m")
    counts.save(path)
    assert Counts.load(path) == counts
    assert Counts.load(path).params.categories == params.categories
    Counts.zero(Params.profile("strict")).save(path)
    assert path.stat().st_size < 1000


def truncate(data: bytes) -> Iterator[bytes]:
    """Yield every proper beginning of a file."""
    return (data[:length] for length in range(len(data)))


def extend(data: bytes) -> Iterator[bytes]:
    """Yield a file with three different tails."""
    return (data + tail for tail in (b"\0", b"\n", data))


def flip_bits(data: bytes) -> Iterator[bytes]:
    """Yield the file with one flipped bit, twice for each byte.

    A flip of bit 5 changes the case of a letter, which a lenient reader might accept. The other bit
    differs from byte to byte.
    """
    for i, byte in enumerate(data):
        for bit in {5, i % 8}:
            yield data[:i] + bytes([byte ^ 1 << bit]) + data[i + 1 :]


@pytest.mark.parametrize("damage", [truncate, extend, flip_bits])
def test_a_damaged_file_is_refused(
    tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """A file that is truncated, extended or changed in one bit is refused.

    A counts file has a digest of its contents. A damaged file would otherwise give wrong estimates.
    """
    path = tmp_path / "c"
    make_counts().save(path)
    for data in damage(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(FileError):
            Counts.load(path)


def test_a_file_built_from_the_documentation_is_loaded(tmp_path: Path) -> None:
    """A file that the test builds from the documented format alone can be loaded.

    Other software can write counts files. Its integers are little-endian, the reports of all
    cohorts first, then the ones of each cohort.
    """
    path = tmp_path / "c"
    path.write_bytes(build_file())
    assert Counts.load(path) == make_counts()


def build_file(integers: tuple[int, ...] = (5, 2, 1, 0, 5, 2, 2, 0), **header: Any) -> bytes:
    """Return a file with the right digest for any header and integers.

    Keys replace those of a good header. The value `...` removes a key.
    """
    document = {
        "devices": None,
        "metric": "page",
        "packing": "raw",
        "params": json.loads(PARAMS.to_json()),
        "shape": [2, 3],
    } | header
    line = json.dumps({key: value for key, value in document.items() if value is not ...})
    return add_digest(line, pack(integers))


def pack(integers: tuple[int, ...]) -> bytes:
    """Return the bytes of integers, each as a little-endian 64-bit integer."""
    return b"".join(n.to_bytes(8, "little", signed=True) for n in integers)


def add_digest(line: str, payload: bytes) -> bytes:
    """Return a file with this header and payload, and the digest of both."""
    magic, head = b"RAPPOR COUNTS 1\n", line.encode() + b"\n"
    digest = hashlib.sha256(magic + head + payload).hexdigest().encode() + b"\n"
    return magic + head + digest + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not a counts file"),
        (b"cohort,reports\n", "it is not a counts file but looks like CSV"),
        (b"3,1,0,2\r\n3,0,0,1\r\n", "looks like the counts of google/rappor: .*--format google"),
        (b'"COHORT","REPORTS","BIT_0"\n', "looks like a table of counts in CSV: .*--registry"),
        (b"# ours\n[budget]\ntotal = 4\n", "it is not a counts file but looks like a registry"),
        (b"[metrics.page]\n", "looks like a registry"),
        (b'[{"id": 1}]', "looks like an array of JSON"),
        (b'{"id": "a", "reports": []}\n{"id": "b"}\n', "looks like uploads: .*rappor aggregate"),
        (b"\x1f\x8b\x08", "packed by gzip"),
        (b"some words", "it is not a counts file$"),
        (build_file().replace(b"COUNTS 1", b"COUNTS 2"), "another version"),
        (build_file(shape=[3, 2]), r"shape must be \[2, 3\]"),
        (build_file(metric=...), "its header is wrong"),
        (build_file(metric=7), "metric must be a text"),
        (build_file(params={}), "its header is wrong"),
        (build_file(params=[1]), "its header is wrong"),
        (build_file(packing="lzma"), "packing must be raw or zlib"),
        (build_file(packing="zlib"), "not a zlib stream"),
        (build_file((5, 2)), "it must hold 8 integers of 8 bytes, got 16 bytes"),
        (build_file((5, 2, 1, 0, 6, 2, 2, 0)), "got 6 ones in 5 reports at cohort 0, bit 2"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    """A file of another kind or version, or with impossible counts, is refused with its reason.

    The digests are right, so only the reason of each file can refuse it. For files that users
    confuse with counts files, the message names their kind.
    """
    path = tmp_path / "c"
    path.write_bytes(data)
    with pytest.raises(FileError, match=reason) as caught:
        Counts.load(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (zlib.compress(pack((5, 2, 1, 0, 5, 2, 2, 0))) + b"\0", "cut off or too long"),
        (zlib.compress(pack((5, 2, 1, 0, 5, 2, 2, 0)))[:-1], "cut off or too long"),
        (zlib.compress(pack((5, 2, 1, 0, 5, 2, 2, 0, 0))), "cut off or too long"),
        (zlib.compress(bytes(10**8)), "cut off or too long"),
        (zlib.compress(pack((5, 2, 1, 0, 5, 2, 2))), "must hold 8 integers of 8 bytes, got 56"),
    ],
)
def test_a_compressed_payload_of_another_length_is_refused(
    tmp_path: Path, payload: bytes, reason: str
) -> None:
    """A compressed payload must contain exactly the integers of the shape.

    A small stream that unpacks to 100 MB is refused as well, without being unpacked.
    """
    path = tmp_path / "c"
    line = build_file(packing="zlib").split(b"\n")[1].decode()
    path.write_bytes(add_digest(line, payload))
    with pytest.raises(FileError, match=reason):
        Counts.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file is refused with the reason of the operating system."""
    with pytest.raises(FileError, match="No such file"):
        Counts.load(tmp_path / "nothing")


CSV = "cohort,reports,bit_0,bit_1,bit_2\n0,5,1,0,5\n1,2,2,2,0\n"


def test_a_csv_table_is_plain(tmp_path: Path) -> None:
    """A CSV file has a header and a line for each cohort, without quotes, and is read back."""
    path = tmp_path / "c.csv"
    make_counts().to_csv(path)
    assert path.read_text() == CSV
    assert Counts.from_csv(path, PARAMS, "page") == make_counts()


@pytest.mark.parametrize(
    "text",
    [
        "cohort,reports,bit_0,bit_1,bit_2\n1,2,2,2,0\n0,5,1,0,5\n",
        CSV.replace("\n", "\r\n"),
        "\ufeff" + CSV,
        CSV.rstrip(),
        CSV.replace("5", "5.0"),
        CSV.replace("5", '"5"'),
        CSV.replace("5", "5e+00"),
        CSV.replace("\n", "\r"),
        CSV.upper(),
        "bit_2,REPORTS,Cohort,bit_0, bit_1\n5,5,0,1,0\n0,2,1,2,2\n",
    ],
)
def test_harmless_variants_of_a_table_are_read(tmp_path: Path, text: str) -> None:
    """A CSV file that a spreadsheet or a database has written again is read back.

    Order of rows and columns, line ends, case, a byte-order mark, quotes and ".0" do not matter.
    """
    path = tmp_path / "c.csv"
    path.write_bytes(text.encode())
    assert Counts.from_csv(path, PARAMS, "page") == make_counts()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (CSV, "", "line 1: column cohort is missing, got nothing"),
        ("reports", "number", "line 1: column reports is missing, got cohort, number, bit_0"),
        ("bit_2\n", "bit_2,bit_3\n", "line 1: columns must number 5, got 6"),
        ("bit_1", "bit_2", "line 1: column bit_1 is missing, got cohort, reports, bit_0"),
        ("2,2,2,0", "2,2,2", "line 3: fields must number 5, got 4"),
        ("1,2,2,2,0\n", "\n", "line 3: fields must number 5, got 0: the line is blank, remove it"),
        ("1,2,2,2,0\n", "", "cohorts must be 0 to 1, got no 1"),
        ("1,2,2,2,0\n", "0,2,2,2,0\n", "line 3: cohort must come once, got 0 twice"),
        ("1,2,2,2,0\n", "2,2,2,2,0\n", r"line 3: cohort must be in \[0, 1\], got 2"),
        ("1,2,2,2,0\n", "-1,2,2,2,0\n", "line 3: cohort must be a whole number .* got '-1'"),
        ("1,2,2,2,0\n", "1,2,2,,0\n", "line 3: bit_1 must be a whole number .* got ''"),
        ("1,2,2,2,0\n", "1,2,2,nan,0\n", "line 3: bit_1 must be a whole number .* got 'nan'"),
        ("1,2,2,2,0\n", "1,2,2,1.5,0\n", "line 3: bit_1 must be a whole number .* got '1.5'"),
        ("1,2,2,2,0\n", "1,2,2,1_0,0\n", "line 3: bit_1 must be a whole number .* got '1_0'"),
        ("1,2,2,2,0\n", "1,2,2,٢,0\n", "line 3: bit_1 must be a whole number .* got '٢'"),
        ("1,2,2", "1,9999999999999999999,2", "line 3: reports must be a whole number"),
        (
            "1,2,2,2,0\n",
            "1,2,2,3,0\n",
            "line 3: bit_1 must be at most the reports, got 3 ones of 2",
        ),
        ("1,2,2", '1,"2,2', "line 3: "),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    """A CSV file with missing, repeated, unknown or impossible cells is refused with the line."""
    path = tmp_path / "c.csv"
    path.write_bytes(CSV.replace(old, new).encode())
    with pytest.raises(FileError, match=reason):
        Counts.from_csv(path, PARAMS)


def test_arrow_and_parquet_read_back(tmp_path: Path) -> None:
    """Arrow and Parquet store metric and parameters as metadata, and are read back.

    Engines return rows in any order.
    """
    table = make_counts().to_arrow()
    assert table.column_names == ["cohort", "reports", "ones"]
    assert Counts.from_arrow(table) == make_counts()
    assert Counts.from_arrow(table.take([1, 0])) == make_counts()
    path = tmp_path / "c.parquet"
    make_counts().to_parquet(path)
    assert Counts.from_parquet(path) == make_counts()


def replace_column(column: str, values: Any) -> Any:
    """Return the table of `make_counts()` with one column replaced."""
    table = make_counts().to_arrow()
    return table.set_column(table.column_names.index(column), column, values)


def remove_format() -> Any:
    """Return the table of `make_counts()` without the number of its format."""
    table = make_counts().to_arrow()
    metadata = dict(table.schema.metadata)
    del metadata[b"rappor.format"]
    return table.replace_schema_metadata(metadata)


def build_wrong_tables() -> dict[str, Any]:
    """Return wrong tables, by the text that the message about each must contain."""
    import pyarrow as pa  # noqa: PLC0415  (an extra)

    lists = pa.list_(pa.int64(), 3)
    return {
        "metadata must name": make_counts().to_arrow().replace_schema_metadata({}),
        "metadata must name format 1, got none": remove_format(),
        "columns must be cohort": make_counts().to_arrow().drop_columns(["reports"]),
        "cohort must have 0 to 1, each once": replace_column("cohort", [[0, 0]]),
        "cohort must be integers": replace_column("cohort", [[0.0, 1.0]]),
        "reports must be integers without nulls": replace_column("reports", [[None, 2]]),
        "ones must be at most": replace_column("reports", [[4, 2]]),
        "reports must be below": replace_column("reports", pa.array([2**63, 2], pa.uint64())),
        "ones must be lists of 3 int64": replace_column("ones", [[[1, 0], [2, 2]]]),
        "ones must be lists without nulls": replace_column(
            "ones", pa.array([[1, 0, None], [2, 2, 0]], lists)
        ),
        "ones must be lists of 3 int64 without nulls": replace_column(
            "ones", pa.array([None, [2, 2, 0]], lists)
        ),
    }


@pytest.mark.parametrize("reason", list(build_wrong_tables()))
def test_a_wrong_arrow_table_is_refused(reason: str) -> None:
    """An Arrow table with wrong metadata, columns, types, nulls, cohorts or numbers is refused."""
    with pytest.raises(FileError, match=f"Arrow table: .*{reason}"):
        Counts.from_arrow(build_wrong_tables()[reason])


def test_files_of_reports_are_refused(tmp_path: Path) -> None:
    """A Parquet file of reports is refused. The message names the function that adds reports."""
    path = tmp_path / "reports.parquet"
    day, batches = datetime.date(2026, 11, 21), [(np.zeros((1, 1), np.uint8), np.array([0]))]
    write_parquet(path, batches, params=PARAMS, metric="page", day=day)
    with pytest.raises(
        FileError, match=r"reports, not counts: .* rappor.engines.aggregate_parquet"
    ):
        Counts.from_parquet(path)
    with pytest.raises(FileError, match=r"Parquet file, not a counts file: .*Counts.from_parquet"):
        Counts.load(path)


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    """A truncated or missing Parquet file is refused with FileError."""
    path = tmp_path / "c.parquet"
    make_counts().to_parquet(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileError, match="cannot be read as Parquet"):
        Counts.from_parquet(path)
    with pytest.raises(FileError, match="cannot be read as Parquet"):
        Counts.from_parquet(tmp_path / "nothing")


def test_without_pyarrow_the_extra_is_named() -> None:
    """Counts work without pyarrow. Only `to_arrow` needs it, and names the extra to install."""
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from rappor import Counts, MissingExtraError, Params\n"
        "try:\n    Counts.zero(Params.profile('strict')).to_arrow()\n"
        "except MissingExtraError as error:\n    print(error.extra)\n"
    )
    assert run_python("-c", program).stdout == "arrow\n"


@given(counts=draw_counts())
def test_tables_are_read_back(tmp_path_factory: pytest.TempPathFactory, counts: Counts) -> None:
    """CSV and Arrow store everything of counts, and give back equal counts."""
    path = tmp_path_factory.mktemp("counts") / "c.csv"
    counts.to_csv(path)
    assert Counts.from_csv(path, PARAMS, "page") == counts
    assert Counts.from_arrow(counts.to_arrow()) == counts


def test_a_table_of_an_engine_has_the_fingerprint_in_every_row() -> None:
    """A table from an engine has the fingerprint as its first column, which the reader drops.

    Another fingerprint, or none, in any row is refused: the row belongs to other counts.
    """
    table, counts = make_counts().to_arrow(), make_counts()
    with_fingerprints = table.add_column(0, "params", [[counts.params.fingerprint] * 2])
    assert Counts.from_arrow(with_fingerprints) == counts
    for wrong in (["0" * 16] * 2, [counts.params.fingerprint, None]):
        with pytest.raises(FileError, match=r"params must be .* in every row"):
            Counts.from_arrow(table.add_column(0, "params", [wrong]))


def test_masked_arrays_are_refused() -> None:
    """A masked array is refused, also as a row and without masked entries.

    numpy would drop the mask and count the hidden numbers.
    """
    bit_counts, reports = make_counts().bit_counts, make_counts().cohort_reports
    masked = np.ma.masked_array(bit_counts, bit_counts == 2)
    for table in (masked, np.ma.masked_array(bit_counts), [masked[0], masked[1]]):
        with pytest.raises(ReportError, match="bit_counts must not be a masked array"):
            Counts(PARAMS, table, reports)
    with pytest.raises(ReportError, match="reports must not be a masked array"):
        Counts(PARAMS, bit_counts, np.ma.masked_array(reports))
    packed, cohorts = np.zeros((3, PARAMS.n_bytes), dtype=np.uint8), np.zeros(3, dtype=np.int64)
    with pytest.raises(ReportError, match="packed must not be a masked array"):
        Counts.from_packed(np.ma.masked_array(packed), cohorts, PARAMS)
    with pytest.raises(ReportError, match="cohorts must not be a masked array"):
        Counts.from_packed(packed, np.ma.masked_array(cohorts, [True, False, False]), PARAMS)


def test_rows_of_several_lengths_are_refused() -> None:
    """The error of numpy itself would be a ValueError about inhomogeneous shapes."""
    with pytest.raises(ReportError, match="bit_counts must have rows of one length"):
        Counts(PARAMS, [[1], [1, 2]], make_counts().cohort_reports)
    for packed in ([[1], [1, 2]], [[1], [2]]):
        with pytest.raises(ReportError, match="packed must"):
            Counts.from_packed(packed, [0, 0], PARAMS)  # type: ignore[arg-type]  # lists
