"""All parameter sets that a collector answers, read from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rappor import Counts, FileError, Params

PARAMS = Params(k=2, m=2, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=2, m=1, f=0.5, p=0.25, q=0.75)


def collection(counts: Counts) -> dict[str, Any]:
    """Return one collection as a collector writes it."""
    return {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.reports.tolist(),
        "ones": counts.ones.tolist(),
    }


def answer(*collections: object) -> dict[str, Any]:
    """Return a whole answer."""
    return {
        "metric": "page",
        "from": "2026-11-01",
        "to": "2026-11-30",
        "reports": 9,
        "collections": list(collections),
        "days": [{"day": "2026-11-01", "reports": 9}],
        "withheld": [],
    }


def written(folder: Path, text: str) -> Path:
    """Write a file."""
    path = folder / "counts.json"
    path.write_text(text)
    return path


def test_each_collection_becomes_counts(tmp_path: Path) -> None:
    """Parameters, sums and the metric's name come back; no collection is none."""
    first = Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page")
    second = Counts(OTHER, [[1, 3]], [3], "page")
    path = written(tmp_path, json.dumps(answer(collection(first), collection(second))))
    assert Counts.load_all(path) == [first, second]
    assert Counts.load_all(written(tmp_path, json.dumps(answer()))) == []


def test_load_wants_one_parameter_set(tmp_path: Path) -> None:
    """It is that of the answer; of none or several the sentence says how many."""
    counts = Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page")
    assert (
        Counts.load(written(tmp_path, json.dumps(answer(collection(counts)), indent=1))) == counts
    )
    for n in (0, 2):
        path = written(tmp_path, json.dumps(answer(*[GOOD] * n)))
        with pytest.raises(FileError, match=f"one parameter set, got {n}"):
            Counts.load(path)


GOOD = collection(Counts(PARAMS, [[3, 1], [0, 2]], [4, 2], "page"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"metric": "page"}', "neither a counts file nor the counts of a collector"),
        ('{"metric":' + "[" * 100_000, "neither a counts file nor"),
        (json.dumps(answer(3)), "neither a counts file nor"),
        (json.dumps(answer(GOOD | {"fingerprint": "0" * 16})), "fingerprint must be"),
        (json.dumps(answer(GOOD | {"params": {"v": 2}})), "its parameters are wrong"),
        (json.dumps(answer(GOOD, GOOD | {"reports": [1, 1]})), "ones must be at most the reports"),
        (json.dumps(answer(GOOD) | {"metric": 3}), "metric must be a text"),
        ("{", "neither a counts file nor"),
        ('{"type": "about:blank", "status": 401}', "neither a counts file nor"),
        (json.dumps(answer(GOOD | {"ones": [[3], [0, 2]]})), "inhomogeneous"),
        (json.dumps(answer(GOOD | {"reports": [4, 1 << 70]})), "reports must be integers"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """One sentence with the path."""
    path = written(tmp_path, text)
    with pytest.raises(FileError, match=reason) as caught:
        Counts.load_all(path)
    assert str(path) in str(caught.value)
