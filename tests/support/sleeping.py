"""Task that only takes time, in a module that a worker process can import."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rappor_server.queries.worker import ReportStep
from sqlalchemy import Engine


@dataclass(frozen=True)
class Sleep:
    """Task that waits some seconds, creates a file, and returns its number."""

    number: int
    seconds: float = 0.0
    path: Path | None = None

    def run(self, engine: Engine, tell: ReportStep) -> int:
        """Wait, create the file, and return the number."""
        del engine
        tell("sleeping")
        time.sleep(self.seconds)
        if self.path is not None:
            self.path.touch()
        return self.number
