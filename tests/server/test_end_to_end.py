"""The whole way: 1,000 devices, a real collector, estimates of real words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import device_child
import numpy as np
import plain_http
import pytest
from collectors import PATIENT, free_port, make_token, serving
from scipy import stats

from rappor import Params
from rappor.simulation.population import english_words

N_DEVICES = 1000
N_WORDS = 20
FALSE_ALARM = 1e-9
TOML = """
[budget]
total = inf
[metrics.word]
description = "A word, for this test only: the noise protects nobody"
owner = "tests"
expires = 2100-01-01
epoch = "life"
interval = "none"
encoding = "bloom"
k = 64
m = 8
f = 0.0
p = 0.05
q = 0.95
insecure = true
candidates = "words.txt"
min_reports = 0
"""


def words_of_devices() -> list[str]:
    """Return one word for each device: twenty real ones by their real shares."""
    population = english_words()
    shares = np.asarray(population.weights[:N_WORDS], dtype=float)
    numbers = np.floor(shares / shares.sum() * N_DEVICES).astype(int)
    numbers[0] += N_DEVICES - numbers.sum()
    return [
        word for word, n in zip(population.values[:N_WORDS], numbers, strict=True) for _ in range(n)
    ]


def start_devices(words: list[str], url: str, folder: Path) -> subprocess.Popen[str]:
    """Start a process that simulates devices."""
    own = Path(device_child.__file__)
    paths = os.pathsep.join([str(own.parent), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, str(own), str(folder / "metrics.toml"), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert child.stdin is not None
    child.stdin.write("".join(f"{word}\n" for word in words))
    child.stdin.close()
    child.stdin = None
    return child


@pytest.mark.slow
def test_words_of_real_devices_are_found(tmp_path: Path, database: str) -> None:
    """Every true count lies in an interval that misses once in 1e9, and the top is detected."""
    workers = ["--workers", "2"] if database.startswith("postgresql") else []
    admin = free_port() if workers else 0
    words = words_of_devices()
    candidates = [*dict.fromkeys(words), "zyzzyva", "qwertz", "xylograph"]
    (tmp_path / "words.txt").write_text("\n".join(candidates))
    with serving(tmp_path, database, *workers, admin=admin, registry=TOML) as running:
        children = [start_devices(words[i::4], running.url, tmp_path) for i in range(4)]
        for child in children:
            output, _ = child.communicate(timeout=300)
            assert (child.returncode, output) == (0, "delivered")
        token = make_token(database)
        running.count()
        answer = plain_http.post(
            f"{running.admin_url}/v1/metrics/word/estimates",
            json={"all": True, "confidence": 1 - FALSE_ALARM / len(candidates)},
            headers=PATIENT | {"Authorization": f"Bearer {token}"},
            timeout=150,
        )
    assert answer.status_code == 200, answer.text
    estimates = answer.json()
    assert estimates["reports"] == N_DEVICES
    rows = {row["candidate"]: row for row in estimates["estimates"]}
    assert set(rows) == set(candidates)
    for word in candidates:
        share = words.count(word) / N_DEVICES
        assert rows[word]["ci_low"] <= share <= rows[word]["ci_high"], word
    check_power(rows, words)


def check_power(rows: dict[str, dict[str, float]], words: list[str]) -> None:
    """Words far above the noise must be detected; each is missed with probability 1e-9."""
    params = Params(k=64, m=8, f=0.0, p=0.05, q=0.95, insecure=True)
    noise = np.sqrt(params.p_star * (1 - params.p_star) * N_DEVICES) / (
        params.q_star - params.p_star
    )
    sure = 3 * stats.norm.isf(FALSE_ALARM) * noise  # three times: collisions, and the cut
    heavy = [word for word in set(words) if words.count(word) > sure]
    assert heavy
    assert all(rows[word]["detected"] for word in heavy)


@pytest.mark.parametrize("n", [N_DEVICES])
def test_devices_of_this_test_hold_real_words(n: int) -> None:
    """A thousand devices, twenty words, the commonest first."""
    words = words_of_devices()
    assert len(words) == n
    assert len(set(words)) == N_WORDS
    assert words[0] == "the"
