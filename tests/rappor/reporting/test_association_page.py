"""An association as text, as a page and as a heat map: every share with its error."""

from __future__ import annotations

import dataclasses
import math
import re
from xml.etree import ElementTree

import pytest
from pages import SVG, parse_tables, parse_tags

from rappor import Association, Params, ParamsError, Population, associate, decode, simulate_counts
from rappor.protocol.tuples import combine_categories
from rappor.reporting.association_tables import describe_association, list_association_footnotes
from rappor.reporting.association_text import association_text

HOSTILE = "<script>x</script>"
"""Value of a field that would run a script, if a page wrote it as markup."""
LISTS = {"editor": ["vim", HOSTILE, "nobody"], "system": ["linux", "mac"]}
"""Listed values of both fields. No device has the editor "nobody"."""


@pytest.fixture(scope="module")
def association() -> Association:
    """Return the association of editor and system, in which no device has the editor "nobody".

    The six first weights belong to the editors vim, HOSTILE and "nobody", each on linux and on mac.
    The last weight belongs to devices with unlisted values of both fields. The two fields depend on
    each other.
    """
    categories = combine_categories(LISTS)
    params = Params.profile(
        "strict", encoding="onehot", categories=categories, field_names=tuple(LISTS)
    )
    population = Population([*categories, "x\x1fx"], [30, 10, 12, 28, 0, 0, 20])
    counts = simulate_counts(population, params, n_reports=20_000, seed=2, metric="setup")
    return associate(decode(counts))


def test_page_has_three_tables_with_errors(association: Association) -> None:
    """The page has the cells, the shares within each row, and the shares within each column.

    Each cell has a share with its standard error, so that no share is read without its error. A
    share within the row "nobody" is a division by about 0. Such a share is written as "unknown".
    The last table lists all shares: of three kinds for each of six cells, of three rows and of two
    columns.
    """
    page = association.to_html()
    page_tables = parse_tables(page)
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
    """A value that contains markup is shown as text, and no element has a style attribute.

    Values come from devices, and a device can send anything. The policy of the page forbids style
    attributes, so an element with such an attribute would lack its style.
    """
    page = association.to_html()
    assert HOSTILE not in page
    assert all("style" not in dict(attributes) for _, attributes in parse_tags(page))


def test_largest_share_has_the_strongest_colour(association: Association) -> None:
    """The colour of a cell is the stronger, the larger its share is, in six levels.

    Shares of at most 0 have no colour. Margins have none either: a margin is larger than each of
    its cells, and a coloured margin would make all cells look alike.
    """
    page = association.to_html()
    body = page[page.index('id="cells"') : page.index('id="rows"')]
    cells = re.findall(r'<td(?: class="heat-(\d)")?[^>]*>(-?[\d.]+) %', body)
    # Two rows with values: each has two cells and, as its third cell, the margin.
    colours = {float(share): int(level or 0) for level, share in cells[:2] + cells[3:5]}
    assert sorted(colours.values()) == [colours[share] for share in sorted(colours)]
    assert max(colours.values()) == 6
    # The last row, and the third cell of each row, are margins.
    assert not any(level for level, _ in [*cells[2::3], *cells[-3:]])


def test_text_begins_with_the_result_of_the_test(association: Association) -> None:
    """The text begins with the sentence on dependence, and fits the terminal.

    Whether the fields depend on each other is the first question of a reader. A terminal of 40
    columns has no room for a grid, so the text lists the largest cells instead.
    """
    wide, narrow = association_text(association, width=100), association_text(association, width=40)
    assert wide.startswith("editor and system depend on each other (p-value")
    assert str(association) == wide
    assert "all     " in wide
    assert "Largest cells:" in narrow
    assert "The conditional shares do not fit this window" in narrow
    for text in (wide, narrow):
        assert "have a listed editor and a listed system." in " ".join(text.split())


def test_sentence_without_a_significant_dependence_bounds_cramers_v(
    association: Association,
) -> None:
    """A large p-value does not prove independence, so the sentence has a bound on its strength.

    The bound is the upper end of the confidence interval of Cramer's V.
    """
    independent = dataclasses.replace(
        association, independence=dataclasses.replace(association.independence, p_value=0.4)
    )
    summary = describe_association(independent)
    assert summary.startswith("The counts do not show that editor and system depend")
    assert f"up to a Cramer's V of {association.cramers_v.ci_high:.2g} is possible" in summary


def test_an_unknown_strength_is_a_word(association: Association) -> None:
    """Cramer's V is NaN if the sum of the listed shares is within its error of 0."""
    strength = dataclasses.replace(
        association.cramers_v, estimate=math.nan, ci_low=0.0, ci_high=1.0
    )
    sentence = describe_association(dataclasses.replace(association, cramers_v=strength))
    assert sentence.endswith("Cramer's V is unknown, 95 % interval 0 to 1.")


def test_footnotes_name_summed_fields(association: Association) -> None:
    """The footnotes name the fields that the cells are summed over, and what the decode assumes.

    Without the names of the two other fields, a reader would not know that the cells are sums.
    """
    summed = dataclasses.replace(association, summed_fields=("theme", "shell"))
    sentences = list(list_association_footnotes(summed))
    assert any("summed over theme and shell" in sentence for sentence in sentences)
    assert association.assumptions in sentences


@pytest.mark.parametrize(("within", "columns"), [("", 3), ("rows", 2), ("columns", 2)])
def test_heat_map_has_the_texts_of_the_page(
    association: Association, within: str, columns: int
) -> None:
    """Each cell of the chart has its share, its error, and its interval as a tooltip.

    The chart of the cells has a column and a row of margins more than the charts of the conditional
    shares.
    """
    root = ElementTree.fromstring(association.plot(within=within)._repr_svg_())  # noqa: S314  # ours
    cells = list(root.iter(f"{SVG}g"))
    assert len(cells) == columns * (4 if not within else 3)
    for cell in cells:
        share, error = (text.text or "" for text in cell.findall(f"{SVG}text"))
        assert share == "unknown" or error.startswith("± ")
        assert "interval" in str(cell.findtext(f"{SVG}title"))
    # The title is wider than the cells. The file is wide enough for the whole title, which states
    # what the second number of a cell is. A bold letter of 16 units is 9 units wide on average.
    title = str(root.findtext(f"{SVG}text"))
    assert title.endswith("(\u00b1 standard error)")
    assert float(root.get("width", "0")) >= 20 + 9 * len(title)


def test_heat_map_of_other_shares_is_refused(association: Association) -> None:
    """The argument `within` must be "rows" or "columns", or empty for the cells themselves."""
    with pytest.raises(ParamsError, match="within must be one of"):
        association.plot(within="cells")
