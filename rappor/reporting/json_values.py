"""JSON values of records: a record becomes an object of its fields and properties.

Commands print records with the option --json. JSON contains all digits. Only tables round.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Final

from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_EFFECTIVE_PROPERTIES: Final = ("p_star", "q_star", "fingerprint")
"""The JSON of a parameter set contains these properties after its encoding and its letters."""


def to_json_text(record: Any, **more: Any) -> str:
    """Write a record, and additional entries, as one line of JSON.

    A record becomes an object of its fields and properties, parameters become their letters, and a
    metric becomes its name and fingerprint. JSON has neither infinity nor NaN, so such a number
    becomes null.

    Parameters
    ----------
    record : a dataclass.
    more : further entries, by their names.
    """
    document = to_json_value(record)
    for name, value in more.items():
        document |= _build_entries(name, value)
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def to_json_value(value: Any) -> Any:
    """Convert records, mappings and sequences to JSON values."""
    if dataclasses.is_dataclass(value):
        entries: dict[str, Any] = {}
        names = [field.name for field in dataclasses.fields(value)]
        members = vars(type(value)).items()
        names += [name for name, member in members if isinstance(member, property)]
        for name in names:
            entries |= _build_entries(name, getattr(value, name))
        return entries
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _build_entries(name: str, value: Any) -> dict[str, Any]:
    """Return the entries of a field in the object of its record.

    A field with parameters or with a metric becomes several entries.
    """
    if isinstance(value, Params):
        effective = {name: getattr(value, name) for name in _EFFECTIVE_PROPERTIES}
        return {"encoding": value.encoding, **value.letters, **effective}
    if isinstance(value, Metric):
        return {"metric": value.name, "params": value.fingerprint}
    return {name: to_json_value(value)}
