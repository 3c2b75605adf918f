"""An association as text, as a page and as a heat map: every share with its error."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import pytest
from pages import SVG, tables, tags

from rappor import Association, Params, ParamsError, Population, associate, decode, simulate_counts
from rappor.protocol.tuples import combine_categories
from rappor.reporting.association_tables import describe_association, list_association_footnotes
from rappor.reporting.association_text import association_text

HOSTILE = "<script>x</script>"
LISTS = {"editor": ["vim", HOSTILE, "nobody"], "system": ["linux", "mac"]}


@pytest.fixture(scope="module")
def association() -> Association:
    """Return an association in which one value has no device."""
    categories = combine_categories(LISTS)
    params = Params.profile(
        "strict", encoding="onehot", categories=categories, field_names=tuple(LISTS)
    )
    population = Population([*categories, "x\x1fx"], [30, 10, 12, 28, 0, 0, 20])
    counts = simulate_counts(population, params, n_reports=20_000, seed=2, metric="setup")
    return associate(decode(counts))


def test_page_has_three_tables_with_errors(association: Association) -> None:
    """Each cell of the page has a share and an error; unknown shares are named so."""
    page = association.to_html()
    page_tables = tables(page)
    cells, within_rows, within_columns = (
        rows for caption, rows in page_tables.items() if not caption.startswith("All shares")
    )
    assert [row[0] for row in cells[1:]] == ["vim", HOSTILE, "nobody", "all"]
    assert cells[0] == ["editor", "linux", "mac", "all"]
    assert all(re.fullmatch(r"-?[\d.]+ % ± [\d.]+", text) for row in cells[1:] for text in row[1:])
    assert [len(rows) for rows in (within_rows, within_columns)] == [4, 4]
    assert within_rows[3][1:] == ["unknown", "unknown"]
    (numbers,) = (rows for caption, rows in page_tables.items() if caption.startswith("All shares"))
    assert len(numbers) == 1 + 3 * 6 + 3 + 2


def test_page_does_not_trust_values(association: Association) -> None:
    """A value that is markup is shown as text, and no element has a style of its own."""
    page = association.to_html()
    assert HOSTILE not in page
    assert all("style" not in dict(attributes) for _, attributes in tags(page))


def test_largest_share_has_the_strongest_colour(association: Association) -> None:
    """Classes of colours grow with the shares; shares of at most 0 and margins have none."""
    page = association.to_html()
    body = page[page.index('id="cells"') : page.index('id="rows"')]
    cells = re.findall(r'<td(?: class="heat-(\d)")?[^>]*>(-?[\d.]+) %', body)
    colours = {float(share): int(level or 0) for level, share in cells[:2] + cells[3:5]}
    assert sorted(colours.values()) == [colours[share] for share in sorted(colours)]
    assert max(colours.values()) == 6
    # The last row, and the third cell of each row, are margins.
    assert not any(level for level, _ in [*cells[2::3], *cells[-3:]])


def test_text_has_the_answer_first(association: Association) -> None:
    """The text begins with the answer, and a narrow terminal gets a list of cells."""
    wide, narrow = association_text(association, width=100), association_text(association, width=40)
    assert wide.startswith("editor and system depend on each other (p-value")
    assert str(association) == wide
    assert "all     " in wide
    assert "Largest cells:" in narrow
    assert "The conditional shares do not fit this window" in narrow
    for text in (wide, narrow):
        assert "have a listed editor and a listed system." in " ".join(text.split())


def test_answer_without_evidence_names_the_largest_possible_strength(
    association: Association,
) -> None:
    """A large p-value is no proof of independence, and the sentence bounds Cramer's V."""
    independent = dataclasses.replace(
        association, independence=dataclasses.replace(association.independence, p_value=0.4)
    )
    answer = describe_association(independent)
    assert answer.startswith("The counts do not show that editor and system depend")
    assert f"up to a Cramer's V of {association.cramers_v.ci_high:.2g} is possible" in answer


def test_footnotes_name_summed_fields(association: Association) -> None:
    """The sentences name fields that the cells are summed over, and all warnings of the decode."""
    summed = dataclasses.replace(association, summed_fields=("theme", "shell"))
    sentences = list(list_association_footnotes(summed))
    assert any("summed over theme and shell" in sentence for sentence in sentences)
    assert association.assumptions in sentences


@pytest.mark.parametrize(("within", "columns"), [("", 3), ("rows", 2), ("columns", 2)])
def test_heat_map_has_the_texts_of_the_page(
    association: Association, within: str, columns: int
) -> None:
    """Each cell of the drawing has a share and an error, and a title with its interval."""
    root = ElementTree.fromstring(association.plot(within=within)._repr_svg_())  # noqa: S314  # ours
    cells = list(root.iter(f"{SVG}g"))
    assert len(cells) == columns * (4 if not within else 3)
    for cell in cells:
        share, error = (text.text or "" for text in cell.findall(f"{SVG}text"))
        assert share == "unknown" or error.startswith("± ")
        assert "interval" in str(cell.findtext(f"{SVG}title"))


def test_heat_map_of_other_shares_is_refused(association: Association) -> None:
    """`within` names one of the two conditional tables."""
    with pytest.raises(ParamsError, match="within must be one of"):
        association.plot(within="cells")
