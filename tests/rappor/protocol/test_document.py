"""The page about the protocol quotes the code and the profiles as they are."""

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


def test_all_that_a_client_must_copy_is_quoted() -> None:
    """The page quotes the hash and all responses, which every client must implement."""
    assert [name for _, name, _ in EXCERPTS] == [
        "hash_to_bits",
        "draw_permanent",
        "choose_own_buckets",
        "draw_permanent",
        "draw_instantaneous",
    ]


def test_the_table_of_profiles_is_that_of_the_code() -> None:
    """Each row of the table has the noise and both losses of the profile."""
    rows = re.findall(r"^\| (strict|balanced|low-noise|once) \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert [name for name, _ in rows] == list(PROFILES)
    for name, row in rows:
        *noise, one, inf = map(float, row.split(" | "))
        params = Params.profile(name)
        assert noise == pytest.approx(
            [getattr(params, letter) for letter in NOISE_LETTERS], abs=6e-7
        )
        assert epsilon_1(params) == pytest.approx(one, abs=1e-4)
        assert epsilon_inf(params) == pytest.approx(inf, abs=1e-4)
