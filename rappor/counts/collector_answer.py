"""Counts as a collector answers them: one JSON object, a collection for each parameter set.

    {"metric": NAME, "collections": [{"fingerprint", "params", "reports": [m], "ones": [[k] m]}]}

Other keys (the days, what was withheld) are left alone.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rappor.counts.counts import Counts
from rappor.errors import FileError, MetricError, ParamsError, ReportError
from rappor.files import read_text
from rappor.protocol.params import Params


def read_answer(path: str | os.PathLike[str]) -> list[Counts]:
    """Read the answer of a collector's `counts`.

    Raises
    ------
    FileError
        The file is no such answer; the reason is told.
    """
    try:
        document = json.loads(read_text(path))
        metric, collections = document["metric"], document["collections"]
        return [_read_collection(entry, metric) for entry in collections]
    except (ParamsError, ReportError, MetricError) as error:
        raise FileError(path, str(error)) from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileError(
            path, f"it is not the counts of a collector: {type(error).__name__}"
        ) from None


def _read_collection(entry: dict[str, Any], metric: str) -> Counts:
    counts = Counts(
        Params.from_json(json.dumps(entry["params"])), entry["ones"], entry["reports"], metric
    )
    if counts.params.fingerprint != entry["fingerprint"]:
        raise ParamsError(
            f"fingerprint must be {counts.params.fingerprint}, got {entry['fingerprint']!r}"
        )
    return counts
