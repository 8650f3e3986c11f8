"""Contract of a tracker, and the guard that turns its failures into one warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from mtplab.track.null_tracker import NullTracker


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told about a run before it starts. `config` is resolved; `tags` are `group=option`."""

    directory: Path
    run_id: str
    experiment: str
    job_type: str
    tags: tuple[str, ...]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tracker shows when the run is done: `table` is (header, rows) of the incident table."""

    summary: dict[str, Any]
    table: tuple[Sequence[str], Sequence[Sequence[str]]]
    figures: Sequence[Path] = field(default_factory=tuple)


class Tracker(Protocol):
    """Called in this order: `start`, `log_steps` per arm, `log_outcome`, `finish` (always)."""

    def start(self, run: TrackedRun) -> None: ...

    def log_steps(self, role: str, steps: pd.DataFrame) -> None: ...

    def log_outcome(self, outcome: Outcome) -> None: ...

    def finish(self, exit_code: int) -> None: ...

    def how_to_look(self) -> list[str]:
        """Commands that show the run; empty where there is nothing to show."""
        ...


class GuardedTracker:
    """Any tracker, made harmless: its first failure is one warning, after it nothing is tracked."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def start(self, run: TrackedRun) -> None:
        self._guard(lambda: self._tracker.start(run))

    def log_steps(self, role: str, steps: pd.DataFrame) -> None:
        self._guard(lambda: self._tracker.log_steps(role, steps))

    def log_outcome(self, outcome: Outcome) -> None:
        self._guard(lambda: self._tracker.log_outcome(outcome))

    def finish(self, exit_code: int) -> None:
        self._guard(lambda: self._tracker.finish(exit_code))

    def how_to_look(self) -> list[str]:
        return self._tracker.how_to_look()

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a third-party tracker raises, the run goes on
            self._tracker = NullTracker()
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            warnings.warn(f"tracking stopped ({problem}); steps.jsonl has everything", RuntimeWarning, stacklevel=2)
