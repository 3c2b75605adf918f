"""Metrics and their registry: what is collected, by whom, until when, under which parameters.

The registry is a TOML file with one table for each metric, read strictly: an unknown key is
an error, because a misspelt limit would otherwise be no limit.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rappor.errors import FileError, MetricError, ParamsError
from rappor.files import read_text
from rappor.params import PROFILES, Params, edge_text
from rappor.report import METRIC_NAME

EPOCHS: dict[str, re.Pattern[str]] = {
    "year": re.compile(r"[0-9]{4}"),
    "quarter": re.compile(r"[0-9]{4}-Q[1-4]"),
    "month": re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])"),
}
"""Kinds of epoch and the form of their names."""

_REQUIRED = ("description", "owner", "expires", "encoding")
_NOISE = ("f", "p", "q")
_KEYS = (
    *_REQUIRED,
    *("k", "h", "m", *_NOISE, "profile", "categories", "edges", "normalize", "insecure"),
    *("epoch", "candidates", "min_reports", "keep_reports"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    `expires` is the last day on which it is collected; `epoch` None means that a value's
    permanent response is kept for life; `candidates` is a path relative to the registry;
    estimates over fewer than `min_reports` reports are not released; `keep_reports` lets a
    collector keep raw reports beside the counts.

    Raises MetricError for an entry that is wrong.
    """

    name: str
    params: Params
    description: str
    owner: str
    expires: datetime.date
    epoch: str | None = None
    candidates: str | None = None
    min_reports: int = 0
    keep_reports: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        if not isinstance(self.name, str) or not METRIC_NAME.fullmatch(self.name):
            raise MetricError(f"metric name must match {METRIC_NAME.pattern}, got {self.name!r}")
        for key in ("description", "owner"):
            text = getattr(self, key)
            if not isinstance(text, str) or not text.strip():
                raise self._error(key, "a non-empty text", text)
        if type(self.expires) is not datetime.date:
            raise self._error("expires", "a date such as 2030-12-31", self.expires)
        if self.epoch is not None and self.epoch not in EPOCHS:
            raise self._error("epoch", f"one of {', '.join(EPOCHS)}, or absent", self.epoch)
        if self.candidates is not None and (
            not isinstance(self.candidates, str) or not self.candidates
        ):
            raise self._error("candidates", "a path", self.candidates)
        if type(self.min_reports) is not int or self.min_reports < 0:
            raise self._error("min_reports", "an integer of at least 0", self.min_reports)
        if type(self.keep_reports) is not bool:
            raise self._error("keep_reports", "true or false", self.keep_reports)

    def _error(self, key: str, constraint: str, got: object) -> MetricError:
        return MetricError(f"metric {self.name}: {key} must be {constraint}, got {got!r}")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the parameters, which every report carries."""
        return self.params.fingerprint

    def check_active(self, today: datetime.date) -> None:
        """Raise MetricError once the metric has expired."""
        if today > self.expires:
            raise MetricError(f"metric {self.name} expired on {self.expires.isoformat()}")

    def epoch_at(self, day: datetime.date) -> str:
        """Return the epoch of a UTC day: "" for life, else such as 2026, 2026-Q4, 2026-11."""
        if self.epoch is None:
            return ""
        if self.epoch == "year":
            return f"{day.year:04}"
        if self.epoch == "quarter":
            return f"{day.year:04}-Q{(day.month + 2) // 3}"
        return f"{day.year:04}-{day.month:02}"

    def check_epoch(self, text: str) -> None:
        """Raise MetricError unless a text names an epoch of this metric's kind."""
        if self.epoch is None:
            if text:
                raise MetricError(f"metric {self.name} has no epochs, got {text!r}")
        elif not EPOCHS[self.epoch].fullmatch(text):
            example = self.epoch_at(datetime.date(2026, 11, 1))
            raise MetricError(
                f"metric {self.name}: epoch must be a {self.epoch} such as {example}, got {text!r}"
            )


