"""A reader of a page: does what its blocks say, from top to bottom, in an empty folder.

Blocks of `toml` are saved under the name that the text before them has. Each block of `python` is
a program; those with `>>>` are one session, in which every line prints what stands below it.
Blocks of `sh` are one shell, and a collector that one of them starts has a terminal of its own.
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
"""What stands before an excerpt of the code, which other tests compare with it."""

_PUBLIC, _ADMIN = "127.0.0.1:8080", "127.0.0.1:9090"


class Block(NamedTuple):
    """A block of a page, its language, and the text before it."""

    language: str
    text: str
    before: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page but its excerpts, those of lists too."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(
            each[2], re.sub(rf"^{each[1]}", "", each[3], flags=re.MULTILINE), text[: each.start()]
        )
        for each in _BLOCK.finditer(text)
    ]
    return [each for each in found if not each.before.endswith(_EXCERPT)]


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
