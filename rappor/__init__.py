"""RAPPOR: learn which strings are common among many devices without learning anyone's.

What a device needs is here at once and light. What an analyst needs is loaded when it is
first touched; where its extra is not installed, touching it says which one to install.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rappor.encoding import encoder
from rappor.errors import (
    DecodeError,
    FileError,
    MetricError,
    MissingExtraError,
    ParamsError,
    RapporError,
    ReportError,
)
from rappor.metric import Metric, Registry
from rappor.params import Params
from rappor.privacy import belief_bound, epsilon_inf, epsilon_n, epsilon_one
from rappor.randomize import encode_value
from rappor.report import Report, Upload, parse_upload

if TYPE_CHECKING:
    from rappor.candidates import Candidates
    from rappor.counts import Counts
    from rappor.decode import Estimates, decode
    from rappor.population import Population, english_words
    from rappor.simulate import simulate_counts, simulate_reports

_LAZY = {
    "Candidates": "rappor.candidates",
    "Counts": "rappor.counts",
    "Estimates": "rappor.decode",
    "Population": "rappor.population",
    "decode": "rappor.decode",
    "english_words": "rappor.population",
    "simulate_counts": "rappor.simulate",
    "simulate_reports": "rappor.simulate",
}
"""Public names whose modules need the extra `analysis`."""

__all__ = [
    "Candidates",
    "Counts",
    "DecodeError",
    "Estimates",
    "FileError",
    "Metric",
    "MetricError",
    "MissingExtraError",
    "Params",
    "ParamsError",
    "Population",
    "RapporError",
    "Registry",
    "Report",
    "ReportError",
    "Upload",
    "belief_bound",
    "decode",
    "encode_value",
    "encoder",
    "english_words",
    "epsilon_inf",
    "epsilon_n",
    "epsilon_one",
    "parse_upload",
    "simulate_counts",
    "simulate_reports",
]


def __getattr__(name: str) -> Any:
    """Load a public name of the analyst's side when it is first touched."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rappor"):
            raise
        raise MissingExtraError("analysis") from error
    value = getattr(module, name)
    globals()[name] = value
    return value
