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

_DERIVED_PROPERTIES: Final = ("p_star", "q_star", "fingerprint")
"""Properties that are computed from a parameter set. They are the last entries of its JSON, after
the encoding and the parameters k, h, m, f and so on (`Params.letters`)."""


def to_json_text(record: Any, **more: Any) -> str:
    """Write a record, and additional entries, as one line of JSON.

    A record becomes an object of its fields and properties. A field with a parameter set becomes
    one entry for the encoding, one for each parameter of `Params.letters`, such as "k", and one for
    each derived property, such as "p_star". A field with a metric becomes an entry for its name and
    an entry for its fingerprint. JSON has neither infinity nor NaN, so such a number becomes null.

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
        derived = {name: getattr(value, name) for name in _DERIVED_PROPERTIES}
        return {"encoding": value.encoding, **value.letters, **derived}
    if isinstance(value, Metric):
        return {"metric": value.name, "params": value.fingerprint}
    return {name: to_json_value(value)}
