"""`rappor-client handles`: code that records the metrics of a registry by attributes with types.

The same registry gives the same text. What a device answers together is one handle.
"""

from __future__ import annotations

import json
import keyword
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rappor.ground.errors import FileError, MetricError, ParamsError
from rappor.ground.files import saved
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.cli.parser import REGISTRY, Command, argument

_KINDS: Final = ("text", "number", "answer", "category", "categories")
"""What the values of a metric are; the last two are closed answers."""


class _Language(NamedTuple):
    """The types of values by kind, and the pieces of a module, in their order."""

    types: Mapping[str, str]
    head: str
    answers: str
    answer: str
    start: str
    member: str
    end: str
    segment: str
    dimension: str


_PYTHON: Final = _Language(
    types=dict(zip(_KINDS, ("str", "float", "bool", "{}", "Iterable[{}]"), strict=True)),
    head='''\
"""Handles of the metrics in {source}, written by `rappor-client handles`: do not edit."""

{imports}from rappor_client import Client, Handle
''',
    answers="\n{alias} = Literal[\n{answers}]\n",
    answer="    {},\n",
    start='''

class Metrics:
    """The metrics that a client records."""

    def __init__(self, client: Client) -> None:
        """Record through a client."""
''',
    member='''\
        self.{attribute}: Handle[{type}] = Handle(client, "{metric}")
        """{note}"""
''',
    end="",
    segment='''

def segment(*, {arguments}) -> dict[str, str]:
    """Return public properties for `Policy(segment=...)`; what is not listed is sent as other.

{listed}    """
    return {{{pairs}}}
''',
    dimension="    {argument}: {values}\n",
)
_TYPESCRIPT: Final = _Language(
    types=dict(zip(_KINDS, ("string", "number", "boolean", "{}", "Iterable<{}>"), strict=True)),
    head="""\
// Handles of the metrics in {source}, written by `rappor-client handles`: do not edit.

import type {{ Client, Outcome }} from "rappor-client";
""",
    answers="\nexport type {alias} ={answers};\n",
    answer="\n  | {}",
    start="""
/** One metric of a client. */
export type Handle<Value> = { record(value: Value): Outcome };

function handle<Value>(client: Client, name: string): Handle<Value> {
  return { record: (value) => client.record(name, value) };
}

/** The metrics that a client records. */
export function metrics(client: Client) {
  return {
""",
    member='    /** {note} */\n    {attribute}: handle<{type}>(client, "{metric}"),\n',
    end="  };\n}\n",
    segment="""
/** Public properties of a device; what is not listed is sent as other. */
export type Segment = {{
{listed}}};
""",
    dimension="  /** {values} */\n  {name}: string;\n",
)
_LANGUAGES: Final = {".py": _PYTHON, ".ts": _TYPESCRIPT}
"""By the ending of a file."""


def run(chosen: Namespace) -> bool:
    """Write the file."""
    if chosen.out.suffix not in _LANGUAGES:
        raise ParamsError(f"--out must end in {' or '.join(_LANGUAGES)}, got {chosen.out.name!r}")
    registry = Registry.load(chosen.registry)
    text = handles_of(registry, chosen.registry.name, chosen.out.suffix)
    try:
        saved(text, chosen.out)
    except OSError as error:
        raise FileError(chosen.out, error.strerror or "it cannot be written") from None
    return True


@dataclass(frozen=True, slots=True)
class _Entry:
    """A metric in code: `answers` are its closed answers, `kind` says what its values are."""

    attribute: str
    metric: Metric
    answers: tuple[str, ...]
    kind: str

    @classmethod
    def of(cls, metric: Metric) -> _Entry:
        """Ask the metric's encoding."""
        encoding, kind = encoding_of(metric.params), "answer"
        answers: tuple[str, ...] = ()
        if encoding.names_values and not metric.params.other:
            answers = metric.params.categories
            kind = "category" if encoding.exclusive else "categories"
        elif encoding.edges:
            kind = "number"
        elif encoding.normalizes:
            kind = "text"
        return cls(_identifier(metric.name), metric, answers, kind)

    @property
    def alias(self) -> str:
        """The name of the type of its answers; different attributes have different ones."""
        capital = re.sub(r"(?:^|_)([a-z])", lambda found: found[1].upper(), self.attribute)
        return f"{capital}Value"


