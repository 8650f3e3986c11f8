"""Static-input audit: does each buffer hold what an eager step would have passed, and did a kernel read it?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.engine.inputs import ROW_FIELDS, StaticInputs, StepInputs
from mtplab.engine.records import Culprit, Staleness


@dataclass(slots=True)
class BufferFindings:
    """Counts over replays of one buffer; `age` is in steps, from the step whose value the buffer holds."""

    replays: int = 0
    stale: int = 0
    harmful: int = 0
    max_age: int = 0
    first_step: int = -1
    rows_wrong: int = 0


class StaticAudit:
    """Compares static inputs with the live ones right before each replay."""

    def __init__(self) -> None:
        self.buffers: dict[str, BufferFindings] = {}
        self.written: dict[str, int] = {}
        self._stale_now: dict[str, int] = {}

    def before_run(self, name: str, static: StaticInputs, live: StepInputs, step: int) -> None:
        """`name` is the runner; passes of one runner (`draft_decode.1`, `.2`, ...) are counted together."""
        prefix = name.split(".")[0]
        for field, value in live.items():
            key = f"{prefix}.{field}"
            found = self.buffers.get(key)
            if found is None:
                found = self.buffers[key] = BufferFindings()
            found.replays += 1
            self.written[key] = static.written[field]
            buffer = static.buffers[field][: value.shape[0]]
            if torch.equal(buffer, value):
                continue
            read = int(((buffer != value).reshape(value.shape[0], -1) & _read_mask(field, value, live)).any(1).sum())
            age = step - static.value_step[field]
            found.stale += 1
            found.max_age = max(found.max_age, age)
            self._stale_now[key] = max(self._stale_now.get(key, 0), age)
            if read:
                found.harmful += 1
                found.rows_wrong += read
                found.first_step = step if found.first_step < 0 else found.first_step

    def end_step(self) -> dict[str, int]:
        stale, self._stale_now = self._stale_now, {}
        return stale

    def staleness(self) -> dict[str, Staleness]:
        return {
            key: Staleness(found.max_age, found.stale / found.replays, found.harmful / found.replays)
            for key, found in sorted(self.buffers.items())
        }

    def culprits(self) -> list[Culprit]:
        return [
            Culprit(
                key,
                None,
                found.first_step,
                found.rows_wrong,
                found.harmful,
                f"held an older value (age up to {found.max_age} steps) in {found.harmful} of {found.replays} replays "
                f"that read it, first at step {found.first_step}",
            )
            for key, found in self.buffers.items()
            if found.harmful
        ]


def _read_mask(field: str, value: Tensor, live: StepInputs) -> Tensor:
    """Entries of a buffer that a kernel reads, broadcastable to [first dimension, rest]; the others are benign."""
    if field in ROW_FIELDS:
        return (live.slot_mapping >= 0).unsqueeze(1)
    if field in ("resident_table", "source_table"):
        return value != 0  # the tail beyond the context is never followed
    if field == "query_start_loc":
        return torch.ones(value.shape[0], 1, dtype=torch.bool, device=value.device)
    return (live.request_state_indices >= 0).unsqueeze(1)
