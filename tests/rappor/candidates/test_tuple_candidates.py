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
"""Names of the fields of most tuples here."""


def read_strings(candidates: Candidates) -> list[str]:
    """Return all strings, read block by block."""
    return [text for block in candidates.read_blocks() for text in block.to_strings()]


def read_bytes(tmp_path: Path, data: bytes, normalize: str = "none") -> Candidates:
    """Return the candidates of a file of tuples with these bytes."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(data)
    return Candidates.from_file(path, normalize=normalize, field_names=FIELDS)


def test_tabs_separate_the_fields_of_a_line(tmp_path: Path) -> None:
    """Tabs separate the fields of a line, unless the line contains U+001F.

    Results separate fields by U+001F, and an analyst decodes again with candidates from a result.
    In such a line a tab is a character of a text. A field may be empty.
    """
    candidates = read_bytes(tmp_path, b"a\tde\na\x1fde\r\n\nb\t\n\tfr\na\tb\x1fde\n")
    assert candidates.strings == ("a\x1fde", "b\x1f", "\x1ffr", "a\tb\x1fde")
    assert (candidates.n_blank, candidates.n_duplicates, candidates.n_spaced) == (1, 1, 0)
    assert candidates.field_names == FIELDS
    # A line of white space alone is blank, whether it begins with a tab or with a blank.
    candidates = read_bytes(tmp_path, b"\t\n \t\n\t \na\tde\n")
    assert (candidates.strings, candidates.n_blank) == (("a\x1fde",), 3)


def test_each_field_of_a_line_has_its_normalizer(tmp_path: Path) -> None:
    """Each field of a tuple is normalized by its own normalizer, and by no other."""
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
    """The error about a line has its number, the names of the fields and both numbers of fields."""
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
    """A tuple has the same bits as a candidate of a list, a line or a stream, and on a device.

    A device encodes the fields as one string, joined by U+001F, so the bits are those of a metric
    of strings that has this string as its value. `parse_fields` returns the fields again.
    """
    names = ("a", "b", "c")
    texts = ["\x1f".join(row) for row in rows]
    of_list = Candidates.from_list(texts, field_names=names)
    assert of_list.strings == tuple(dict.fromkeys(texts))
    assert Candidates.from_lines(texts, field_names=names).strings == of_list.strings
    stream = Candidates.from_stream(lambda: texts, field_names=names)
    assert (read_strings(stream), stream.field_names) == (texts, names)
    encoder = get_encoder(Params(k=64, m=4, f=0.5, p=0.25, q=0.75, field_names=names))
    encoder_of_strings = get_encoder(Params(k=64, m=4, f=0.5, p=0.25, q=0.75))
    for row, text in zip(rows, texts, strict=True):
        value = dict(zip(names, row, strict=True))
        assert encoder.encode(value, 3) == encoder_of_strings.encode(text, 3)
        assert parse_fields(names, text) == value


def test_lists_of_fields_give_all_combinations() -> None:
    """Candidates of lists are all combinations of their texts; the last field changes fastest.

    Each list is normalized by its own normalizer first, and repeated texts count once.
    """
    lists = {"a": ["x", "Y", "y"], "b": ["1", "2"], "c": ["K", "k"]}
    candidates = Candidates.from_fields(lists, normalize={"a": "casefold"})
    combinations = itertools.product(["x", "y"], ["1", "2"], ["K", "k"])
    assert candidates.strings == tuple(map("\x1f".join, combinations))
    assert (candidates.normalize, candidates.field_names) == ("casefold,none,none", ("a", "b", "c"))
    assert Candidates.from_fields(lists).normalize == "none"


def test_a_long_product_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Combinations beyond the limit of memory are streamed, with the same strings.

    300 * 300 strings exceed the lowered limit by one byte. No block contains all of them.
    """
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


def test_too_many_combinations_are_refused_at_once() -> None:
    """More than 1e9 combinations are refused with the sizes of the lists, before a long search."""
    names = [str(i) for i in range(40_000)]
    with pytest.raises(ParamsError) as refusal:
        Candidates.from_fields({"site": names, "country": names, "system": ["linux", "mac"]})
    assert str(refusal.value) == (
        "candidates must have at most 1,000,000,000 combinations of fields, got "
        "40,000 x 40,000 x 2: shorten the lists, or list the tuples in a file"
    )


def test_wrong_lists_of_fields_are_refused() -> None:
    """The refusal of a list of a field names the field, because a metric has up to eight."""
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
    """An entry of a registry names a list or a file for each field, or one file of tuples.

    The fields of a candidate have the order of the metric, in which devices join them, whatever the
    order of the table is. Another order would have other bits.
    """
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
    """A decode refuses candidates, or counts, with other fields or another order of fields.

    Such candidates have other bits than the reports. Without the check, every estimate would be
    about 0, without an explanation.
    """
    params = Params.profile("once", field_names=FIELDS)
    values = ["a.org\x1fde", "a.org\x1ffr", "b.org\x1fde"]
    population = Population(values, [5, 3, 2])
    counts = simulate_counts(population, params, n_reports=20_000, seed=1)
    assert decode(counts, values).candidates == tuple(values)
    assert decode(counts, [text.replace("\x1f", "\t") for text in values]).candidates == tuple(
        values
    )
    for field_names, actual_fields in (((), "none"), (("country", "site"), "country, site")):
        candidates = Candidates.from_list(values, field_names=field_names)
        with pytest.raises(DecodeError, match=rf"metric \(site, country\), got {actual_fields}$"):
            decode(counts, candidates)
    other_params = Params.profile("once", field_names=("country", "site"))
    other_counts = simulate_counts(population, other_params, n_reports=20_000, seed=1)
    with pytest.raises(DecodeError, match="counts must have the same fields"):
        decode([counts, other_counts], values)


def test_join_line_refuses_a_number() -> None:
    """A line of a list must be a text, also if a program passes a number."""
    with pytest.raises(ReportError, match="a value must be a text, got int"):
        join_line(FIELDS, 7)