def handles_of(registry: Registry, source: str, ending: str) -> str:
    """Return a module with an attribute for each metric, in the language of a file's ending.

    `source` is the name of the registry's file. Raises MetricError where two metrics would have
    one name in code.
    """
    language, entries = _LANGUAGES[ending], _entries(registry)
    text = language.head.format(source=_line(source), imports=_imports(entries))
    for each in entries:
        if each.answers:
            answers = "".join(language.answer.format(_quoted(answer)) for answer in each.answers)
            text += language.answers.format(alias=each.alias, answers=answers)
    text += language.start
    for each in entries:
        text += language.member.format(
            attribute=each.attribute,
            type=language.types[each.kind].format(each.alias),
            metric=each.metric.name,
            note=_line(each.metric.description),
        )
    return text + language.end + _segment(registry, language)


def _imports(entries: list[_Entry]) -> str:
    """Return what a module in Python imports of the standard library."""
    lines = ""
    if any(each.kind == "categories" for each in entries):
        lines += "from collections.abc import Iterable\n"
    if any(each.answers for each in entries):
        lines += "from typing import Literal\n"
    return f"{lines}\n" if lines else ""


def _segment(registry: Registry, language: _Language) -> str:
    """Return what takes the public properties that devices tell; empty if there are none."""
    found: dict[str, dict[str, None]] = {}
    for metric in registry.values():
        for each in metric.segments:
            found.setdefault(each.name, {}).update(dict.fromkeys(each.values))
    listed = "".join(
        language.dimension.format(
            name=name, argument=_identifier(name), values=", ".join(map(_line, found[name]))
        )
        for name in sorted(found)
    )
    written = language.segment.format(
        arguments=", ".join(f"{_identifier(name)}: str" for name in sorted(found)),
        pairs=", ".join(f'"{name}": {_identifier(name)}' for name in sorted(found)),
        listed=listed,
    )
    return written if found else ""


def _entries(registry: Registry) -> list[_Entry]:
    """Return what programs record, in the registry's order."""
    names = dict.fromkeys(registry.together(name)[0] for name in registry)
    entries = [_Entry.of(registry[name]) for name in names]
    known: dict[str, str] = {}
    for each in entries:
        name = each.metric.name
        other = known.setdefault(each.attribute, name)
        if other != name:
            raise MetricError(
                f"metrics {other!r} and {name!r} must have different names in code, "
                f"got {each.attribute} for both"
            )
    return entries


def _identifier(name: str) -> str:
    """Write a name as Python does: `page.home` is page_home, `class` is class_."""
    written = re.sub(r"[.-]", "_", name)
    return f"{written}_" if keyword.iskeyword(written) else written


def _quoted(text: str) -> str:
    """Write a text so that both languages read it."""
    return json.dumps(text, ensure_ascii=False)


def _line(text: str) -> str:
    """Write a text in one line that ends no docstring and no comment."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    harmless = printable.replace("\\", "/").replace('"', "'").replace("*/", "* /")
    return " ".join(harmless.split())


COMMAND: Final = Command(
    run=run,
    summary="Write code that records the metrics of a registry.",
    details=(
        "A misspelt metric or category in your program is then an error in your type\n"
        "checker. Run the command again when the registry changes."
    ),
    example=(
        "rappor-client handles metrics.toml --out metrics.py\n"
        "rappor-client handles metrics.toml --out metrics.ts"
    ),
    arguments=(
        REGISTRY,
        argument(
            "--out",
            required=True,
            type=Path,
            metavar="FILE",
            help="The file to write: Python if it ends in .py, TypeScript if in .ts.",
        ),
    ),
)
