"""Step inputs (what an eager step passes) and static inputs (the buffers whose addresses a captured graph reads)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

ROW_FIELDS = frozenset({"input_ids", "positions", "slot_mapping", "source_slots", "req_id_per_token", "hidden_states"})


@dataclass(frozen=True, slots=True)
class StepInputs:
    """True inputs of one forward over T rows (padded to the bucket) and B requests (padded to the maximum).

    input_ids, positions [T] int64; slot_mapping [T] int64 device row, -1 = pad; source_slots [T] int64 host row (the
    row of the indexer key too), -1 = pad; req_id_per_token [T] int32; query_start_loc [B+1] int32, tail = T; seq_lens
    [B] int32, pad 0; resident_table, source_table [B, pages] int32, 0 = null; request_state_indices [B] int32, -1 pad.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    source_slots: Tensor
    req_id_per_token: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    resident_table: Tensor
    source_table: Tensor
    request_state_indices: Tensor

    def items(self) -> Iterator[tuple[str, Tensor]]:
        for name in _names(type(self)):
            yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class DraftInputs(StepInputs):
    """The drafter's inputs: also last_token_indices [B] int64 (the row to draft from) and hidden_states [T, D]."""

    last_token_indices: Tensor
    hidden_states: Tensor


@cache
def _names(kind: type[StepInputs]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


SENTINEL = {"slot_mapping": -1, "source_slots": -1, "request_state_indices": -1}

Kind = TypeVar("Kind", bound=StepInputs)


class StaticInputs:
    """Named buffers at fixed addresses, sized for the largest bucket, each with the step of its last write
    (`written`) and the step whose eager value it holds (`value_step`, -1 = what capture saw)."""

    def __init__(self, example: StepInputs, max_rows: int) -> None:
        self._kind = type(example)
        self.buffers: dict[str, Tensor] = {}
        self.written: dict[str, int] = {}
        self.value_step: dict[str, int] = {}
        self._held: tuple[str, ...] = ()
        for name, value in example.items():
            shape = (max_rows, *value.shape[1:]) if name in ROW_FIELDS else value.shape
            buffer = torch.full(shape, SENTINEL.get(name, 0), dtype=value.dtype, device=value.device)
            self.buffers[name] = buffer
            self.written[name] = self.value_step[name] = -1

    def clear(self) -> None:
        """What capture saw: sentinels, never written."""
        for name, buffer in self.buffers.items():
            buffer.fill_(SENTINEL.get(name, 0))
            self.written[name] = self.value_step[name] = -1

    def view(self, rows: int) -> StepInputs:
        """The slices a graph of bucket `rows` reads."""
        return self._kind(**{n: b[:rows] if n in ROW_FIELDS else b for n, b in self.buffers.items()})

    def copy(self, name: str, value: Tensor, step: int, value_step: int | None = None) -> None:
        """Write `value` to the front of buffer `name` at `step`; `value_step` is the step it was right for."""
        if name in self._held:
            return
        self.buffers[name][: value.shape[0]].copy_(value)
        self.written[name] = step
        self.value_step[name] = step if value_step is None else value_step

    @contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """Inside the block `copy` leaves these buffers and their stamps as they are."""
        before, self._held = self._held, (*self._held, *names)
        try:
            yield
        finally:
            self._held = before

    def copy_all(self, live: StepInputs, step: int) -> None:
        for name, value in live.items():
            self.copy(name, value, step)
