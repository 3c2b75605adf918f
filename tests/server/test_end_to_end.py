"""End to end: devices, a running collector, and estimates for an analyst."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import device_child
import numpy as np
import plain_http
import pytest
from collectors import LOUD, UNBOUNDED, format_entry, make_token, run_file_collector
from programs import CLIENT, run_python
from scipy import stats

from rappor import CollectorClient, Params, compare_segments, decode
from rappor.simulation.population import english_words

N_DEVICES = 600
"""Number of simulated devices. Each one is a real client with a folder of its own. With half as
many, no word would be certain to be detected, and `check_power` would find nothing to check."""
N_WORDS = 20
"""Number of words that the devices have. More words would be too rare to detect."""
FALSE_ALARM = 1e-9
"""Probability that a check fails by chance. With a larger value the confidence intervals are
narrower and more words count as certain to be detected, so correct code would fail more often."""
WORD = UNBOUNDED + format_entry("word", k=64, m=8, candidates="words.txt", **LOUD)
"""Registry with a metric of strings. Its noise is low, so a test with few devices detects the
frequent words."""
THEME = UNBOUNDED + format_entry(
    "theme",
    encoding="onehot",
    categories=["light", "dark"],
    segments={"version": ["1", "2"]},
    **LOUD,
)
"""Registry with a metric of categories in segments."""


def list_words() -> list[str]:
    """Return one word for each device: twenty real words with their real shares."""
    population = english_words()
    shares = np.asarray(population.weights[:N_WORDS], dtype=float)
    numbers = np.floor(shares / shares.sum() * N_DEVICES).astype(int)
    numbers[0] += N_DEVICES - numbers.sum()
    return [
        word for word, n in zip(population.values[:N_WORDS], numbers, strict=True) for _ in range(n)
    ]


@pytest.mark.slow
def test_estimates_of_real_words(tmp_path: Path) -> None:
    """Every true count lies in an interval that misses once in 1e9. Frequent words are detected."""
    words = list_words()
    candidates = [*dict.fromkeys(words), "zyzzyva", "qwertz", "xylograph"]
    (tmp_path / "words.txt").write_text("\n".join(candidates))
    with run_file_collector(tmp_path, registry=WORD) as running:
        arguments = (str(tmp_path / "metrics.toml"), running.url)
        sender = run_python(device_child.__file__, *arguments, text="\n".join(words))
        assert sender.stdout == "delivered"
        token = make_token(running.database)
        running.merge_uploads()
        response = plain_http.post(
            f"{running.admin_url}/v1/metrics/word/estimates",
            json={"all": True, "confidence": 1 - FALSE_ALARM / len(candidates)},
            headers={"Authorization": f"Bearer {token}"},
            timeout=150,
        )
    assert response.status_code == 200, response.text
    estimates = response.json()
    assert estimates["reports"] == N_DEVICES
    rows = {row["candidate"]: row for row in estimates["estimates"]}
    assert set(rows) == set(candidates)
    for word in candidates:
        share = words.count(word) / N_DEVICES
        assert rows[word]["ci_low"] <= share <= rows[word]["ci_high"], word
    check_power(rows, words)


def check_power(rows: dict[str, dict[str, float]], words: list[str]) -> None:
    """Check that words far above the noise are detected. A word is missed with probability 1e-9."""
    params = Params(k=64, m=8, f=0.0, p=0.05, q=0.95, insecure=True)
    noise = np.sqrt(params.p_star * (1 - params.p_star) * N_DEVICES) / (
        params.q_star - params.p_star
    )
    # Collisions of words and the cut at the false discovery rate need a margin: three times.
    min_devices = 3 * stats.norm.isf(FALSE_ALARM) * noise
    frequent_words = [word for word in set(words) if words.count(word) > min_devices]
    assert frequent_words
    assert all(rows[word]["detected"] for word in frequent_words)


def send(
    url: str, registry: Path, metric: str, *words: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `rappor-client send` for a metric."""
    options = ("--registry", str(registry), "--metric", metric, "--collector", url)
    return run_python(*CLIENT, "send", *words, *options, code=code)


@pytest.mark.slow
def test_segments_are_counted_separately(tmp_path: Path) -> None:
    """Listed versions, other versions and devices without a version have counts of their own.

    Counts without `segments` are the sum of all segments.
    """
    with run_file_collector(tmp_path, registry=THEME) as running:
        registry = tmp_path / "metrics.toml"
        for words in (
            ("light", "light", "dark", "--segment", "version=1"),
            ("dark", "dark", "--segment", "version=2"),
            ("dark", "--segment", "version=3"),
            ("light",),
        ):
            send(running.url, registry, "theme", *words)
        wrong = send(running.url, registry, "theme", "light", "--segment", "version", code=2)
        assert "NAME=VALUE" in wrong.stderr
        running.merge_uploads()
        collector = CollectorClient(running.admin_url, make_token(running.database, "theme"))
        pooled = collector.counts("theme")
        separate = collector.counts("theme", segments=True)
    assert {counts.params.segment: counts.n_reports for counts in separate.collections} == {
        (("version", "1"),): 3,
        (("version", "2"),): 2,
        (("version", "other"),): 2,
    }
    (together,) = pooled.collections
    assert (together.n_reports, together.params.segment) == (7, ())
    assert decode(pooled.collections).reports == 7
    comparison = compare_segments(separate.collections)
    assert json.loads(comparison.to_json())["samples"][0]["segment"] == {"version": "1"}
