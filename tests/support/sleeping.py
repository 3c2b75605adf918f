"""A task that only takes time, in a module that the process of a pool can import."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rappor_server.queries.worker import ReportStep
from sqlalchemy import Engine


@dataclass(frozen=True)
class Sleep:
    """A task that takes some seconds, then leaves a file and answers with its number."""

    number: int
    seconds: float = 0.0
    path: Path | None = None

    def run(self, engine: Engine, tell: ReportStep) -> int:
        """Answer after a while."""
        del engine
        tell("sleeping")
        time.sleep(self.seconds)
        if self.path is not None:
            self.path.touch()
        return self.number
