"""`track=jsonl`: nothing beside the run directory. Also what a failed tracker is replaced by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from mtplab.track.tracker import Outcome, TrackedRun


class NullTracker:
    """Does nothing."""

    def start(self, run: TrackedRun) -> None:
        return None

    def log_steps(self, role: str, steps: pd.DataFrame) -> None:
        return None

    def log_outcome(self, outcome: Outcome) -> None:
        return None

    def finish(self, exit_code: int) -> None:
        return None

    def how_to_look(self) -> list[str]:
        return []
