"""Writes the handles of a registry as source code, in Python and in TypeScript.

The same registry gives the same text. What a device answers together is one handle.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rappor.ground.errors import MetricError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_PYTHON: Final = '''\
"""Handles of the metrics in {source}, written by `rappor-client handles`: do not edit."""

{imports}from rappor_client import Client, Handle
{types}

class Metrics:
    """The metrics that a client records."""

{fields}
    def __init__(self, client: Client) -> None:
        """Record through a client."""
{handles}'''

_PYTHON_SEGMENT: Final = '''

def segment(*, {arguments}) -> dict[str, str]:
    """Return public properties for `Policy(segment=...)`; what is not listed is sent as other.

{listed}    """
    return {{{pairs}}}
'''

_TYPESCRIPT: Final = """\
// Handles of the metrics in {source}, written by `rappor-client handles`: do not edit.

import type {{ Client, Outcome }} from "rappor-client";
{types}
/** One metric of a client. */
export type Handle<Value> = {{ record(value: Value): Outcome }};

function handle<Value>(client: Client, name: string): Handle<Value> {{
  return {{ record: (value) => client.record(name, value) }};
}}

/** The metrics that a client records. */
export function metrics(client: Client) {{
  return {{
{handles}  }};
}}
"""

_TYPESCRIPT_SEGMENT: Final = """
/** Public properties of a device; what is not listed is sent as other. */
export type Segment = {{
{listed}}};
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A metric in code: `answers` are its closed answers, `kind` says what other values are."""

    attribute: str
    metric: str
    note: str
    answers: tuple[str, ...]
    kind: str

    @classmethod
    def of(cls, metric: Metric) -> _Entry:
        """Ask the metric's encoding what its values are."""
        encoding, answers, kind = encoding_of(metric.params), metric.params.categories, "answer"
        if encoding.names_values and not metric.params.other:
            kind = "category" if encoding.exclusive else "categories"
        elif encoding.edges:
            answers, kind = (), "number"
        elif encoding.normalizes:
            answers, kind = (), "text"
        return cls(_identifier(metric.name), metric.name, _line(metric.description), answers, kind)

    @property
    def alias(self) -> str:
        """The name of the type of its answers; different attributes have different ones."""
        capital = re.sub(r"(?:^|_)([a-z])", lambda found: found[1].upper(), self.attribute)
        return f"{capital}Value"

    def type_in(self, types: Mapping[str, str]) -> str:
        """Write the type of its values in a language, which has a type for each kind."""
        return types[self.kind].format(self.alias)


def in_python(registry: Registry, source: str) -> str:
    """Return a module with the class `Metrics`; `source` is the name of the registry's file.

    Raises MetricError where two metrics would have one name in code.
    """
    entries = _entries(registry)
    types = {"text": "str", "number": "float", "answer": "bool"}
    types |= {"category": "{}", "categories": "Iterable[{}]"}
    imports = ""
    if any(each.kind == "categories" for each in entries):
        imports += "from collections.abc import Iterable\n"
    if any(each.answers for each in entries):
        imports += "from typing import Literal\n"
    written = _PYTHON.format(
        source=_line(source),
        imports=f"{imports}\n" if imports else "",
        types="".join(
            "\n{} = Literal[\n{}]\n".format(
                each.alias, "".join(f"    {_quoted(answer)},\n" for answer in each.answers)
            )
            for each in entries
            if each.answers
        ),
        fields="".join(
            f'    {each.attribute}: Handle[{each.type_in(types)}]\n    """{each.note}"""\n'
            for each in entries
        ),
        handles="".join(
            f'        self.{each.attribute} = Handle(client, "{each.metric}")\n' for each in entries
        ),
    )
    if dimensions := _dimensions(registry):
        named = {_identifier(name): (name, values) for name, values in dimensions.items()}
        written += _PYTHON_SEGMENT.format(
            arguments=", ".join(f"{argument}: str" for argument in named),
            listed="".join(f"    {argument}: {each[1]}\n" for argument, each in named.items()),
            pairs=", ".join(f'"{each[0]}": {argument}' for argument, each in named.items()),
        )
    return written


def in_typescript(registry: Registry, source: str) -> str:
    """Return a module with the function `metrics`; else like `in_python`."""
    entries = _entries(registry)
    types = {"text": "string", "number": "number", "answer": "boolean"}
    types |= {"category": "{}", "categories": "Iterable<{}>"}
    written = _TYPESCRIPT.format(
        source=_line(source),
        types="".join(
            "\nexport type {} ={};\n".format(
                each.alias, "".join(f"\n  | {_quoted(answer)}" for answer in each.answers)
            )
            for each in entries
            if each.answers
        ),
        handles="".join(
            f"    /** {each.note} */\n"
            f"    {each.attribute}: handle<{each.type_in(types)}>"
            f'(client, "{each.metric}"),\n'
            for each in entries
        ),
    )
    if dimensions := _dimensions(registry):
        listed = (f"  /** {values} */\n  {name}: string;\n" for name, values in dimensions.items())
        written += _TYPESCRIPT_SEGMENT.format(listed="".join(listed))
    return written


WRITERS: Final[Mapping[str, Callable[[Registry, str], str]]] = {
    ".py": in_python,
    ".ts": in_typescript,
}
"""By the ending of the file's name."""


def _entries(registry: Registry) -> list[_Entry]:
    """Return what programs record, in the registry's order."""
    names = dict.fromkeys(registry.together(name)[0] for name in registry)
    entries = [_Entry.of(registry[name]) for name in names]
    known: dict[str, str] = {}
    for each in entries:
        other = known.setdefault(each.attribute, each.metric)
        if other != each.metric:
            raise MetricError(
                f"metrics {other!r} and {each.metric!r} must have different names in code, "
                f"got {each.attribute} for both"
            )
    return entries


def _dimensions(registry: Registry) -> dict[str, str]:
    """Return the public properties that devices tell, each with its listed values."""
    found: dict[str, dict[str, None]] = {}
    for metric in registry.values():
        for each in metric.segments:
            found.setdefault(each.name, {}).update(dict.fromkeys(each.values))
    return {name: ", ".join(map(_line, values)) for name, values in sorted(found.items())}


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
