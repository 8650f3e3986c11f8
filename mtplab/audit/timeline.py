"""What one step did, in order: forwards, mirror copies, hand-overs, with the layers each of them touched.

    with Timeline(arm) as timeline:
        arm.engine.step()
    timeline.frame()

The recorder wraps an arm's own parts and always puts them back; nothing in the engine knows about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from mtplab.build import Arm
from mtplab.memory.mirror import Mirror, RowSpan

DRAFT_PREFILL, DRAFT_DECODE = "draft prefill", "draft decode"


@dataclass(frozen=True, slots=True)
class Event:
    """`step` of the engine; `lane` is target, drafter, mirror or pages; start and end in ms from the first event."""

    step: int
    lane: str
    name: str
    start: float
    end: float
    too_early: bool


class Timeline:
    """Records every step taken inside its `with` block. `too_early`: a copy of draft rows that the drafter of the same
    step had not written yet (a copy of an earlier step's rows, as `mirror_next_step` makes, is not).
    """

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self.events: list[Event] = []
        self._undo: list[tuple[Any, str]] = []
        self._first: float | None = None
        self._unwritten: RowSpan | None = None  # this step's rows, until the drafter has written them

    def __enter__(self) -> Timeline:
        parts = self._arm.engine.parts
        self._wrap(parts.target, "run", lambda *_: ("target", f"verify ({parts.target.mode})"))
        if parts.drafting is not None:
            runners = parts.drafting.runners
            self._wrap(runners.prefill, "run", lambda *_: ("drafter", DRAFT_PREFILL))
            self._wrap(runners.decode, "run", lambda *_: ("drafter", DRAFT_DECODE))
        if parts.mirror.active:
            self._note_spans(parts.mirror)
            self._wrap(parts.mirror, "copy", self._copy_label)
            self._wrap(parts.mirror, "hand_over", lambda *_: ("pages", "pages declared clean"))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name in self._undo:
            delattr(owner, name)  # the instance attribute; the class's method shows again
        self._undo.clear()

    def frame(self) -> pd.DataFrame:
        """One row per event, in order."""
        return pd.DataFrame([asdict(event) for event in self.events])

    def _copy_label(self, layers: tuple[int, ...], *_: object) -> tuple[str, str]:
        mirror = self._arm.engine.parts.mirror
        kinds = [
            name
            for name, owned in (("target", mirror.target_layers), ("draft", mirror.draft_layers))
            if any(layer in owned for layer in layers)
        ]
        return "mirror", f"copy {' + '.join(kinds)} rows"

    def _note_spans(self, mirror: Mirror) -> None:
        inner = mirror.snapshot

        def noted(slot_mapping: Tensor, source_slots: Tensor) -> RowSpan:
            self._unwritten = inner(slot_mapping, source_slots)
            return self._unwritten

        mirror.snapshot = noted
        self._undo.append((mirror, "snapshot"))

    def _wrap(self, owner: Any, name: str, label: Callable[..., tuple[str, str]]) -> None:
        inner = getattr(owner, name)

        def recorded(*args: Any) -> Any:
            step = self._arm.engine.steps
            begun = time.perf_counter()
            self._first = begun if self._first is None else self._first
            result = inner(*args)
            ended = time.perf_counter()
            lane, what = label(*args)
            early = lane == "mirror" and "draft" in what and args[1] is self._unwritten
            if what == DRAFT_PREFILL:
                self._unwritten = None
            start, end = ((moment - self._first) * 1e3 for moment in (begun, ended))
            self.events.append(Event(step, lane, what, start, end, early))
            return result

        setattr(owner, name, recorded)
        self._undo.append((owner, name))
