"""Checks of the types of arguments of the public API.

Without these checks, a mistake such as `trend(counts)` fails deep inside the library, and the
message is about an attribute that the caller never wrote: "'Counts' object has no attribute
'periods'". A public function therefore checks the arguments that callers confuse, and raises one
sentence with the name of the argument, the required type, and the remedy. Private functions have
no such checks, because mypy checks their callers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from rappor.base.errors import ParamsError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ERROR_CONTROL_FIELDS: Final = ("alpha", "confidence", "level", "method", "ranked")
"""Names of arguments that callers pass to a function although `ErrorControl` has them. `level` is
the name of alpha on the command line."""


def check_type(name: str, value: object, expected: type, remedy: str = "") -> None:
    """Raise ParamsError unless a value is an instance of a type.

    The message contains the type of the value and not the value, which may be a recorded value.

    Parameters
    ----------
    name : the name of the argument.
    value : the argument.
    expected : the type that the argument must have.
    remedy : correct code or advice, without a full stop at its end.

    Examples
    --------
    >>> check_type("params", 2, dict, "call dict()")
    Traceback (most recent call last):
        ...
    rappor.base.errors.ParamsError: params must be a dict, got int; call dict()
    """
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOUaeiou" else "a"
        message = f"{name} must be {article} {expected.__name__}, got {type(value).__name__}"
        raise ParamsError(f"{message}; {remedy}" if remedy else message)


def refuse_text(name: str, strings: object) -> None:
    """Raise ParamsError if the argument is one text and not a list of strings.

    A text is an iterable of its characters. Without this check, each character would count as a
    string: `total("ab")` would be the sum of the candidates "a" and "b".

    Parameters
    ----------
    name : the name of the argument.
    strings : the argument.

    Examples
    --------
    >>> refuse_text("candidates", "cat")
    Traceback (most recent call last):
        ...
    rappor.base.errors.ParamsError: candidates must be a list of strings, got one str
    """
    if isinstance(strings, str | bytes):
        raise ParamsError(f"{name} must be a list of strings, got one {type(strings).__name__}")


def explain_error_control(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function with an argument `error_control`, so that it explains wrong keywords.

    Case: `decode(counts, candidates, alpha=0.01)`, the first attempt of most callers. Python's own
    message would be "unexpected keyword argument 'alpha'", and would not name `ErrorControl`.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in _ERROR_CONTROL_FIELDS:
            if name in kwargs:
                field = "alpha" if name == "level" else name
                raise ParamsError(
                    f"{function.__name__} has no argument {name}; "
                    f"pass error_control=ErrorControl({field}=...)"
                )
        return function(*args, **kwargs)

    return call
