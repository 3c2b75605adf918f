"""Everything that this project raises on purpose.

RapporError                          the root; carries one sentence
|-- ParamsError (ValueError)         a parameter is outside its range
|-- ReportError (ValueError)         bytes are not a report, or a value is not of its metric's kind
|-- DecodeError                      the question has no answer
|-- MetricError (ValueError)         a registry entry is wrong, expired or unknown
|-- FileError                        a file is not what it says: path, line, reason
|-- CollectorError                   a collector was not reached, or refuses: status
`-- MissingExtraError (ImportError)  names the extra to install

No message ever holds a recorded value, its bits, its permanent response or a secret:
of a value only the type and the length are told.
"""

from __future__ import annotations


class RapporError(Exception):
    """The root of every error raised on purpose."""


class ParamsError(RapporError, ValueError):
    """A parameter is outside its range."""


class ReportError(RapporError, ValueError):
    """Bytes are not a report, or a value is not of its metric's kind."""

    def __init__(self, reason: str, *, code: str = "malformed") -> None:
        """Keep the kind of fault in a word, for those who count refusals by it."""
        self.code = code
        super().__init__(reason)


class DecodeError(RapporError):
    """The question has no answer: no reports, no candidates, or p* = q*."""


class MetricError(RapporError, ValueError):
    """A registry entry is wrong, expired or unknown."""


class FileError(RapporError):
    """A file is not what it says it is."""

    def __init__(self, path: object, reason: str, *, line: int | None = None) -> None:
        """Keep the path, the line (from 1) where there is one, and the reason."""
        self.path = str(path)
        self.line = line
        self.reason = reason
        place = self.path if line is None else f"{self.path}, line {line}"
        super().__init__(f"{place}: {reason}")


class CollectorError(RapporError):
    """A collector was not reached, refuses, or answers what no collector does."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        """Keep the status of its answer, None where there was none."""
        self.status = status
        super().__init__(reason)


class MissingExtraError(RapporError, ImportError):
    """An optional part of the distribution, or an optional library, is not installed."""

    def __init__(self, extra: str, *, library: bool = False) -> None:
        """Name the extra, or the library that no extra contains, and say how to get it."""
        self.extra = extra
        wanted, place, source = f"the extra rappor[{extra}]", " in the checkout", f"'.[{extra}]'"
        if library:
            wanted, place, source = extra, "", extra
        super().__init__(f"this needs {wanted}; install it{place} with: pip install {source}")
