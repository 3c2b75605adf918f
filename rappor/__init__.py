"""RAPPOR: learn which strings are common among many devices without learning anyone's.

This is the one door to the method. Nothing behind it is imported before it is touched: a
device pays for no array library, and a collector never loads the randomizer.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rappor.candidates import Candidates
    from rappor.collects import describe
    from rappor.counts import Counts
    from rappor.decoding import Estimates, decode
    from rappor.encoding import encoder, parse_value
    from rappor.errors import (
        DecodeError,
        FileError,
        MetricError,
        MissingExtraError,
        ParamsError,
        RapporError,
        ReportError,
    )
    from rappor.kernels import sum_bits
    from rappor.metric import Metric, Registry
    from rappor.params import Params
    from rappor.planning import Crowd, Plan, Question, assess, plan
    from rappor.population import Population, english_words
    from rappor.privacy import belief_bound, epsilon_inf, epsilon_n, epsilon_one
    from rappor.randomize import Encoded, encode_value
    from rappor.report import Report, Upload, parse_upload
    from rappor.simulate import simulate_counts, simulate_reports
    from rappor.trust import CoinSurvey

__all__ = [
    "Candidates",
    "CoinSurvey",
    "Counts",
    "Crowd",
    "DecodeError",
    "Encoded",
    "Estimates",
    "FileError",
    "Metric",
    "MetricError",
    "MissingExtraError",
    "Params",
    "ParamsError",
    "Plan",
    "Population",
    "Question",
    "RapporError",
    "Registry",
    "Report",
    "ReportError",
    "Upload",
    "assess",
    "belief_bound",
    "decode",
    "describe",
    "encode_value",
    "encoder",
    "english_words",
    "epsilon_inf",
    "epsilon_n",
    "epsilon_one",
    "parse_upload",
    "parse_value",
    "plan",
    "simulate_counts",
    "simulate_reports",
    "sum_bits",
]

_BASE: Final = ""
"""The extra of what needs none."""

_DOOR: Final[dict[str, tuple[str, str]]] = {
    "Candidates": ("rappor.candidates", "analysis"),
    "CoinSurvey": ("rappor.trust", _BASE),
    "Counts": ("rappor.counts", "analysis"),
    "Crowd": ("rappor.planning", "analysis"),
    "DecodeError": ("rappor.errors", _BASE),
    "Encoded": ("rappor.randomize", _BASE),
    "Estimates": ("rappor.decoding", "analysis"),
    "FileError": ("rappor.errors", _BASE),
    "Metric": ("rappor.metric", _BASE),
    "MetricError": ("rappor.errors", _BASE),
    "MissingExtraError": ("rappor.errors", _BASE),
    "Params": ("rappor.params", _BASE),
    "ParamsError": ("rappor.errors", _BASE),
    "Plan": ("rappor.planning", "analysis"),
    "Population": ("rappor.population", "analysis"),
    "Question": ("rappor.planning", "analysis"),
    "RapporError": ("rappor.errors", _BASE),
    "Registry": ("rappor.metric", _BASE),
    "Report": ("rappor.report", _BASE),
    "ReportError": ("rappor.errors", _BASE),
    "Upload": ("rappor.report", _BASE),
    "assess": ("rappor.planning", "analysis"),
    "belief_bound": ("rappor.privacy", _BASE),
    "decode": ("rappor.decoding", "analysis"),
    "describe": ("rappor.collects", _BASE),
    "encode_value": ("rappor.randomize", _BASE),
    "encoder": ("rappor.encoding", _BASE),
    "english_words": ("rappor.population", "analysis"),
    "epsilon_inf": ("rappor.privacy", _BASE),
    "epsilon_n": ("rappor.privacy", _BASE),
    "epsilon_one": ("rappor.privacy", _BASE),
    "parse_upload": ("rappor.report", _BASE),
    "parse_value": ("rappor.encoding", _BASE),
    "plan": ("rappor.planning", "analysis"),
    "simulate_counts": ("rappor.simulate", "analysis"),
    "simulate_reports": ("rappor.simulate", "analysis"),
    "sum_bits": ("rappor.kernels", "analysis"),
}
"""Each public name: the module that has it, and the extra that the module needs."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first touched."""
    if name not in _DOOR:
        raise AttributeError(f"module 'rappor' has no attribute {name!r}")
    module, extra = _DOOR[name]
    value = globals()[name] = getattr(_import(module, extra), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _import(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if extra and not (error.name or "").startswith("rappor"):
            from rappor.errors import MissingExtraError  # noqa: PLC0415  (see the docstring above)

            raise MissingExtraError(extra) from None
        raise
