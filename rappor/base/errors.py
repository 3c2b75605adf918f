"""All errors that this project raises on purpose.

RapporError                          root of the tree; its message is one sentence
|-- ParamsError (ValueError)         a parameter is outside its range
|-- ReportError (ValueError)         bytes are not a report, or a value is not of its metric's kind
|-- DecodeError                      a question has no answer: no reports, no candidates, p* = q*
|-- MetricError (ValueError)         a registry entry is wrong, expired or unknown
|-- FileError                        a file cannot be read, or has another format than expected
|-- CollectorError                   a collector cannot be reached, or refuses a request
`-- MissingExtraError (ImportError)  an optional library is not installed

A recorded value is a value of a device. No message contains a recorded value, its bits, its
permanent response (the bits after the permanent noise) or a secret. Messages about a recorded value
contain only its type and its length.
"""

from __future__ import annotations


class RapporError(Exception):
    """Base class of all errors that the project raises on purpose."""


class ParamsError(RapporError, ValueError):
    """Raised if a parameter is outside its range."""


class ReportError(RapporError, ValueError):
    """Raised if bytes are not a report, or if a value has the wrong type for its metric.

    Parameters
    ----------
    reason : the message.
    code : kind of the fault in one word. A collector counts refused reports by this word.
    """

    def __init__(self, reason: str, *, code: str = "malformed") -> None:
        """Store the code."""
        self.code = code
        super().__init__(reason)


class DecodeError(RapporError):
    """Raised if a question has no answer: no reports, no candidates, or p* = q*."""


class MetricError(RapporError, ValueError):
    """Raised if a registry entry is wrong, expired or unknown."""


class FileError(RapporError):
    """Raised if a file cannot be read, or has another format than expected.

    Parameters
    ----------
    path : path of the file.
    reason : the fault in one sentence, without the path.
    line : number of the line, from 1; None if the reason concerns the whole file.
    """

    def __init__(self, path: object, reason: str, *, line: int | None = None) -> None:
        """Store path, line and reason, and compose the message."""
        self.path = str(path)
        self.line = line
        self.reason = reason
        location = self.path if line is None else f"{self.path}, line {line}"
        super().__init__(f"{location}: {reason}")


class CollectorError(RapporError):
    """Raised if a collector cannot be reached, refuses, or sends a response of another server.

    Parameters
    ----------
    reason : the message.
    status : HTTP status of the response; None if no response arrived.
    """

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        """Store the status."""
        self.status = status
        super().__init__(reason)


class MissingExtraError(RapporError, ImportError):
    """Raised if an extra of this distribution, or an optional library, is not installed.

    Parameters
    ----------
    extra : name of the extra, or of the library.
    is_library : whether `extra` is the name of a library that no extra contains.
    """

    def __init__(self, extra: str, *, is_library: bool = False) -> None:
        """Compose the message, with the command that installs the extra or the library."""
        self.extra = extra
        required, location, source = (
            f"the extra rappor[{extra}]",
            " in the checkout",
            f"'.[{extra}]'",
        )
        if is_library:
            required, location, source = extra, "", extra
        super().__init__(f"this needs {required}; install it{location} with: pip install {source}")
