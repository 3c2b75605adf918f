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

from collectors import free_port

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`(\w+\.toml)`")
_EXCERPT = "-->\n"
"""Text that stands before an excerpt of the code. Other tests compare excerpts with the code."""

_PUBLIC, _ADMIN = "127.0.0.1:8080", "127.0.0.1:9090"


class Block(NamedTuple):
    """Block of a page, its language, and the text of the page before it."""

    language: str
    text: str
    before: str


def blocks(page: Path) -> list[Block]:
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


def is_shown(shown: str, printed: str) -> bool:
    """Return whether an output contains what a page shows. Three dots stand for any text."""
    return re.search(".*".join(map(re.escape, shown.split("..."))), printed, re.DOTALL) is not None


def script_of(shown: list[Block]) -> str:
    """Return blocks as one script of bash, whose collector runs until the script ends."""
    port = free_port()
    head = [f"export RAPPOR_SERVER_PORT={port}", "trap 'kill $(jobs -p) 2> jobs.log || :' EXIT"]
    script = "\n".join([*head, *_lines(shown)]).replace(_PUBLIC, f"127.0.0.1:{port}")
    return script.replace(_ADMIN, f"127.0.0.1:{free_port()}")


def _lines(shown: list[Block]) -> Iterator[str]:
    session = [each.text for each in shown if each.text.startswith(">>>")]
    for i, block in enumerate(shown):
        if block.text in session:
            if block.text == session[0]:
                yield from _saved(f"session_{i}.txt", "\n".join(session))
                yield f"python3 -m doctest session_{i}.txt"
        elif block.language == "python":
            yield from _saved(f"program_{i}.py", block.text)
            yield f"python3 program_{i}.py"
        elif block.language == "toml":
            yield from _saved(_FILE.findall(block.before)[-1], block.text)
        elif block.language == "sh":
            yield from _typed(block.text)


def _saved(name: str, text: str) -> Iterator[str]:
    yield f"cat > {name} <<'END OF {name}'\n{text}END OF {name}"


def _typed(text: str) -> Iterator[str]:
    yield "echo"  # JSON ends without a new line
    if "rappor-server serve" not in text:
        yield text.rstrip()
        return
    yield text.rstrip() + " 2> serve.log &"
    asked = _ADMIN if _ADMIN in text else _PUBLIC
    yield f"until curl -sf http://{asked}/readyz; do sleep 0.2; done"
