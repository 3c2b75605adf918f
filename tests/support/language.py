"""Measures of the language of source code: how far docstrings and names are from the field's terms.

Two reviewers read files drawn by lot, ours beside eleven well-written projects, and listed every
sentence and name that they did not understand at first reading. Four figures differed most between
the two groups and need no judge: pronouns and relative words, long words, clauses that lack their
noun, and functions named by a participle. This module computes the four figures, and two more that
find single mistakes: constants without a sentence, and names in backticks that do not exist.

The figures describe a code base and not a file: within our files they hardly follow the riddles.
They find a code base that slides back. Nobody should write a sentence to please them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PRONOUNS: Final = frozenset(
    {
        *("that", "which", "what", "who", "whose", "where", "whatever", "whoever"),
        *("one", "ones", "none", "others", "other", "those", "these", "it", "its", "each"),
    }
)
"""Relative words and pronouns, which stand in a sentence instead of a noun."""

LONG_WORD: Final = 9
"""Letters of a long word. The terms of a field are long; paraphrases of terms are short."""

_MISSING_NOUN: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:return|yield|note|say|write|take|keep|do|give|add|read) what\b",
        r"^what (?:an?|the|no|is|we|it|they|of|none)\b",
        r"\b(?:that|those) (?:of|that|in|which)\b|\bthe ones? (?:that|of|with|in)\b",
        r"\b(?:is|are) (?:none|no [a-z]+)\b|\bif (?:any|there (?:is|are) (?:one|none|any|some))\b",
        r"\bbut for\b|\bat (?:most|least)[.:;]?$",
        r"\b(?:tells?|told|says?|said|knows?|known|asks?|asked|hears?|heard|forgets?|judged?)\b",
        r"\b(?:is|are|was|were|be) of (?:an?|the|one|this|that|these|other|another|which|no)\b",
        r"\b(?:meanwhile|by now|until then|from then on|from here on)\b",
        r"\b(?:whoever|who|somebody|nobody|anybody|everybody)\b",
    )
)
"""Turns of phrase that stand in place of a noun, or make a person of a piece of code."""

_PARTICIPLE: Final = re.compile(r"[a-z]{2,}(?:ed|wn|ept|ound|eld|ent|old|aid|orn|ung)")
_IRREGULAR: Final = frozenset(
    {
        *("sent", "shown", "told", "known", "begun", "drawn", "made", "said", "held", "kept"),
        *("spent", "left", "met", "hidden", "written", "given", "taken", "found", "bound"),
        *("alone", "apart", "own", "early"),
    }
)
_VERBS_LIKE_PARTICIPLES: Final = frozenset(
    {
        *("need", "feed", "seed", "speed", "embed", "exceed", "proceed", "send", "bind", "build"),
        *("hold", "load", "add", "pad", "round", "record", "yield", "spend", "extend", "append"),
        *("expand", "end", "mend", "forward", "discard", "guard", "shed", "invent", "present"),
        *("prevent", "represent", "scold", "fold", "unfold", "document", "implement", "rent"),
        *("event", "segment", "percent", "client", "component", "exponent", "sound", "intent"),
        *("content", "current", "parent", "recent", "background", "ground", "threshold", "accept"),
    }
)

_FINITE_VERB: Final = re.compile(
    r"\b(?:is|are|was|were|has|have|had|can|may|must|will|do|does|did"
    r"|[a-z]+(?:es|ises|izes|ates|ects|unds|ains|ires|ows|ads|ets|its|ids|ays|ends|eps|uts|ops|aks"
    r"|eds|eeds|eans|ives|ines|ides|ars|ers|urs|ores|ares|akes|uses|oses|ites|ates|ules|ounts))\b"
)
_MORE_VERBS: Final = re.compile(
    r"\b(?:would|could|define|builds|find|stand|stands|begin|begins|began|equals|return|returns"
    r"|add|adds|wraps|become|contain|display|write|look|take|hides|starts|widens"
    r"|belong|calls (?:an?|the|another|such))\b"
)
"""Verbs that the endings of `_FINITE_VERB` do not match, and that docstrings do not use as nouns.
Words such as "runs", "counts" or "limits" are missing, because they are nouns inside a sentence."""

_AFTER_PRONOUN: Final = re.compile(r"\b(?:It|They) [a-z]+")
"""A pronoun at the beginning of a sentence, and its verb. Some verbs, for example "bound", are
nouns after other words."""

_THIRD_PERSON: Final = re.compile(
    r"(?:^|[.] )(?:Adds|Begins|Contains|Counts|Describes|Ends|Limits|Lists|Maps|Matches"
    r"|Returns|Runs)\b(?! (?:of|by|per|in|for|and|or|with|that|under)\b|[.,:;]|$)"
)
"""A verb at the beginning of a sentence without a subject, for example "Counts the reports". With a
preposition after it, for example "Counts of reports", the word is a noun."""

_IMPERATIVE: Final = re.compile(r"^(?:Do|Keep|Use|Compute|Count|Limit|Bound|Wait|Match|Test)\b")

_NAMES: Final = frozenset({"id", "attr", "arg", "name", "module"})
"""Attributes of the nodes of a syntax tree that contain a name: of a variable, an attribute, an
argument, a function or class, and a module."""

_WORD: Final = re.compile(r"[A-Za-z]+")
_CODE: Final = re.compile(r">>>.*|\.\.\. .*|`[^`]*`|^\s*[-=]{3,}\s*$", re.MULTILINE)
_IDENTIFIER: Final = re.compile(r"^[A-Za-z_]\w*(?:\.\w+)*(?:\(\))?$")


@dataclass(slots=True)
class Figures:
    """The figures of a group of Python files."""

    words: Counter[str] = field(default_factory=Counter)
    clauses: int = 0
    unclear: list[str] = field(default_factory=list)
    """Clauses with one turn of `_MISSING_NOUN` or more."""
    riddles: list[str] = field(default_factory=list)
    """Clauses with two turns or more."""
    functions: int = 0
    participles: list[str] = field(default_factory=list)
    constants: int = 0
    constants_without_verb: list[str] = field(default_factory=list)

    @property
    def pronouns(self) -> float:
        """Pronouns and relative words in 1,000 words of docstrings."""
        return 1000 * sum(self.words[word] for word in PRONOUNS) / max(self.words.total(), 1)

    @property
    def long_words(self) -> float:
        """Percentage of the words of docstrings that have `LONG_WORD` letters or more."""
        long = sum(count for word, count in self.words.items() if len(word) >= LONG_WORD)
        return 100 * long / max(self.words.total(), 1)

    @property
    def unclear_clauses(self) -> float:
        """Percentage of the clauses that lack a noun."""
        return 100 * len(self.unclear) / max(self.clauses, 1)

    @property
    def participle_names(self) -> float:
        """Percentage of the functions that are named by a participle or an adverb."""
        return 100 * len(self.participles) / max(self.functions, 1)

    @property
    def silent_constants(self) -> float:
        """Percentage of the explained constants whose explanation has no verb."""
        return 100 * len(self.constants_without_verb) / max(self.constants, 1)


@dataclass(slots=True)
class CodeBase:
    """Facts about a group of Python files. Each file is parsed once, which takes most of the time.

    Attributes
    ----------
    figures
        The figures of the language.
    words
        Identifiers, and the words of strings that are no docstrings.
    quoted_names
        Identifiers between backticks in docstrings, with path and line.
    """

    figures: Figures = field(default_factory=Figures)
    words: set[str] = field(default_factory=set)
    quoted_names: list[tuple[Path, int, str]] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Add the facts of a file."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(walk(tree))
        self.words |= list_words(nodes)
        for line, docstring in iterate_docstrings(nodes):
            _measure_docstring(self.figures, f"{path.name}:{line}", docstring)
            self.quoted_names += [(path, line, name) for name in iterate_quoted_names(docstring)]
        for function in iterate_functions(nodes):
            self.figures.functions += 1
            if is_participle(function.name):
                self.figures.participles.append(f"{path.name}:{function.lineno} {function.name}")
        for line, docstring in iterate_constants(tree):
            self.figures.constants += 1
            if not has_verb(docstring):
                self.figures.constants_without_verb.append(f"{path.name}:{line} {docstring!r}")


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree, as `ast.walk` does, in another order and less time."""
    remaining = [tree]
    while remaining:
        node = remaining.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                remaining.append(value)
            elif isinstance(value, list):
                remaining.extend(child for child in value if isinstance(child, ast.AST))


