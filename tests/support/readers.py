"""Reader of a documentation page: runs the blocks of a page from top to bottom in an empty folder.

- A block of `toml` is saved under the file name in the text before the block.
- A block of `python` is a program. Blocks that begin with the prompt of Python are one session, and
  every line must print the output below it.
- All blocks of `sh` run in one shell. A collector that a block starts runs in the background.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collectors import find_free_port

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`(\w+\.toml)`")
_EXCERPT = "-->\n"
"""Text that stands before an excerpt of the code. Other tests compare excerpts with the code."""

_PUBLIC, _ADMIN = "127.0.0.1:8080", "127.0.0.1:9090"
"""Addresses of collectors in the pages. A script gets free ports instead, because several tests run
pages at the same time."""


class Block(NamedTuple):
    """Block of code in a page: its language, its text, and the text of the page before it."""

    language: str
    text: str
    before: str


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, also inside lists, without its excerpts of code."""
    text = page.read_text(encoding="utf-8")
    all_blocks = [
        Block(
            match[2],
            re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE),
            text[: match.start()],
        )
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in all_blocks if not block.before.endswith(_EXCERPT)]


def is_shown(page_output: str, output: str) -> bool:
    """Return whether an output contains the output of a page. Three dots stand for any text."""
    pattern = ".*".join(map(re.escape, page_output.split("...")))
    return re.search(pattern, output, re.DOTALL) is not None


_ALL_MERGED = (
    '/^rappor_uploads_total.*status="2/ {accepted += $2} '
    "/^rappor_(merged|duplicate)_uploads_total/ {merged += $2} "
    "END {exit !accepted || accepted != merged}"
)
"""Program of awk that fails until the counters of a collector contain all accepted uploads."""


def build_script(page_blocks: list[Block]) -> str:
    """Return blocks as one script of bash, whose collector runs until the script ends."""
    port = find_free_port()
    head = [f"export RAPPOR_SERVER_PORT={port}", "trap 'kill $(jobs -p) 2> jobs.log || :' EXIT"]
    script = "\n".join([*head, *_make_lines(page_blocks)]).replace(_PUBLIC, f"127.0.0.1:{port}")
    return script.replace(_ADMIN, f"127.0.0.1:{find_free_port()}")


def _make_lines(page_blocks: list[Block]) -> Iterator[str]:
    """Yield the commands of all blocks, in the order of the page."""
    session = [block.text for block in page_blocks if block.text.startswith(">>>")]
    for i, block in enumerate(page_blocks):
        if block.text in session:
            if block.text == session[0]:
                yield _save(f"session_{i}.txt", "\n".join(session))
                yield f"python3 -m doctest session_{i}.txt"
        elif block.language == "python":
            yield _save(f"program_{i}.py", block.text)
            yield f"python3 program_{i}.py"
        elif block.language == "toml":
            yield _save(_FILE.findall(block.before)[-1], block.text)
        elif block.language == "sh":
            yield from _make_shell_lines(block.text)


def _save(name: str, text: str) -> str:
    """Return the command that writes a text to a file."""
    return f"cat > {name} <<'END OF {name}'\n{text}END OF {name}"


def _make_shell_lines(text: str) -> Iterator[str]:
    """Yield the commands of a block of `sh`. A collector starts in the background.

    A collector accepts an upload before it adds the reports to its counters. A person needs longer
    for the next command than the collector for the sums. The script waits for them instead.
    """
    yield "echo"  # the output of the block before, such as JSON, may end without a line feed
    if "rappor-server serve" not in text:
        yield text.rstrip()
        if " --to http" in text:
            metrics = f"curl -sf http://{_PUBLIC}/metrics"
            yield f"until {metrics} | awk '{_ALL_MERGED}'; do sleep 0.2; done"
        return
    yield text.rstrip() + " 2> serve.log &"
    address = _ADMIN if _ADMIN in text else _PUBLIC
    yield f"until curl -sf http://{address}/readyz; do sleep 0.2; done"
