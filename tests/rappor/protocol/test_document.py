"""The page about the protocol (rappor/protocol/README.md) agrees with the code and the profiles.

Authors of other clients read the page, so a wrong line of it becomes a wrong client.
"""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from places import ROOT

from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import NOISE_LETTERS, Params
from rappor.protocol.profiles import PROFILES

DOCUMENT = (ROOT / "rappor" / "protocol" / "README.md").read_text(encoding="utf-8")
# An excerpt of the page begins with a comment that names the file and the function.
EXCERPTS = re.findall(r"<!-- from (\S+): (\w+) -->\n```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize(
    ("path", "name", "excerpt"), EXCERPTS, ids=[name for _, name, _ in EXCERPTS]
)
def test_an_excerpt_is_the_code(path: str, name: str, excerpt: str) -> None:
    """An excerpt of the page equals the function in the source, comments included."""
    text = (ROOT / path).read_text(encoding="utf-8")
    (node,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    # The page shows a method without the indentation of its class.
    assert excerpt == textwrap.dedent("".join(lines))


def test_the_page_quotes_all_that_a_client_must_implement() -> None:
    """The page quotes the hash function and all responses.

    `draw_permanent` stands twice, because there are two kinds of responses.
    """
    assert [name for _, name, _ in EXCERPTS] == [
        "hash_to_bits",
        "draw_permanent",
        "choose_own_buckets",
        "draw_permanent",
        "draw_instantaneous",
    ]


def test_the_table_of_profiles_has_the_numbers_of_the_code() -> None:
    """Each row of the table has the noise and both losses of its profile, to the printed digits."""
    rows = re.findall(r"^\| (strict|balanced|low-noise|once) \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert [name for name, _ in rows] == list(PROFILES)
    for name, row in rows:
        *noise, loss_1, loss_inf = map(float, row.split(" | "))
        params = Params.profile(name)
        assert noise == pytest.approx(
            [getattr(params, letter) for letter in NOISE_LETTERS], abs=6e-7
        )
        assert epsilon_1(params) == pytest.approx(loss_1, abs=1e-4)
        assert epsilon_inf(params) == pytest.approx(loss_inf, abs=1e-4)
