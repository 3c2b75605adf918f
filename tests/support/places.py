"""Paths of the repository and of the test vectors."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains the repository."""

VECTORS = ROOT / "tests" / "vectors"
"""Folder of the test vectors, which `make_vectors` writes."""
