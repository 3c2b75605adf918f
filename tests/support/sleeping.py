"""Task for tests of worker processes. A worker imports the task by the name of its module."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rappor_server.queries.worker import ReportStep
from sqlalchemy import Engine


@dataclass(frozen=True)
class Sleep:
    """Task that waits some seconds, creates a file, and returns its number.

    The file shows that the task ran to its end. The number shows whose result has come.
    """

    number: int
    seconds: float = 0.0
    path: Path | None = None

    def run(self, engine: Engine, tell: ReportStep) -> int:
        """Report one step, wait, create the file, and return the number."""
        del engine
        tell("sleeping")
        time.sleep(self.seconds)
        if self.path is not None:
            self.path.touch()
        return self.number