def list_words(nodes: Sequence[ast.AST]) -> set[str]:
    """Return identifiers, and the words of strings that are no docstrings.

    `nodes` are all nodes of a file's syntax tree.
    """
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    words: set[str] = set()
    for node in nodes:
        for name in _NAMES & vars(node).keys():
            value = getattr(node, name)
            if isinstance(value, str):
                words.update(value.split("."))
        if isinstance(node, ast.Constant) and id(node) not in statements:
            words.update(re.findall(r"\w+", str(node.value)))
    return words


def iterate_docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement: docstrings of all kinds.

    `nodes` are all nodes of a file's syntax tree.
    """
    for node in nodes:
        if isinstance(node, ast.Expr) and is_text(node.value):
            yield node.lineno, ast.literal_eval(node.value)


def is_text(node: ast.expr) -> bool:
    """Return whether an expression is a literal string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def iterate_functions(
    nodes: Iterable[ast.AST],
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions and methods, without properties, fixtures and special methods.

    `nodes` are all nodes of a file's syntax tree.
    """
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
        is_noun = re.search(r"property|setter|fixture", decorators)
        if not is_noun and not node.name.startswith("__"):
            yield node


def iterate_constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and explanation of the explained constants of a module."""
    for before, node in zip(tree.body, tree.body[1:], strict=False):
        is_constant = isinstance(before, ast.Assign | ast.AnnAssign)
        if is_constant and isinstance(node, ast.Expr) and is_text(node.value):
            yield node.lineno, " ".join(ast.literal_eval(node.value).split())


def is_participle(name: str) -> bool:
    """Return whether the first word of a function's name is a participle or an adverb."""
    word = name.strip("_").split("_")[0]
    if word in _VERBS_LIKE_PARTICIPLES:
        return False
    return word in _IRREGULAR or bool(len(word) > 3 and _PARTICIPLE.fullmatch(word))


def has_verb(sentence: str) -> bool:
    """Return whether a sentence has a finite verb, judged by words, their endings and positions."""
    patterns = (_FINITE_VERB, _MORE_VERBS, _AFTER_PRONOUN, _THIRD_PERSON, _IMPERATIVE)
    return any(pattern.search(sentence) for pattern in patterns)


def count_missing_nouns(clause: str) -> int:
    """Return how many turns of phrase stand in a clause in place of a noun."""
    return sum(bool(pattern.search(clause)) for pattern in _MISSING_NOUN)


def iterate_quoted_names(docstring: str) -> Iterator[str]:
    """Yield the identifiers between backticks, without the parentheses of a call."""
    for quoted in re.findall(r"(?<![`\w])`([^`\n]+)`(?!`)", docstring):
        if _IDENTIFIER.match(quoted):
            yield quoted.removesuffix("()")


def _measure_docstring(figures: Figures, location: str, docstring: str) -> None:
    text = _CODE.sub(" ", docstring)
    for paragraph in re.split(r"(?<=[.:;])\s+|\n\n", text):
        clause = " ".join(paragraph.split())
        words = _WORD.findall(clause)
        if len(words) > 3:
            figures.words.update(word.lower() for word in words)
            figures.clauses += 1
            missing = count_missing_nouns(clause)
            if missing:
                figures.unclear.append(f"{location} {clause}")
            if missing > 1:
                figures.riddles.append(f"{location} {clause}")
