"""The mirror: copies of rows from device to host pool, and the hand-over that declares pages clean.

A sync policy decides when; this does it. On tier `device` there is no host pool and both do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mtplab.memory.memory import Memory


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows written by one step, snapshotted before the forward: device and host rows [n] int64, no padding."""

    device_rows: Tensor
    host_rows: Tensor


class Mirror:
    """`target_layers` and `draft_layers` are memory layers; `copies` counts the copies of each layer in this step.

    `hand_over` declares pages clean, `on_copy` is told of every copy.
    """

    def __init__(
        self,
        memory: Memory,
        target_layers: tuple[int, ...],
        draft_layers: tuple[int, ...],
        hand_over: Callable[[], None],
        on_copy: Callable[[tuple[int, ...], RowSpan], None],
    ) -> None:
        self._memory = memory
        self._hand_over = hand_over
        self._on_copy = on_copy
        self.target_layers = target_layers
        self.draft_layers = draft_layers
        self.copies: dict[int, int] = {}
        self.handed_over = False

    @property
    def active(self) -> bool:
        return self._memory.host is not None

    def begin_step(self) -> None:
        self.copies = {}
        self.handed_over = False

    def snapshot(self, slot_mapping: Tensor, source_slots: Tensor) -> RowSpan:
        """Row span of the live rows, none without a host; a copy: draft decode reuses the live slot mapping."""
        if not self.active:
            return RowSpan(slot_mapping[:0], source_slots[:0])
        live = (slot_mapping >= 0).nonzero().squeeze(1)
        return RowSpan(slot_mapping.index_select(0, live), source_slots.index_select(0, live))

    def copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        """Copy the rows of `span` of `layers` to the host pool."""
        host = self._memory.host
        if host is None:
            return
        for layer in layers:
            rows = self._memory.pool.layers[layer].index_select(0, span.device_rows)
            host.layers[layer].index_copy_(
                0, span.host_rows.to(host.layers[layer].device), rows.to(host.layers[layer].device)
            )
            self.copies[layer] = self.copies.get(layer, 0) + 1
        self._on_copy(layers, span)

    def hand_over(self) -> None:
        """Report this step's complete pages clean; from now on they may be evicted."""
        self.handed_over = True
        if self.active:
            self._hand_over()