class Registry(Mapping[str, Metric]):
    """The metrics of one registry file, by name, in the file's order."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        """Keep metrics that are already checked."""
        self._metrics = dict(metrics)

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Registry:
        """Read a registry file.

        Raises
        ------
        FileError: the file cannot be read, is not UTF-8 or not TOML; with the line.
        MetricError: an entry is wrong; with the metric and the key.
        """
        return cls.loads(read_text(path), path=path)

    @classmethod
    def loads(cls, text: str, *, path: str | os.PathLike[str] = "registry") -> Registry:
        """Read a registry from text; `path` is for messages only."""
        document = _parse_toml(text, path)
        unknown = set(document) - {"metrics"}
        if unknown:
            raise MetricError(f"{Path(path)}: the only table must be metrics, got {min(unknown)!r}")
        tables = document.get("metrics")
        if not isinstance(tables, dict) or not tables:
            raise MetricError(f"{Path(path)}: there must be at least one table [metrics.NAME]")
        return cls({name: _read_metric(name, table) for name, table in tables.items()})

    def metric(self, name: str) -> Metric:
        """Return the metric of a name. Raises MetricError, with the nearest names, if unknown."""
        if name not in self._metrics:
            raise MetricError(f"metric {name!r} must be in the registry{_nearest(name, self)}")
        return self._metrics[name]

    def lookup(self, name: str, fingerprint: str) -> Params | None:
        """Return the parameters of a metric if they have this fingerprint, else None."""
        metric = self._metrics.get(name)
        return metric.params if metric and metric.fingerprint == fingerprint else None


def _parse_toml(text: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)", str(error))
        reason = str(error).split(" (at ")[0]
        twice = re.match(r"Cannot declare (\('metrics', .*\)) twice", reason)
        if twice:
            reason = "a metric's name must be given once"
        raise FileError(
            path, f"it is not TOML: {reason}", line=int(place[1]) if place else None
        ) from None


def _read_metric(name: str, table: object) -> Metric:
    if not isinstance(table, dict):
        raise MetricError(f"metrics.{name} must be a table, got {type(table).__name__}")
    for key in table:
        if key not in _KEYS:
            raise MetricError(f"metric {name}: key {key!r} is unknown{_nearest(key, _KEYS)}")
    for key in _REQUIRED:
        if key not in table:
            raise MetricError(f"metric {name}: {key} must be given")
    try:
        params = _read_params(table)
    except ParamsError as error:
        raise MetricError(f"metric {name}: {error}") from None
    rest = {
        key: table[key]
        for key in ("epoch", "candidates", "min_reports", "keep_reports")
        if key in table
    }
    return Metric(
        name=name,
        params=params,
        description=table["description"],
        owner=table["owner"],
        expires=_read_date(table["expires"]),
        **rest,
    )


def _read_params(table: dict[str, Any]) -> Params:
    encoding = table["encoding"]
    explicit = [key for key in ("k", "h", "m", *_NOISE) if key in table]
    categories = _read_categories(table)
    if "profile" in table:
        if explicit:
            raise ParamsError(f"profile must stand alone, got {', '.join(explicit)} beside it")
        shape, noise = _read_profile(table["profile"], encoding)
    else:
        missing = [key for key in _NOISE if key not in table]
        if encoding == "bloom":
            missing = [key for key in ("k", "h", "m") if key not in table] + missing
        if missing:
            raise ParamsError(f"{missing[0]} must be given, or a profile")
        shape = {key: table[key] for key in ("k", "h", "m") if key in table}
        noise = {key: table[key] for key in _NOISE}
    if "k" not in shape:
        shape["k"] = len(categories) + (encoding == "buckets") if categories else 1
    insecure = table.get("insecure", False)
    if type(insecure) is not bool:
        raise ParamsError(f"insecure must be true or false, got {insecure!r}")
    return Params(
        **shape,
        **noise,
        encoding=encoding,
        categories=categories,
        normalize=table.get("normalize", "none"),
        insecure=insecure,
    )


def _read_profile(name: object, encoding: object) -> tuple[dict[str, Any], Mapping[str, Any]]:
    if not isinstance(name, str) or name not in PROFILES:
        raise ParamsError(f"profile must be one of {', '.join(PROFILES)}, got {name!r}")
    shape = {"k": 128, "h": 1, "m": 128} if encoding == "bloom" else {}
    return shape, PROFILES[name]


def _read_categories(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the names in bit order: the categories, or the edges as shortest decimals."""
    encoding = table["encoding"]
    wanted = {"onehot": "categories", "flags": "categories", "buckets": "edges"}.get(encoding)
    for key in ("categories", "edges"):
        if key in table and key != wanted:
            raise ParamsError(f"{key} must be absent for encoding {encoding}")
    if wanted is None:
        return ()
    if wanted not in table:
        raise ParamsError(f"{wanted} must be given for encoding {encoding}")
    names = table[wanted]
    kind: type | tuple[type, ...] = str if wanted == "categories" else (int, float)
    noun = "texts" if wanted == "categories" else "numbers"
    if not isinstance(names, list) or any(
        not isinstance(name, kind) or isinstance(name, bool) for name in names
    ):
        raise ParamsError(f"{wanted} must be a list of {noun}, got {names!r}")
    return tuple(names) if wanted == "categories" else tuple(map(_edge, names))


def _edge(number: float) -> str:
    if not abs(number) < float("inf"):
        raise ParamsError(f"edges must be finite, got {number!r}")
    return edge_text(number)


def _read_date(value: object) -> Any:
    """Read a TOML date or an ISO text; anything else is left for Metric to refuse."""
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            return value
    return value


def _nearest(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""
