"""Candidates of tuples: lines with fields, and all combinations of lists of fields."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor import Params, Population, decode, simulate_counts
from rappor.base.errors import DecodeError, FileError, ParamsError, ReportError
from rappor.candidates import candidates as module
from rappor.candidates.candidates import Candidates
from rappor.candidates.entry_candidates import list_files, read_entry_candidates
from rappor.protocol.encodings import get_encoder
from rappor.protocol.tuples import join_line, parse_fields

FIELDS = ("site", "country")


def read_strings(candidates: Candidates) -> list[str]:
    """Return all strings, read block by block."""
    return [text for block in candidates.read_blocks() for text in block.to_strings()]


def read_bytes(tmp_path: Path, data: bytes, normalize: str = "none") -> Candidates:
    """Return the candidates of a file of tuples with these bytes."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(data)
    return Candidates.from_file(path, normalize=normalize, field_names=FIELDS)


def test_tabs_separate_the_fields_of_a_line(tmp_path: Path) -> None:
    """A line with U+001F, as a result has it, is the same candidate; a tab in it is a character."""
    candidates = read_bytes(tmp_path, b"a\tde\na\x1fde\r\n\nb\t\n\tfr\na\tb\x1fde\n")
    assert candidates.strings == ("a\x1fde", "b\x1f", "\x1ffr", "a\tb\x1fde")
    assert (candidates.n_blank, candidates.n_duplicates, candidates.n_spaced) == (1, 1, 0)
    assert candidates.field_names == FIELDS


def test_each_field_of_a_line_has_its_normalizer(tmp_path: Path) -> None:
    """A field keeps its white space and case unless its own normalizer removes them."""
    candidates = read_bytes(tmp_path, b"VIM \tDE\nvim \tDE\n", "casefold,none")
    assert (candidates.strings, candidates.n_duplicates) == (("vim \x1fDE",), 1)
    stripped = read_bytes(tmp_path, b"VIM \tDE \n", "none,strip")
    assert stripped.strings == ("VIM \x1fDE",)


@pytest.mark.parametrize(
    ("line", "n_fields"), [(b"c", 1), (b"c\tfr\tx", 3), (b"c\x1ffr\x1fx", 3), (b"c d", 1)]
)
def test_a_line_with_another_number_of_fields_is_refused(
    tmp_path: Path, line: bytes, n_fields: int
) -> None:
    """The error has the line, the names of the fields and both numbers."""
    with pytest.raises(FileError) as refusal:
        read_bytes(tmp_path, b"a\tde\n\nb\tde\n" + line + b"\n")
    assert refusal.value.line == 4
    expected = f"it must have 2 fields separated by tabs (site, country), got {n_fields}"
    assert refusal.value.reason == expected
    with pytest.raises(ReportError, match=f"must have 2 fields .*, got {n_fields}"):
        Candidates.from_list(["a\tde", line.decode()], field_names=FIELDS)


@pytest.mark.slow
@given(st.lists(st.lists(st.text("ab\u00e9 \t", max_size=3), min_size=3, max_size=3), max_size=9))
def test_lists_lines_and_streams_of_tuples_agree(rows: list[list[str]]) -> None:
    """A tuple has the bits of the recorded value, wherever it comes from."""
    names = ("a", "b", "c")
    texts = ["\x1f".join(row) for row in rows]
    of_list = Candidates.from_list(texts, field_names=names)
    assert of_list.strings == tuple(dict.fromkeys(texts))
    assert Candidates.from_lines(texts, field_names=names).strings == of_list.strings
    stream = Candidates.from_stream(lambda: texts, field_names=names)
    assert (read_strings(stream), stream.field_names) == (texts, names)
    encoder = get_encoder(Params(k=64, m=4, f=0.5, p=0.25, q=0.75, field_names=names))
    plain = get_encoder(Params(k=64, m=4, f=0.5, p=0.25, q=0.75))
    for row, text in zip(rows, texts, strict=True):
        value = dict(zip(names, row, strict=True))
        assert encoder.encode(value, 3) == plain.encode(text, 3)
        assert parse_fields(names, text) == value


def test_all_combinations_stand_with_the_last_field_fastest() -> None:
    """Repeated texts of a field count once; each field is normalized by its own normalizer."""
    lists = {"a": ["x", "Y", "y"], "b": ["1", "2"], "c": ["K", "k"]}
    candidates = Candidates.from_fields(lists, normalize={"a": "casefold"})
    combinations = itertools.product(["x", "y"], ["1", "2"], ["K", "k"])
    assert candidates.strings == tuple(map("\x1f".join, combinations))
    assert (candidates.normalize, candidates.field_names) == ("casefold,none,none", ("a", "b", "c"))
    assert Candidates.from_fields(lists).normalize == "none"


def test_a_long_product_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is the same, and no more than a block of it is in memory."""
    lists = {"a": [str(i) for i in range(300)], "b": [str(i) for i in range(300)]}
    in_memory = Candidates.from_fields(lists)
    n_bytes = sum(map(len, in_memory.strings))
    monkeypatch.setattr(module, "_MAX_BYTES_IN_MEMORY", n_bytes)
    assert Candidates.from_fields(lists).is_in_memory
    monkeypatch.setattr(module, "_MAX_BYTES_IN_MEMORY", n_bytes - 1)
    streamed = Candidates.from_fields(lists)
    assert not streamed.is_in_memory
    assert read_strings(streamed) == list(in_memory.strings)
    assert max(len(block) for block in streamed.read_blocks()) < len(in_memory)


def test_a_product_beyond_the_limit_is_refused_at_once() -> None:
    """One sentence has the sizes of the lists."""
    names = [str(i) for i in range(40_000)]
    with pytest.raises(ParamsError) as refusal:
        Candidates.from_fields({"site": names, "country": names, "system": ["linux", "mac"]})
    assert str(refusal.value) == (
        "candidates must have at most 1,000,000,000 combinations of fields, got "
        "40,000 x 40,000 x 2: shorten the lists, or list the tuples in a file"
    )


def test_wrong_lists_of_fields_are_refused() -> None:
    """Each sentence names the field."""
    good = ["de"]
    with pytest.raises(ParamsError, match="fields must be a tuple of 2 to 8 names"):
        Candidates.from_fields({"site": good})
    with pytest.raises(ParamsError, match="field site must not be empty"):
        Candidates.from_fields({"site": [], "country": good})
    with pytest.raises(ParamsError, match=r"field country must be without U\+001F"):
        Candidates.from_fields({"site": good, "country": ["a\x1fb"]})
    folded = Candidates.from_list(good, normalize="casefold")
    with pytest.raises(
        ParamsError, match="field site must be normalised by 'none', got 'casefold'"
    ):
        Candidates.from_fields({"site": folded, "country": good})
    streamed = Candidates.from_stream(lambda: good)
    with pytest.raises(ParamsError, match="field site must be in memory"):
        Candidates.from_fields({"site": streamed, "country": good})


def test_an_entry_has_a_list_or_a_file_for_each_field(tmp_path: Path) -> None:
    """The combinations stand in the order of the fields of the metric, not of the table."""
    (tmp_path / "sites.txt").write_text("A.org\nb.org\n")
    params = Params(k=64, f=0.5, p=0.25, q=0.75, field_names=FIELDS, normalize="casefold,none")
    table: dict[str, str | tuple[str, ...]] = {"country": ("de", "FR"), "site": "sites.txt"}
    candidates = read_entry_candidates(table, tmp_path, params)
    expected = ("a.org\x1fde", "a.org\x1fFR", "b.org\x1fde", "b.org\x1fFR")
    assert candidates.strings == expected
    assert (candidates.normalize, candidates.field_names) == (params.normalize, FIELDS)
    assert list_files(table) == ["sites.txt"]
    (tmp_path / "pairs.tsv").write_text(
        "".join(text.replace("\x1f", "\t") + "\n" for text in expected)
    )
    assert read_entry_candidates("pairs.tsv", tmp_path, params).strings == expected
    with pytest.raises(FileError, match=r"sites\.tsv"):
        read_entry_candidates(table | {"site": "sites.tsv"}, tmp_path, params)


def test_a_decode_refuses_candidates_of_other_fields() -> None:
    """Without the check, every estimate would be 0 without an error."""
    params = Params.profile("once", field_names=FIELDS)
    values = ["a.org\x1fde", "a.org\x1ffr", "b.org\x1fde"]
    population = Population(values, [5, 3, 2])
    counts = simulate_counts(population, params, n_reports=20_000, seed=1)
    assert decode(counts, values).candidates == tuple(values)
    assert decode(counts, [text.replace("\x1f", "\t") for text in values]).candidates == tuple(
        values
    )
    for field_names, got in (((), "none"), (("country", "site"), "country, site")):
        candidates = Candidates.from_list(values, field_names=field_names)
        with pytest.raises(DecodeError, match=rf"metric \(site, country\), got {got}$"):
            decode(counts, candidates)
    other = Params.profile("once", field_names=("country", "site"))
    others = simulate_counts(population, other, n_reports=20_000, seed=1)
    with pytest.raises(DecodeError, match="counts must have the same fields"):
        decode([counts, others], values)


def test_join_line_of_no_text() -> None:
    """A number is no line."""
    with pytest.raises(ReportError, match="a value must be a text, got int"):
        join_line(FIELDS, 7)
